"""What a batch costs as its table grows, with keys side by side and all over; and what Spark does for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.contender import FAILURES
from bench.measure import median, say
from bench.replicator import Replicator, Running, Workshop, require_equal
from bench.source import Source, publish
from bench.witness import Batch, stage_figures
from penstock.testing.postgres import Database

Figures = dict[str, Any]

CLUSTERED, SCATTERED = "clustered", "scattered"
GROWTH_OF_CLUSTERED = 1.5
"""The most a batch of neighbouring keys may take in the largest table, as a part of the smallest."""
_SCATTERED_STEP = 7919
_ROWS_AT_ONCE = 100_000


def measure_growth(
    source: Source, workshop: Workshop, rows: Sequence[int], updates: int, repeat: int, lakes: Sequence[str]
) -> Iterator[Figures]:
    """Apply batches of updates to a table that is larger each time."""
    with source.database() as database:
        database.execute(Path(__file__).with_name("apply.sql").read_text())
        publish(database, ["changes"])
        database.execute("select pg_drop_replication_slot('bench_base')")
        filled = 0
        for size in rows:
            say(f"growth: {size:,} rows")
            database.execute(f"call write_inserts({filled + 1}, {size - filled}, {_ROWS_AT_ONCE})")
            filled = size
            for lake in lakes:
                measure = partial(_grown, workshop, database, size, updates, repeat, lake)
                yield from _guarded({"lake": lake, "rows": size}, measure)


def _guarded(subject: Figures, measure: Callable[[], Sequence[Figures]]) -> Iterator[Figures]:
    try:
        for figures in measure():
            yield {**subject, **figures}
    except FAILURES as error:
        yield {**subject, "error": str(error)}


def _grown(
    workshop: Workshop, database: Database, rows: int, updates: int, repeat: int, lake: str
) -> Sequence[Figures]:
    replicator = Replicator(workshop, lake, database)
    replicator.prepare()
    with replicator.running() as running:
        found = [_batches(database, workshop, running, rows, updates, step, repeat) for step in (1, _SCATTERED_STEP)]
    require_equal(replicator, database, "changes")
    database.execute("select pg_drop_replication_slot(%s)", replicator.slot)
    return found


def _batches(
    database: Database, workshop: Workshop, running: Running, rows: int, updates: int, step: int, repeat: int
) -> Figures:
    jobs, batches = workshop.jobs, list[Batch]()
    # The first one loads what a pipeline that has run for a minute has loaded.
    for number in range(repeat + 1):
        first = (number * 2 + 1) * rows // (2 * repeat + 3)
        if number == 1:
            jobs = workshop.jobs
        batches = _applied(database, running, f"call write_batch({first}, {updates}, {step}, {rows})") + batches
    batches = batches[:repeat]
    keys = CLUSTERED if step == 1 else SCATTERED
    milliseconds = median([1000 * batch.seconds for batch in batches])
    say(f"  {keys}: {milliseconds:.0f} ms for {batches[0].changes:,} updates")
    return {
        "keys": keys,
        "updates": batches[0].changes,
        "ms_per_batch": milliseconds,
        "jobs_per_batch": (workshop.jobs - jobs) / repeat,
        "stages_ms": stage_figures(batches),
    }


def _applied(database: Database, running: Running, statement: str) -> list[Batch]:
    """Let one transaction be applied, and return its batches."""
    before = len(running.witness.batches)
    database.execute(statement)
    running.catch_up()
    return running.witness.batches[before:]


_KINDS: Mapping[str, str] = {
    "inserts": "insert into changes select * from make_rows({new}, {new} + {rows} - 1)",
    "updates": "call write_batch({new}, {rows}, 13, {existing})",
    "deletes": "delete from changes where id > {existing} and id <= {new}",
    "truncate": "truncate changes",
    "inserts after a truncate": "insert into changes select * from make_rows({new}, {new} + {rows} - 1)",
}


def measure_jobs(
    source: Source, workshop: Workshop, existing: int, changes: int, repeat: int, lakes: Sequence[str]
) -> Iterator[Figures]:
    """Apply batches of every kind, one by one, and count what Spark did for each."""
    for lake in lakes:
        say(f"jobs: {lake}")
        yield from _guarded({"lake": lake}, partial(_kinds, source, workshop, existing, changes, repeat, lake))


def _kinds(source: Source, workshop: Workshop, existing: int, changes: int, repeat: int, lake: str) -> list[Figures]:
    with source.database() as database:
        database.execute(Path(__file__).with_name("apply.sql").read_text())
        database.execute(f"call write_inserts(1, {existing}, {_ROWS_AT_ONCE})")
        publish(database, ["changes"])
        replicator = Replicator(workshop, lake, database)
        replicator.prepare()
        with replicator.running() as running:
            jobs = workshop.jobs
            first = _applied(database, running, _statement("updates", existing, existing + 1, changes))
            found = [_kind_figures("first updates after a start", first, workshop.jobs - jobs)]
            found += [_kind(database, workshop, running, kind, existing, changes, repeat) for kind in _KINDS]
        require_equal(replicator, database, "changes")
    return found


def _statement(kind: str, existing: int, new: int, rows: int) -> str:
    return _KINDS[kind].format(existing=existing, new=new, rows=rows)


def _kind(
    database: Database, workshop: Workshop, running: Running, kind: str, existing: int, changes: int, repeat: int
) -> Figures:
    jobs, batches = workshop.jobs, list[Batch]()
    for number in range(repeat):
        new = existing + 1 + number * changes
        batches += _applied(database, running, _statement(kind, existing, new, changes))
    return _kind_figures(kind, batches, workshop.jobs - jobs)


def _kind_figures(kind: str, batches: Sequence[Batch], jobs: int) -> Figures:
    milliseconds = median([1000 * batch.seconds for batch in batches])
    say(f"  {kind}: {milliseconds:.0f} ms a batch, {jobs} jobs for {len(batches)} batches")
    return {
        "batch": kind,
        "batches": len(batches),
        "changes_per_batch": sum(batch.changes for batch in batches) / len(batches),
        "ms_per_batch": milliseconds,
        "jobs_per_batch": jobs / len(batches),
        "stages_ms": stage_figures(batches),
    }
