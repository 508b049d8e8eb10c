"""Rows of an initial copy: read by this process, or by one Spark task per range of the table."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.contract import CopiedFile
from penstock.errors import ErrorKind, PenstockError
from penstock.model.cell import TableRow
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableSchema
from penstock.postgres.connection import SourceAddress
from penstock.postgres.copy import CopyRange, read_range
from penstock.spark.parquet import describe_file
from penstock.wire.column import arrow_schema
from penstock.wire.text import cell_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROW_GROUP_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What to read, from where, as of when: plain values, which travel to Spark tasks."""

    address: SourceAddress
    snapshot: str
    schema: TableSchema
    ranges: tuple[CopyRange, ...]
    row_filter: str | None
    policies: ValuePolicies
    max_connections: int

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns that every range gives."""
        return arrow_schema(self.schema)

    def read(self, part: CopyRange) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return read_range(self.address, self.snapshot, self.schema, part, self.row_filter, self.policies)


class CopyRows:
    """All rows of one table as of one snapshot."""

    def __init__(self, plan: CopyPlan, watermark: Lsn, spark: Callable[[], SparkSession]) -> None:
        self._plan = plan
        self._watermark = watermark
        self._spark = spark
        self._cancelled = threading.Event()
        self._job_group = f"penstock-copy-{uuid.uuid4().hex}"
        self._counted: Callable[[], int] = lambda: 0  # replaced by the view that is used

    @property
    def schema(self) -> TableSchema:
        """The table."""
        return self._plan.schema

    @property
    def watermark(self) -> Lsn:
        """The snapshot's position."""
        return self._watermark

    @property
    def copied_rows(self) -> int:
        """How many rows were read so far."""
        return self._counted()

    def cancel(self) -> None:
        """Make whoever reads the rows fail soon."""
        self._cancelled.set()
        from pyspark import SparkContext

        context = SparkContext._active_spark_context  # noqa: SLF001  # asking must not start a JVM
        if context is not None:
            context.cancelJobGroup(self._job_group)

    def __iter__(self) -> Iterator[TableRow]:
        """Yield the rows as objects."""
        columns = self._plan.schema.columns
        for batch in self.arrow():
            cells = [cell_values(batch.column(column.name), column.type) for column in columns]
            yield from map(TableRow, zip(*cells, strict=True) if cells else [()] * batch.num_rows)

    def arrow(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches, read by this process, one range after the other."""
        rows = 0

        def count() -> int:
            return rows

        self._counted = count
        for part in self._plan.ranges:
            for batch in self._plan.read(part):
                self._check()
                rows += batch.num_rows
                yield batch

    @property
    def frame(self) -> DataFrame:
        """The rows as a lazy DataFrame, one task per range."""
        from pyspark.sql.pandas.types import from_arrow_schema

        plan = self._plan
        spark, schema = self._spark(), from_arrow_schema(plan.arrow_schema)
        if not plan.ranges:
            return spark.createDataFrame([], schema)
        numbers = spark.range(0, len(plan.ranges), 1, self._tasks(spark))
        return numbers.mapInArrow(partial(_read_numbered, plan), schema)

    def write_files(self, url: str, extra: Mapping[str, Any] | None = None) -> Sequence[CopiedFile]:
        """Let Spark tasks write the rows as Parquet below `url`, and return what they wrote."""
        self._check()
        if not self._plan.ranges:
            return []
        spark = self._spark()
        context = spark.sparkContext
        counter = context.accumulator(0)
        self._counted = lambda: int(counter.value)
        context.setJobGroup(self._job_group, f"copy of {self._plan.schema.name}", interruptOnCancel=True)
        self._check()  # once more: starting Spark takes seconds
        ranges = context.parallelize(self._plan.ranges, self._tasks(spark))
        written: list[CopiedFile | TaskFailure | None] = ranges.map(
            partial(_write_range, self._plan, url, extra or {}, counter)
        ).collect()
        self._check()
        for failure in written:
            if isinstance(failure, TaskFailure):
                raise failure.error
        return [file for file in written if isinstance(file, CopiedFile)]

    def _tasks(self, spark: SparkSession) -> int:
        """Return how many tasks share the ranges: one each, unless that could open too many connections."""
        ranges, limit = len(self._plan.ranges), self._plan.max_connections
        return ranges if spark.sparkContext.defaultParallelism <= limit else min(ranges, limit)

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise PenstockError("the copy was cancelled", kind=ErrorKind.SOURCE_OPERATION_CANCELED)


def _read_numbered(plan: CopyPlan, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        numbered: list[int] = batch.column(0).to_pylist()  # type: ignore[assignment]
        for number in numbered:
            yield from plan.read(plan.ranges[number])


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """An error on its way back from a task: raised there, Spark would turn it into text."""

    kind: ErrorKind
    message: str
    remedy: str

    @property
    def error(self) -> PenstockError:
        """The error, to be raised."""
        return PenstockError(self.message, kind=self.kind, remedy=self.remedy)


def _write_range(
    plan: CopyPlan, url: str, extra: Mapping[str, Any], counter: Any, part: CopyRange
) -> CopiedFile | TaskFailure | None:
    """Write one range as one file; runs in a Spark task."""
    path = Path(url) / f"part-{uuid.uuid4().hex}.parquet"
    try:
        rows = _write_file(path, plan, extra, part)
    except PenstockError as error:
        path.unlink(missing_ok=True)
        return TaskFailure(error.kind, error.message, error.remedy)
    counter.add(rows)
    if not rows:
        path.unlink()
        return None
    return describe_file(str(path), path.stat().st_size, pq.read_metadata(path))


def _write_file(path: Path, plan: CopyPlan, extra: Mapping[str, Any], part: CopyRange) -> int:
    schema = plan.arrow_schema
    for name, value in extra.items():
        schema = schema.append(pa.field(name, value.type))
    rows = 0
    with path.open("wb") as file, pq.ParquetWriter(file, schema, compression="snappy") as writer:
        for batch in plan.read(part):
            constants = [pa.repeat(value, batch.num_rows) for value in extra.values()]
            writer.write_batch(pa.RecordBatch.from_arrays([*batch.columns, *constants], schema=schema), _ROW_GROUP_ROWS)
            rows += batch.num_rows
        writer.close()
        file.flush()
        os.fsync(file.fileno())
    return rows
