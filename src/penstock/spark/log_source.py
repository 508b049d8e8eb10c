"""Spark's readers of a change log: a range of it at once, or for ever, as it grows.

A stream's offset is a position, and the log between two positions never changes: a batch that Spark
runs again reads the same rows, or fails because they were trimmed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.changelog.entry import DataFile
from penstock.changelog.header import read_header
from penstock.changelog.rows import read_rows
from penstock.contract import columns as log
from penstock.errors import ConfigError, ErrorKind, LogDamagedError, SourceError, StateError
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.spark.conform import conform
from penstock.spark.log_options import LogOptions, Place
from penstock.spark.log_table import LogPart, LogTable, TruncateRow, gap
from penstock.spark.message import as_spark_shows
from penstock.wire.arrow import compute

# An Arrow batch is copied whole between Python and the JVM.
_BATCH_ROWS = 8192
# A stream without changes moves on this often all the same, at the price of an empty batch: its checkpoint must
# not stay behind where the log is trimmed.
_IDLE_S = 60.0
# How often a log in a bucket is looked at for more.
_LOOK_S = 1.0

_TRUNCATE_COLUMNS: dict[str, pa.DataType] = {
    log.OP: pa.string(),
    log.COMMIT_LSN: pa.int64(),
    log.ORDINAL: pa.int64(),
    log.COMMIT_TS: pa.timestamp("us", "UTC"),
    log.XID: pa.int64(),
}


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """What one task reads."""

    value: LogPart


class LogBatchReader(DataSourceReader):
    """A table's changes between two positions of a log."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @as_spark_shows()
    def partitions(self) -> list[InputPartition]:
        """Plan the tasks, once: what is appended later is not read."""
        wanted = _arrow_schema(self._schema)
        table = LogTable(self._options.log, self._options.table)
        table.require_columns(wanted)
        start, end = (_resolve(place, table) for place in (self._options.start, self._options.end))
        for name, position in (("startingPosition", start), ("endingPosition", end)):
            _require_reached(name, position, table)
        return [LogPartition(part) for part in table.plan(start, end, wanted)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one part; runs in a task. Spark makes one of None where there is nothing to read."""
        with as_spark_shows():
            if isinstance(partition, LogPartition):
                yield from read_part(partition.value, _arrow_schema(self._schema), self._options.policies)


class LogStreamReader(DataSourceStreamReader):
    """A table's changes as they arrive.

    One process beside the driver keeps the reader for as long as its query runs, and calls it from one
    thread; tasks have copies that were never opened, and only `read`.
    """

    def __init__(
        self,
        options: LogOptions,
        schema: StructType,
        inferred_version: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._schema = schema
        self._inferred_version = inferred_version
        """Which version of the table gave the schema; None where the user did."""
        self._clock = clock
        self._position: Lsn | None = None
        """Where the next batch starts. Spark says so at a restart, before anything else; not in a new query."""
        self._moved_at: float | None = None
        self._looked_at: float | None = None

    @cached_property
    def _table(self) -> LogTable:
        table = LogTable(self._options.log, self._options.table)
        table.require_columns(_arrow_schema(self._schema))
        return table

    @cached_property
    def _initial(self) -> Lsn:
        # Once: what is earliest or latest moves while the query starts.
        return _resolve(self._options.start, self._table)

    @as_spark_shows()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts; one with a checkpoint is not asked."""
        return self._offset(self._initial)

    @as_spark_shows()
    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends: at the log's end, or sooner by the limits, or nowhere new."""
        start = self._initial if self._position is None else self._position
        if self._may_look():
            self._table.reader.poll()
            self._table.require_held(start)
        return self._offset(self._next_end(start))

    @as_spark_shows()
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Plan a batch. At a restart Spark asks for an empty one first, at the checkpoint's position."""
        first, last = self._place(start), self._place(end)
        if first > last:
            raise StateError(f"change log {self._options.log}: a batch from {first} back to {last} was asked for")
        self._position = last
        if first == last:
            return []
        self._table.reader.poll()
        _require_reached("checkpoint", last, self._table)
        self._require_known_columns(first, last)
        return [LogPartition(part) for part in self._table.plan(first, last, _arrow_schema(self._schema))]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Forget what no batch of this query will ask for again."""
        self._table.reader.forget(self._place(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part; runs in a task."""
        with as_spark_shows():
            assert isinstance(partition, LogPartition)
            yield from read_part(partition.value, _arrow_schema(self._schema), self._options.policies)

    def _may_look(self) -> bool:
        """Whether it is time to look at the log: Spark asks a hundred times a second, and a bucket's answers cost."""
        now = self._clock()
        if not self._options.log.is_local and self._looked_at is not None and now - self._looked_at < _LOOK_S:
            return False
        self._looked_at = now
        return True

    def _next_end(self, start: Lsn) -> Lsn:
        end = self._table.bounded_end(start, self._options.max_bytes, self._options.max_entries)
        is_idle = end <= start or not self._table.has_changes(start, end)
        now = self._clock()
        if is_idle and self._moved_at is not None and now - self._moved_at < _IDLE_S:
            return start
        self._moved_at = now
        # A log that was lost and is being received again ends before the checkpoint for a while.
        return max(start, end)

    def _require_known_columns(self, start: Lsn, end: Lsn) -> None:
        """Stop where the columns changed under the query: dropping a new column in silence would lose it."""
        if self._inferred_version is None:
            return
        known = self._table.columns(self._inferred_version)
        for file in self._table.reader.files(self._table.id, start, end):
            if file.version > self._inferred_version and self._table.columns(file.version) != known:
                raise SourceError(
                    f"table {self._table.newest.name}: its columns changed at {file.first_lsn}, while the query ran",
                    kind=ErrorKind.SCHEMA_CHANGED,
                    remedy="Start the query again, from load() on, with the same checkpoint: it then has the new "
                    "columns. A query whose columns are named by .schema(…) goes on by itself.",
                )

    def _offset(self, position: Lsn) -> dict[str, Any]:
        return {"lsn": str(position), "system_identifier": self._table.reader.header.system_identifier}

    def _place(self, offset: Mapping[str, Any]) -> Lsn:
        """Read an offset, refusing one that was taken from another source's log."""
        if offset["system_identifier"] != self._table.reader.header.system_identifier:
            raise ConfigError(
                f"change log {self._options.log}: the checkpoint is of a log of another Postgres server",
                remedy="Use the log that the checkpoint was made with, or a new checkpoint.",
            )
        return Lsn.parse(offset["lsn"])


def read_part(part: LogPart, wanted: pa.Schema, policies: ValuePolicies) -> Iterator[pa.RecordBatch]:
    """Read a part's changes in order, with exactly the wanted columns."""
    for rows in _in_order(part, policies):
        yield from conform(rows, wanted).to_batches(max_chunksize=_BATCH_ROWS)


def _in_order(part: LogPart, policies: ValuePolicies) -> Iterator[pa.Table]:
    """Yield rows file by file, each truncate in its place among them."""
    waiting = list(part.truncates)
    for file in part.files:
        rows = _rows(part, file, policies)
        due = [truncate for truncate in waiting if _is_before_end(truncate, rows)]
        del waiting[: len(due)]
        yield _with_truncates(rows, due)
    yield _truncate_rows(waiting)


def _rows(part: LogPart, file: DataFile, policies: ValuePolicies) -> pa.Table:
    try:
        rows = read_rows(part.folder, file, part.schemas[file.version], policies)
    except LogDamagedError:
        # A file that is gone was trimmed, if the log starts behind it by now.
        held_from = read_header(part.folder).start_lsn
        if file.last_lsn < held_from:
            raise gap(part.folder, part.start, held_from) from None
        raise
    position = rows.column(log.COMMIT_LSN)
    first, end = (pa.scalar(int(lsn), pa.int64()) for lsn in (part.start, part.end))
    return rows.filter(compute.and_(compute.greater_equal(position, first), compute.less(position, end)))


def _is_before_end(truncate: TruncateRow, rows: pa.Table) -> bool:
    if not len(rows):
        return False
    last = tuple(rows.column(name)[-1].as_py() for name in (log.COMMIT_LSN, log.ORDINAL))
    return (int(truncate.position.commit_lsn), truncate.position.ordinal) < last


def _with_truncates(rows: pa.Table, truncates: list[TruncateRow]) -> pa.Table:
    if not truncates:
        return rows
    both = pa.concat_tables([rows, _truncate_rows(truncates)], promote_options="default")
    return both.sort_by([(log.COMMIT_LSN, "ascending"), (log.ORDINAL, "ascending")])


def _truncate_rows(truncates: list[TruncateRow]) -> pa.Table:
    columns: list[list[Any]] = [
        ["T"] * len(truncates),
        [int(each.position.commit_lsn) for each in truncates],
        [each.position.ordinal for each in truncates],
        [each.commit_time_us for each in truncates],
        [each.xid for each in truncates],
    ]
    arrays = [pa.array(values, type_) for values, type_ in zip(columns, _TRUNCATE_COLUMNS.values(), strict=True)]
    return pa.Table.from_arrays(arrays, names=list(_TRUNCATE_COLUMNS))


def _arrow_schema(schema: StructType) -> pa.Schema:
    required = [field.name for field in schema.fields if not field.nullable]
    if required:
        raise ConfigError(
            f"format penstock: column {', '.join(required)} is declared not null",
            remedy="Leave it nullable: a deleted row has NULL outside its key, and a truncate has no row at all.",
        )
    return to_arrow_schema(schema)


def _resolve(place: Place, table: LogTable) -> Lsn:
    if place == "earliest":
        return table.reader.start_lsn
    return table.reader.end_lsn if place == "latest" else place


def _require_reached(what: str, position: Lsn, table: LogTable) -> None:
    """Refuse a position that the log has not come to: fewer rows than asked for would look like all of them."""
    if position > table.reader.end_lsn:
        raise ConfigError(
            f"change log {table.reader.folder}: {what} is {position}, but the log ends at {table.reader.end_lsn}",
            remedy="Wait until the log has come so far, or read up to latest.",
        )
