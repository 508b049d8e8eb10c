"""When a table's next batch is due: at once, or when enough time has passed since the one before.

A commit that updates or deletes rows of a lake's table leaves marks there, and every commit a version: readers look
through both until upkeep has cleared them away. A second of freshness more would make them twice as many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from penstock.changelog.entry import DataFile
from penstock.model.table import TableId

# Of changes in memory: so many are worth a commit of their own, and whoever catches up does not pause.
_ENOUGH_BYTES = 8 << 20


class Turns:
    """Remembers when each table had its last batch. Asked by one thread, told by others."""

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._began: dict[TableId, float] = {}

    def begin(self, table: TableId) -> None:
        """Note that a table's batch begins now."""
        self._began[table] = self._clock()

    def is_due(self, table: TableId, changes: Iterable[DataFile], *, is_truncated: bool = False) -> bool:
        """Whether a table's next batch may begin: inserts alone may always, they only add to a table."""
        began = self._began.get(table)
        if began is None or self._clock() - began >= self._every_s:
            return True
        found = list(changes)
        if is_truncated or any(file.updates or file.deletes for file in found):
            return sum(file.memory_bytes or file.size_bytes for file in found) >= _ENOUGH_BYTES
        return True
