"""Where a lake's tables are, as a store remembers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.model.table import TableId


class TableMapping(Protocol):
    """The part of a `StateStore` that remembers where tables are: a folder below the lake, or a name in a catalog."""

    def get_table_mapping(self, table: TableId) -> str | None:
        """Return the table's place, or None."""
        ...

    def get_table_mappings(self) -> Mapping[TableId, str]:
        """Return all places."""
        ...

    def store_table_mapping(self, table: TableId, destination_table: str) -> None:
        """Keep a table's place."""
        ...
