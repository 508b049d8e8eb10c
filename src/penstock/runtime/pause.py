"""When a table's next batch is due: at once, or when enough time has passed since the one before.

A commit that updates or deletes rows of a lake's table leaves marks there, and every commit a version: readers look
through both until upkeep has cleared them away. A second of freshness more would make them twice as many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from penstock.changelog.entry import DataFile
from penstock.model.lsn import Lsn
from penstock.model.table import TableId

# Of changes in memory: so many are worth a commit of their own, and whoever catches up does not pause.
_ENOUGH_BYTES = 8 << 20


class Pauses:
    """Remembers when each table had its last batch. Asked by one thread, told by others."""

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._began: dict[TableId, float] = {}
        self._waiting: dict[TableId, Lsn] = {}

    def begin(self, table: TableId) -> None:
        """Note that a table's batch begins now."""
        self._began[table] = self._clock()

    def is_waiting(self, table: TableId, end: Lsn) -> bool:
        """Whether a table was not due with the log up to this end: there is nothing to look at before its time."""
        return self._waiting.get(table) == end and not self._is_over(table)

    def is_due(self, table: TableId, end: Lsn, changes: Iterable[DataFile], *, is_truncated: bool = False) -> bool:
        """Whether a table's batch up to `end` may begin: inserts alone may always, they only add to a table."""
        is_due = self._is_over(table) or _is_urgent(list(changes), is_truncated=is_truncated)
        if not is_due:
            self._waiting[table] = end
        return is_due

    def _is_over(self, table: TableId) -> bool:
        began = self._began.get(table)
        return began is None or self._clock() - began >= self._every_s


def _is_urgent(changes: list[DataFile], *, is_truncated: bool) -> bool:
    if is_truncated or any(file.updates or file.deletes for file in changes):
        return sum(file.memory_bytes or file.size_bytes for file in changes) >= _ENOUGH_BYTES
    return True
