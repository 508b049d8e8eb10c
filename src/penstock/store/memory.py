"""A store that lives and dies with its process: for tests, examples and runs that always copy anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.model.lsn import Lsn
from penstock.model.phase import Phase
from penstock.model.table import TableId, TableSchema
from penstock.store.cached import CachedStore


class MemoryStore(CachedStore):
    """Keeps everything in memory. Give the same object to the next pipeline to go on where one stopped."""

    def __init__(self) -> None:
        super().__init__(_Mappings())


@dataclass
class _Mappings:
    """A backing of plain mappings. Nothing here can fail half way, so a transaction has nothing to undo."""

    histories: dict[TableId, tuple[Phase, ...]] = field(default_factory=dict)
    schemas: dict[TableId, TableSchema] = field(default_factory=dict)
    mappings: dict[TableId, str] = field(default_factory=dict)
    watermarks: dict[TableId, Lsn] = field(default_factory=dict)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield

    def read_phases(self) -> dict[TableId, Phase]:
        return {table: history[-1] for table, history in self.histories.items()}

    def read_history(self, table: TableId) -> tuple[Phase, ...]:
        return self.histories.get(table, ())

    def cut_history(self, table: TableId, keep: int) -> None:
        self.histories[table] = self.read_history(table)[:keep]

    def append_phase(self, table: TableId, phase: Phase) -> None:
        self.histories[table] = (*self.read_history(table), phase)

    def read_schemas(self) -> dict[TableId, TableSchema]:
        return dict(self.schemas)

    def write_schema(self, schema: TableSchema) -> None:
        self.schemas[schema.id] = schema

    def read_mappings(self) -> dict[TableId, str]:
        return dict(self.mappings)

    def write_mapping(self, table: TableId, destination_table: str) -> None:
        self.mappings[table] = destination_table

    def read_watermarks(self) -> dict[TableId, Lsn]:
        return dict(self.watermarks)

    def advance_watermark(self, table: TableId, watermark: Lsn) -> None:
        self.watermarks[table] = max(watermark, self.watermarks.get(table, watermark))

    def forget_watermark(self, table: TableId) -> None:
        self.watermarks.pop(table, None)

    def forget_table(self, table: TableId) -> None:
        for kept in (self.histories, self.schemas, self.mappings, self.watermarks):
            kept.pop(table, None)

    def close(self) -> None:
        """Nothing is held open."""
