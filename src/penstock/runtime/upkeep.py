"""Upkeep of the destination's tables, on a schedule, beside everything else.

One thread, one table at a time: changes go on being applied, to the same table too. By the clock a table gets all that
is due, and in between a brief upkeep after every few batches, which are what leaves small files behind.
"""

from __future__ import annotations

import datetime as dt
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
_BRIEF_ONES = 8  # at most, between two others: each leaves a version that lives as long as the files that it took out


@dataclass(frozen=True, slots=True)
class _Last:
    """A table's last upkeep: how many batches there had been before it, and when it ended."""

    batches: int
    ended_at: float


class UpkeepWorker:
    """Gives every followed table its upkeep when it is due."""

    def __init__(
        self, destination: Maintained, tables: Tables, every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._destination = destination
        self._tables = tables
        self._every_s = every_s
        self._clock = clock
        self._due_at: dict[TableId, float] = {}
        self._last: dict[TableId, _Last] = {}
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
            if self._is_due(state.id):
                self._look_after(state)
                self._due_at[state.id] = self._clock() + self._every_s
            elif self._is_briefly_due(state):
                self._look_after(state, is_brief=True)

    def _is_due(self, table: TableId) -> bool:
        """Whether a table has waited long enough; one that is new begins to wait."""
        return self._due_at.setdefault(table, self._clock() + self._every_s) <= self._clock()

    def _is_briefly_due(self, state: TableState) -> bool:
        """Whether a table had enough batches since its last upkeep; one that failed is made up for by the clock."""
        last = self._last.setdefault(state.id, _Last(0, self._clock()))
        has_enough = state.batches - last.batches >= self._destination.brief_upkeep_after
        has_waited = self._clock() - last.ended_at >= self._every_s / _BRIEF_ONES
        return has_enough and has_waited and not state.upkeep.is_failing

    def _look_after(self, state: TableState, *, is_brief: bool = False) -> None:
        batches = state.batches
        self._try(state, is_brief=is_brief)
        self._last[state.id] = _Last(batches, self._clock())

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
