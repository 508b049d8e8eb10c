"""Upkeep of the destination's tables, on a schedule, beside everything else.

One thread, one table at a time: changes go on being applied, to the same table too. By the clock a table gets all that
is due, and once more when its changes pause. In between it gets a brief upkeep after every few batches, which are what
leaves small files behind.
"""

from __future__ import annotations

import datetime as dt
import math
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from penstock.contract import Maintained
from penstock.errors import PenstockError
from penstock.model.table import TableId
from penstock.runtime.tables import Tables, TableState
from penstock.telemetry.log import get_logger

_TICK_S = 0.5  # how much later than it is due an upkeep may begin
_PAUSE_S = 5.0  # without a batch; no shorter than a destination wants it to be
_BRIEF_ONES = 8  # at most, between two others: each leaves a version that lives as long as the files that it took out


@dataclass(slots=True)
class _Watched:
    """What is known of a table, from when it was met on."""

    state: TableState
    due_at: float
    """When the next upkeep is due by the clock."""
    ended_at: float
    """When the last upkeep ended."""
    changed_at: float
    """When there was another batch."""
    batches: int = 0
    batches_before: int = 0
    """How many of them there had been before the last upkeep."""
    batches_before_whole: int = 0
    """Before the last one that was not brief and came in a pause."""
    paused_at: float = -math.inf
    """When that one began."""

    @property
    def has_news(self) -> bool:
        """Whether there was a batch since."""
        return self.batches > self.batches_before_whole

    def is_pausing(self, now: float) -> bool:
        """Whether there was no batch for a while."""
        return now - self.changed_at >= _PAUSE_S


class UpkeepWorker:
    """Gives every followed table its upkeep when it is due."""

    def __init__(
        self, destination: Maintained, tables: Tables, every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._destination = destination
        self._tables = tables
        self._every_s = every_s
        self._clock = clock
        self._watched: dict[TableId, _Watched] = {}
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Start no more, and end what is under way soon."""
        self._stopping.set()

    def run(self) -> None:
        """Look after tables until stopped."""
        while not self._stopping.wait(min(_TICK_S, self._every_s)):
            self.step()

    def step(self) -> None:
        """Do what is due."""
        for state in self._tables.all():
            if self._stopping.is_set():
                return
            # A table may leave the publication while another one is looked after.
            if not state.is_followed or self._tables.name(state.id) is None:
                continue
            watched = self._watch(state)
            if self._is_due(watched):
                self._look_after(watched)
            elif self._is_briefly_due(watched):
                self._look_after(watched, is_brief=True)

    def _watch(self, state: TableState) -> _Watched:
        """Return what is known of a table; one that is new begins to wait."""
        now = self._clock()
        watched = self._watched.get(state.id)
        # One that left the publication and joined again counts from the beginning.
        if watched is None or watched.state is not state:
            watched = _Watched(state, now + self._every_s, ended_at=now, changed_at=now)
            self._watched[state.id] = watched
        if state.batches != watched.batches:
            watched.batches, watched.changed_at = state.batches, now
        return watched

    def _is_due(self, watched: _Watched) -> bool:
        """Whether a table has waited long enough, or its changes pause; that is a reason as often as the clock is."""
        now = self._clock()
        is_pause_due = watched.has_news and watched.is_pausing(now) and now - watched.paused_at >= self._every_s
        return is_pause_due or watched.due_at <= now

    def _is_briefly_due(self, watched: _Watched) -> bool:
        """Whether a table had enough batches since its last upkeep; one that failed is made up for by the clock."""
        has_enough = watched.batches - watched.batches_before >= self._destination.brief_upkeep_after
        has_waited = self._clock() - watched.ended_at >= self._every_s / _BRIEF_ONES
        return has_enough and has_waited and not watched.state.upkeep.is_failing

    def _look_after(self, watched: _Watched, *, is_brief: bool = False) -> None:
        watched.batches_before, began = watched.batches, self._clock()
        self._try(watched.state, is_brief=is_brief)
        watched.ended_at = self._clock()
        if is_brief:
            return
        watched.due_at = watched.ended_at + self._every_s
        # Right behind a batch a table is not put in order: the pause that may follow is still a reason to.
        if watched.has_news and watched.is_pausing(began):
            watched.batches_before_whole, watched.paused_at = watched.batches_before, began

    def _try(self, state: TableState, *, is_brief: bool) -> None:
        began = self._clock()
        log = get_logger(worker="upkeep", table=str(state.name))
        try:
            schema = self._tables.schema(state.id)
            done = self._destination.upkeep(schema, self._stopping.is_set, is_brief=is_brief)
        except Exception as error:  # whatever it is, the table itself is as it was
            reason = error.message if isinstance(error, PenstockError) else type(error).__name__
            state.upkeep.add_failure()
            log.warning("upkeep failed", reason=reason, seconds=round(self._clock() - began, 3))
            log.debug("upkeep failed", exc_info=error)
            return
        seconds = self._clock() - began
        state.upkeep.add(done, seconds, None if is_brief else dt.datetime.now(dt.UTC))
        tell = log.debug if done.is_idle or is_brief else log.info
        tell("table was kept up", seconds=round(seconds, 3), **asdict(done))
