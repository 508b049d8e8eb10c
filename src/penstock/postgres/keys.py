"""Rows by their keys: the SQL condition that finds them, where a key's value names exactly one row."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from psycopg import sql

from penstock.model.policy import ValuePolicies
from penstock.model.special import SpecialValues
from penstock.model.table import Column, Kind, TableSchema, quote_identifier

KEYS_PER_CONDITION = 5000
"""A statement of some hundred kilobytes: parsed in milliseconds, and read by index."""

_EXACT = frozenset({Kind.BOOL, Kind.INT2, Kind.INT4, Kind.INT8, Kind.OID, Kind.TEXT, Kind.BYTES})
# What a policy put in the place of a special value names no row.
_EXACT_UNLESS_SPECIAL = frozenset({Kind.NUMERIC, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})


def has_exact_key(schema: TableSchema, policies: ValuePolicies) -> bool:
    """Whether the table has a key, and what we have of it is always what the source has."""
    return bool(schema.key) and all(_is_exact(schema, column, policies) for column in schema.key)


def _is_exact(schema: TableSchema, column: Column, policies: ValuePolicies) -> bool:
    if column.type.kind in _EXACT:
        return True
    refuses = policies.of(schema.name, column.name) is SpecialValues.ERROR
    return refuses and column.type.kind in _EXACT_UNLESS_SPECIAL


def key_conditions(schema: TableSchema, keys: pa.Table) -> Iterator[str]:
    """Yield conditions that together are true of exactly the rows with these keys; columns in table order."""
    names = ", ".join(quote_identifier(column.name) for column in schema.key)
    for start in range(0, keys.num_rows, KEYS_PER_CONDITION):
        columns = [column.to_pylist() for column in keys.slice(start, KEYS_PER_CONDITION).columns]
        rows = (", ".join(map(_literal, row, schema.key)) for row in zip(*columns, strict=True))
        yield f"({names}) in (values {', '.join(f'({row})' for row in rows)})"


def _literal(value: object, column: Column) -> str:
    return f"{sql.Literal(value).as_string()}::{column.type.name}"
