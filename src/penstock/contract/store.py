"""Where Penstock keeps what it must remember across restarts.

The three stores are usually one class. Reads are served from memory, which the `load_…` methods
fill at start; a write is in memory and durable when it returns. A store serves one pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from penstock.model.lsn import Lsn
from penstock.model.phase import Phase
from penstock.model.table import TableId, TableSchema


@runtime_checkable
class SchemaStore(Protocol):
    """Keeps the columns of every table, as they were when it was copied or last changed."""

    def get_table_schema(self, table: TableId) -> TableSchema | None:
        """Return one table's schema, or None."""
        ...

    def get_table_schemas(self) -> Sequence[TableSchema]:
        """Return all schemas."""
        ...

    def load_table_schemas(self) -> int:
        """Fill memory from what is stored, and return how many there are. Called once, at start."""
        ...

    def store_table_schema(self, schema: TableSchema) -> None:
        """Keep a schema, replacing the table's former one."""
        ...


@runtime_checkable
class StateStore(Protocol):
    """Keeps each table's phase with its history, its watermark, and its name at the destination."""

    def get_table_replication_state(self, table: TableId) -> Phase | None:
        """Return one table's phase, or None if the table is unknown."""
        ...

    def get_table_replication_states(self) -> Mapping[TableId, Phase]:
        """Return every known table's phase."""
        ...

    def load_table_replication_states(self) -> int:
        """Fill memory from what is stored, and return how many there are. Called once, at start."""
        ...

    def update_table_replication_state(self, table: TableId, state: Phase) -> None:
        """Enter a phase; the former one stays in the history.

        Two exceptions keep every step back safe: `Init` begins a new history, because the destination's
        table will be emptied, and an `Errored` takes the place of an `Errored` before it. The phases that
        live in memory only (`SyncWait`, `Catchup`) are kept there and not stored.
        """
        ...

    def rollback_table_replication_state(self, table: TableId) -> Phase:
        """Return to the stored phase before the current one, dropping the current one, and return it.

        Raises `StateError` when there is none.
        """
        ...

    def get_table_mapping(self, table: TableId) -> str | None:
        """Return the table's name at the destination, or None."""
        ...

    def get_table_mappings(self) -> Mapping[TableId, str]:
        """Return all names at the destination."""
        ...

    def load_table_mappings(self) -> int:
        """Fill memory from what is stored, and return how many there are. Called once, at start."""
        ...

    def store_table_mapping(self, table: TableId, destination_table: str) -> None:
        """Keep a table's name at the destination."""
        ...

    def get_replication_progress(self) -> Mapping[TableId, Lsn]:
        """Return every table's stored watermark."""
        ...

    def store_replication_progress(self, watermarks: Mapping[TableId, Lsn]) -> None:
        """Advance watermarks, together. One that would move backwards stays as it is."""
        ...

    def reset_replication_progress(self, table: TableId) -> None:
        """Forget a table's watermark, because it is copied anew."""
        ...


@runtime_checkable
class CleanupStore(Protocol):
    """Forgets tables."""

    def cleanup_table_state(self, table: TableId) -> None:
        """Remove all that is kept of a table: phases, schema, name, watermark. Twice is as good as once."""
        ...


@runtime_checkable
class Store(SchemaStore, StateStore, CleanupStore, Protocol):
    """All three in one."""
