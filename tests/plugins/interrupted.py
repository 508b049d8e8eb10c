"""Changes during whose reading something else happens to the table, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.contract import TableChanges
from penstock.model.event import Event
from penstock.model.lsn import Lsn
from penstock.model.table import TableId
from penstock.testing.batch import ArrowEvents


@dataclass(frozen=True)
class Interrupted:
    """A batch that calls `happens` when a destination first reads a table's changes."""

    events: ArrowEvents
    happens: Callable[[], object]

    @property
    def end_lsn(self) -> Lsn:
        return self.events.end_lsn

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def tables(self) -> dict[TableId, TableChanges]:
        return {table: InterruptedChanges(changes, [self.happens]) for table, changes in self.events.tables().items()}


class InterruptedChanges:
    """One table's changes, and what happens once they are read."""

    def __init__(self, changes: TableChanges, happens: list[Callable[[], object]]) -> None:
        self._changes, self._happens = changes, happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._changes, name)

    def arrow(self) -> Iterator[pa.RecordBatch]:
        while self._happens:
            self._happens.pop()()
        return self._changes.arrow()
