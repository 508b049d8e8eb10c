"""Keeps everything it is given in memory: what was copied, and every event in the order of arrival.

It stores no position, so it is given changes at least once; `current_rows` applies each once all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from penstock.contract.batch import EventBatch, RowBatch
from penstock.model.cell import UNCHANGED, Cell, OldRow, OldRowKind, TableRow, UpdatedRow
from penstock.model.event import Delete, Event, Insert, Truncate, Update
from penstock.model.lsn import Lsn, Position
from penstock.model.table import TableId, TableSchema

RowChange: TypeAlias = Insert | Update | Delete | Truncate


@dataclass
class _Copy:
    """What the table's last copy brought, and how many events had come before it."""

    rows: list[TableRow] = field(default_factory=list)
    watermark: Lsn = field(default_factory=Lsn)
    events_before: int = 0


class MemoryDestination:
    """A destination whose tables are Python lists; safe to read while it is written."""

    name: ClassVar[str] = "memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: dict[TableId, _Copy] = {}
        self._events: list[Event] = []

    def startup(self) -> None:
        """Memory needs no check."""

    def truncate_table(self, table: TableId) -> None:
        """Forget the table's rows; events received so far no longer count for it."""
        with self._lock:
            self._copies[table] = _Copy(events_before=len(self._events))

    def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
        """Keep the rows."""
        copied = list(rows)
        with self._lock:
            copy = self._copies.setdefault(table.id, _Copy())
            copy.rows.extend(copied)
            copy.watermark = rows.watermark

    def write_events(self, events: EventBatch) -> None:
        """Keep the events."""
        received = list(events)
        with self._lock:
            self._events.extend(received)

    def shutdown(self) -> None:
        """Memory needs no release; what was received can still be read."""

    def table_rows(self, table: TableId) -> list[TableRow]:
        """Return the rows of the table's last copy."""
        with self._lock:
            return list(self._copies.get(table, _Copy()).rows)

    @property
    def events(self) -> list[Event]:
        """Every event received, repeats included."""
        with self._lock:
            return list(self._events)

    def current_rows(self, schema: TableSchema) -> list[TableRow]:
        """Return the table as the copy and the events make it, each event counted once, in commit order."""
        with self._lock:
            copy = self._copies.get(schema.id, _Copy())
            rows, received = list(copy.rows), self._events[copy.events_before :]
        table = _Table(schema, rows)
        for change in _once(received, schema.id, copy.watermark):
            table.apply(change)
        return table.rows


def _once(events: Iterable[Event], table: TableId, since: Lsn) -> list[RowChange]:
    """Return a table's changes in order of position, without repeats and what the copy already holds."""
    changes: dict[Position, RowChange] = {}
    for event in events:
        if _concerns(event, table) and isinstance(event, RowChange) and event.position.commit_lsn >= since:
            changes[event.position] = event
    return [changes[position] for position in sorted(changes)]


def _concerns(event: Event, table: TableId) -> bool:
    if isinstance(event, Insert | Update | Delete):
        return event.table == table
    return isinstance(event, Truncate) and table in event.tables


class _Table:
    """Rows by key; by arrival where the table has none."""

    def __init__(self, schema: TableSchema, rows: Iterable[TableRow]) -> None:
        self._key = [schema.columns.index(column) for column in schema.key]
        self._rows: dict[Any, TableRow] = {}
        self._arrivals = 0
        for row in rows:
            self._put(row)

    @property
    def rows(self) -> list[TableRow]:
        return list(self._rows.values())

    def apply(self, change: RowChange) -> None:
        match change:
            case Insert(row=row):
                self._put(row)
            case Update(row=row, old=old):
                former = self._pop(old if old is not None else self._old_key(row))
                self._put(_complete(row, former))
            case Delete(old=old):
                self._pop(old)
            case Truncate():
                self._rows.clear()

    def _put(self, row: TableRow) -> None:
        self._arrivals += 1
        self._rows[self._identity(row.values) if self._key else self._arrivals] = row

    def _pop(self, old: OldRow) -> TableRow | None:
        if self._key:
            return self._rows.pop(
                self._identity(old.values) if old.kind is OldRowKind.FULL else _frozen(old.values), None
            )
        place = next((place for place, row in self._rows.items() if row.values == old.values), None)
        return self._rows.pop(place, None)

    def _identity(self, values: Sequence[Cell]) -> Any:
        return _frozen([values[index] for index in self._key])

    def _old_key(self, row: UpdatedRow) -> OldRow:
        values = [row.values[index] for index in self._key]
        return OldRow(OldRowKind.KEY, tuple(value for value in values if value is not UNCHANGED))


def _complete(row: UpdatedRow, former: TableRow | None) -> TableRow:
    """Fill in what the source did not send again."""
    earlier = former.values if former else (None,) * len(row.values)
    return TableRow(tuple(old if new is UNCHANGED else new for new, old in zip(row.values, earlier, strict=True)))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
