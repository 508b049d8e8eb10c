"""The actions that our entries in a Delta table's log are made of."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from penstock.contract.batch import CopiedFile
from penstock.destinations.delta.commit import Committer
from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.log import Action, Member
from penstock.destinations.delta.schema import statistics
from penstock.model.lsn import Lsn


def add_file(folder: TableFolder, file: CopiedFile, *, is_change: bool = True) -> Action:
    """Return the action that makes a new file a part of the table; `is_change` unless its rows were there before."""
    return {
        "add": {
            "path": folder.logged(file.path),
            "partitionValues": {},
            "size": file.size_bytes,
            "modificationTime": _now_ms(),
            "dataChange": is_change,
            "stats": statistics(file),
        }
    }


def remove(member: Member, *, is_change: bool = True) -> Action:
    """Return the action that takes a file, with the deletion vector it has, out of the table."""
    return {"remove": {**_removed(member), "deletionTimestamp": _now_ms(), "dataChange": is_change}}


def _removed(member: Member) -> Action:
    # Without statistics, which nobody asks of a file that is gone: they were three quarters of every checkpoint.
    named = ("path", "partitionValues", "size", "deletionVector", "tags")
    return {"extendedFileMetadata": True, **{name: member.add[name] for name in named if name in member.add}}


def with_vector(member: Member, vector: Mapping[str, Any], rows: int, *, is_change: bool = True) -> Action:
    """Return the action that makes a file a part of the table again, with fewer rows.

    Its bounds still hold and are no longer tight; its number of rows is that of the file itself.
    """
    stats = _as_json({**member.statistics, "numRecords": rows, "tightBounds": False})
    return {"add": {**member.add, "deletionVector": dict(vector), "stats": stats, "dataChange": is_change}}


def _as_json(value: Any) -> str:
    """Write statistics with every digit that they have: a bound put through a float would no longer be one."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_as_json(item)}" for name, item in value.items()) + "}"
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def transaction(app_id: str, number: int) -> Action:
    """Return the action that sets a number of ours: the table's position, say."""
    return {"txn": {"appId": app_id, "version": int(number), "lastUpdated": _now_ms()}}


def commit_info(committer: Committer, position: Lsn, read_version: int, operation: str, *, is_append: bool) -> Action:
    """Return what an entry says about itself, to people and to other writers that meet it."""
    return {
        "commitInfo": {
            "timestamp": _now_ms(),
            "operation": operation,
            "operationParameters": {},
            "readVersion": read_version,
            "isolationLevel": "Serializable",
            "isBlindAppend": is_append,
            "engineInfo": "Penstock",
            "txnId": str(uuid.uuid4()),
            "userMetadata": committer.metadata(position),
        }
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
