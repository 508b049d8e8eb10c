"""What is seen of a pipeline, rendered from reports without a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.reports import make_report
from rich.console import Console, RenderableType

from penstock.cli import console
from penstock.cli.status import SourceStatus, Status, render
from penstock.cli.view import Lag, LineView, Rate, progress_bar, render_copies
from penstock.model.lsn import Lsn
from penstock.runtime.report import HeldBack, TableReport


def table(name: str = "public.a", phase: str = "ready", copied: int = 0, **more: Any) -> TableReport:
    return TableReport(1, name, phase, "0/10", copied_rows=copied, estimated_rows=None, applied_events=7, **more)


def copying(name: str = "public.big", percent: float = 50.0, left_s: float | None = 90.0) -> TableReport:
    done = {"copied_bytes": 1_000_000, "total_bytes": 2_000_000, "copied_percent": percent}
    return table(name, "data_sync", 1500, **done, rows_per_second=1234.5, seconds_left=left_s)


def text(picture: RenderableType, *, on_terminal: bool = False) -> str:
    out = io.StringIO()
    environment = {"TERM": "xterm"}  # whatever the tests run in
    Console(file=out, width=200, force_terminal=on_terminal, _environ=environment).print(picture)
    return out.getvalue()


def test_tables_being_copied_have_a_line_with_rows_share_rate_and_time_left() -> None:
    seen = text(render_copies(make_report(copying(), table("public.b"))))
    assert "public.big" in seen
    assert "50 % of 2.0 MB · 1 min 30 s left · 1,234 rows/s · 1,500 rows" in seen
    assert "1 of 2 tables ready" in seen
    assert "public.b " not in seen


def test_a_time_left_that_nobody_knows_is_left_out() -> None:
    seen = text(render_copies(make_report(copying(left_s=None))))
    assert "rows/s" in seen
    assert "left" not in seen


def test_an_empty_table_has_no_share_of_nothing() -> None:
    seen = text(render_copies(make_report(table("public.none", "data_sync", total_bytes=0, copied_percent=0.0))))
    assert "public.none" in seen
    assert "%" not in seen


def test_on_a_narrow_terminal_the_share_and_the_time_left_are_the_last_to_go() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(render_copies(make_report(copying())))
    line = out.getvalue().splitlines()[0]
    assert len(line) <= 80
    assert "50 % of 2.0 MB · 1 min 30 s left" in line


@pytest.mark.parametrize("phase", ["init", "data_sync", "finished_copy", "ready", "errored"])
@pytest.mark.parametrize("total", [None, 0, 8192])
@pytest.mark.parametrize("percent", [None, 0.0, 100.0])
def test_every_phase_has_a_bar(phase: str, total: int | None, percent: float | None) -> None:
    bar = progress_bar(table(phase=phase, copied=3, total_bytes=total, copied_percent=percent))
    assert "━" in text(bar, on_terminal=True)


def test_status_tells_how_a_copy_is_getting_on_while_there_is_one() -> None:
    source = SourceStatus(problem="away")
    seen = text(render(status(source, copying(), table())))
    assert "50 % of 2.0 MB · 1 min 30 s left · 1,234 rows/s" in seen
    assert "rows/s" not in text(render(status(source, table())))


def test_status_tells_programs_every_figure_of_a_copy() -> None:
    (told,) = status(SourceStatus(problem="away"), copying()).to_json()["tables"]
    figures = ("copied_rows", "copied_bytes", "total_bytes", "copied_percent", "rows_per_second", "seconds_left")
    assert [told[name] for name in figures] == [1500, 1_000_000, 2_000_000, 50.0, 1234.5, 90.0]


def test_status_tells_the_age_of_a_snapshot_that_is_held() -> None:
    told = replace(make_report(table()), snapshot_age_s=3700.0).to_json()
    running = Status("p", 1, told, SourceStatus(problem="away"), [table()])
    assert "snapshot: held for 1 h 01 min" in text(render(running))
    assert running.to_json()["replicator"]["snapshot_age_s"] == 3700.0
    assert "snapshot" not in text(render(replace(running, pid=None)))


def test_status_tells_of_upkeep_once_there_was_any() -> None:
    source = SourceStatus(problem="away")
    kept = replace(table(), files=7, upkeep_at="2026-01-02T03:04:05", upkeep_rewritten_files=61)
    kept = replace(kept, upkeep_rewritten_bytes=2_400_000)
    seen = text(render(status(source, kept, table())))
    assert "upkeep: 61 files (2.4 MB) put together; last at 2026-01-02T03:04:05\n" in seen
    assert "applied  files\n" in seen
    assert "2 times it failed" in text(render(status(source, replace(kept, upkeep_failures=2))))
    assert "files" not in text(render(status(source, table())))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (90, "1 min 30 s"),
        (3599.6, "1 h 00 min"),
        (86399, "23 h 59 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_durations_are_as_exact_as_anyone_cares(seconds: float, shown: str) -> None:
    assert console.duration(seconds) == shown


def test_rate_counts_growth_within_its_window() -> None:
    rate = Rate(window_s=2)
    assert rate.per_second == 0
    for second, count in enumerate([0, 10, 20, 120, 220]):
        rate.add(float(second), count)
    assert rate.per_second == 100


def test_a_count_that_starts_anew_is_no_negative_rate() -> None:
    rate = Rate()
    rate.add(0, 100)
    rate.add(1, 0)
    assert rate.per_second == 0


def test_lag_is_the_time_since_the_source_passed_a_position() -> None:
    lag = Lag()
    for second, position in ((1.0, 100), (2.0, 200), (3.0, 300)):
        lag.add(second, Lsn(position))
    assert lag.bytes_behind(Lsn(150)) == 150
    assert lag.seconds_behind(Lsn(150), 5.0) == 3.0
    assert lag.seconds_behind(Lsn(300), 5.0) == 0.0


@given(st.lists(st.integers(0, 1000), min_size=1), st.integers(0, 1000))
def test_lag_never_grows_with_progress(positions: list[int], position: int) -> None:
    lag = Lag()
    for second, each in enumerate(positions):
        lag.add(float(second), Lsn(each))
    now = float(len(positions))
    assert lag.seconds_behind(Lsn(position), now) >= lag.seconds_behind(Lsn(position + 1), now) >= 0
    assert (lag.seconds_behind(Lsn(position), now) == 0) == (max(positions) <= position)


def test_lines_come_at_most_once_per_pause() -> None:
    out, times = io.StringIO(), iter([0.0, 1.0, 2.0, 3.0])
    view = LineView(Console(file=out), pause_s=2, clock=lambda: next(times))
    with view:
        for word in ("one", "two", "three", "four"):
            view.show(word, word)
    assert out.getvalue().split() == ["one", "three"]


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB"), (5 * 10**9, "5.0 GB"), (10**16, "10000.0 TB")],
)
def test_sizes_are_short(number: int, shown: str) -> None:
    assert console.size(number) == shown


def status(source: SourceStatus, *tables: TableReport, pid: int | None = 1) -> Status:
    return Status("p", pid, make_report(*tables).to_json(), source, list(tables))


def test_status_says_why_the_lag_is_unknown() -> None:
    seen = text(render(status(SourceStatus(problem="connection refused"), table(), pid=None)))
    assert "not running" in seen
    assert "not reachable" in seen
    assert "connection refused" in seen


HELD = HeldBack("public.orders", "errored", "0/8")


@pytest.mark.parametrize(
    ("log_start", "held", "keep_ms", "lines"),
    [
        ("0/1", None, 0, []),
        ("0/1", HELD, 0, ["0/1..0/20 is held by public.orders at 0/8 (errored)"]),
        ("0/1", HELD, 1000, ["0/1..0/20 is held by public.orders at 0/8 (errored)"]),
        ("0/0", None, 1000, ["0/0..0/1 is kept for replay: log.keep_ms 1s"]),
        (None, None, 1000, []),
    ],
)
def test_status_says_why_the_log_is_as_long_as_it_is(
    log_start: str | None, held: HeldBack | None, keep_ms: int, lines: list[str]
) -> None:
    told = replace(make_report(table()), log_held_by=held, log_keep_ms=keep_ms).to_json()
    seen = text(render(Status("p", 1, told, SourceStatus(problem="away"), [table()], log_start)))
    assert [line.strip() for line in seen.splitlines() if " is held by " in line or " is kept " in line] == lines


def test_a_report_of_an_older_version_is_still_told() -> None:
    newer = ("log_h", "log_k", "snapshot")
    told = {key: value for key, value in make_report(table()).to_json().items() if not key.startswith(newer)}
    assert "log: 0/1 to 0/20" in text(render(Status("p", 1, told, SourceStatus(problem="away"), [table()])))


def test_status_shows_each_table_with_its_lag_and_each_error_with_its_remedy() -> None:
    broken = TableReport(
        2,
        "public.b",
        "errored",
        None,
        copied_rows=0,
        estimated_rows=None,
        applied_events=0,
        error="bad",
        solution="mend",
    )
    source = SourceStatus(position="0/3F8", slot="penstock_p", confirmed="0/10", wal_status="reserved", lag_bytes=1000)
    seen = text(render(status(source, table(), broken)))
    assert "running (process 1)" in seen
    assert "1.0 kB behind" in seen
    assert "public.b: bad\n    mend" in seen.replace(" \n", "\n").replace("\n     ", "\n    ") or "mend" in seen
    assert status(source, table()).to_json()["tables"][0]["lag_bytes"] == 0x3F8 - 0x10
