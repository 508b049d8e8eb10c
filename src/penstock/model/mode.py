"""What a table of a lake keeps of its source's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.model.table import TableId, TableName


class TableMode(StrEnum):
    """How changes are kept."""

    CURRENT = "current"
    """One row for each of the source's, as it is now."""
    HISTORY = "history"
    """A row for every change, appended."""
    SCD2 = "scd2"
    """A row for every version of a row, with the time from which and until which it was valid."""

    @property
    def keeps_past(self) -> bool:
        """Whether the table has more than the source, so that a copy cannot bring it back."""
        return self is not TableMode.CURRENT


@dataclass(frozen=True, slots=True)
class TableModes:
    """The mode of every table. Names are as the catalog has them, unquoted."""

    default: TableMode = TableMode.CURRENT
    tables: Mapping[str | int, TableMode] = field(default_factory=dict)
    """Exceptions: by a table's `schema.table`, or by its oid, which counts before the name."""

    def of(self, name: TableName, id: TableId) -> TableMode:  # noqa: A002  # what a table's id is called everywhere
        """Return a table's mode."""
        return self.tables.get(int(id), self.tables.get(str(name), self.default))

    def unknown(self, tables: Iterable[tuple[TableName, TableId]]) -> list[str]:
        """Return what is listed and fits none of these tables, in the order of the list."""
        known = {entry for name, oid in tables for entry in (str(name), int(oid))}
        return [str(entry) for entry in self.tables if entry not in known]
