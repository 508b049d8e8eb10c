from __future__ import annotations

import itertools
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.conform import can_become, conform

INTEGERS = [pa.int16(), pa.int32(), pa.int64()]
TYPES: list[pa.DataType] = [
    *INTEGERS,
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.decimal128(5, 0),
    pa.decimal128(10, 2),
    pa.decimal128(38, 10),
    pa.decimal128(38, 38),
]


def values_of(type_: Any) -> st.SearchStrategy[Any]:
    if pa.types.is_integer(type_):
        limit = 1 << (type_.bit_width - 1)
        return st.integers(-limit, limit - 1)
    if pa.types.is_decimal(type_):
        limit = 10**type_.precision - 1
        return st.integers(-limit, limit).map(lambda digits: Decimal(digits).scaleb(-type_.scale, Context(prec=60)))
    if pa.types.is_floating(type_):
        return st.floats(width=32, allow_nan=False)
    assert pa.types.is_date32(type_)
    return st.dates()


@pytest.mark.parametrize(
    ("given_type", "wanted"), [pair for pair in itertools.permutations(TYPES, 2) if can_become(*pair)], ids=str
)
@given(data=st.data())
def test_what_can_become_another_type_comes_back_from_it(given_type: Any, wanted: Any, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | values_of(given_type), max_size=5))
    array: Any = pa.array(values, given_type)
    [column] = conform(pa.table({"c": array}), pa.schema({"c": wanted})).columns
    if pa.types.is_string(wanted):
        assert column.to_pylist() == [None if value is None else plain(value, given_type) for value in values]
    else:
        assert column.cast(given_type).combine_chunks() == array


def plain(value: Any, type_: Any) -> str:
    """Return what Postgres prints: every digit of the scale, and never an exponent."""
    return f"{value:.{type_.scale}f}" if pa.types.is_decimal(type_) else str(value)


@pytest.mark.parametrize(
    ("given_type", "wanted"),
    [
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.decimal128(20, 2)),
        (pa.float64(), pa.float32()),
        (pa.float64(), pa.string()),
        (pa.decimal128(10, 2), pa.decimal128(10, 3)),
        (pa.decimal128(10, 3), pa.decimal128(10, 2)),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.string(), pa.int64()),
        (pa.list_(pa.string()), pa.string()),
        (pa.list_(pa.int64()), pa.list_(pa.int32())),
        (pa.struct([("a", pa.string())]), pa.struct([("a", pa.int64())])),
    ],
    ids=str,
)
def test_what_could_lose_a_value_is_refused(given_type: pa.DataType, wanted: pa.DataType) -> None:
    assert not can_become(given_type, wanted)


def test_missing_columns_and_fields_are_null_and_others_are_left_out() -> None:
    old = pa.struct([("a", pa.int32()), ("gone", pa.string())])
    new = pa.struct([("added", pa.string()), ("a", pa.int64())])
    wanted = pa.schema({"added": pa.binary(), "s": new})
    rows = pa.table({"gone": ["x"] * 4, "s": pa.array([{"a": 1, "gone": "x"}, None, {"a": None}, {"a": 2}], old)})
    # Sliced, so that offsets of buffers are not those of rows.
    assert conform(rows[1:], wanted).to_pylist() == [
        {"added": None, "s": None},
        {"added": None, "s": {"added": None, "a": None}},
        {"added": None, "s": {"added": None, "a": 2}},
    ]


def test_lists_keep_their_nulls_and_lengths() -> None:
    lists: list[list[int | None] | None] = [[9], [1, None], None, [], [2]]
    rows = pa.table({"l": pa.array(lists, pa.list_(pa.int32()))})
    [column] = conform(rows[1:], pa.schema({"l": pa.list_(pa.int64())})).columns
    assert column.to_pylist() == lists[1:]
