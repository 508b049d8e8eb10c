"""One view of the source for many readers: a snapshot that belongs to a position in the stream.

A temporary slot's consistent point `S` and its exported snapshot name the same moment: the snapshot
holds exactly the transactions whose commit comes before `S`. It can be imported for as long as the
connection that exported it is left alone.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from penstock.errors import ErrorKind, SourceError
from penstock.model.lsn import Lsn
from penstock.model.table import quote_identifier
from penstock.postgres import query
from penstock.postgres.connection import Connection, SourceAddress, as_source_error, connect, source_errors
from penstock.postgres.slot import PLUGIN, run_create_slot


class ExportedSnapshot:
    """A snapshot and its position, from entering to leaving."""

    def __init__(self, address: SourceAddress, *, application_name: str) -> None:
        self._address = address
        self._application_name = application_name
        self._exporter: Connection | None = None
        self._point: Lsn | None = None
        self._name: str | None = None
        self._taken_s = 0.0

    def __enter__(self) -> Self:
        self._exporter = connect(self._address, application_name=self._application_name, replication=True)
        try:
            self._point, self._name = _export(self._exporter)
            self._taken_s = time.monotonic()
        except BaseException:
            self._exporter.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._exporter is not None
        self._exporter.close()

    def cancel(self) -> None:
        """From another thread: stop waiting for transactions that are open on the source, so that entering fails."""
        if self._exporter is not None:
            with contextlib.suppress(psycopg.Error):
                self._exporter.cancel_safe(timeout=5.0)

    @property
    def name(self) -> str:
        """What `import_snapshot` takes."""
        assert self._name is not None, "the snapshot is not open"
        return self._name

    @property
    def age_s(self) -> float:
        """For how long the source has kept what it would otherwise vacuum; 0 before it is taken."""
        return 0.0 if self._name is None else time.monotonic() - self._taken_s

    @property
    def consistent_point(self) -> Lsn:
        """The position: of every transaction that commits before it, all is in the snapshot, of the others nothing."""
        assert self._point is not None, "the snapshot is not open"
        return self._point


def _export(connection: Connection) -> tuple[Lsn, str]:
    slot = f"penstock_copy_{secrets.token_hex(8)}"
    statement = f"CREATE_REPLICATION_SLOT {quote_identifier(slot)} TEMPORARY LOGICAL {PLUGIN} EXPORT_SNAPSHOT"
    point, name = run_create_slot(connection, slot, statement)
    assert name is not None
    return point, name


class SessionSnapshot:
    """A snapshot without a position, from entering to leaving: any role can take one, and it costs no slot."""

    def __init__(self, address: SourceAddress, *, application_name: str) -> None:
        self._address = address
        self._application_name = application_name
        self._exporter: Connection | None = None
        self._name = ""

    def __enter__(self) -> Self:
        self._exporter = connect(self._address, application_name=self._application_name)
        try:
            with source_errors("exporting a snapshot"):
                self._exporter.execute("begin transaction isolation level repeatable read, read only")
                row = self._exporter.execute("select pg_catalog.pg_export_snapshot()").fetchone()
        except BaseException:
            self._exporter.close()
            raise
        assert row is not None
        self._name = row[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._exporter is not None
        self._exporter.close()

    @property
    def name(self) -> str:
        """What `import_snapshot` takes."""
        assert self._name, "the snapshot is not open"
        return self._name

    def sessions(self, application_name: str) -> Sessions:
        """Count sessions of our role: those of a name, and exporters like this one that began later."""
        assert self._exporter is not None, "the snapshot is not open"
        with source_errors("counting the readers of a snapshot"):
            # Without it a transaction sees for ever what it saw first.
            self._exporter.execute("select pg_catalog.pg_stat_clear_snapshot()")
            row = self._exporter.execute(query.load("sessions"), {"named": application_name}).fetchone()
        assert row is not None
        return Sessions(*row)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Who else is there."""

    named: int
    """Sessions of the name asked for."""
    newer: int
    """Sessions of our own name that began after ours."""


def import_snapshot(connection: Connection, name: str) -> None:
    """Begin a read-only transaction that sees what the snapshot saw; the caller ends it."""
    try:
        connection.execute("begin transaction isolation level repeatable read, read only")
        connection.execute(sql.SQL("set transaction snapshot {}").format(name))
    except (
        psycopg.errors.InvalidParameterValue,
        psycopg.errors.UndefinedObject,
        psycopg.errors.ObjectNotInPrerequisiteState,
    ):
        connection.execute("rollback")
        raise SourceError(
            f"snapshot {name} is gone: the session that exported it has ended", kind=ErrorKind.SOURCE_SNAPSHOT_LOST
        ) from None
    except psycopg.Error as error:
        raise as_source_error(error, "importing a snapshot") from None
