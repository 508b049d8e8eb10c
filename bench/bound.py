"""What must not make the receiver large: each case with the peak of its memory, beside the bound.

A case is a backlog of an unusual kind that is drained once, or, for many active tables, a load that
is followed while it is written.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.contender import FAILURES, Drain, ReceiverDrains, ReceiverProcess
from bench.measure import cpu_seconds, peak_memory_mib, say
from bench.source import MARKER_CHANGES, SHAPES, Backlog, Source, make_backlog, write_marker, write_shape
from penstock.testing.postgres import Database

BOUND_MIB = 512.0
"""The receiver's configured bound, by default."""
FILES_PER_S = 1000.0
"""More than this would be the thousands of tiny files that a log must not have."""
_ROUND_S = 0.2
_SLOW_PLACE = "changelog.before_entry"

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the cases are."""

    transaction_rows: int = 5_000_000
    large_row_bytes: int = 64 << 20
    tables: int = 2000
    active_tables: int = 500
    active_s: float = 15.0
    slow_changes: int = 1_000_000
    slow_ms: int = 2000


QUICK = Sizes(
    transaction_rows=100_000,
    large_row_bytes=8 << 20,
    tables=200,
    active_tables=50,
    active_s=3.0,
    slow_changes=20_000,
    slow_ms=500,
)


@dataclass(frozen=True, slots=True)
class Case:
    """A backlog by its name, how it is made, and how the receiver is disturbed meanwhile."""

    name: str
    make: Callable[[Source, Database], Backlog]
    slow_ms: int = 0

    @property
    def failpoints(self) -> str:
        """What makes every write of a segment take longer."""
        return f"{_SLOW_PLACE}=slow:{self.slow_ms}" if self.slow_ms else ""


def measure_bounds(source: Source, sizes: Sizes, max_fill_ms: int | None) -> Iterator[Figures]:
    """Go through all cases; one that fails is reported as such, and the next one follows."""
    for case in _cases(sizes):
        yield _guarded(source, case.name, partial(_drain, source, case, max_fill_ms))
    name = f"{sizes.active_tables} active tables, followed"
    yield _guarded(source, name, partial(_follow, source, sizes, ReceiverDrains(max_fill_ms)))


def _guarded(source: Source, name: str, measure: Callable[[], Figures]) -> Figures:
    say(f"bound: {name}")
    try:
        figures = measure()
    except FAILURES as error:
        figures = {"error": str(error), "is_ok": False}
    return {"postgres": source.version_major, "case": name, **figures}


def _cases(sizes: Sizes) -> list[Case]:
    mib = sizes.large_row_bytes >> 20
    return [
        Case(f"one transaction of {sizes.transaction_rows:,} rows", _large_transaction(sizes)),
        Case(f"a text of {mib} MiB", _large_rows("large_text", "body", 1, sizes)),
        Case(f"three texts of {mib} MiB in a transaction", _large_rows("large_text", "body", 3, sizes)),
        Case(f"a bytea of {mib} MiB", _large_rows("large_bytes", "convert_to(body, 'UTF8')", 1, sizes)),
        Case(f"{sizes.tables:,} tables", _many_tables(sizes)),
        Case(f"a disk with {sizes.slow_ms} ms per segment", _slow_disk(sizes), sizes.slow_ms),
    ]


def _large_transaction(sizes: Sizes) -> Callable[[Source, Database], Backlog]:
    rows = sizes.transaction_rows
    return lambda source, database: make_backlog(
        source, database, ["changes"], rows, lambda each: _execute(each, f"call write_inserts(1, {rows}, {rows})")
    )


def _large_rows(table: str, body: str, rows: int, sizes: Sizes) -> Callable[[Source, Database], Backlog]:
    """Rows whose value does not compress, as pictures and archives do not."""
    digests = sizes.large_row_bytes // 32
    statement = f"""
        insert into {table} select id, {body} from generate_series(1, {rows}) as id,
        (select string_agg(md5(n::text), '') as body from generate_series(1, {digests}) as n) as large
    """  # noqa: S608  # our own words
    return lambda source, database: make_backlog(
        source, database, [table], rows, lambda each: _execute(each, statement)
    )


def _many_tables(sizes: Sizes) -> Callable[[Source, Database], Backlog]:
    """One row in each table, each in a transaction of its own; then again, all in one."""

    def write(database: Database) -> None:
        for at_once in (False, True):
            _execute(database, f"call write_small_tables('small_', {sizes.tables}, {at_once})")

    def make(source: Source, database: Database) -> Backlog:
        names = _create_tables(database, "small_", sizes.tables)
        return make_backlog(source, database, names, 2 * sizes.tables, write)

    return make


def _slow_disk(sizes: Sizes) -> Callable[[Source, Database], Backlog]:
    changes = sizes.slow_changes
    return lambda source, database: make_backlog(
        source, database, ["changes"], changes, lambda each: write_shape(each, SHAPES["inserts-100"], changes)
    )


def _execute(database: Database, statement: str) -> None:
    database.execute(statement)


def _create_tables(database: Database, prefix: str, tables: int) -> list[str]:
    database.execute(f"call create_small_tables('{prefix}', {tables})")
    return [f"{prefix}{number}" for number in range(1, tables + 1)]


def _drain(source: Source, case: Case, max_fill_ms: int | None) -> Figures:
    with source.database() as database:
        backlog = case.make(source, database)
        drain = ReceiverDrains(max_fill_ms, case.failpoints).drain(backlog)
    was_slow = not case.slow_ms or drain.seconds >= case.slow_ms / 1000
    if not was_slow:
        say(f"nothing passed {_SLOW_PLACE}: the disk was not slow")
    return {**_figures(drain), "is_ok": was_slow and drain.peak_mib <= BOUND_MIB}


def _figures(drain: Drain) -> Figures:
    assert drain.events is not None
    return {
        "events": drain.events,
        "seconds": drain.seconds,
        "events_per_s": drain.events / drain.seconds,
        "client_cpu_s": drain.client_cpu_s,
        "entries": drain.entries,
        "startup_mib": drain.startup_mib,
        "peak_mib": drain.peak_mib,
        "bound_mib": BOUND_MIB,
    }


def _follow(source: Source, sizes: Sizes, drains: ReceiverDrains) -> Figures:
    """Write one row into each of many tables again and again, while the receiver follows."""
    with source.database() as database:
        names = _create_tables(database, "active_", sizes.active_tables)
        backlog = make_backlog(source, database, names, 0, lambda _: None)
        with backlog.slot() as slot, backlog.log(slot) as log:
            with drains.receiver(backlog, slot, log, tls=False) as receiver:
                cpu_s = cpu_seconds(receiver.pid)
                rounds = _write_rounds(database, sizes)
                written_at = time.monotonic()
                ended_at = receiver.wait_for(write_marker(database))
                live = _live_figures(receiver, ended_at, cpu_s)
            files = _count_files(log)
    changes = rounds * sizes.active_tables + 2 * MARKER_CHANGES
    files_per_s = files / live["seconds"]
    is_ok = receiver.events == changes and files_per_s <= FILES_PER_S and live["peak_mib"] <= BOUND_MIB
    return {
        **live,
        "changes": changes,
        "files_per_s": files_per_s,
        "rows_per_file": changes / max(1, files),
        "catch_up_s": ended_at - written_at,
        "bound_mib": BOUND_MIB,
        "is_ok": is_ok,
    }


def _write_rounds(database: Database, sizes: Sizes) -> int:
    """Write for a while, at a pace that leaves the machine room; return how many rows each table has got."""
    began = time.monotonic()
    with database.connect() as connection:
        connection.execute("set synchronous_commit = off")
        for rounds in itertools.count(1):
            connection.execute("call write_small_tables('active_', %s, false)", [sizes.active_tables])
            if time.monotonic() >= began + sizes.active_s:
                return rounds
            time.sleep(max(0.0, began + rounds * _ROUND_S - time.monotonic()))
    raise AssertionError("counting has no end")


def _live_figures(receiver: ReceiverProcess, ended_at: float, startup_cpu_s: float) -> Figures:
    seconds = ended_at - receiver.started_at
    return {
        "events": receiver.events,
        "seconds": seconds,
        "events_per_s": receiver.events / seconds,
        "client_cpu_s": cpu_seconds(receiver.pid) - startup_cpu_s,
        "entries": receiver.entries,
        "entries_per_s": receiver.entries / seconds,
        "peak_mib": peak_memory_mib(receiver.pid),
    }


def _count_files(log: Path) -> int:
    return sum(1 for _ in log.rglob("*.parquet"))
