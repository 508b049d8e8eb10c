"""Where a copied row's time goes: one process reads and writes every range, with a stopwatch at each stage.

CPU time, except where waiting is the matter: for the server, and for the disk. A stage inside of another counts for
itself alone. What Spark adds is the time that the same ranges take as its tasks, one at a time.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from bench.copier import open_lakes
from bench.measure import per_million, say
from bench.table import CopiedTable
from penstock.model.table import Column
from penstock.postgres import copy as postgres_copy
from penstock.postgres.raw import RawConnection
from penstock.spark import copy_task, parquet
from penstock.spark.copy_plan import CopyPlan
from penstock.spark.parquet import packed_encodings
from penstock.spark.rows import CopyRows
from penstock.wire import binary

_SOCKET, _SCAN, _COLUMN, _ENCODE = "socket: bytes from the kernel", "scan: find values", "column", "Parquet: encode"
_WRITE, _SYNC, _WAIT, _REST = "Parquet: write", "fsync (waiting)", "waiting for the server", "everything else"
_SPARK = "Spark: a task for each range (waiting included)"


class Stopwatch:
    """Adds up the time that stages take, by a clock each."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def watched(self, stage: str, function: Callable[..., Any], clock: Callable[[], float]) -> Callable[..., Any]:
        """Return a function that is timed as a stage."""

        def timed(*arguments: Any, **options: Any) -> Any:
            with self.stage(stage, clock):
                return function(*arguments, **options)

        return timed

    @contextlib.contextmanager
    def stage(self, name: str, clock: Callable[[], float] = time.thread_time) -> Iterator[None]:
        """Time a block: by another clock all of it, by CPU time less the stages inside of it."""
        began, began_cpu = clock(), time.thread_time()
        self._inner.append(0.0)
        try:
            yield
        finally:
            cpu, inner = time.thread_time() - began_cpu, self._inner.pop()
            self.seconds[name] += cpu - inner if clock is time.thread_time else clock() - began
            self._inner[-1] += cpu


class _TimedFile:
    """A file as Parquet's writer wants it, each write timed."""

    closed = False

    def __init__(self, path: str, watch: Stopwatch) -> None:
        self._file = Path(path).open("wb", buffering=0)  # noqa: SIM115  # the writer says when it ends
        self._watch = watch

    def write(self, data: Any) -> int:
        with self._watch.stage(_WRITE):
            return self._file.write(data) or 0

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _HereAndNow(Executor):
    """Runs what it is given at once: of stages that overlap, none could tell its own time."""

    def __init__(self, *_: Any) -> None:
        pass

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*arguments, **options))
        return done


def profile_copy(table: CopiedTable) -> dict[str, Any]:
    """Copy a table in this process and in Spark, and return the microseconds of a row by stage."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-lake-") as folder, table.plan() as (plan, watermark):
        _copy_here(plan, folder)  # loads what is compiled
        watch, here_s = Stopwatch(), 0.0
        with _watched(watch), watch.stage(_REST):
            began = time.monotonic()
            _copy_here(plan, folder)
            here_s = time.monotonic() - began
        with open_lakes("local[1]", Path(folder)) as lakes:
            spark_s = min(_copy_in_spark(CopyRows(plan, watermark, lambda: lakes.spark), folder) for _ in range(3))
    watch.seconds[_SPARK] = spark_s - here_s
    stages = [
        {"stage": name, "µs per row": per_million(seconds, table.rows)}
        for name, seconds in sorted(watch.seconds.items(), key=lambda item: -item[1])
    ]
    return {"rows": table.rows, "seconds": here_s, "seconds_in_spark": spark_s, "stages": stages}


def _copy_here(plan: CopyPlan, folder: str) -> None:
    for part in plan.ranges:
        target = copy_task.FileTarget(folder, {}, packed_encodings(plan.schema))
        copy_task.write_range(plan, target, mock.Mock(), mock.Mock(), part)


def _copy_in_spark(rows: CopyRows, folder: str) -> float:
    began = time.monotonic()
    rows.write_files(folder, is_packed=True)
    say(f"  as tasks: {time.monotonic() - began:.2f} s")
    return time.monotonic() - began


@contextlib.contextmanager
def _watched(watch: Stopwatch) -> Iterator[None]:
    """Put a stopwatch at every stage."""
    column_of = binary.CopyDecoder._column  # noqa: SLF001

    def timed_column(decoder: binary.CopyDecoder, column: Column, *places: Any) -> Any:
        with watch.stage(f"{_COLUMN} {column.name}: {column.type.name}"):
            return column_of(decoder, column, *places)

    def open_writer(writer: parquet.FileWriter, sample: pa.Table) -> pq.ParquetWriter:
        with mock.patch.object(pq, "ParquetWriter", partial_writer):
            return opened(writer, sample)

    real_writer, opened = pq.ParquetWriter, parquet.FileWriter._open  # noqa: SLF001

    def partial_writer(path: str, *arguments: Any, **options: Any) -> pq.ParquetWriter:
        timed: Any = _TimedFile(path, watch)
        return real_writer(timed, *arguments, **options)

    cpu, wall = time.thread_time, time.monotonic
    with contextlib.ExitStack() as patches:
        for owner, name, stage, clock in (
            (postgres_copy, "wait", _WAIT, wall),
            (time, "sleep", _WAIT, wall),
            (RawConnection, "receive_into", _SOCKET, cpu),
            (binary, "locate_rows", _SCAN, cpu),
            (parquet.FileWriter, "_encode", _ENCODE, cpu),
            (parquet, "_sync", _SYNC, wall),
        ):
            patches.enter_context(mock.patch.object(owner, name, watch.watched(stage, getattr(owner, name), clock)))
        patches.enter_context(mock.patch.object(binary.CopyDecoder, "_column", timed_column))
        patches.enter_context(mock.patch.object(parquet.FileWriter, "_open", open_writer))
        patches.enter_context(mock.patch.object(parquet, "ThreadPoolExecutor", _HereAndNow))
        yield
