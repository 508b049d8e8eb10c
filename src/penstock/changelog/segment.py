"""Changes collected in memory, and their form as Arrow tables: the content of one segment.

Rows are kept as the server sent them, one tuple of bytes each; columns are built once, when the
segment is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from penstock.contract import columns as log
from penstock.model.event import Truncate
from penstock.model.lsn import NOWHERE, Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.table import Column, TableId, TableSchema
from penstock.wire.arrow import arrow_type
from penstock.wire.column import convert_column
from penstock.wire.text import UnconvertibleValueError

Text: TypeAlias = bytes | None
"""A value as the server printed it."""

_ROW_OVERHEAD_BYTES = 400  # what CPython spends on a row's tuples and list slots, measured
_VALUE_OVERHEAD_BYTES = 41  # a bytes object's own header and its slot


@dataclass(slots=True)
class Transaction:
    """A transaction of the stream, growing until its commit."""

    commit_lsn: Lsn
    commit_time_us: int
    """Microseconds since 1970, UTC."""
    xid: int
    end_lsn: Lsn = NOWHERE
    changes: int = 0


class Change(NamedTuple):
    """One row's change."""

    op: str
    values: Sequence[Text]
    """The new row; of a delete the old key's values, with None elsewhere."""
    transaction: Transaction
    ordinal: int
    old_key: Sequence[Text] | None = None
    """In the key's order, where an update changed it."""
    before: Sequence[Text] | None = None
    unchanged: list[str] | None = None


@dataclass(slots=True)
class TableChangeList:
    """One table's changes in a segment, all of one schema version."""

    schema: TableSchema
    version: int
    changes: list[Change] = field(default_factory=list)


@dataclass(slots=True)
class Segment:
    """Changes on their way into the log, in commit order; the last transaction may still be open."""

    tables: dict[tuple[TableId, int], TableChangeList] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    """Those that committed."""
    truncates: list[Truncate] = field(default_factory=list)
    size_bytes: int = 0
    _open_from: dict[tuple[TableId, int], int] = field(default_factory=dict)
    """Where the open transaction's changes begin, in each table that it touched."""
    _open_truncates: int = 0
    _open_bytes: int = 0

    def begin(self) -> None:
        """Open a transaction."""
        self._open_from = {}
        self._open_truncates = len(self.truncates)
        self._open_bytes = 0

    def add(self, schema: TableSchema, version: int, change: Change) -> None:
        """Append one change to the open transaction."""
        key = (schema.id, version)
        table = self.tables.get(key)
        if table is None:
            table = self.tables[key] = TableChangeList(schema, version)
        self._open_from.setdefault(key, len(table.changes))
        table.changes.append(change)
        size = _change_bytes(change)
        self.size_bytes += size
        self._open_bytes += size

    def commit(self, transaction: Transaction) -> None:
        """Close the open transaction."""
        self.transactions.append(transaction)
        self.begin()

    def take_complete(self) -> Segment:
        """Split off everything before the open transaction; what remains is that transaction's."""
        complete = Segment(transactions=self.transactions, truncates=self.truncates[: self._open_truncates])
        complete.size_bytes = self.size_bytes - self._open_bytes
        rest: dict[tuple[TableId, int], TableChangeList] = {}
        for key, table in self.tables.items():
            at = self._open_from.get(key, len(table.changes))
            if at:
                complete.tables[key] = TableChangeList(table.schema, table.version, table.changes[:at])
            if at < len(table.changes):
                rest[key] = TableChangeList(table.schema, table.version, table.changes[at:])
        self.tables, self.transactions = rest, []
        self.truncates = self.truncates[self._open_truncates :]
        self.size_bytes = self._open_bytes
        self._open_from, self._open_truncates = dict.fromkeys(rest, 0), 0
        return complete


def _change_bytes(change: Change) -> int:
    size = _ROW_OVERHEAD_BYTES
    for values in (change.values, change.old_key or (), change.before or ()):
        for value in values:
            if value is not None:
                size += len(value) + _VALUE_OVERHEAD_BYTES
    return size


def log_schema(schema: TableSchema, *, as_text: bool = False) -> pa.Schema:
    """Return the Arrow schema of a table's data files; `as_text` that of values not converted."""

    def fields(columns: Iterable[Column]) -> list[pa.Field[Any]]:
        types = ((column.name, pa.string() if as_text else arrow_type(column.type)) for column in columns)
        return [pa.field(log.stored_name(name), type_) for name, type_ in types]

    metadata: list[pa.Field[Any]] = [
        pa.field(log.OP, pa.string()),
        pa.field(log.COMMIT_LSN, pa.int64()),
        pa.field(log.ORDINAL, pa.int64()),
        pa.field(log.COMMIT_TS, pa.timestamp("us", "UTC")),
        pa.field(log.XID, pa.int64()),
    ]
    if schema.key:
        metadata.append(pa.field(log.KEY, pa.struct(fields(schema.key))))
    if schema.logs_old_rows:
        metadata.append(pa.field(log.BEFORE, pa.struct(fields(schema.columns))))
    metadata.append(pa.field(log.UNCHANGED, pa.list_(pa.string())))
    return pa.schema(fields(schema.columns) + metadata)


def build_table(listed: TableChangeList, policies: ValuePolicies) -> tuple[pa.Table, str | None]:
    """Return a table's changes as columns, and what kept its values from being converted, if anything did."""
    try:
        return _build(listed, policies, as_text=False), None
    except UnconvertibleValueError as error:
        return _build(listed, policies, as_text=True), error.message


def _build(listed: TableChangeList, policies: ValuePolicies, *, as_text: bool) -> pa.Table:
    schema, changes = listed.schema, listed.changes
    convert = _Converter(schema, policies, as_text)
    arrays: list[pa.Array[Any]] = convert.columns(schema.columns, [change.values for change in changes])
    arrays.append(pa.array([change.op for change in changes], pa.string()))
    arrays.append(pa.array([int(change.transaction.commit_lsn) for change in changes], pa.int64()))
    arrays.append(pa.array([change.ordinal for change in changes], pa.int64()))
    times = pa.array([change.transaction.commit_time_us for change in changes], pa.int64())
    arrays.append(times.cast(pa.timestamp("us", "UTC")))
    arrays.append(pa.array([change.transaction.xid for change in changes], pa.int64()))
    if schema.key:
        arrays.append(convert.struct(schema.key, [change.old_key for change in changes]))
    if schema.logs_old_rows:
        arrays.append(convert.struct(schema.columns, [change.before for change in changes]))
    arrays.append(pa.array([change.unchanged for change in changes], pa.list_(pa.string())))
    return pa.Table.from_arrays(arrays, schema=log_schema(schema, as_text=as_text))


@dataclass(frozen=True, slots=True)
class _Converter:
    """Turns rows of text into columns."""

    schema: TableSchema
    policies: ValuePolicies
    as_text: bool

    def columns(self, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> list[pa.Array[Any]]:
        transposed: Iterator[Sequence[Text]] = zip(*rows, strict=True)
        return [self.column(column, values) for column, values in zip(columns, transposed, strict=True)]

    def struct(self, columns: Sequence[Column], rows: Sequence[Sequence[Text] | None]) -> pa.Array[Any]:
        absent = pa.array([row is None for row in rows])
        nothing: Sequence[Text] = (None,) * len(columns)
        arrays = self.columns(columns, [nothing if row is None else row for row in rows])
        fields = [
            pa.field(log.stored_name(column.name), array.type) for column, array in zip(columns, arrays, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=absent)

    def column(self, column: Column, values: Sequence[Text]) -> pa.Array[Any]:
        text = pa.array(values, pa.binary()).cast(pa.string())
        return text if self.as_text else convert_column(self.schema, column, text, self.policies)
