"""The Arrow type of every source type: the one place that says how a column is represented."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from penstock.model.special import SpecialValues
from penstock.model.table import Kind, PgType

ArrowArray: TypeAlias = "pa.Array[Any]"

# Untyped: the stubs refuse Python's own values as operands, and lose the types of what they return.
compute: Any = pyarrow.compute

MAX_DECIMAL_PRECISION = 38
"""Of Arrow's decimal128, and of Spark, Delta and Iceberg."""

_SIMPLE: dict[Kind, pa.DataType] = {
    Kind.BOOL: pa.bool_(),
    Kind.INT2: pa.int16(),
    Kind.INT4: pa.int32(),
    Kind.INT8: pa.int64(),
    # Unsigned 32 bits at the source; Spark has no unsigned types.
    Kind.OID: pa.int64(),
    Kind.FLOAT4: pa.float32(),
    Kind.FLOAT8: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.BYTES: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}


def arrow_type(type: PgType, policy: SpecialValues = SpecialValues.ERROR) -> pa.DataType:  # noqa: A002
    """Return the Arrow type that columns of a source type have under a special-value policy."""
    if policy is SpecialValues.STRING and has_special_values(type):
        return pa.string()
    if type.kind is Kind.NUMERIC:
        return _numeric(type)
    if type.kind is Kind.ARRAY:
        return pa.list_(arrow_type(element_of(type), policy))
    return _SIMPLE[type.kind]


def has_special_values(type: PgType) -> bool:  # noqa: A002
    """Whether the source type has values that its Arrow type cannot hold; any array may have more dimensions."""
    return type.kind in {Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.ARRAY} or is_decimal(type)


def is_decimal(type: PgType) -> bool:  # noqa: A002
    """Whether a type is a numeric that fits a decimal; the others travel as Postgres's text."""
    if type.kind is not Kind.NUMERIC or type.precision is None:
        return False
    return type.precision <= MAX_DECIMAL_PRECISION and 0 <= (type.scale or 0) <= type.precision


def element_of(type: PgType) -> PgType:  # noqa: A002
    """Return the type of an array's elements."""
    if type.element is None:
        raise ValueError(f"{type.name} is an array without an element type")
    return type.element


def _numeric(type: PgType) -> pa.DataType:  # noqa: A002
    if not is_decimal(type):
        return pa.string()
    assert type.precision is not None
    return pa.decimal128(type.precision, type.scale or 0)


def wrap(array: NDArray[Any], type_: pa.DataType) -> ArrowArray:
    """Return numbers of the type's own width as an Arrow array, without a copy; `pa.array` would import pandas."""
    return pa.Array.from_buffers(type_, len(array), [None, pa.py_buffer(np.ascontiguousarray(array).data)])


def wrap_mask(array: NDArray[np.bool_]) -> ArrowArray:
    """Return truth values as an Arrow array."""
    return pa.Array.from_buffers(
        pa.bool_(), len(array), [None, pa.py_buffer(np.packbits(array, bitorder="little").data)]
    )
