"""What every store does the same way: reads from memory, writes through to a backing first.

Memory is a set of mappings that are replaced, never changed: a reader takes the one that is current and
needs no lock, so it never waits for a write to reach the disk. Writes, and all calls of the backing, are
serialised by one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Protocol, Self, TypeVar

from penstock.errors import StateError
from penstock.model.lsn import Lsn
from penstock.model.phase import Phase
from penstock.model.table import TableId, TableSchema
from penstock.replication import life

V = TypeVar("V")


class Backing(Protocol):
    """Keeps one pipeline's state. Called by one thread at a time; raises `StateError` when it cannot."""

    def transaction(self) -> AbstractContextManager[None]:
        """Open a transaction: what is done inside becomes durable together at its end, or not at all."""
        ...

    def read_phases(self) -> dict[TableId, Phase]:
        """Return every table's current phase."""
        ...

    def read_history(self, table: TableId) -> tuple[Phase, ...]:
        """Return one table's phases, oldest first, the current one last."""
        ...

    def cut_history(self, table: TableId, keep: int) -> None:
        """Drop all but the oldest `keep` phases; the last of them becomes current."""
        ...

    def append_phase(self, table: TableId, phase: Phase) -> None:
        """Add a phase to the history and make it current."""
        ...

    def read_schemas(self) -> dict[TableId, TableSchema]:
        """Return every table's schema."""
        ...

    def write_schema(self, schema: TableSchema) -> None:
        """Keep a schema, replacing the table's former one."""
        ...

    def read_mappings(self) -> dict[TableId, str]:
        """Return every table's name at the destination."""
        ...

    def write_mapping(self, table: TableId, destination_table: str) -> None:
        """Keep a name, replacing the table's former one."""
        ...

    def read_watermarks(self) -> dict[TableId, Lsn]:
        """Return every table's watermark."""
        ...

    def advance_watermark(self, table: TableId, watermark: Lsn) -> None:
        """Keep a watermark, unless the table's own is already as far."""
        ...

    def forget_watermark(self, table: TableId) -> None:
        """Drop a table's watermark."""
        ...

    def forget_table(self, table: TableId) -> None:
        """Drop all that is kept of a table."""
        ...

    def close(self) -> None:
        """Release files and connections."""
        ...


class CachedStore:
    """A `penstock.contract.Store` over a backing. Memory is filled when it opens, and again by `load_…`."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing
        self._lock = threading.Lock()
        self._phases = backing.read_phases()
        self._schemas = backing.read_schemas()
        self._mappings = backing.read_mappings()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release files and connections. What is in memory can still be read; twice is as good as once."""
        with self._lock:
            self._backing.close()

    def get_table_schema(self, table: TableId) -> TableSchema | None:
        """Return one table's schema, or None."""
        return self._schemas.get(table)

    def get_table_schemas(self) -> Sequence[TableSchema]:
        """Return all schemas."""
        return tuple(self._schemas.values())

    def load_table_schemas(self) -> int:
        """Fill memory from what is stored, and return how many there are."""
        with self._lock:
            self._schemas = self._backing.read_schemas()
            return len(self._schemas)

    def store_table_schema(self, schema: TableSchema) -> None:
        """Keep a schema, replacing the table's former one."""
        with self._lock:
            with self._backing.transaction():
                self._backing.write_schema(schema)
            self._schemas = {**self._schemas, schema.id: schema}

    def get_table_replication_state(self, table: TableId) -> Phase | None:
        """Return one table's phase, or None if the table is unknown."""
        return self._phases.get(table)

    def get_table_replication_states(self) -> Mapping[TableId, Phase]:
        """Return every known table's phase."""
        return MappingProxyType(self._phases)

    def load_table_replication_states(self) -> int:
        """Fill memory from what is stored, forgetting phases that live there only; return how many there are."""
        with self._lock:
            self._phases = self._backing.read_phases()
            return len(self._phases)

    def update_table_replication_state(self, table: TableId, state: Phase) -> None:
        """Enter a phase; `penstock.replication.life.enter` says what remains of the history."""
        with self._lock:
            if life.is_stored(state):
                self._append(table, state)
            self._phases = {**self._phases, table: state}

    def rollback_table_replication_state(self, table: TableId) -> Phase:
        """Return to the stored phase before the current one, dropping the current one, and return it.

        A phase that lives in memory only is the current one where there is one: dropping it leads back
        to what was stored last.
        """
        with self._lock:
            with self._backing.transaction():
                phase = self._step_back(table)
            self._phases = {**self._phases, table: phase}
            return phase

    def get_table_mapping(self, table: TableId) -> str | None:
        """Return the table's name at the destination, or None."""
        return self._mappings.get(table)

    def get_table_mappings(self) -> Mapping[TableId, str]:
        """Return all names at the destination."""
        return MappingProxyType(self._mappings)

    def load_table_mappings(self) -> int:
        """Fill memory from what is stored, and return how many there are."""
        with self._lock:
            self._mappings = self._backing.read_mappings()
            return len(self._mappings)

    def store_table_mapping(self, table: TableId, destination_table: str) -> None:
        """Keep a table's name at the destination."""
        with self._lock:
            with self._backing.transaction():
                self._backing.write_mapping(table, destination_table)
            self._mappings = {**self._mappings, table: destination_table}

    def get_replication_progress(self) -> Mapping[TableId, Lsn]:
        """Return every table's stored watermark: always what is durable, never from memory."""
        with self._lock:
            return MappingProxyType(self._backing.read_watermarks())

    def store_replication_progress(self, watermarks: Mapping[TableId, Lsn]) -> None:
        """Advance watermarks, together. One that would move backwards stays as it is."""
        with self._lock, self._backing.transaction():
            for table, watermark in watermarks.items():
                self._backing.advance_watermark(table, watermark)

    def reset_replication_progress(self, table: TableId) -> None:
        """Forget a table's watermark, because it is copied anew."""
        with self._lock, self._backing.transaction():
            self._backing.forget_watermark(table)

    def cleanup_table_state(self, table: TableId) -> None:
        """Remove all that is kept of a table. Twice is as good as once."""
        with self._lock:
            with self._backing.transaction():
                self._backing.forget_table(table)
            self._phases = _without(self._phases, table)
            self._schemas = _without(self._schemas, table)
            self._mappings = _without(self._mappings, table)

    def _append(self, table: TableId, phase: Phase) -> None:
        with self._backing.transaction():
            history = life.enter(self._backing.read_history(table), phase)
            self._backing.cut_history(table, len(history) - 1)
            self._backing.append_phase(table, phase)

    def _step_back(self, table: TableId) -> Phase:
        history = self._backing.read_history(table)
        current = self._phases.get(table)
        keep = len(history) - (current is None or life.is_stored(current))
        if keep < 1:
            raise StateError(
                f"table {table} has no earlier phase to roll back to",
                remedy="Resync the table to copy it anew.",
            )
        self._backing.cut_history(table, keep)
        return history[keep - 1]


def _without(mapping: dict[TableId, V], table: TableId) -> dict[TableId, V]:
    return {key: value for key, value in mapping.items() if key != table}
