"""A lake in memory: rows, position and parts of each table change together, and stay for the next pipeline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.contract import EventBatch, RowBatch
from penstock.model.cell import UNCHANGED
from penstock.model.event import Delete, Event, Insert, Truncate, Update
from penstock.model.lsn import Lsn
from penstock.model.table import TableId, TableSchema

Row = tuple[Any, ...]


@dataclass
class LakeTable:
    schema: TableSchema | None = None
    rows: list[Row] = field(default_factory=list)
    watermark: Lsn | None = None
    parts: int = 0
    copies: int = 0
    """How often it was begun anew."""


class MemoryLake:
    """Exactly once, like a real one. `before_part` is called with the number of a part that is about to be written."""

    name: ClassVar[str] = "memory lake"

    def __init__(self, before_part: Callable[[int], None] = lambda _: None) -> None:
        self.tables: dict[TableId, LakeTable] = {}
        self.before_part = before_part
        self._lock = threading.Lock()

    def startup(self) -> None: ...

    def shutdown(self) -> None: ...

    def table(self, name: str) -> LakeTable:
        [found] = [each for each in self.tables.values() if each.schema is not None and each.schema.name.name == name]
        return found

    def watermark(self, table: TableId) -> Lsn | None:
        return self.tables[table].watermark if table in self.tables else None

    def copied_parts(self, table: TableId) -> int:
        return self.tables[table].parts if table in self.tables else 0

    def truncate_table(self, table: TableId) -> None:
        with self._lock:
            found = self.tables.setdefault(table, LakeTable())
            found.rows, found.parts, found.watermark = [], 0, Lsn(0)

    def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
        found = self.tables.setdefault(table.id, LakeTable())
        read = [tuple(row.values) for row in rows]
        self.before_part(rows.part)
        with self._lock:
            assert found.parts == rows.part, "a part was skipped or repeated"
            found.copies += rows.part == 0
            found.schema, found.watermark, found.parts = table, rows.watermark, rows.part + 1
            found.rows = [*found.rows, *read] if rows.part else read

    def write_events(self, events: EventBatch) -> None:
        with self._lock:
            changed = {table: self.tables[table] for table in events.tables()}
            for event in events:
                for id_, table in changed.items():
                    assert table.watermark is not None
                    if event.position.commit_lsn >= table.watermark:
                        _apply(id_, table, event)
            for table in changed.values():
                table.watermark = events.end_lsn


def _apply(id_: TableId, table: LakeTable, event: Event) -> None:
    assert table.schema is not None
    key = [table.schema.columns.index(column) for column in table.schema.key]

    def key_of(row: Row) -> Row:
        return tuple(row[place] for place in key)

    match event:
        case Insert() if event.table == id_:
            table.rows.append(tuple(event.row.values))
        case Update() if event.table == id_:
            new = tuple(event.row.values)
            old_key = key_of(new)
            if event.old is not None:
                old_key = event.old.values if len(event.old.values) == len(key) else key_of(event.old.values)
            [former] = [row for row in table.rows if key_of(row) == old_key]
            table.rows.remove(former)
            table.rows.append(tuple(b if a is UNCHANGED else a for a, b in zip(new, former, strict=True)))
        case Delete() if event.table == id_:
            gone = event.old.values if len(event.old.values) == len(key) else key_of(event.old.values)
            table.rows = [row for row in table.rows if key_of(row) != gone]
        case Truncate() if id_ in event.tables:
            table.rows = []
        case _:
            pass
