"""Batches made by hand, so that a destination can be tested alone: the contract's views over Arrow in memory."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.contract import columns as log
from penstock.contract.batch import CopiedFile, TableChanges
from penstock.contract.files import Files
from penstock.model.cell import UNCHANGED, Cell, OldRow, OldRowKind, TableRow
from penstock.model.event import Begin, Commit, Delete, Event, Insert, Truncate, Update
from penstock.model.lsn import Lsn, Position
from penstock.model.table import Column, TableId, TableSchema
from penstock.spark.parquet import describe_file
from penstock.storage.local import LOCAL, new_file
from penstock.wire.arrow import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Spark: TypeAlias = "Callable[[], SparkSession]"
RowEvent: TypeAlias = Insert | Update | Delete

_EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_OPS: dict[type[RowEvent], str] = {Insert: "I", Update: "U", Delete: "D"}


def no_spark() -> SparkSession:
    """Stand in where a destination under test must not need Spark."""
    raise AssertionError("this batch was made without Spark")


def table_schema(schema: TableSchema) -> pa.Schema:
    """Return a table's Arrow schema."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in schema.columns])


class ArrowRows:
    """A copy's rows, from memory."""

    def __init__(
        self,
        schema: TableSchema,
        rows: Sequence[Sequence[Cell]],
        watermark: Lsn,
        spark: Spark = no_spark,
        part: int = 0,
    ) -> None:
        self.part = part
        self._schema = schema
        self._watermark = watermark
        self._spark = spark
        columns = list(zip(*rows, strict=True)) or [()] * len(schema.columns)
        arrow = table_schema(schema)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, arrow, strict=True)]
        self.table = pa.Table.from_arrays(arrays, schema=arrow)

    @property
    def watermark(self) -> Lsn:
        """The position given."""
        return self._watermark

    def __iter__(self) -> Iterator[TableRow]:
        """Yield the rows as objects."""
        for row in self.table.to_pylist():
            yield TableRow(tuple(row.values()))

    def arrow(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches."""
        yield from self.table.to_batches()

    @property
    def frame(self) -> DataFrame:
        """The rows in Spark."""
        return to_frame(self._spark(), self.table)

    def write_files(
        self,
        folder: str,
        extra: Mapping[str, pa.Scalar[Any]] | None = None,
        *,
        is_packed: bool = False,  # noqa: ARG002  # need not be
        files: Files | None = None,
    ) -> Sequence[CopiedFile]:
        """Write one Parquet file into a folder; none for no rows."""
        if not self.table.num_rows:
            return []
        table = self.table
        for name, scalar in (extra or {}).items():
            table = table.append_column(name, _repeated(scalar, table.num_rows))
        path = f"{folder}/part-{uuid.uuid4()}.parquet"
        described: list[pq.FileMetaData] = []
        with new_file(files or LOCAL, path) as new:
            pq.write_table(table, new.file, metadata_collector=described)
        return [describe_file(path, new.size, described[0])]


def _repeated(scalar: Any, times: int) -> pa.Array[Any]:
    repeated: pa.Array[Any] = pa.repeat(scalar, times)
    return repeated


@dataclass(frozen=True)
class ArrowChanges:
    """One table's changes, from memory, with the change log's columns."""

    schema: TableSchema
    events: Sequence[RowEvent]
    truncates: Sequence[Truncate]
    commit_times: Mapping[Lsn, dt.datetime]
    spark: Spark = no_spark
    is_settling: bool = False

    @property
    def inserts(self) -> int:
        """How many rows were inserted."""
        return self._count(Insert)

    @property
    def updates(self) -> int:
        """How many rows were updated."""
        return self._count(Update)

    @property
    def deletes(self) -> int:
        """How many rows were deleted."""
        return self._count(Delete)

    def _count(self, kind: type[RowEvent]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    @property
    def has_unchanged(self) -> bool:
        """Whether any update leaves a value unchanged."""
        return any(isinstance(event, Update) and not event.row.is_full for event in self.events)

    @property
    def has_key_changes(self) -> bool:
        """Whether any update changes a key."""
        return any(self._old_key(event) is not None for event in self.events)

    @property
    def truncate_times(self) -> Mapping[Lsn, dt.datetime]:
        """When the transactions committed that truncated the table."""
        wanted = (each.position.commit_lsn for each in self.truncates)
        return {lsn: self.commit_times.get(lsn, _EPOCH) for lsn in wanted}

    def arrow(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes in order."""
        yield from self.table.to_batches()

    @property
    def frame(self) -> DataFrame:
        """The changes in Spark."""
        return to_frame(self.spark(), self.table)

    @property
    def table(self) -> pa.Table:
        """The changes as the log has them."""
        schema = self._arrow_schema()
        rows = [self._logged(event) for event in self.events]
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _arrow_schema(self) -> pa.Schema:
        fields = _stored(self.schema.columns)
        fields += [pa.field(log.OP, pa.string()), pa.field(log.COMMIT_LSN, pa.int64())]
        fields += [pa.field(log.ORDINAL, pa.int64()), pa.field(log.COMMIT_TS, pa.timestamp("us", "UTC"))]
        fields += [pa.field(log.XID, pa.int64())]
        if self.schema.key:
            fields.append(pa.field(log.KEY, pa.struct(_stored(self.schema.key))))
        if self.schema.logs_old_rows:
            fields.append(pa.field(log.BEFORE, pa.struct(_stored(self.schema.columns))))
        fields.append(pa.field(log.UNCHANGED, pa.list_(pa.string())))
        return pa.schema(fields)

    def _logged(self, event: RowEvent) -> tuple[Any, ...]:
        values, unchanged = self._values(event)
        position = event.position
        time = self.commit_times.get(position.commit_lsn, _EPOCH)
        logged = (*values, _OPS[type(event)], int(position.commit_lsn), position.ordinal, time, 1)
        olds = [self._old_key(event)] if self.schema.key else []
        olds += [self._old_row(event)] if self.schema.logs_old_rows else []
        return (*logged, *olds, unchanged or None)

    def _values(self, event: RowEvent) -> tuple[Sequence[Any], list[str]]:
        if isinstance(event, Delete):
            key = dict(zip(self._key_names, _key_values(self.schema, event.old), strict=True))
            return [key.get(column.name) for column in self.schema.columns], []
        given = zip(self.schema.column_names, event.row.values, strict=True)
        unchanged = [name for name, value in given if value is UNCHANGED]
        return [None if value is UNCHANGED else value for value in event.row.values], unchanged

    @property
    def _key_names(self) -> list[str]:
        return [column.name for column in self.schema.key]

    def _old_key(self, event: RowEvent) -> dict[str, Any] | None:
        if not isinstance(event, Update) or event.old is None or not self.schema.key:
            return None
        old = _key_values(self.schema, event.old)
        new = tuple(event.row.values[self.schema.columns.index(column)] for column in self.schema.key)
        names = (log.stored_name(name) for name in self._key_names)
        return None if old == new else dict(zip(names, old, strict=True))

    def _old_row(self, event: RowEvent) -> dict[str, Any] | None:
        old = None if isinstance(event, Insert) else event.old
        if old is None or old.kind is not OldRowKind.FULL:
            return None
        return dict(zip(map(log.stored_name, self.schema.column_names), old.values, strict=True))


def _key_values(schema: TableSchema, old: OldRow) -> tuple[Cell, ...]:
    if old.kind is OldRowKind.KEY:
        return old.values
    return tuple(old.values[schema.columns.index(column)] for column in schema.key)


def _stored(columns: Iterable[Column]) -> list[pa.Field[Any]]:
    return [pa.field(log.stored_name(column.name), arrow_type(column.type)) for column in columns]


class ArrowEvents:
    """Whole transactions from a list of events; `Begin` and `Commit` may be left out."""

    def __init__(
        self, schemas: Iterable[TableSchema], events: Sequence[Event], end_lsn: Lsn, spark: Spark = no_spark
    ) -> None:
        self._schemas = {schema.id: schema for schema in schemas}
        self._events = list(events)
        self._end_lsn = end_lsn
        self._spark = spark

    @property
    def end_lsn(self) -> Lsn:
        """The position given."""
        return self._end_lsn

    def __iter__(self) -> Iterator[Event]:
        """Yield the events as given."""
        yield from self._events

    def tables(self) -> Mapping[TableId, TableChanges]:
        """Return the changes of every table that has any."""
        found = {id_: self._changes(schema) for id_, schema in self._schemas.items()}
        return {id_: changes for id_, changes in found.items() if changes.events or changes.truncates}

    def _changes(self, schema: TableSchema) -> ArrowChanges:
        rows = [event for event in self._events if isinstance(event, RowEvent) and event.table == schema.id]
        truncates = [event for event in self._events if isinstance(event, Truncate) and schema.id in event.tables]
        times = {event.position.commit_lsn: event.commit_time for event in self._events if isinstance(event, Begin)}
        return ArrowChanges(schema, rows, truncates, times, self._spark)


def transaction(lsn: int, *changes: Callable[[Position], Event], commit_time: dt.datetime = _EPOCH) -> list[Event]:
    """Return a transaction: its Begin, what `changes` make at the positions that follow, its Commit."""
    commit_lsn = Lsn(lsn)
    events: list[Event] = [Begin(Position(commit_lsn, 0), commit_time, xid=1)]
    events += [change(Position(commit_lsn, ordinal)) for ordinal, change in enumerate(changes, start=1)]
    last = Position(commit_lsn, len(events))
    return [*events, Commit(last, Lsn(lsn + 1), commit_time)]


def to_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return an Arrow table in Spark, timestamps without time zone as such."""
    from penstock.spark.schema import from_arrow

    return spark.createDataFrame(table, from_arrow(table.schema))
