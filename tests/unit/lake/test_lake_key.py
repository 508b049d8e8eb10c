from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.key import KeySet, comparable, number_keys, ordered_value
from penstock.model.cell import Cell
from penstock.model.table import Kind, PgType
from penstock.testing.strategies import pg_types, printed
from penstock.wire.arrow import arrow_type

Keys = list[tuple[Cell, ...]]


@st.composite
def keyed_rows(draw: st.DrawFn) -> tuple[list[PgType], Keys, Keys]:
    """Types of a key, keys looked for, and rows; few different values, so that many are equal."""
    types = draw(st.lists(pg_types(), min_size=1, max_size=3))
    values = [draw(st.lists(printed(type_).map(lambda pair: pair[1]), min_size=1, max_size=4)) for type_ in types]
    keys = st.lists(st.tuples(*(st.sampled_from(each) for each in values)), max_size=12)
    return types, draw(keys), draw(keys)


def arrays(types: Sequence[PgType], keys: Keys) -> list[Any]:
    columns = list(zip(*keys, strict=True)) if keys else [()] * len(types)
    return [pa.array(values, arrow_type(type_)) for type_, values in zip(types, columns, strict=True)]


def same(key: tuple[Any, ...]) -> str:
    """Return what keys that Postgres takes for equal have in common."""
    return repr([_same(item) for item in key])


def _same(item: Any) -> Any:
    if isinstance(item, list):
        return [_same(element) for element in item]
    return item + 0.0 if isinstance(item, float) else item


@given(keyed_rows())
def test_rows_have_the_same_number_exactly_if_their_keys_are_equal(drawn: tuple[list[PgType], Keys, Keys]) -> None:
    types, keys, more = drawn
    rows = [*keys, *more]
    if not rows:
        return
    numbers, distinct = number_keys(arrays(types, rows))
    first: dict[str, int] = {}
    expected = [first.setdefault(same(row), len(first)) for row in rows]
    assert numbers.tolist() == expected
    assert len(distinct) == len(first)


@given(keyed_rows())
def test_every_row_with_one_of_the_keys_is_found_and_no_other(drawn: tuple[list[PgType], Keys, Keys]) -> None:
    types, keys, rows = drawn
    if not keys:
        return
    numbers, distinct = number_keys(arrays(types, keys))
    known = {same(key): int(number) for key, number in zip(keys, numbers, strict=True)}
    places, found = distinct.match(arrays(types, rows))
    expected = [(place, known[same(row)]) for place, row in enumerate(rows) if same(row) in known]
    assert list(zip(places.tolist(), found.tolist(), strict=True)) == expected


@given(keyed_rows())
def test_bounds_of_rows_that_have_a_key_never_exclude_it(drawn: tuple[list[PgType], Keys, Keys]) -> None:
    types, keys, rows = drawn
    if not keys:
        return
    _numbers, distinct = number_keys(arrays(types, keys))
    near = [*rows, keys[0]]
    bounds = {}
    for place, type_ in enumerate(types):
        values = [ordered_value(row[place], arrow_type(type_)) for row in near]
        if None not in values:
            bounds[place] = (min(values), max(values))
    assert distinct.may_be_within(bounds)


@pytest.mark.parametrize(
    ("kind", "keys", "outside"),
    [
        (Kind.INT8, [1, 5, 9], (6, 8)),
        (Kind.TEXT, ["a", "m"], ("b", "lzz")),
        (Kind.DATE, [dt.date(2026, 1, 1), dt.date(2026, 1, 9)], (dt.date(2026, 1, 2), dt.date(2026, 1, 8))),
        (
            Kind.TIMESTAMPTZ,
            [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
            (dt.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC), dt.datetime(2027, 1, 1, tzinfo=dt.UTC)),
        ),
    ],
)
def test_a_gap_between_the_keys_is_left_out(kind: Kind, keys: list[Any], outside: tuple[Any, Any]) -> None:
    type_ = arrow_type(PgType(kind, kind))
    low, high = (ordered_value(value, type_) for value in outside)
    held = KeySet((pa.array(keys, type_),))
    assert not held.may_be_within({0: (low, high)})
    assert held.may_be_within({0: (ordered_value(keys[0], type_), high)})
    assert held.may_be_within({})


def test_one_column_outside_its_bounds_is_enough() -> None:
    held = KeySet((pa.array([1, 2]), pa.array(["a", "b"])))
    assert held.may_be_within({0: (0, 9), 1: ("b", "z")})
    assert not held.may_be_within({0: (0, 9), 1: ("c", "z")})


def test_types_without_useful_bounds_have_none() -> None:
    assert ordered_value(math.nan, pa.float64()) is None
    assert ordered_value(True, pa.bool_()) is None
    assert ordered_value(b"x", pa.binary()) is None
    assert ordered_value("x", pa.int64()) is None
    assert ordered_value(Decimal("1.5"), pa.decimal128(5, 1)) == Decimal("1.5")
    assert KeySet((pa.array([1.0]),)).may_be_within({0: (5, 6)})


def test_zeros_and_nans_are_one_value_each() -> None:
    found = comparable(pa.array([0.0, -0.0, math.nan, -math.nan], pa.float64())).dictionary_encode()
    assert found.indices.to_pylist() == [0, 0, 1, 1]


def test_a_row_without_a_value_in_its_key_matches_nothing_and_is_no_key() -> None:
    held = KeySet((pa.array([1, 2]),))
    places, numbers = held.match([pa.array([None, 2, None], pa.int64())])
    assert (places.tolist(), numbers.tolist()) == ([1], [1])
    with pytest.raises(ValueError, match="without a value"):
        number_keys([pa.array([1, None], pa.int64())])
