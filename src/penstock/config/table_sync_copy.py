"""Which tables are copied before they are followed; one that is not begins empty, at the position where it joins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import PlainSerializer, PlainValidator

from penstock.model.table import TableId, TableName

TableChoice: TypeAlias = Literal["all", "none", "only", "except"]

_LISTING = ("only", "except")
_FORM = "must be all, none, {only: [tables]} or {except: [tables]}"


@dataclass(frozen=True, slots=True)
class TableSyncCopy:
    """A choice of tables. Names are as the catalog has them, unquoted: text that two tables share means both."""

    choice: TableChoice = "all"
    tables: tuple[str | int, ...] = ()
    """What is listed: a table's `schema.table`, or its oid."""

    def copies(self, name: TableName, id: TableId) -> bool:  # noqa: A002  # what a table's id is called everywhere
        """Whether a table is copied."""
        is_listed = str(name) in self.tables or int(id) in self.tables
        return {"all": True, "none": False, "only": is_listed, "except": not is_listed}[self.choice]

    def unknown(self, tables: Iterable[tuple[TableName, TableId]]) -> list[str]:
        """Return what is listed and fits none of these tables, in the order of the list."""
        known = {entry for name, oid in tables for entry in (str(name), int(oid))}
        return [str(entry) for entry in self.tables if entry not in known]

    def to_setting(self) -> str | dict[str, list[str | int]]:
        """Return the choice as it stands in a configuration file."""
        return {self.choice: list(self.tables)} if self.choice in _LISTING else self.choice


def _parse(value: object) -> TableSyncCopy:
    if isinstance(value, TableSyncCopy):
        return value
    if value in ("all", "none"):
        return TableSyncCopy("all" if value == "all" else "none")
    if not isinstance(value, Mapping) or not value or not set(value) <= set(_LISTING):
        raise ValueError(_FORM)
    if len(value) > 1:
        raise ValueError("only and except exclude each other: give one of them")
    [(choice, tables)] = value.items()
    return TableSyncCopy(choice, _parse_tables(choice, tables))


def _parse_tables(choice: str, tables: object) -> tuple[str | int, ...]:
    # A variable of the environment is text.
    listed: Any = [part.strip() for part in tables.split(",")] if isinstance(tables, str) else tables
    if not isinstance(listed, list | tuple) or not listed:
        raise ValueError(f"{choice} must list tables, at least one; for no table or every table write none or all")
    return tuple(_parse_table(choice, number, each) for number, each in enumerate(listed, 1))


def _parse_table(choice: str, number: int, entry: object) -> str | int:
    table = parse_table(entry)
    if table is None:
        raise ValueError(f"{choice}: entry {number} must be schema.table, or a table's oid")
    return table


def parse_table(entry: object) -> str | int | None:
    """Return a table's `schema.table` or its oid from a setting; None if it is neither."""
    text = str(entry) if isinstance(entry, int | str) and not isinstance(entry, bool) else ""
    if text.isascii() and text.isdecimal():
        return int(text)
    schema, _, name = text.partition(".")
    return text if schema and name else None


TableSyncCopySetting: TypeAlias = Annotated[
    TableSyncCopy,
    PlainValidator(
        _parse,
        json_schema_input_type=Literal["all", "none"] | dict[Literal["only", "except"], list[str | int]],
    ),
    PlainSerializer(TableSyncCopy.to_setting),
]
"""The choice as a setting."""
