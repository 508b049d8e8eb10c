"""What the tables of a lake keep: the present, every change, or every version."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field, field_validator

from penstock.config.model import ConfigModel
from penstock.config.table_sync_copy import parse_table
from penstock.model.mode import TableMode, TableModes


class ModesConfig(ConfigModel):
    """What tables keep: `current` has the source's rows as they are, `history` every change, `scd2` every version."""

    default: TableMode = TableMode.CURRENT
    """For all tables but the exceptions. The present, because most tables are read as they are now."""
    tables: dict[str | int, TableMode] = Field(default_factory=dict)
    """Exceptions, by `schema.table` as the catalog has it, unquoted, or by the table's oid, which counts before its
    name. A table that was made in one mode is not turned into another: see the how-to."""

    @field_validator("tables", mode="before")
    @classmethod
    def _check_tables(cls, tables: object) -> object:
        if not isinstance(tables, dict):
            return tables
        parsed = {parse_table(name): mode for name, mode in tables.items()}
        if None in parsed:
            wrong = ", ".join(str(name) for name in tables if parse_table(name) is None)
            raise ValueError(f"must be named schema.table, or by a table's oid: {wrong}")
        return parsed

    @property
    def table_modes(self) -> TableModes:
        """The same as a destination is told."""
        return TableModes(self.default, self.tables)


def _parse_modes(value: object) -> object:
    return {"default": value} if isinstance(value, str) else value


ModesSetting: TypeAlias = Annotated[ModesConfig, BeforeValidator(_parse_modes)]
"""One mode for all tables, or the group."""
