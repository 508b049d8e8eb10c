"""The comparison must be able to fail: every way in which two tables can differ is found."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.compare import SHOWN, compare

VALUES = [
    (pa.bool_(), True, False),
    (pa.int64(), 1, 2),
    (pa.string(), "a", "a "),
    (pa.string(), "", None),
    (pa.binary(), b"\x00", b""),
    (pa.float64(), 0.1, math.nextafter(0.1, 1)),
    (pa.float64(), 0.0, -0.0),
    (pa.float64(), math.nan, None),
    (pa.float64(), math.inf, -math.inf),
    (pa.float32(), 0.5, 0.25),
    (pa.decimal128(10, 2), Decimal("1.00"), Decimal("1.01")),
    (pa.date32(), dt.date(2024, 2, 29), dt.date(2024, 3, 1)),
    (pa.timestamp("us"), 1, 2),
    (pa.timestamp("us", "UTC"), 1, None),
    (pa.list_(pa.int32()), [1, None], [1]),
    (pa.list_(pa.int32()), [], None),
    (pa.list_(pa.int32()), [None], []),
    (pa.list_(pa.float64()), [math.nan, 0.0], [math.nan, -0.0]),
    (pa.list_(pa.list_(pa.string())), [["a"], ["b"]], [["a", "b"]]),
]


def table(type_: pa.DataType, *values: Any) -> pa.Table:
    keys = pa.array(range(len(values)), pa.int64())
    return pa.table({"id": keys, "value": pa.array(list(values), type_)})


@pytest.mark.parametrize(("type_", "value", "other"), VALUES, ids=str)
def test_two_different_values_are_always_told_apart(type_: pa.DataType, value: Any, other: Any) -> None:
    found = compare(table(type_, value, value), table(type_, value, other), ["id"])
    assert not found.is_equal
    assert found.differing == (((1,), ("value",)),)
    assert found.differences == 1


@pytest.mark.parametrize(("type_", "value", "other"), VALUES, ids=str)
def test_equal_values_are_equal_nan_and_null_included(type_: pa.DataType, value: Any, other: Any) -> None:
    assert compare(table(type_, value, other), table(type_, value, other), ["id"]).is_equal


def test_all_nans_are_one() -> None:
    quiet = pa.array([0x7FF8000000000000, 0x7FF8000000000001], pa.int64()).view(pa.float64())
    plain = pa.array([math.nan, math.nan])
    ids = pa.array([1, 2])
    assert compare(pa.table({"id": ids, "x": quiet}), pa.table({"id": ids, "x": plain}), ["id"]).is_equal


def test_missing_and_extra_rows_are_named_by_key() -> None:
    source, lake = pa.table({"id": [1, 2, 3]}), pa.table({"id": [2, 3, 4]})
    found = compare(source, lake, ["id"])
    assert (found.missing, found.extra, found.differing) == (((1,),), ((4,),), ())
    assert (found.source_rows, found.lake_rows, found.differences) == (3, 3, 2)


def test_a_row_that_the_lake_has_twice_is_extra() -> None:
    found = compare(pa.table({"id": [1, 2]}), pa.table({"id": [1, 2, 2]}), ["id"])
    assert found.extra == ((2,),)
    assert not found.is_equal


def test_two_versions_of_one_key_in_the_lake_are_found() -> None:
    source = pa.table({"id": [1], "v": ["new"]})
    lake = pa.table({"id": [1, 1], "v": ["new", "old"]})
    assert compare(source, lake, ["id"]).extra == ((1,),)


def test_an_empty_lake_misses_everything_but_names_only_a_few() -> None:
    source = pa.table({"id": pa.array(range(100))})
    found = compare(source, source.slice(0, 0), ["id"])
    assert found.differences == 100
    assert len(found.missing) == SHOWN


def test_rows_in_another_order_are_the_same() -> None:
    source = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"]})
    assert compare(source, source.take([2, 0, 1]), ["a", "b"]).is_equal


def test_columns_in_another_order_are_the_same() -> None:
    source = pa.table({"a": [1], "b": ["x"]})
    assert compare(source, source.select(["b", "a"]), ["a"]).is_equal


def test_composite_keys_are_named_whole() -> None:
    source = pa.table({"a": [1, 1], "b": ["x", "y"], "v": [1, 2]})
    lake = pa.table({"a": [1, 1], "b": ["x", "y"], "v": [1, 3]})
    assert compare(source, lake, ["b", "a"]).differing == ((("y", 1), ("v",)),)


def test_without_a_key_whole_rows_are_compared() -> None:
    source, lake = pa.table({"v": [1, 1, 2]}), pa.table({"v": [1, 2, 2]})
    found = compare(source, lake, [])
    assert (found.missing, found.extra) == (((1,),), ((2,),))


@pytest.mark.parametrize(
    "lake",
    [pa.table({"id": [1]}), pa.table({"id": [1], "v": [1.0]}), pa.table({"id": [1], "v": [1], "w": [1]})],
    ids=["missing", "other type", "additional"],
)
def test_other_columns_or_types_are_differences(lake: pa.Table) -> None:
    found = compare(pa.table({"id": [1], "v": [1]}), lake, ["id"])
    assert not found.is_equal
    assert found.columns


def test_a_time_zone_is_part_of_the_type() -> None:
    zoned = pa.table({"t": pa.array([0], pa.timestamp("us", "UTC"))})
    assert compare(zoned, pa.table({"t": pa.array([0], pa.timestamp("us"))}), []).columns == ("t",)


def test_how_a_list_names_its_elements_is_not_a_difference() -> None:
    ours = pa.list_(pa.field("item", pa.int32()))
    sparks = pa.list_(pa.field("element", pa.int32(), nullable=False))
    assert compare(table(ours, [1]), table(sparks, [1]), ["id"]).is_equal


def test_float_keys_are_named_as_floats() -> None:
    assert compare(pa.table({"k": [0.5]}), pa.table({"k": [1.5]}), ["k"]).missing == ((0.5,),)


rows = st.lists(
    st.tuples(st.integers(0, 5), st.none() | st.floats(), st.none() | st.lists(st.none() | st.integers(0, 2)))
)


def as_table(values: list[tuple[int, float | None, list[int | None] | None]]) -> pa.Table:
    types: dict[str, pa.DataType] = {"k": pa.int64(), "x": pa.float64(), "l": pa.list_(pa.int64())}
    schema = pa.schema(types)
    return pa.Table.from_pylist([dict(zip("kxl", row, strict=True)) for row in values], schema=schema)


@given(values=rows, data=st.data())
def test_a_table_equals_every_permutation_of_itself_and_nothing_less(
    values: list[tuple[int, float | None, list[int | None] | None]], data: st.DataObject
) -> None:
    source = as_table(values)
    permuted = data.draw(st.permutations(values))
    assert compare(source, as_table(permuted), ["k"]).is_equal
    if values:
        assert not compare(source, as_table(permuted[1:]), ["k"]).is_equal
        assert not compare(source, as_table([*permuted, permuted[0]]), ["k"]).is_equal
