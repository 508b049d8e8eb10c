"""How long after its commit a change is visible in the lake, under a steady load; and how much load a lake can follow.

When a change committed is in the change log, to the server's microsecond; when it became visible is when the batch
that holds it was committed. Both clocks are this machine's.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.contender import FAILURES
from bench.measure import say
from bench.replicator import Replicator, Running, Workshop, kept_log, require_equal
from bench.source import Source, publish
from bench.steady import Load, Written, write
from bench.witness import Batch, stage_figures
from penstock.changelog.folder import Folder
from penstock.changelog.reader import LogReader
from penstock.changelog.rows import read_parquet
from penstock.contract import columns as log
from penstock.lake.upkeep import UpkeepPolicy
from penstock.model.lsn import Lsn
from penstock.model.table import TableId
from penstock.testing.postgres import Database

Figures = dict[str, Any]

BOUNDS_S = {"delta": (5.0, 10.0), "iceberg": (3.0, 6.0)}
"""The most that half, and 95 of 100, of all changes may take."""
INSERTS_BOUND_S = 1.0
"""The most that half of the changes of insert-only tables may take."""
TABLES, INSERT_ONLY_TABLES = 8, 2
UPKEEP_EVERY_S = 60.0
_SETTLING_S = 3.0
_MAX_LATE_S = 1.0
_BOUNDED_P95_S = 10.0
_GROWTH = 1.5
_LEAST_S = 1.0
_REFINEMENTS = 2
# The whole machine may stall for seconds once, for which no lake is to blame.
_TRIES = 2


@dataclass(frozen=True, slots=True)
class Steady:
    """A load, and the tables that it falls on."""

    changes_per_s: float
    seconds: float
    existing: int
    """Rows of each table at first."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Changes of one kind of tables: when each committed, and how much later it was visible."""

    committed_at: NDArray[np.float64]
    seconds: NDArray[np.float64]

    def percentile(self, share: float) -> float:
        """Return how long so many of a hundred took at most; no time if there are none."""
        return float(np.percentile(self.seconds, share)) if len(self.seconds) else 0.0

    def between(self, start: float, end: float) -> Seen:
        """Return those of a part of the time."""
        wanted = (self.committed_at >= start) & (self.committed_at < end)
        return Seen(self.committed_at[wanted], self.seconds[wanted])


def measure_freshness(source: Source, workshop: Workshop, steady: Steady, lakes: Sequence[str]) -> Iterator[Figures]:
    """Load tables for a while, once for every lake."""
    for lake in lakes:
        say(f"freshness: {lake}, {steady.changes_per_s:,.0f} changes/s for {steady.seconds:g} s")
        try:
            with steady_tables(source, workshop, lake, steady) as (database, replicator, running):
                figures = load_steadily(database, workshop, replicator, running, steady)
                for number in (1, TABLES):
                    require_equal(replicator, database, f"steady_{number}")
        except FAILURES as error:
            figures = {"error": str(error)}
        yield {"lake": lake, **figures}


@contextlib.contextmanager
def steady_tables(
    source: Source, workshop: Workshop, lake: str, steady: Steady
) -> Iterator[tuple[Database, Replicator, Running]]:
    """Lend tables, and a pipeline that has copied them."""
    with steady_replicator(source, workshop, lake, steady) as (database, replicator), replicator.running() as running:
        settle(database, running, steady)
        yield database, replicator, running


@contextlib.contextmanager
def steady_replicator(
    source: Source, workshop: Workshop, lake: str, steady: Steady, upkeep_every_s: float | None = UPKEEP_EVERY_S
) -> Iterator[tuple[Database, Replicator]]:
    """Lend tables, and a pipeline that can be run."""
    with source.database() as database:
        database.execute(Path(__file__).with_name("apply.sql").read_text())
        database.execute(f"call create_steady_tables({TABLES}, {steady.existing})")
        publish(database, [f"steady_{number + 1}" for number in range(TABLES)])
        upkeep = UpkeepPolicy(upkeep_every_s, rest_s=upkeep_every_s or math.inf)
        yield database, Replicator(workshop, lake, database, upkeep=upkeep, **kept_log())


def settle(database: Database, running: Running, steady: Steady) -> None:
    """Wait for the copies, and for what is compiled or loaded on first use: after a minute of any run it is."""
    running.catch_up()
    write(load_of(database, replace(steady, seconds=_SETTLING_S)))
    running.catch_up()


def load_of(database: Database, steady: Steady) -> Load:
    """Return what is to be written."""
    return Load(database.conninfo, steady.changes_per_s, steady.seconds, TABLES, INSERT_ONLY_TABLES)


def load_steadily(
    database: Database, workshop: Workshop, replicator: Replicator, running: Running, steady: Steady
) -> Figures:
    """Write for a while, and return how fresh the lake was."""
    began, jobs, before = time.time(), workshop.jobs, len(running.witness.batches)
    written = write(load_of(database, steady))
    running.catch_up()
    batches = running.witness.batches[before:]
    jobs = workshop.jobs - jobs
    inserts = {table for table in {each.table for each in batches} if _is_insert_only(table, batches)}
    mixed = {each.table for each in batches} - inserts
    seen = {
        "all": _seen(replicator.log, batches, inserts | mixed, began),
        "insert_only": _seen(replicator.log, batches, inserts, began),
        "mixed": _seen(replicator.log, batches, mixed, began),
    }
    for name, each in seen.items():
        say(f"  {name}: p50 {each.percentile(50):.2f} s, p95 {each.percentile(95):.2f} s")
    return {
        "load": asdict(written),
        **{name: _percentiles(each) for name, each in seen.items()},
        "is_bounded": _is_bounded(seen["all"], written, began),
        "batches": len(batches),
        "changes_per_batch": sum(each.changes for each in batches) / len(batches),
        "jobs_per_batch": jobs / len(batches),
        "ms_per_batch": 1000 * sum(each.seconds for each in batches) / len(batches),
        "stages_ms": stage_figures(batches),
    }


def _is_insert_only(table: TableId, batches: Sequence[Batch]) -> bool:
    return all(batch.is_insert_only for batch in batches if batch.table == table)


def _seen(root: Path, batches: Sequence[Batch], tables: set[TableId], began: float) -> Seen:
    reader = LogReader(Folder.on_disk(root))
    reader.poll()
    found = [_seen_of(reader, table, [each for each in batches if each.table == table]) for table in tables]
    committed = np.concatenate([each.committed_at for each in found])
    seconds = np.concatenate([each.seconds for each in found])
    return Seen(committed, seconds).between(began, np.inf)


def _seen_of(reader: LogReader, table: TableId, batches: Sequence[Batch]) -> Seen:
    """Find, for every change of a table, the first batch that ends behind it."""
    commits, moments = _logged(reader, table)
    ends = np.array([int(batch.end_lsn) for batch in batches])
    places = np.searchsorted(ends, commits, "right")
    # What is behind the last batch was not waited for; what is before the first is not this load's.
    known = places < len(ends)
    visible = np.array([batch.visible_at for batch in batches])[places[known]]
    return Seen(moments[known], visible - moments[known])


def _logged(reader: LogReader, table: TableId) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    files = reader.files(table, reader.start_lsn, Lsn(2**63 - 1))
    columns = [read_parquet(reader.folder, file.path).select([log.COMMIT_LSN, log.COMMIT_TS]) for file in files]
    commits: Any = np.concatenate([each.column(log.COMMIT_LSN).to_numpy() for each in columns])
    moments: Any = np.concatenate([each.column(log.COMMIT_TS).to_numpy() for each in columns])
    return commits, moments.astype("datetime64[us]").astype(np.int64) / 1e6


def _percentiles(seen: Seen) -> Figures:
    return {
        "changes": len(seen.seconds),
        "p50_s": seen.percentile(50),
        "p95_s": seen.percentile(95),
        "max_s": seen.percentile(100),
    }


def _is_bounded(seen: Seen, written: Written, began: float) -> bool:
    """Whether writer and lake kept their pace: the last third of the time was no worse than the second."""
    if written.late_s > _MAX_LATE_S:
        say(f"  the writer itself was late, by {written.late_s:.1f} s")
        return False
    third = written.seconds / 3
    second, last = (seen.between(began + n * third, began + (n + 1) * third).percentile(95) for n in (1, 2))
    return last <= max(_GROWTH * second, _LEAST_S) and last <= _BOUNDED_P95_S


def measure_ceiling(source: Source, workshop: Workshop, steady: Steady, lakes: Sequence[str]) -> Iterator[Figures]:
    """Double the load until a lake falls behind, then look in between."""
    for lake in lakes:
        say(f"ceiling: {lake}")
        try:
            with steady_tables(source, workshop, lake, steady) as (database, replicator, running):
                tried = list(_search(database, workshop, replicator, running, steady))
            held = [_rate(each) for each in tried if each["is_bounded"]]
            yield {"lake": lake, "highest_changes_per_s": max(held, default=0.0), "tried": tried}
        except FAILURES as error:
            yield {"lake": lake, "error": str(error)}


def _search(
    database: Database, workshop: Workshop, replicator: Replicator, running: Running, steady: Steady
) -> Iterator[Figures]:
    low, high, rate, left = 0.0, None, steady.changes_per_s, _REFINEMENTS
    while left:
        is_held = False
        for _ in range(_TRIES):
            say(f"  {rate:,.0f} changes/s")
            load = Steady(rate, steady.seconds, steady.existing)
            figures = load_steadily(database, workshop, replicator, running, load)
            yield {"changes_per_s": rate, **figures}
            is_held = figures["is_bounded"]
            if is_held:
                break
        low, high = (rate, high) if is_held else (low, rate)
        left -= high is not None
        rate = 2 * rate if high is None else (low + high) / 2


def _rate(figures: Figures) -> float:
    """Return how many changes a second there really were: an update of the same row twice in a transaction is one."""
    return float(figures["all"]["changes"] / figures["load"]["seconds"])


def freshness_row(figures: Figures) -> dict[str, Any]:
    """Return figures for people."""
    return {
        "lake": figures["lake"],
        "changes/s": _rate(figures),
        "p50 s": figures["all"]["p50_s"],
        "p95 s": figures["all"]["p95_s"],
        "insert-only p50 s": figures["insert_only"]["p50_s"],
        "p95 s ": figures["insert_only"]["p95_s"],
        "batches": figures["batches"],
        "changes/batch": figures["changes_per_batch"],
        "ms/batch": figures["ms_per_batch"],
        "jobs/batch": figures["jobs_per_batch"],
        "bounded": figures["is_bounded"],
    }
