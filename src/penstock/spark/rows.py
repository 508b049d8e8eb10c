"""Rows of an initial copy: read by this process, or by one Spark task per range of the table."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.contract import CopiedFile
from penstock.contract.files import Files
from penstock.errors import ErrorKind, PenstockError
from penstock.model.cell import TableRow
from penstock.model.lsn import Lsn
from penstock.model.table import TableSchema
from penstock.postgres.ranges import Copied
from penstock.spark.copy_plan import CopyPlan
from penstock.spark.copy_task import FileTarget, TaskFailure, read_numbered, write_range
from penstock.spark.parquet import packed_encodings
from penstock.storage.local import LOCAL
from penstock.wire.text import cell_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class CopyRows:
    """Rows of one table as of one snapshot: those of a plan's ranges."""

    def __init__(self, plan: CopyPlan, watermark: Lsn, spark: Callable[[], SparkSession], part: int = 0) -> None:
        self.part = part
        self._plan = plan
        self._watermark = watermark
        self._spark = spark
        self._cancelled = threading.Event()
        self._job_group = f"penstock-copy-{uuid.uuid4().hex}"
        self._counted: Callable[[], Copied] = Copied  # replaced by the view that is used

    @property
    def schema(self) -> TableSchema:
        """The table."""
        return self._plan.schema

    @property
    def watermark(self) -> Lsn:
        """The position given."""
        return self._watermark

    @property
    def copied(self) -> Copied:
        """What was read so far, in whole ranges where Spark reads."""
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
        copied = Copied()
        self._counted = lambda: copied
        for part in self._plan.ranges:
            for batch in self._plan.read(part):
                self._check()
                copied += Copied(batch.num_rows)
                yield batch
            copied += Copied(blocks=part.blocks)

    @property
    def frame(self) -> DataFrame:
        """The rows as a lazy DataFrame, one task per range."""
        from pyspark.sql.pandas.types import from_arrow_schema

        plan = self._plan
        spark, schema = self._spark(), from_arrow_schema(plan.arrow_schema)
        if not plan.ranges:
            return spark.createDataFrame([], schema)
        numbers = spark.range(0, len(plan.ranges), 1, self._tasks(spark))
        return numbers.mapInArrow(partial(read_numbered, plan), schema)

    def write_files(
        self,
        folder: str,
        extra: Mapping[str, Any] | None = None,
        *,
        is_packed: bool = False,
        files: Files | None = None,
    ) -> Sequence[CopiedFile]:
        """Let Spark tasks write the rows as Parquet into a folder, and return what they wrote."""
        self._check()
        if not self._plan.ranges:
            return []
        spark = self._spark()
        context = spark.sparkContext
        rows, blocks = context.accumulator(0), context.accumulator(0)
        self._counted = lambda: Copied(int(rows.value), int(blocks.value))
        context.setJobGroup(self._job_group, f"copy of {self._plan.schema.name}", interruptOnCancel=True)
        self._check()  # once more: starting Spark takes seconds
        ranges = context.parallelize(self._plan.ranges, self._tasks(spark))
        encodings = packed_encodings(self.schema) if is_packed else {}
        target = FileTarget(folder, extra or {}, encodings, files or LOCAL)
        written: list[CopiedFile | TaskFailure | None] = ranges.map(
            partial(write_range, replace(self._plan, ranges=()), target, rows, blocks)
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
