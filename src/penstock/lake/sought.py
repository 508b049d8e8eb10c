"""What rows of a table are looked for by: their key, values of our own columns, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.lake.key import KeySet, Numbers
from penstock.lake.layout import COPY, IS_CURRENT, RESYNC
from penstock.lake.rows import CHANGE_TYPE, LSN
from penstock.model.lsn import Lsn
from penstock.model.table import TableSchema
from penstock.wire.arrow import arrow_type, wrap

_COPIED = pa.schema([pa.field(CHANGE_TYPE, pa.string())]).append(pa.field(LSN, pa.int64()))


@dataclass(frozen=True)
class Sought:
    """Columns, and the combinations of their values that are looked for."""

    columns: pa.Schema
    keys: KeySet


def key_columns(schema: TableSchema) -> pa.Schema:
    """Return the key's columns as they are compared."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in schema.key])


def some_keys(keys: KeySet, numbers: Numbers) -> KeySet:
    """Return some keys, in that order."""
    return KeySet(tuple(column.take(wrap(numbers, pa.int64())) for column in keys.columns))


def by_key(schema: TableSchema, keys: KeySet, **values: Any) -> Sought:
    """Look for keys in rows whose columns of ours have the values given."""
    columns, held = _constant(values, len(keys))
    return Sought(pa.schema([*key_columns(schema), *columns]), KeySet((*keys.columns, *held)))


def copied_with_key(schema: TableSchema, keys: KeySet, since: Lsn) -> Sought:
    """Look for keys among the rows of the copy that began at a position."""
    return by_key(schema, keys, **{CHANGE_TYPE: COPY, LSN: int(since)})


def current_with_key(schema: TableSchema, keys: KeySet) -> Sought:
    """Look for keys among the versions that are current."""
    return by_key(schema, keys, **{IS_CURRENT: True})


def all_current() -> Sought:
    """Look for all versions that are current."""
    columns, held = _constant({IS_CURRENT: True}, 1)
    return Sought(pa.schema(columns), KeySet(tuple(held)))


def all_copied(positions: Sequence[Lsn]) -> Sought:
    """Look for what a copy added whose rows have these positions."""
    pairs = [(kind, int(lsn)) for lsn in dict.fromkeys(positions) for kind in (COPY, RESYNC)]
    kinds, lsns = zip(*pairs, strict=True)
    return Sought(_COPIED, KeySet((pa.array(kinds, pa.string()), pa.array(lsns, pa.int64()))))


def _constant(values: Mapping[str, Any], count: int) -> tuple[list[pa.Field[Any]], list[Any]]:
    scalars: dict[str, Any] = {name: pa.scalar(value) for name, value in values.items()}
    columns = [pa.field(name, value.type) for name, value in scalars.items()]
    return columns, [pa.repeat(value, count) for value in scalars.values()]
