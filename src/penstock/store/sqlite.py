"""The embedded store: one SQLite file, which several pipelines may share and other processes may read.

Durable means: in write-ahead mode with `synchronous = full`, a commit is on the disk when it returns, and readers
in other processes neither wait for it nor hold it up.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

from penstock.errors import ErrorKind, StateError
from penstock.model.lsn import Lsn
from penstock.model.phase import Phase, phase_from_json, phase_to_json
from penstock.model.table import PipelineId, TableId, TableSchema
from penstock.store import query
from penstock.store.cached import CachedStore
from penstock.store.migration import Migration, check_version, current_version, migrate, read_migrations

V = TypeVar("V")

# Another process holds the write lock for one small commit at a time; a wait this long means it hangs.
_BUSY_TIMEOUT_S = 10.0
_LOW_32_BITS = 0xFFFFFFFF

_RESTORE = "Restore the file from a copy; without one, drop the pipeline's state, which copies every table anew."
_FREE = "Free space, or mend access, where the file lies."
_FAULTS: dict[int, tuple[str, ErrorKind, str]] = {
    sqlite3.SQLITE_CORRUPT: ("is damaged", ErrorKind.STATE, _RESTORE),
    sqlite3.SQLITE_NOTADB: ("is not a SQLite database, or is damaged", ErrorKind.STATE, _RESTORE),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", ErrorKind.STATE, _FREE),
    sqlite3.SQLITE_PERM: ("cannot be written", ErrorKind.STATE, _FREE),
    sqlite3.SQLITE_READONLY: ("cannot be written", ErrorKind.STATE, _FREE),
    sqlite3.SQLITE_FULL: ("cannot grow: no space is left", ErrorKind.LOG_IO, _FREE),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", ErrorKind.LOG_IO, _FREE),
    sqlite3.SQLITE_BUSY: ("is locked", ErrorKind.LOG_IO, "Stop the other process that writes to it."),
}
_FORGET_TABLE = ("forget_phases", "forget_schema", "forget_mapping", "forget_watermark")


class NothingStoredError(StateError):
    """A file that was opened read-only has nothing yet: a replicator has just made it, or was cut off there."""


class SQLiteStore(CachedStore):
    """Keeps one pipeline's state in a SQLite file, which it creates and migrates as needed.

    With `readonly` it does neither, refuses writes, and sees what another process has committed when
    `load_…` is called again.
    """

    def __init__(self, path: Path | str, pipeline: PipelineId, *, readonly: bool = False) -> None:
        self.path = Path(path)
        backing = _SQLiteFile(self.path, pipeline, readonly=readonly)
        try:
            super().__init__(backing)
        except BaseException:
            backing.close()
            raise

    @classmethod
    def open_readonly(cls, path: Path | str, pipeline: PipelineId) -> Self:
        """Look into a file that another process may be writing to."""
        return cls(path, pipeline, readonly=True)


class _SQLiteFile:
    """A backing on one connection. The rows of other pipelines are never touched."""

    def __init__(self, path: Path, pipeline: PipelineId, *, readonly: bool) -> None:
        self._path = path
        self._pipeline = str(pipeline)
        self._readonly = readonly
        with self._faults_named():
            self._connection = _open_readonly(path) if readonly else _open_writable(path)
        try:
            self._prepare(read_migrations("sqlite"))
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._readonly:
            raise StateError(f"{self._path} was opened read-only", remedy="Open the store without readonly to write.")
        with self._faults_named():
            # Immediate: the history that is read inside must not change before it is written.
            self._connection.execute("begin immediate")
            try:
                yield
                self._connection.execute("commit")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")

    def read_phases(self) -> dict[TableId, Phase]:
        return self._read("read_phases", lambda text: phase_from_json(json.loads(text)))

    def read_history(self, table: TableId) -> tuple[Phase, ...]:
        with self._faults_named():
            return tuple(phase_from_json(json.loads(phase)) for _, phase in self._chain(table))

    def cut_history(self, table: TableId, keep: int) -> None:
        ids = [row for row, _ in self._chain(table)]
        # Newest first: a row may not go while another refers to it.
        for row in reversed(ids[keep:]):
            self._execute("delete_phase", id=row)
        if keep:
            self._execute("mark_phase", id=ids[keep - 1], is_current=1)

    def append_phase(self, table: TableId, phase: Phase) -> None:
        prev = next((row for row, _ in reversed(self._chain(table))), None)
        self._execute("mark_phase", id=prev, is_current=0)
        self._execute("append_phase", table, phase=json.dumps(phase_to_json(phase)), prev=prev)

    def read_schemas(self) -> dict[TableId, TableSchema]:
        return self._read("read_schemas", lambda text: TableSchema.from_json(json.loads(text)))

    def write_schema(self, schema: TableSchema) -> None:
        self._execute("write_schema", schema.id, schema=json.dumps(schema.to_json()))

    def read_mappings(self) -> dict[TableId, str]:
        return self._read("read_mappings", str)

    def write_mapping(self, table: TableId, destination_table: str) -> None:
        self._execute("write_mapping", table, destination_table=destination_table)

    def read_watermarks(self) -> dict[TableId, Lsn]:
        return self._read("read_watermarks", Lsn.parse)

    def advance_watermark(self, table: TableId, watermark: Lsn) -> None:
        self._execute("advance_watermark", table, watermark=_sortable(watermark))

    def forget_watermark(self, table: TableId) -> None:
        self._execute("forget_watermark", table)

    def forget_table(self, table: TableId) -> None:
        for name in _FORGET_TABLE:
            self._execute(name, table)

    def close(self) -> None:
        self._connection.close()

    def _prepare(self, migrations: tuple[Migration, ...]) -> None:
        with self._faults_named():
            version = current_version(self._connection)
        check_version(version, migrations, str(self._path))
        if version < (newest := migrations[-1].version):
            self._upgrade(migrations, version, newest)

    def _upgrade(self, migrations: tuple[Migration, ...], version: int, newest: int) -> None:
        if self._readonly:
            raise (StateError if version else NothingStoredError)(
                f"{self._path} holds no state that this Penstock can read: it is empty or from an older version",
                remedy="Start the pipeline once: that creates or upgrades the file.",
            )
        with self.transaction():
            migrate(self._connection, migrations, newest)

    def _chain(self, table: TableId) -> list[tuple[int, str]]:
        return self._execute("read_history", table).fetchall()

    def _read(self, name: str, parse: Callable[[str], V]) -> dict[TableId, V]:
        with self._faults_named():
            return {TableId(table): parse(text) for table, text in self._execute(name)}

    def _execute(self, name: str, table: TableId | None = None, **values: str | int | None) -> sqlite3.Cursor:
        parameters = {"pipeline": self._pipeline, "table": table and int(table), **values}
        return self._connection.execute(query.load(name), parameters)

    @contextmanager
    def _faults_named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise StateError(f"the store on {self._path} is closed", remedy="Open a new store.") from error
        except sqlite3.Error as error:
            raise self._fault(error) from error
        except OSError as error:
            raise StateError(f"{self._path} cannot be opened: {error.strerror}", remedy=_FREE) from error
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{self._path} holds an entry that cannot be read", remedy=_RESTORE) from error

    def _fault(self, error: sqlite3.Error) -> StateError:
        # The low byte is the primary code; the rest tells variants apart that have the same remedy.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        what, kind, remedy = _FAULTS.get(code, (f"cannot be used: {error}", ErrorKind.STATE, _RESTORE))
        return StateError(f"{self._path} {what}", kind=kind, remedy=remedy)


def _open_writable(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = _connect(str(path))
    try:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("pragma foreign_keys = on")
    except BaseException:
        connection.close()
        raise
    return connection


def _open_readonly(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise StateError(
            f"{path} does not exist", remedy="Start the pipeline once, or correct state_dir or store.sqlite.path."
        )
    return _connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _connect(database: str, *, uri: bool = False) -> sqlite3.Connection:
    # No implicit transactions: they are ours to open. Other threads may use it: the store's lock serialises them.
    return sqlite3.connect(database, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=uri)


def _sortable(lsn: Lsn) -> str:
    return f"{int(lsn) >> 32:08X}/{int(lsn) & _LOW_32_BITS:08X}"
