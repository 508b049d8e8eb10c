"""What a Spark task does for an initial copy: reads one range after the other, and writes each as a Parquet file.

A connection that is lost costs its range and no more: the task reads it again, as of the same snapshot, for as long
as that is there. A range is the same rows however often it is read, and what an attempt wrote goes with it.
"""

from __future__ import annotations

import gc
import sys
import time
import uuid
import zipimport
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from penstock.contract import CopiedFile
from penstock.contract.files import Files
from penstock.errors import ErrorKind, PenstockError
from penstock.model.copying import CopyRange
from penstock.spark.copy_plan import CopyPlan
from penstock.spark.parquet import FileWriter
from penstock.storage.local import LOCAL

PAUSES_S = (0.1, 0.5, 2.0, 5.0)
"""Before each further attempt: a killed backend is replaced at once, a failing network takes a moment. A source that
is gone for longer takes the snapshot with it, and then there is nothing left to try."""
PASSING = frozenset(
    {
        ErrorKind.SOURCE_CONNECTION_FAILED,
        ErrorKind.SOURCE_SHUTDOWN,  # also what a terminated backend says
        ErrorKind.SOURCE_IN_RECOVERY,
        ErrorKind.SOURCE_LOCK_TIMEOUT,
        ErrorKind.SOURCE_OPERATION_CANCELED,
    }
)
"""What may be gone when the range is read again."""


def read_numbered(plan: CopyPlan, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the ranges whose numbers a data frame has."""
    for batch in numbers:
        numbered: list[int] = batch.column(0).to_pylist()  # type: ignore[assignment]
        for number in numbered:
            yield from plan.read(plan.ranges[number])
    ease_worker()


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


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where a copy's files go, and how they are written."""

    folder: str
    extra: Mapping[str, Any]
    """Constant columns behind those of the rows."""
    encodings: Mapping[str, str]
    """By column, where it is not for Parquet's writer to choose."""
    files: Files = LOCAL

    def open(self, schema: pa.Schema) -> FileWriter:
        """Begin another file."""
        path = f"{self.folder.rstrip('/')}/part-{uuid.uuid4().hex}.parquet"
        return FileWriter(path, schema, self.extra, self.encodings, self.files)


def write_range(
    plan: CopyPlan,
    target: FileTarget,
    counted_rows: Any,
    counted_blocks: Any,
    part: CopyRange,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> CopiedFile | TaskFailure | None:
    """Write one range as one file; runs in a Spark task."""
    try:
        file = _write_patiently(plan, target, part, pause)
    except PenstockError as error:
        return TaskFailure(error.kind, error.message, error.remedy)
    counted_rows.add(file.rows if file else 0)
    counted_blocks.add(part.blocks)
    ease_worker()
    return file


def ease_worker() -> None:
    """Spare a Python worker of Spark's, after a range, most of what it does around every task.

    Before each one it has Python forget what folders and archives hold, and reads the directory of Spark's own archive
    again: an archive that nobody remembers is not read. After each one it collects garbage, looking at all modules and
    all machine code that ranges need. Together they take a worker 0.2 to 0.3 s of CPU for every task.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    _exempt_from_collection()


@cache
def _exempt_from_collection() -> None:
    """Once: whatever is there after the first range stays as long as the process."""
    gc.freeze()


def _write_patiently(
    plan: CopyPlan, target: FileTarget, part: CopyRange, pause: Callable[[float], None]
) -> CopiedFile | None:
    """Write a range, again where the connection was lost; the last error is the caller's."""
    for pause_s in PAUSES_S:
        try:
            return _write_file(plan, target, part)
        except PenstockError as error:
            if error.kind not in PASSING:
                raise
            pause(pause_s)
    return _write_file(plan, target, part)


def _write_file(plan: CopyPlan, target: FileTarget, part: CopyRange) -> CopiedFile | None:
    writer = target.open(plan.arrow_schema)
    try:
        for batch in plan.read(part):
            writer.write(batch)
        return writer.finish()
    except BaseException:
        writer.discard()
        raise
