"""One view of the source for many readers: a snapshot that belongs to a position in the stream.

A temporary slot's consistent point `S` and its exported snapshot name the same moment: the snapshot
holds exactly the transactions whose commit comes before `S`. It can be imported for as long as the
connection that exported it is left alone.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from penstock.errors import ErrorKind, SourceError
from penstock.model.lsn import Lsn
from penstock.model.table import TableName, quote_identifier
from penstock.postgres import query
from penstock.postgres.connection import Connection, SourceAddress, as_source_error, connect, source_errors
from penstock.postgres.slot import PLUGIN, run_create_slot

LOCK_TIMEOUT_S = 60
"""Longer than a migration should hold a table, shorter than an operator's patience."""


class ExportedSnapshot:
    """A snapshot and its position, from entering to leaving.

    `tables` are locked in access share mode until the end. Readers may then be many and come late: a
    rewrite of a table (VACUUM FULL, CLUSTER, TRUNCATE, some ALTER TABLE) moves rows to other blocks, or
    hides them from older snapshots, and would make a copy in ranges lose some.

    The locks come after the snapshot, because making it waits for open transactions, and one of
    those may itself wait for such a lock: the server would not see the deadlock. A table rewritten in
    between is found by its file, and the snapshot is given up.
    """

    def __init__(self, address: SourceAddress, tables: Sequence[TableName] = (), *, application_name: str) -> None:
        self._address = address
        self._tables = tables
        self._application_name = application_name
        self._stack = contextlib.ExitStack()
        self._exporter: Connection | None = None
        self._point: Lsn | None = None
        self._name: str | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._exporter = self._connect(stack, replication=True)
            self._point, self._name = _export(self._exporter)
            if self._tables:
                holder = self._connect(stack)
                self._lock_tables(holder)
                self._require_not_rewritten(holder)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def name(self) -> str:
        """What `import_snapshot` takes."""
        assert self._name is not None, "the snapshot is not open"
        return self._name

    @property
    def consistent_point(self) -> Lsn:
        """The position: of every transaction that commits before it, all is in the snapshot, of the others nothing."""
        assert self._point is not None, "the snapshot is not open"
        return self._point

    def _connect(self, stack: contextlib.ExitStack, *, replication: bool = False) -> Connection:
        connection = connect(self._address, application_name=self._application_name, replication=replication)
        return stack.enter_context(contextlib.closing(connection))

    def _lock_tables(self, connection: Connection) -> None:
        names = ", ".join(str(table) for table in self._tables)
        with source_errors(f"locking {names} in access share mode"):
            connection.execute("begin")
            connection.execute(sql.SQL("set local lock_timeout = {}").format(LOCK_TIMEOUT_S * 1000))
            for table in self._tables:
                connection.execute(f"lock table {table.quoted} in access share mode")

    def _require_not_rewritten(self, holder: Connection) -> None:
        with contextlib.closing(connect(self._address, application_name=self._application_name)) as reader:
            import_snapshot(reader, self.name)
            before = _files(reader, self._tables)
        after = _files(holder, self._tables)
        rewritten = [name for name, file in before.items() if after.get(name) != file]
        if rewritten:
            raise SourceError(
                f"{', '.join(rewritten)}: rewritten or truncated at the moment of the snapshot",
                kind=ErrorKind.SOURCE_SNAPSHOT_LOST,
            )


def _files(connection: Connection, tables: Sequence[TableName]) -> dict[str, int]:
    """Return the file of every table and partition, as the connection's own snapshot sees it."""
    names = [table.quoted for table in tables]
    with source_errors("looking at the tables' files"):
        return dict(connection.execute(query.load("table_files"), {"tables": names}).fetchall())


def _export(connection: Connection) -> tuple[Lsn, str]:
    slot = f"penstock_copy_{secrets.token_hex(8)}"
    statement = f"CREATE_REPLICATION_SLOT {quote_identifier(slot)} TEMPORARY LOGICAL {PLUGIN} EXPORT_SNAPSHOT"
    point, name = run_create_slot(connection, slot, statement)
    assert name is not None
    return point, name


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
