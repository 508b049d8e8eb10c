"""A table's columns, statistics and folder as Delta has them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from deltalake import Schema

from penstock.contract.batch import CopiedFile
from penstock.lake.key import Bound, ordered_value
from penstock.lake.layout import Layout
from penstock.model.table import TableName, TableSchema
from penstock.wire.arrow import arrow_type

# Not %: the Delta library decodes it in paths, Spark does not, and the two would miss each other.
_ESCAPE = "~"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
# Spark's own limit for strings in statistics; longer ones are worth nothing for skipping files.
_MAX_STRING = 32
_MAX_SAFE_INTEGER = 1 << 63


def arrow_schema(schema: TableSchema, layout: Layout) -> pa.Schema:
    """Return the lake table's columns in order: the source's, then ours."""
    own = [pa.field(column.name, arrow_type(column.type)) for column in schema.columns]
    return pa.schema([*own, *layout.fields])


def delta_schema(schema: TableSchema, layout: Layout) -> Schema:
    """Return the same as a Delta schema."""
    return Schema.from_arrow(arrow_schema(schema, layout))


def delta_fields(schema: TableSchema, layout: Layout) -> dict[str, Any]:
    """Return the Delta type of every column."""
    return {item.name: item.type for item in delta_schema(schema, layout).fields}


def folder_name(name: TableName) -> str:
    """Return a table's folder below the lake: different for different tables, and never outside it."""
    return f"{_escaped(name.schema)}/{_escaped(name.name)}"


def _escaped(name: str) -> str:
    escaped = "".join(c if c in _PLAIN else "".join(f"{_ESCAPE}{byte:02X}" for byte in c.encode()) for c in name)
    return f"{_ESCAPE}2E{escaped[1:]}" if escaped.startswith(".") else escaped


def statistics(file: CopiedFile) -> str:
    """Return a file's statistics in Delta's form; a bound that would not be exact or safe is left out."""
    minimums = {name: _bound(value, upper=False) for name, value in file.minimums.items()}
    maximums = {name: _bound(value, upper=True) for name, value in file.maximums.items()}
    both = [name for name in minimums if minimums[name] is not None and maximums.get(name) is not None]
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": _picked(minimums, both),
            "maxValues": _picked(maximums, both),
            "nullCount": dict(file.null_counts),
        }
    )


def _picked(values: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: values[name] for name in names}


def _bound(value: Any, *, upper: bool) -> Any:
    """Return a bound as JSON. Floats have NaN and decimals more digits than JSON readers keep: none for them."""
    match value:
        case bool():
            return None
        case int():
            return value if -_MAX_SAFE_INTEGER <= value < _MAX_SAFE_INTEGER else None
        case str():
            return value if len(value) <= _MAX_STRING else None
        case dt.datetime():
            return _milliseconds(value, upper=upper)
        case dt.date():
            return value.isoformat()
    return None


def _milliseconds(value: dt.datetime, *, upper: bool) -> str | None:
    """Return a timestamp in Delta's milliseconds, rounded so that the bound still holds."""
    rest = value.microsecond % 1000
    try:
        rounded = value - dt.timedelta(microseconds=rest) + dt.timedelta(milliseconds=1 if rest and upper else 0)
    except OverflowError:
        return None
    text = rounded.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f"{text}Z" if value.tzinfo else text


def bounds_of(statistics: Mapping[str, Any], key: pa.Schema) -> Mapping[int, Bound]:
    """Return what a file's statistics say of a key's columns, by the column's place in the key."""
    low, high = statistics.get("minValues") or {}, statistics.get("maxValues") or {}
    found = {
        place: (_ordered(low.get(column.name), column.type, 0), _ordered(high.get(column.name), column.type, 999))
        for place, column in enumerate(key)
    }
    return {place: bound for place, bound in found.items() if None not in bound}


def _ordered(value: Any, type_: pa.DataType, rest_us: int) -> Any:
    """Return a bound for comparisons. Timestamps are cut to milliseconds, upper bounds too: `rest_us` makes up for it.

    Decimals are left out: some writers put them through a float.
    """
    if pt.is_decimal(type_):
        return None
    if not isinstance(value, str) or pt.is_string(type_):
        return ordered_value(value, type_)
    try:
        if pt.is_date32(type_):
            return ordered_value(dt.date.fromisoformat(value), type_)
        if pt.is_timestamp(type_):
            return ordered_value(dt.datetime.fromisoformat(value), type_) + rest_us
    except ValueError:  # years past 9999
        return None
    return None
