"""Bringing rows of an older or newer version of a table to the columns that a reader was promised.

A column that the rows lack is NULL; one of another type is converted where no value can lose anything,
which is decided by the types alone: what was planned cannot fail later, on some value.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

# The digits that integers of so many bits need.
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_EXACT_IN_FLOAT64 = 32  # bits: a double holds every integer of up to 53


def can_become(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of a type has its equal in another."""
    if given == wanted or pt.is_null(given):
        return True
    if pt.is_struct(given) and pt.is_struct(wanted):
        return _fields_can_become(given, wanted)
    if pt.is_list(given) and pt.is_list(wanted):
        return can_become(given.value_type, wanted.value_type)
    return _is_lossless(given, wanted)


def conform(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return exactly the wanted columns, which each of the rows' own must be able to become."""
    arrays = [_column(rows, field) for field in wanted]
    return pa.Table.from_arrays(arrays, schema=wanted)


def _column(rows: pa.Table, field: pa.Field[Any]) -> Any:
    if field.name not in rows.column_names:
        return pa.nulls(len(rows), field.type)
    return _converted(rows.column(field.name).combine_chunks(), field.type)


def _converted(array: Any, wanted: Any) -> Any:
    if array.type == wanted:
        return array
    if pt.is_struct(wanted):
        return _converted_struct(array, wanted)
    if pt.is_list(wanted):
        # `flatten` heeds slices and NULLs, so the offsets are counted anew.
        items = _converted(array.flatten(), wanted.value_type)
        return pa.ListArray.from_arrays(_offsets(array), items, type=wanted, mask=array.is_null())
    if pt.is_decimal(array.type) and pt.is_string(wanted):
        # Arrow writes small decimals with an exponent; Postgres never does.
        texts = [None if value is None else format(value, "f") for value in array.to_pylist()]
        return pa.array(texts, wanted)
    return array.cast(wanted)


def _converted_struct(struct: Any, wanted: Any) -> Any:
    own = dict(zip((field.name for field in struct.type), struct.flatten(), strict=True))
    arrays = [
        _converted(own[field.name], field.type) if field.name in own else pa.nulls(len(struct), field.type)
        for field in wanted
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(wanted), mask=struct.is_null())


def _offsets(lists: Any) -> Any:
    offsets, total = [0], 0
    for length in lists.value_lengths().to_pylist():
        total += length or 0
        offsets.append(total)
    return pa.array(offsets, pa.int32())


def _fields_can_become(given: Any, wanted: Any) -> bool:
    own = {field.name: field.type for field in given}
    return all(can_become(own[field.name], field.type) for field in wanted if field.name in own)


def _is_lossless(given: Any, wanted: Any) -> bool:
    if pt.is_integer(given):
        return _integer_fits(given, wanted)
    if pt.is_decimal(given):
        return pt.is_string(wanted) or (pt.is_decimal(wanted) and _decimal_fits(given, wanted))
    if pt.is_float32(given):
        return bool(pt.is_float64(wanted))
    return bool(pt.is_date32(given) and pt.is_timestamp(wanted) and wanted.tz is None)


def _integer_fits(given: Any, wanted: Any) -> bool:
    if pt.is_integer(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if pt.is_decimal(wanted):
        return bool(_DIGITS[given.bit_width] <= wanted.precision - wanted.scale)
    if pt.is_float64(wanted):
        return bool(given.bit_width <= _EXACT_IN_FLOAT64)
    return bool(pt.is_string(wanted))


def _decimal_fits(given: Any, wanted: Any) -> bool:
    has_fraction = bool(given.scale <= wanted.scale)
    return has_fraction and bool(given.precision - given.scale <= wanted.precision - wanted.scale)
