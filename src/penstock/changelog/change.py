"""What happened, in commit order: the log's transactions and their changes, as plain values.

Nothing here refuses a value: where the policies would, the server's text is given as it is.
"""

from __future__ import annotations

import datetime as dt
import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.entry import DataFile, Entry
from penstock.changelog.reader import LogReader
from penstock.changelog.rows import read_parquet, rows_of, unpack_rows
from penstock.changelog.visitor import require_untrimmed
from penstock.contract import columns as log
from penstock.errors import LogDamagedError
from penstock.model.cell import Cell
from penstock.model.event import Truncate
from penstock.model.lsn import Lsn, Position
from penstock.model.policy import ValuePolicies
from penstock.model.table import Column, TableId, TableName, TableSchema
from penstock.wire.text import UnconvertibleValueError, cell_values

_ROWS_AT_A_TIME = 1024  # as Python objects; as columns a file's rows take far less
_BEFORE_ITS_CHANGES = -1

Values: TypeAlias = Mapping[str, Cell]
"""Columns, by name."""


@dataclass(frozen=True, slots=True)
class LoggedTransaction:
    """A transaction, before its changes."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: dt.datetime
    xid: int
    changes: int
    """Of all published tables."""


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """One row's change."""

    position: Position
    table: TableName
    """As it was called then."""
    op: str
    """I, U or D."""
    values: Values
    """The new row without what is unchanged; of a delete the key, where the source logged no more."""
    unchanged: Sequence[str] = ()
    old_key: Values | None = None
    before: Values | None = None
    """The old row, under REPLICA IDENTITY FULL."""


Logged: TypeAlias = LoggedTransaction | LoggedChange | Truncate


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which changes: of these tables, or of all; with `start <= commit_lsn < end`."""

    start: Lsn
    end: Lsn
    tables: Collection[TableId] | None = None

    def has_file(self, file: DataFile) -> bool:
        """Whether a file may hold such changes."""
        return self.has_table(file.table) and file.first_lsn < self.end and file.last_lsn >= self.start

    def has_table(self, table: TableId) -> bool:
        """Whether the table is one of them."""
        return self.tables is None or table in self.tables

    def has_truncate(self, truncate: Truncate) -> bool:
        """Whether it is one of them."""
        is_within = self.start <= truncate.position.commit_lsn < self.end
        return is_within and any(self.has_table(table) for table in truncate.tables)

    def rows(self, table: pa.Table, column: str) -> pa.Table:
        """Return the rows whose commit_lsn, in the column of that name, is within."""
        position = table.column(column)
        at_least = pc.greater_equal(position, pa.scalar(int(self.start), pa.int64()))
        return table.filter(pc.and_(at_least, pc.less(position, pa.scalar(int(self.end), pa.int64()))))


def read_changes(reader: LogReader, wanted: Wanted, policies: ValuePolicies) -> Iterator[Logged]:
    """Yield transactions, each followed by its changes. With tables given, only transactions that touched them.

    Raises `LogDamagedError` of the kind `LOG_GAP` if the log is trimmed under the reader.
    """
    found: Iterator[Logged] = chain.from_iterable(
        _stretch(_Source(reader, wanted, policies, stretch[-1].end_lsn), stretch)
        for stretch in _stretches(reader.entries)
        if _may_have(stretch, wanted)
    )
    return found if wanted.tables is None else _without_empty(found)


def _stretches(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Yield the complete entries, each with the chain that it closes."""
    start = 0
    for index, entry in enumerate(entries, start=1):
        if entry.is_complete:
            yield entries[start:index]
            start = index


def _may_have(stretch: Sequence[Entry], wanted: Wanted) -> bool:
    if stretch[-1].end_lsn <= wanted.start or stretch[-1].start_lsn >= wanted.end:
        return False
    if wanted.tables is None:
        return True
    return any(
        any(map(wanted.has_file, entry.files)) or any(map(wanted.has_truncate, entry.truncates)) for entry in stretch
    )


def _without_empty(found: Iterator[Logged]) -> Iterator[Logged]:
    """Leave out the transactions that no change follows."""
    waiting: LoggedTransaction | None = None
    for each in found:
        if isinstance(each, LoggedTransaction):
            waiting = each
            continue
        if waiting is not None:
            yield waiting
            waiting = None
        yield each


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a stretch is read from, and how."""

    reader: LogReader
    wanted: Wanted
    policies: ValuePolicies
    end_lsn: Lsn

    def read(self, path: str, footer_crc: int | None = None, *, is_shared: bool = False) -> pa.Table:
        read = self.reader.read_shared if is_shared else partial(read_parquet, self.reader.folder)
        try:
            return read(path, footer_crc)
        except LogDamagedError:
            require_untrimmed(self.reader.folder, self.end_lsn)
            raise

    def read_rows(self, file: DataFile, schema: TableSchema) -> pa.Table:
        content = self.read(file.path, file.footer_crc, is_shared=file.is_shared)
        try:
            return rows_of(content, file, schema, self.policies)
        except UnconvertibleValueError:
            return unpack_rows(content, schema, file.version) if file.is_shared else content


def _stretch(source: _Source, stretch: Sequence[Entry]) -> Iterator[Logged]:
    transactions = chain.from_iterable(_transactions(source, entry) for entry in stretch)
    changes = chain.from_iterable(_changes(source, entry) for entry in stretch)
    return (each for _, each in heapq.merge(transactions, changes, key=_place))


def _place(item: tuple[Position, Logged]) -> Position:
    return item[0]


def _transactions(source: _Source, entry: Entry) -> Iterator[tuple[Position, Logged]]:
    if entry.transactions_file is None:
        return
    found = source.wanted.rows(source.read(entry.transactions_file), "commit_lsn")
    for batch in found.to_batches(max_chunksize=_ROWS_AT_A_TIME):
        for row in batch.to_pylist():
            commit_lsn = Lsn(row["commit_lsn"])
            yield (
                Position(commit_lsn, _BEFORE_ITS_CHANGES),
                LoggedTransaction(
                    commit_lsn, Lsn(row["end_lsn"]), row["commit_ts"].astimezone(dt.UTC), row["xid"], row["changes"]
                ),
            )


def _changes(source: _Source, entry: Entry) -> Iterator[tuple[Position, Logged]]:
    truncates = ((each.position, each) for each in entry.truncates if source.wanted.has_truncate(each))
    files = [_file_changes(source, file) for file in entry.files if source.wanted.has_file(file)]
    return heapq.merge(truncates, *files, key=_place)


def _file_changes(source: _Source, file: DataFile) -> Iterator[tuple[Position, Logged]]:
    schema = source.reader.schema(file.table, file.version)
    table = source.wanted.rows(source.read_rows(file, schema), log.COMMIT_LSN)
    for batch in table.to_batches(max_chunksize=_ROWS_AT_A_TIME):
        yield from ((change.position, change) for change in _batch_changes(schema, batch))


def _batch_changes(schema: TableSchema, batch: pa.RecordBatch) -> Iterator[LoggedChange]:
    commits: list[Any] = batch.column(log.COMMIT_LSN).to_pylist()
    ordinals: list[Any] = batch.column(log.ORDINAL).to_pylist()
    return map(
        partial(_change, schema),
        batch.column(log.OP).to_pylist(),
        (Position(Lsn(commit), ordinal) for commit, ordinal in zip(commits, ordinals, strict=True)),
        _values(schema.columns, batch.num_rows, batch.column),
        _struct_values(schema.key, log.KEY, batch),
        _struct_values(schema.columns, log.BEFORE, batch),
        batch.column(log.UNCHANGED).to_pylist(),
    )


def _change(
    schema: TableSchema,
    op: str,
    position: Position,
    values: dict[str, Cell],
    old_key: Values | None,
    before: Values | None,
    unchanged: Sequence[str] | None,
) -> LoggedChange:
    if op == "D":
        values = {column.name: values[column.name] for column in schema.key}
    sent = {name: value for name, value in values.items() if name not in (unchanged or ())}
    return LoggedChange(position, schema.name, op, sent, tuple(unchanged or ()), old_key, before)


def _values(columns: Sequence[Column], rows: int, array_of: Callable[[str], Any]) -> Iterator[dict[str, Cell]]:
    names = [column.name for column in columns]
    if not names:
        return ({} for _ in range(rows))
    cells = (cell_values(array_of(log.stored_name(column.name)), column.type) for column in columns)
    return (dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True))


def _struct_values(columns: Sequence[Column], name: str, batch: pa.RecordBatch) -> Iterator[Values | None]:
    if name not in batch.schema.names:
        return iter([None] * batch.num_rows)
    struct: Any = batch.column(name)
    found = _values(columns, batch.num_rows, struct.field)
    return (row if valid else None for row, valid in zip(found, struct.is_valid().to_pylist(), strict=True))
