"""Values and rows as Python objects: the view for destinations that take one row at a time."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import TypeAlias


class Unchanged(Enum):
    """The marker of a TOASTed value that an update left alone and the source did not send again."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = Unchanged.UNCHANGED

Cell: TypeAlias = bool | int | float | Decimal | str | bytes | dt.date | dt.datetime | list["Cell"] | None
"""A value. Timestamps with a time zone are aware and in UTC; those without are naive."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A whole row, values in the order of its table's columns."""

    values: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class UpdatedRow:
    """A row after an update; values the source did not send again are `UNCHANGED`."""

    values: tuple[Cell | Unchanged, ...]

    @property
    def is_full(self) -> bool:
        """Whether every value is known."""
        return UNCHANGED not in self.values


class OldRowKind(Enum):
    """How much of a row's old version the source logged."""

    FULL = "full"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class OldRow:
    """A row before an update or delete: all of it under REPLICA IDENTITY FULL, else its key's values."""

    kind: OldRowKind
    values: tuple[Cell, ...]
    """In table order for FULL; the key's columns in table order for KEY."""
