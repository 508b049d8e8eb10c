"""What is seen of a pipeline, rendered from reports without a terminal."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from penstock.cli import console
from penstock.cli.status import SourceStatus, Status, render
from penstock.cli.view import CopyRates, Lag, LineView, Rate, progress_bar, render_copies
from penstock.model.lsn import Lsn
from penstock.runtime.report import PipelineReport, TableReport


def table(name: str = "public.a", phase: str = "ready", copied: int = 0, estimate: int | None = None) -> TableReport:
    return TableReport(1, name, phase, "0/10", copied_rows=copied, estimated_rows=estimate, applied_events=7)


def report(*tables: TableReport) -> PipelineReport:
    return PipelineReport(
        pipeline="p",
        pid=1,
        at="2024-01-01T00:00:00+00:00",
        receiver_pid=2,
        receiver_restarts=0,
        receiver_error=None,
        is_log_full=False,
        log_start="0/1",
        log_end="0/20",
        log_bytes=1500,
        acknowledged="0/10",
        received_events=3,
        tables=tables,
    )


def text(picture: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(picture)
    return out.getvalue()


def test_tables_being_copied_have_a_line_with_rows_and_estimate() -> None:
    seen = text(render_copies(report(table("public.big", "data_sync", 500, 1000), table("public.b")), CopyRates()))
    assert "public.big" in seen
    assert "500 of about 1,000" in seen
    assert "1 of 2 tables ready" in seen
    assert "public.b " not in seen


def test_an_estimate_that_was_too_low_never_shows_more_than_all() -> None:
    seen = text(render_copies(report(table("public.big", "data_sync", 1500, 1000)), CopyRates()))
    assert "1,500 of about 1,500" in seen


@pytest.mark.parametrize("phase", ["init", "data_sync", "finished_copy", "ready", "errored"])
@pytest.mark.parametrize("estimate", [None, 0, 10])
def test_every_phase_has_a_bar(phase: str, estimate: int | None) -> None:
    assert text(progress_bar(table(phase=phase, copied=3, estimate=estimate)))


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
    return Status("p", pid, report(*tables).to_json(), source, list(tables))


def test_status_says_why_the_lag_is_unknown() -> None:
    seen = text(render(status(SourceStatus(problem="connection refused"), table(), pid=None)))
    assert "not running" in seen
    assert "not reachable" in seen
    assert "connection refused" in seen


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
