"""The replication slot on the source: its state, its creation and its end.

A slot keeps the source's WAL for us, so it is created once, never silently recreated, and dropped
only when asked for.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.errors import ErrorKind, SourceError
from penstock.model.lsn import Lsn
from penstock.model.table import quote_identifier
from penstock.postgres import query
from penstock.postgres.connection import Connection, SourceAddress, as_source_error, connect, source_errors

PLUGIN = "pgoutput"
_TERMINATE_WAIT_S = 5.0
_FAILOVER_SINCE = 170000
# A WAL page begins with a header, the first page of a segment file with a longer one.
_PAGE_BYTES, _SHORT_HEADER, _LONG_HEADER = 8192, 24, 40


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot as the source shows it; where it does not exist, only its name means anything."""

    name: str
    exists: bool
    active: bool = False
    active_pid: int | None = None
    plugin: str | None = None
    database: str | None = None
    wal_status: str | None = None
    """`reserved`, `extended`, `unreserved` or `lost`: how safe the WAL is that the slot still needs."""
    restart_lsn: Lsn | None = None
    confirmed_flush_lsn: Lsn | None = None
    invalidation: str | None = None
    """Why the source has given the slot up; None while it is sound."""


def read_slot(connection: Connection, name: str) -> SlotState:
    """Return a slot's state."""
    with source_errors(f"reading replication slot {name}"):
        row = connection.execute(query.load("slot"), {"slot": name}).fetchone()
    return SlotState(name, exists=False) if row is None else _state(name, row[0])


def _state(name: str, shown: dict[str, Any]) -> SlotState:
    return SlotState(
        name,
        exists=True,
        active=shown["active"],
        active_pid=shown["active_pid"],
        plugin=shown["plugin"],
        database=shown["database"],
        wal_status=shown["wal_status"],
        restart_lsn=_lsn(shown["restart_lsn"]),
        confirmed_flush_lsn=_lsn(shown["confirmed_flush_lsn"]),
        invalidation=_invalidation(shown),
    )


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)


def _invalidation(shown: dict[str, Any]) -> str | None:
    """Tell why: in a word from 17 on; before, only that WAL is gone, or (16) that recovery conflicted."""
    if reason := shown.get("invalidation_reason"):
        return str(reason)
    if shown["wal_status"] == "lost":
        return "wal_removed"
    return "conflict" if shown.get("conflicting") else None


def create_slot(connection: Connection, name: str, *, failover: bool = False) -> Lsn:
    """Create the slot on a replication connection, and return its consistent point.

    Waits for the transactions that are open at the time. No snapshot is exported. With `failover`, servers
    that know it keep the slot on their standbys too.
    """
    options = "NOEXPORT_SNAPSHOT"
    if failover and connection.info.server_version >= _FAILOVER_SINCE:
        options = "(SNAPSHOT 'nothing', FAILOVER)"
    statement = f"CREATE_REPLICATION_SLOT {quote_identifier(name)} LOGICAL {PLUGIN} {options}"
    return run_create_slot(connection, name, statement)[0]


def run_create_slot(connection: Connection, name: str, statement: str) -> tuple[Lsn, str | None]:
    """Run a creating statement, and return the consistent point and the exported snapshot's name.

    The syntax is the one that all supported servers accept, 14 included.
    """
    try:
        row = connection.execute(statement).fetchone()
    except psycopg.errors.DuplicateObject:
        raise SourceError(
            f"replication slot {name} exists already",
            kind=ErrorKind.STATE,
            remedy="Use it, drop it (select pg_drop_replication_slot), or give this pipeline another id.",
        ) from None
    except psycopg.Error as error:
        raise as_source_error(error, f"creating replication slot {name}") from None
    assert row is not None
    _, consistent_point, snapshot, _ = row
    return Lsn.parse(consistent_point), snapshot


def drop_slot(connection: Connection, name: str, *, terminate: bool = False, timeout_s: float = 30.0) -> None:
    """Drop the slot if it exists; end whoever reads it first if asked to, within the time given."""
    deadline = time.monotonic() + timeout_s
    while not _try_drop(connection, name):
        state = read_slot(connection, name)
        if not terminate or time.monotonic() > deadline:
            raise slot_in_use(state)
        if state.active_pid is not None:
            _terminate(connection, state.active_pid)


def _try_drop(connection: Connection, name: str) -> bool:
    try:
        connection.execute(query.load("drop_slot"), {"slot": name})
    except psycopg.errors.ObjectInUse:
        return False
    except psycopg.errors.UndefinedObject:
        return True  # someone else dropped it meanwhile
    except psycopg.Error as error:
        raise as_source_error(error, f"dropping replication slot {name}") from None
    return True


def _terminate(connection: Connection, pid: int) -> None:
    with source_errors(f"ending process {pid}, which reads the slot"):
        connection.execute(query.load("terminate_backend"), {"pid": pid, "timeout_ms": int(_TERMINATE_WAIT_S * 1000)})


def slot_in_use(state: SlotState) -> SourceError:
    """Return the error that says who reads a slot."""
    holder = f"process {state.active_pid}" if state.active_pid is not None else "another process"
    return SourceError(f"replication slot {state.name} is in use by {holder} on the source", kind=ErrorKind.SLOT_IN_USE)


def source_position(address: SourceAddress) -> Lsn:
    """Return the position that the source has reached just now: whatever has committed, committed before it."""
    with (
        closing(connect(address, application_name="penstock position")) as connection,
        source_errors("asking for the source's position"),
    ):
        row = connection.execute(query.load("position")).fetchone()
    assert row is not None
    position, segment_bytes = Lsn.parse(row[0]), row[1]
    # Right behind a page's header nothing has been written yet: the server's own positions say the page's start.
    for header, page in ((_LONG_HEADER, segment_bytes), (_SHORT_HEADER, _PAGE_BYTES)):
        if position % page == header:
            return Lsn(position - header)
    return position
