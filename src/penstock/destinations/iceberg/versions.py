"""Which versions of a table can be forgotten without the loss of a file: a decision, and nothing else.

Every commit writes the list of all versions again, and every reader begins with it: at one a second it is megabytes
within the hour that files are kept. But what keeps a file is the last version that had it. So of old versions those
are enough that came just before a commit that took files out of the table: one for each upkeep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REMOVALS = ("deleted-data-files", "removed-delete-files")
"""What the summary of a commit has if it took files out."""


def superfluous_versions(metadata: Mapping[str, Any], older_than_ms: int) -> list[int]:
    """Return versions from before a time whose files are all in one that stays, given a table's metadata.

    Only ancestors of the present one: of others nobody knows who wants them. Where one is missing, those before it
    were looked at when it was forgotten.
    """
    known = {each["snapshot-id"]: each for each in metadata["snapshots"]}
    named = {reference["snapshot-id"] for reference in metadata.get("refs", {}).values()}
    found = []
    child = known.get(metadata["current-snapshot-id"])
    while child is not None:
        version = known.get(child.get("parent-snapshot-id"))
        if version is not None and version["timestamp-ms"] < older_than_ms:
            id_ = version["snapshot-id"]
            if id_ not in named and not any(removal in child["summary"] for removal in _REMOVALS):
                found.append(id_)
        child = version
    return found
