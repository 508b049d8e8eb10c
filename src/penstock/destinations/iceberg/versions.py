"""Which versions of a table can be forgotten without the loss of a file: a decision, and nothing else.

Every commit writes the list of all versions again, and every reader begins with it: at one a second it is megabytes
within the hour that files are kept. But what keeps a file is the last version that had it. So of old versions those
are enough that came just before a commit that took files out of the table: one for each upkeep.

Where the chain of versions has gaps the library removes files by reachability, and not by what each commit says that it
took out: so does 1.12, and another version of it has to be tried before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REMOVALS = ("deleted-data-files", "removed-delete-files")
"""What the summary of a commit has if it took files out; by the specification others need not say so."""
_OURS = "penstock."


def needed_since(metadata: Mapping[str, Any], older_than_ms: int) -> int:
    """Return the time before which no version is needed by who began to read at a time, or later.

    That is when the version came that was the present one then, however long before.
    """
    earlier = [each["timestamp-ms"] for each in metadata["snapshots"] if each["timestamp-ms"] <= older_than_ms]
    return max(earlier, default=older_than_ms)


def superfluous_versions(metadata: Mapping[str, Any], older_than_ms: int, most_young: int) -> list[int]:
    """Return versions from before a time whose files are all in one that stays, given a table's metadata.

    And of those since then all but the newest `most_young`. Only ancestors of the present one: of others nobody knows
    who wants them. Where one is missing, those before it were looked at when it was forgotten.
    """
    known = {each["snapshot-id"]: each for each in metadata["snapshots"]}
    named = {reference["snapshot-id"] for reference in metadata.get("refs", {}).values()}
    found, place = [], 0
    child = known.get(metadata["current-snapshot-id"])
    while child is not None:
        version, place = known.get(child.get("parent-snapshot-id")), place + 1
        if version is not None and (version["timestamp-ms"] < older_than_ms or place >= most_young):
            id_ = version["snapshot-id"]
            if id_ not in named and not _takes_files_out(child["summary"]):
                found.append(id_)
        child = version
    return found


def _takes_files_out(summary: Mapping[str, str]) -> bool:
    is_ours = any(name.startswith(_OURS) for name in summary)
    return any(removal in summary for removal in _REMOVALS) or not (is_ours or summary["operation"] == "append")
