"""A version's checksum, as Delta calls it: what the table is then, beside the entry of the log that made it so.

Spark finds protocol and metadata there, where it would otherwise run a job over checkpoint and entries before it plans
a query: of a table that changes all the time, with every query. A version without one is as good, and slower to read;
one with a wrong one is damaged, for Spark and for the Delta library.
"""

from __future__ import annotations

import json
import logging

from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.log import Action, TableState

_log = logging.getLogger(__name__)

# As many as one request removes from a bucket, and several times as many as there are between two checkpoints.
_REMOVED_AT_ONCE = 1000


def write_checksum(folder: TableFolder, state: TableState) -> None:
    """Write down what a table is at the version that was just committed, which stands whether or not this succeeds."""
    if not _is_plain(state.metadata):
        return
    sizes = [member.add["size"] for member in state.members.values()]
    found = {
        "tableSizeBytes": sum(sizes),
        "numFiles": len(sizes),
        "numMetadata": 1,
        "numProtocol": 1,
        "metadata": state.metadata,
        "protocol": state.protocol,
    }
    name, content = _name(state.version), f"{json.dumps(found)}\n".encode()
    try:
        if not folder.put_if_absent(name, content):
            # Of an entry that somebody took away, and whose number ours now has: in a table that was restored, say.
            folder.remove(name)
    except OSError as error:
        _log.warning("a version of the Delta table at %s got no checksum: %s", folder.location, error)


def remove_checksums(folder: TableFolder, version: int) -> None:
    """Remove those of versions before this one: the Delta library's clean-up leaves them alone."""
    try:
        folder.remove_all(map(_name, range(max(0, version - _REMOVED_AT_ONCE), version)))
    except OSError as error:
        _log.warning("checksums of the Delta table at %s were not removed: %s", folder.location, error)


def _name(version: int) -> str:
    return f"_delta_log/{version:020d}.crc"


def _is_plain(metadata: Action) -> bool:
    """Whether it says all that Spark expects: what is missing is one thing to it in a log, and another one here."""
    options, settings = metadata.get("format", {}).get("options"), metadata.get("configuration")
    are_maps = all(isinstance(each, dict) and None not in each.values() for each in (options, settings))
    return are_maps and isinstance(metadata.get("partitionColumns"), list)
