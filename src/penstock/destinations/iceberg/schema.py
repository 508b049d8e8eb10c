"""A table's columns as Iceberg has them, the ids that Parquet files know them by, and bounds of their values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.lake.key import Bound
from penstock.lake.layout import Layout
from penstock.model.table import TableSchema
from penstock.wire.arrow import arrow_type

_FIELD_ID = b"PARQUET:field_id"
_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
}


def arrow_schema(schema: TableSchema, layout: Layout) -> pa.Schema:
    """Return the lake table's columns in order: the source's, then ours."""
    own = [pa.field(column.name, lake_type(arrow_type(column.type))) for column in schema.columns]
    return pa.schema([*own, *layout.fields])


def lake_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that values of a type have in Iceberg, whose smallest integer has 32 bits."""
    if isinstance(type_, pa.ListType):
        return pa.list_(lake_type(type_.value_type))
    return pa.int32() if pt.is_int16(type_) else type_


def iceberg_schema(columns: pa.Schema) -> dict[str, Any]:
    """Return columns in Iceberg's JSON; the library numbers them anew when it makes a table of them."""
    numbers = itertools.count(1)
    fields = [
        {"id": next(numbers), "name": column.name, "required": False, "type": _json_type(column.type, numbers)}
        for column in columns
    ]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def _json_type(type_: pa.DataType, numbers: Iterator[int]) -> Any:
    if isinstance(type_, pa.ListType):
        element_id = next(numbers)
        element = _json_type(type_.value_type, numbers)
        return {"type": "list", "element-id": element_id, "element": element, "element-required": False}
    if isinstance(type_, pa.Decimal128Type):
        return f"decimal({type_.precision}, {type_.scale})"
    return _TYPES[type_]


def column_types(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return every column's type in words that leave out ids, so that tables can be compared."""
    return {field["name"]: _type_name(field["type"]) for field in schema["fields"]}


def _type_name(type_: Any) -> str:
    return f"list<{_type_name(type_['element'])}>" if isinstance(type_, dict) else str(type_).replace(" ", "")


def field_ids(schema: Mapping[str, Any]) -> dict[str, int]:
    """Return the columns' ids."""
    return {field["name"]: field["id"] for field in schema["fields"]}


def with_ids(columns: pa.Schema, schema: Mapping[str, Any]) -> pa.Schema:
    """Return columns with the ids that they have in the table, for Parquet files to carry."""
    known = {field["name"]: field for field in schema["fields"]}
    return pa.schema([_identified(column, known[column.name]) for column in columns])


def _identified(column: pa.Field[Any], known: Mapping[str, Any]) -> pa.Field[Any]:
    type_ = column.type
    if isinstance(type_, pa.ListType):
        inner = {"id": known["type"]["element-id"], "type": known["type"]["element"]}
        type_ = pa.list_(_identified(pa.field("element", type_.value_type), inner))
    return pa.field(column.name, type_, metadata={_FIELD_ID: str(known["id"]).encode()})


def physical_names(file: pa.Schema, ids: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return what a file calls the columns with these ids, which other writers may spell their own way.

    A file without ids, as Spark's tasks write them for a copy, has the table's names.
    """
    known = {int((column.metadata or {}).get(_FIELD_ID, -1)): column.name for column in file}
    return [known.get(id_, name) for id_, name in zip(ids, names, strict=True)]


def bound(low: bytes, high: bytes, type_: pa.DataType) -> Bound | None:
    """Return a file's bounds of a column as `penstock.lake` compares them, from Iceberg's binary form."""
    least, greatest = _decoded(low, type_), _decoded(high, type_)
    return None if least is None or greatest is None else (least, greatest)


def _decoded(data: bytes, type_: pa.DataType) -> Any:
    if pt.is_integer(type_) or pt.is_date32(type_) or pt.is_timestamp(type_):
        return int.from_bytes(data, "little", signed=True)
    if pt.is_string(type_):
        # An upper bound is cut to a few characters and its last one raised: still a bound.
        return data.decode()
    if isinstance(type_, pa.Decimal128Type):
        # From text, which is exact: arithmetic would round to the context's 28 digits.
        return Decimal(f"{int.from_bytes(data, 'big', signed=True)}e-{type_.scale}")
    return None
