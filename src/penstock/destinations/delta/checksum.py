"""A version's checksum, as Delta calls it: what the table is then, beside the entry of the log that made it so.

Spark finds protocol and metadata there, where it would otherwise run a job over checkpoint and entries before it plans
a query: of a table that changes all the time, with every query. A version without one is as good, and slower to read.
"""

from __future__ import annotations

import json
import logging
import re

from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.log import TableState

_log = logging.getLogger(__name__)

_LOG = "_delta_log"
_CHECKSUM = re.compile(r"(\d{20})\.crc\Z")


def write_checksum(folder: TableFolder, state: TableState) -> None:
    """Write down what a table is at the version that was just committed, which stands whether or not this succeeds."""
    sizes = [member.add["size"] for member in state.members.values()]
    found = {
        "tableSizeBytes": sum(sizes),
        "numFiles": len(sizes),
        "numMetadata": 1,
        "numProtocol": 1,
        "metadata": state.metadata,
        "protocol": state.protocol,
    }
    try:
        folder.put_if_absent(f"{_LOG}/{state.version:020d}.crc", f"{json.dumps(found)}\n".encode())
    except OSError:
        _log.warning("a version of the Delta table at %s got no checksum", folder.location, exc_info=True)


def remove_checksums(folder: TableFolder, version: int) -> None:
    """Remove those of versions before this one: the Delta library's clean-up leaves them alone."""
    found = [(name, match) for name in folder.names(_LOG) if (match := _CHECKSUM.match(name))]
    folder.remove_all(f"{_LOG}/{name}" for name, match in found if int(match[1]) < version)
