"""What a destination does batch by batch: how many changes, when they were visible, and where the time went.

The witness stands before the destination that a pipeline writes to. Stages are functions of ours with a stopwatch at
each; one inside of another counts for itself alone, and threads are told apart, since tables are applied in parallel.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

from penstock.contract import Destination, EventBatch, Maintained, Positioned, RowBatch, Upkeep
from penstock.destinations.delta import apply as delta_apply
from penstock.destinations.delta.commit import Committer
from penstock.destinations.delta.log import TableLog
from penstock.destinations.iceberg import apply as iceberg_apply
from penstock.destinations.iceberg.client import Library, Version
from penstock.destinations.iceberg.index import KnownFiles
from penstock.destinations.iceberg.rows import DataFolder
from penstock.lake.search import Search
from penstock.model.lsn import Lsn
from penstock.model.table import TableId, TableSchema
from penstock.spark.changes import LogChanges

OPEN, LIST, READ, FOLD, LOCATE = "open the table", "list its files", "read the log", "fold", "locate rows"
ROWS, DELETES, COMMIT, CHECKPOINT, REST = "write rows", "write deletes", "commit", "checkpoint", "everything else"
STAGES = (OPEN, LIST, READ, FOLD, LOCATE, ROWS, DELETES, COMMIT, CHECKPOINT, REST)

_WATCHED: Sequence[tuple[Any, str, str]] = (
    (TableLog, "refresh", OPEN),
    (Library, "open", OPEN),
    (Version, "mark", OPEN),
    (KnownFiles, "at", LIST),
    (LogChanges, "arrow", READ),
    (delta_apply, "fold", FOLD),
    (delta_apply, "changes_behind", FOLD),
    (iceberg_apply, "fold", FOLD),
    (iceberg_apply, "changes_behind", FOLD),
    (Search, "find", LOCATE),
    (delta_apply, "write_rows", ROWS),
    (DataFolder, "write_rows", ROWS),
    (delta_apply.Application, "_mark", DELETES),
    (DataFolder, "write_deletes", DELETES),
    (TableLog, "commit", COMMIT),
    (Version, "commit", COMMIT),
    (Committer, "checkpoint", CHECKPOINT),
)


class _Clock(threading.local):
    """One thread's stages: what each took, and those that are under way."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.inner: list[float] = [0.0]


class Stopwatch:
    """Adds up the time that stages take."""

    def __init__(self) -> None:
        self._clock = _Clock()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Time our functions while the block runs."""
        with contextlib.ExitStack() as patches:
            for owner, name, stage in _WATCHED:
                timed = self._watched(stage, getattr(owner, name))
                patches.enter_context(mock.patch.object(owner, name, timed))
            yield

    def take(self) -> dict[str, float]:
        """Return what this thread's stages took since the last time."""
        taken, self._clock.seconds = self._clock.seconds, defaultdict(float)
        return dict(taken)

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        clock = self._clock
        clock.inner.append(0.0)
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            clock.seconds[name] += seconds - clock.inner.pop()
            clock.inner[-1] += seconds

    def _watched(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            with self._stage(stage):
                found = function(*arguments, **options)
            return self._each(stage, found) if isinstance(found, Iterator) else found

        return timed

    def _each(self, stage: str, items: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self._stage(stage):
                item = next(items, self)
            if item is self:
                return
            yield item


@dataclass(frozen=True, slots=True)
class Batch:
    """One table's changes, committed."""

    table: TableId
    changes: int
    is_insert_only: bool
    end_lsn: Lsn
    visible_at: float
    """As `time.time` has it."""
    seconds: float
    stages: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class UpkeepNote:
    """One upkeep of one table."""

    table: TableId
    seconds: float
    done: Upkeep
    is_brief: bool


class Witness:
    """A destination as it is, with a note of every batch: visible is what it has returned from."""

    name: ClassVar[str] = "witness"

    def __init__(self, destination: Destination, watch: Stopwatch) -> None:
        assert isinstance(destination, Positioned)
        assert isinstance(destination, Maintained)
        self._destination = destination
        self._positioned: Positioned = destination
        self._maintained: Maintained = destination
        self._watch = watch
        self.batches: list[Batch] = []
        self.upkeeps: list[UpkeepNote] = []

    def startup(self) -> None:
        """Start the destination."""
        self._destination.startup()

    def shutdown(self) -> None:
        """Shut the destination down."""
        self._destination.shutdown()

    def truncate_table(self, table: TableId) -> None:
        """Empty the table."""
        self._destination.truncate_table(table)

    def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
        """Store rows of a copy."""
        self._destination.write_table_rows(table, rows)

    def watermark(self, table: TableId) -> Lsn | None:
        """Return the table's position."""
        return self._positioned.watermark(table)

    def copied_parts(self, table: TableId) -> int:
        """Return how much of a copy is there."""
        return self._positioned.copied_parts(table)

    @property
    def upkeep_every_s(self) -> float | None:
        """How often tables get their upkeep."""
        return self._maintained.upkeep_every_s

    @property
    def brief_upkeep_after(self) -> int:
        """After how many batches tables get a brief one."""
        return self._maintained.brief_upkeep_after

    def upkeep(self, table: TableSchema, is_stopping: Callable[[], bool], *, is_brief: bool = False) -> Upkeep:
        """Look after a table, and note what it took."""
        began = time.perf_counter()
        done = self._maintained.upkeep(table, is_stopping, is_brief=is_brief)
        self.upkeeps.append(UpkeepNote(table.id, time.perf_counter() - began, done, is_brief))
        return done

    def write_events(self, events: EventBatch) -> None:
        """Apply changes, and note what it took."""
        self._watch.take()
        began = time.perf_counter()
        self._destination.write_events(events)
        seconds, visible_at, stages = time.perf_counter() - began, time.time(), self._watch.take()
        stages[REST] = seconds - sum(stages.values())
        for table, changes in events.tables().items():
            count = changes.inserts + changes.updates + changes.deletes
            is_insert_only = count == changes.inserts
            batch = Batch(table, count, is_insert_only, events.end_lsn, visible_at, seconds, stages)
            self.batches.append(batch)


def stage_figures(batches: Sequence[Batch]) -> dict[str, float]:
    """Return the milliseconds that a batch spent in each stage, on average."""
    totals = {stage: sum(batch.stages.get(stage, 0.0) for batch in batches) for stage in STAGES}
    return {stage: 1000 * total / len(batches) for stage, total in totals.items() if total}
