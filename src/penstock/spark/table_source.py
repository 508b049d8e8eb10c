"""Spark's reader of a table of Postgres: the ranges and the decoder of an initial copy, for any Spark job.

A frame is one snapshot. It is taken when Spark first plans the frame, and every later action reads it again, until
it is let go: from then on reading fails, because rows of another moment would be mixed with those read before.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import ConfigError, ErrorKind, SourceError
from penstock.model.copying import CopyRange
from penstock.model.table import TableSchema
from penstock.postgres.catalog import blocks, describe_table
from penstock.postgres.connection import Connection, connect
from penstock.postgres.lookup import column_names, find_table
from penstock.postgres.privilege import require_readable
from penstock.postgres.publication import PublishedTable
from penstock.postgres.ranges import BLOCKS_PER_RANGE, MAX_RANGES, plan_ranges
from penstock.postgres.snapshot import import_snapshot
from penstock.spark.conform import can_become, conform
from penstock.spark.message import as_spark_shows
from penstock.spark.schema import from_arrow
from penstock.spark.snapshot_keeper import KeptSnapshot, keep_snapshot
from penstock.spark.table_options import TableOptions
from penstock.wire.column import arrow_schema

# An Arrow batch is copied whole between Python and the JVM.
_BATCH_ROWS = 8192
_PLANNER = "penstock read plan"


@dataclass(frozen=True)
class TablePartition(InputPartition):
    """What one task reads."""

    snapshot: KeptSnapshot
    ranges: tuple[CopyRange, ...]


def table_schema(options: TableOptions) -> StructType:
    """Return the columns that the options choose, as Spark types; refuses what could not be read later."""
    with closing(connect(options.address, application_name=_PLANNER)) as connection:
        schema = _describe(connection, options, options.columns)
        require_readable(connection, _as_published(schema, options))
    return from_arrow(arrow_schema(schema))


class TableReader(DataSourceReader):
    """A table's rows as of one snapshot. Made and asked for partitions where Spark plans; tasks have copies."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._wanted = _arrow_schema(schema)
        with closing(connect(options.address, application_name=_PLANNER)) as connection:
            self._schema = _describe(connection, options, self._wanted.names)
        _require_convertible(self._schema, self._wanted)

    @as_spark_shows()
    def partitions(self) -> list[InputPartition]:
        """Take the snapshot and plan the tasks. Spark asks once for a frame."""
        options, snapshot = self._options, self._snapshot()
        with closing(connect(options.address, application_name=_PLANNER)) as connection:
            import_snapshot(connection, snapshot.name)
            self._require_same_columns(_describe(connection, options, self._wanted.names))
            table = _as_published(self._schema, options)
            require_readable(connection, table)
            groups = _plan(connection, table, options)
        return [TablePartition(snapshot, group) for group in groups]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one partition; runs in a task. Spark makes one of None where there is nothing to read."""
        with as_spark_shows(), _told_to_load_again():
            if isinstance(partition, TablePartition):
                for part in partition.ranges:
                    yield from self._read(partition.snapshot, part)

    def _read(self, snapshot: KeptSnapshot, part: CopyRange) -> Iterator[pa.RecordBatch]:
        from penstock.postgres.copy import read_range  # in tasks only: planning needs no compiler

        options = self._options
        batches = read_range(
            options.address,
            snapshot.name,
            self._schema,
            part,
            options.row_filter,
            options.policies,
            application_name=snapshot.readers,
        )
        for batch in batches:
            yield from _as_wanted(batch, self._wanted)

    def _snapshot(self) -> KeptSnapshot:
        """Take a snapshot that is kept as long as this application lives, or use the one that is given."""
        options = self._options
        if options.snapshot is not None:
            return KeptSnapshot(options.snapshot, "penstock read")
        # This process ends after a minute, its parent with the application.
        return keep_snapshot(options.address, options.snapshot_timeout_s, os.getppid())

    def _require_same_columns(self, found: TableSchema) -> None:
        if found != self._schema:
            raise SourceError(
                f"table {found.name} was changed, or replaced, while it was planned to read it",
                kind=ErrorKind.SCHEMA_CHANGED,
                remedy="Call load() again.",
            )


def _describe(connection: Connection, options: TableOptions, columns: Sequence[str] | None) -> TableSchema:
    """Return the table with some of its columns, in that order; without a choice, all of them."""
    table, name = find_table(connection, options.table)
    existing = column_names(connection, table)
    chosen = existing if columns is None else columns
    unknown = [column for column in chosen if column not in existing]
    if unknown:
        raise ConfigError(
            f"format penstock: table {name} has no column {', '.join(unknown)}",
            remedy=f"It has {', '.join(existing)}.",
        )
    schema = options.policies.resolve(describe_table(connection, table, chosen))
    return replace(schema, columns=tuple(schema.column(column) for column in chosen))


def _as_published(schema: TableSchema, options: TableOptions) -> PublishedTable:
    """Return the table in the form that plans and checks take: as if it were published like this."""
    return PublishedTable(schema.id, schema.name, options.row_filter, schema.column_names)


def _plan(connection: Connection, table: PublishedTable, options: TableOptions) -> list[tuple[CopyRange, ...]]:
    """Divide the table into ranges, and give each task about as many blocks; small leaves share one."""
    total = sum(leaf.blocks for leaf in blocks(connection, table.id))
    size = options.blocks_per_partition or BLOCKS_PER_RANGE
    tasks = min(options.partitions or max(_divided_up(total, size), 1), MAX_RANGES)
    return _share(plan_ranges(connection, table, blocks_per_range=max(_divided_up(total, tasks), 1)), tasks)


def _divided_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _share(ranges: Sequence[CopyRange], tasks: int) -> list[tuple[CopyRange, ...]]:
    """Put each range into the task that its first block falls to."""
    total = max(sum(part.blocks for part in ranges), 1)
    shares: dict[int, list[CopyRange]] = defaultdict(list)
    passed = 0
    for part in ranges:
        shares[min(passed * tasks // total, tasks - 1)].append(part)
        passed += part.blocks
    return [tuple(share) for share in shares.values()]


@contextmanager
def _told_to_load_again() -> Iterator[None]:
    """Name the remedy of a lost snapshot here, where nobody else will take a new one."""
    try:
        yield
    except SourceError as error:
        if error.kind is not ErrorKind.SOURCE_SNAPSHOT_LOST:
            raise
        raise SourceError(
            error.message,
            kind=error.kind,
            remedy="Call load() again: a new frame has a new snapshot. Without a reader a frame's snapshot is kept for "
            "snapshotTimeout seconds; set that higher, or hold a snapshot yourself, with penstock.snapshot(…).",
        ) from None


def _arrow_schema(schema: StructType) -> pa.Schema:
    required = [field.name for field in schema.fields if not field.nullable]
    if required:
        raise ConfigError(
            f"format penstock: column {', '.join(required)} is declared not null",
            remedy="Leave it nullable: what the source allows can change.",
        )
    return to_arrow_schema(schema)


def _require_convertible(schema: TableSchema, wanted: pa.Schema) -> None:
    own = arrow_schema(schema)
    wrong = [name for name in wanted.names if not can_become(own.field(name).type, wanted.field(name).type)]
    if wrong:
        types = ", ".join(f"{name} is {own.field(name).type}, not {wanted.field(name).type}" for name in wrong)
        raise ConfigError(
            f"format penstock: table {schema.name} has other types than the schema given: {types}",
            remedy="Leave .schema(…) out, or name types that hold every value of the table's.",
        )


def _as_wanted(batch: pa.RecordBatch, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    if not wanted.names:
        yield batch  # a table without columns forgets how many rows it has
    else:
        yield from conform(pa.Table.from_batches([batch]), wanted).to_batches(max_chunksize=_BATCH_ROWS)
