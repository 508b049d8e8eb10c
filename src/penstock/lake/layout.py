"""Which columns of ours a lake's table has behind the source's, by its mode."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.lake.rows import CDC_FIELDS, CHANGE_TYPE, LSN, TIMESTAMP
from penstock.model.lsn import Lsn
from penstock.model.mode import TableMode

Fields: TypeAlias = tuple["pa.Field[Any]", ...]

ORDINAL = "_ORDINAL"
VALID_FROM, VALID_TO, IS_CURRENT = "_valid_from", "_valid_to", "_is_current"
COPY, INSERT, UPDATE, DELETE = "COPY", "INSERT", "UPDATE", "DELETE"
KEY_CHANGE, TRUNCATE, RESYNC = "KEY_CHANGE", "TRUNCATE", "RESYNC"

_MOMENT = pa.timestamp("us", "UTC")
_HISTORY: Fields = (
    pa.field(CHANGE_TYPE, pa.string()),
    pa.field(LSN, pa.int64()),
    pa.field(ORDINAL, pa.int64()),
    pa.field(TIMESTAMP, _MOMENT),
)
_SCD2: Fields = (
    *_HISTORY,
    pa.field(VALID_FROM, _MOMENT),
    pa.field(VALID_TO, _MOMENT),
    pa.field(IS_CURRENT, pa.bool_()),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """A table's mode, and with it our columns."""

    mode: TableMode = TableMode.CURRENT
    cdc_columns: bool = True
    """Whether a `current` table has ours too; the others make no sense without."""

    @property
    def fields(self) -> Fields:
        """Our columns."""
        if self.mode is TableMode.CURRENT:
            return CDC_FIELDS if self.cdc_columns else ()
        return _HISTORY if self.mode is TableMode.HISTORY else _SCD2

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called."""
        return tuple(field.name for field in self.fields)

    def copied_values(self, watermark: Lsn, now: dt.datetime) -> dict[str, pa.Scalar[Any]]:
        """Return what our columns have in the rows of a copy."""
        values: dict[str, Any] = {
            CHANGE_TYPE: COPY if self.mode.keeps_past else INSERT,
            LSN: int(watermark),
            ORDINAL: 0,
            TIMESTAMP: now,
            VALID_FROM: now,
            VALID_TO: None,
            IS_CURRENT: True,
        }
        return {field.name: pa.scalar(values[field.name], field.type) for field in self.fields}


def found_mode(names: Sequence[str]) -> TableMode:
    """Return the mode of a table with these columns."""
    layouts = (Layout(TableMode.SCD2), Layout(TableMode.HISTORY))
    return next((each.mode for each in layouts if tuple(names)[-len(each.names) :] == each.names), TableMode.CURRENT)
