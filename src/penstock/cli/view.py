"""What is seen of a running pipeline: a live view on a terminal, plain lines elsewhere.

Rendering is pure, from reports; only `LiveView` and `LineView` know where it goes.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli import console as out
from penstock.cli.status import COPYING, copy_facts
from penstock.model.lsn import Lsn
from penstock.runtime.report import PipelineReport, TableReport

_UNCOPIED = {"init", COPYING}
_BAR_WIDTH = 24


class Rate:
    """How fast a count grows: over the last few seconds, so that it neither jumps nor lags."""

    def __init__(self, window_s: float = 3.0) -> None:
        self._window_s = window_s
        self._samples: list[tuple[float, int]] = []

    def add(self, at_s: float, count: int) -> None:
        """Note the count at a moment."""
        self._samples.append((at_s, count))
        while len(self._samples) > 2 and at_s - self._samples[1][0] >= self._window_s:  # noqa: PLR2004
            self._samples.pop(0)

    @property
    def per_second(self) -> float:
        """The growth per second; 0 before two moments are known."""
        if not self._samples:
            return 0.0
        (start_s, first), (end_s, last) = self._samples[0], self._samples[-1]
        return max(last - first, 0) / (end_s - start_s) if end_s > start_s else 0.0


class Lag:
    """How far behind a position is, in seconds: since when the source has been past it."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._positions: list[Lsn] = []

    def add(self, at_s: float, position: Lsn) -> None:
        """Note where the source is."""
        if not self._positions or position > self._positions[-1]:
            self._times.append(at_s)
            self._positions.append(position)

    @property
    def source(self) -> Lsn | None:
        """The source's last known position."""
        return self._positions[-1] if self._positions else None

    def bytes_behind(self, position: Lsn) -> int:
        """Return how much WAL lies between."""
        return max(int(self.source or 0) - int(position), 0)

    def seconds_behind(self, position: Lsn, now_s: float) -> float:
        """Return for how long the source has been past a position; 0 where it is not known to be."""
        place = bisect.bisect_right(self._positions, position)
        return max(now_s - self._times[place], 0.0) if place < len(self._times) else 0.0


class View(Protocol):
    """Where progress is shown, from entering to leaving."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, picture: RenderableType, line: str) -> None:
        """Show the moment: as a picture where there is a terminal, as a line where there is none."""
        ...


class LiveView:
    """A picture that stays below the log's lines."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, picture: RenderableType, line: str) -> None:  # noqa: ARG002
        """Replace the picture."""
        self._live.update(picture)


class LineView:
    """A line now and then; none at all without a pause given."""

    def __init__(self, console: Console, pause_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._pause_s = pause_s
        self._clock = clock
        self._last_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Lines need no end."""

    def show(self, picture: RenderableType, line: str) -> None:  # noqa: ARG002
        """Print the line if the last one is long enough ago."""
        now = self._clock()
        if self._pause_s is None or not line or (self._last_s is not None and now - self._last_s < self._pause_s):
            return
        self._last_s = now
        self._console.print(line, markup=False)


def choose_view(console: Console, line_pause_s: float | None) -> View:
    """Return the view that suits where output goes."""
    return LiveView(console) if console.is_terminal else LineView(console, line_pause_s)


def render_copies(report: PipelineReport) -> RenderableType:
    """Return a bar for every table that is being copied, and a line for the rest."""
    rows = [table for table in report.tables if table.phase == COPYING]
    grid = Table.grid(padding=(0, 2))
    for table in rows:
        facts = " · ".join([*copy_facts(table), f"{out.count(table.copied_rows)} rows"])
        grid.add_row(Text(table.name, no_wrap=True), progress_bar(table), Text(facts, no_wrap=True))
    summary = Text(summary_line(report), "dim")
    return Group(grid, summary) if rows else summary


def progress_bar(table: TableReport) -> RenderableType:
    """Return how far a copy is: a share of its bytes, or a sign of life where that is not known."""
    if table.phase == COPYING and not table.total_bytes:
        return ProgressBar(total=None, pulse=True, width=_BAR_WIDTH)
    percent = table.copied_percent
    if percent is None:
        percent = 0 if table.phase in _UNCOPIED else 100
    return ProgressBar(total=100, completed=percent, width=_BAR_WIDTH)


def summary_line(report: PipelineReport) -> str:
    """Return the pipeline in one line."""
    ready = sum(table.phase == "ready" for table in report.tables)
    errored = sum(table.error is not None for table in report.tables)
    events = sum(table.applied_events for table in report.tables)
    stopped = f", {errored} stopped" if errored else ""
    return (
        f"{ready} of {len(report.tables)} tables ready{stopped} · {out.count(events)} events applied"
        f" · log at {report.log_end}"
    )
