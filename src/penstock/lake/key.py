"""Keys, compared as Postgres compares them, many at a time.

A key's columns are first made comparable (NaN is NaN, zero has no sign, an array is one value); then
equal keys are equal in Arrow, and are numbered or looked up column by column, without an object per key.
"""

from __future__ import annotations

import bisect
import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from penstock.wire.arrow import compute, wrap

Numbers: TypeAlias = NDArray[np.int64]
Bound: TypeAlias = tuple[Any, Any]
"""The least and the greatest value that a column may have somewhere, as `ordered_value` gives them."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def comparable(values: Any) -> Any:
    """Return a key's column in the form that equal keys have in common."""
    array: Any = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pt.is_floating(array.type):
        # Adding zero takes its sign away; every NaN becomes the same one.
        unsigned = compute.add(array, pa.scalar(0, array.type))
        nan: Any = pa.scalar(math.nan, array.type)
        return compute.if_else(compute.is_nan(unsigned), nan, unsigned)
    if pt.is_list(array.type):
        return pa.array([None if item is None else repr(_plain(item)) for item in array.to_pylist()], pa.string())
    return array


def _plain(item: Any) -> Any:
    if isinstance(item, list):
        return [_plain(element) for element in item]
    return item + 0.0 if isinstance(item, float) else item


def number_keys(columns: Sequence[Any]) -> tuple[Numbers, KeySet]:
    """Return every row's number by its key, from 0 in order of appearance, and the distinct keys in that order."""
    numbers, distinct = _encoded(columns[0])
    held = [distinct]
    for column in columns[1:]:
        codes, values = _encoded(column)
        numbers, pairs = _encoded(wrap(numbers * len(values) + codes, pa.int64()))
        left, right = np.divmod(_as_numbers(pairs), len(values))
        held = [each.take(wrap(left, pa.int64())) for each in held] + [values.take(wrap(right, pa.int64()))]
    return numbers, KeySet(tuple(held))


def _encoded(column: Any) -> tuple[Numbers, Any]:
    encoded: Any = comparable(column).dictionary_encode()
    if encoded.indices.null_count:
        raise ValueError("a key has a column without a value")
    return _as_numbers(encoded.indices), encoded.dictionary


def _as_numbers(array: Any) -> Numbers:
    numbers: Numbers = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


@dataclass(frozen=True)
class KeySet:
    """Distinct keys, numbered by their place, that rows can be looked up in."""

    columns: tuple[Any, ...]
    """The key's columns, comparable, in the key's order."""

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def row_bytes(self) -> int:
        """About how many bytes one key takes."""
        total: int = sum(column.nbytes for column in self.columns)
        return max(1, total // max(1, len(self)))

    def match(self, columns: Sequence[Any]) -> tuple[Numbers, Numbers]:
        """Return the places of the rows whose key is one of these, in order, and the number of each one's key."""
        places, numbers = _known(comparable(columns[0]), self._levels[0].values)
        for column, level in zip(columns[1:], self._levels[1:], strict=True):
            rest: Any = comparable(column).take(wrap(places, pa.int64()))
            near, codes = _known(rest, level.values)
            pairs = wrap(numbers[near] * len(level.values) + codes, pa.int64())
            nearer, numbers = _known(pairs, level.pairs)
            places = places[near][nearer]
        return places, numbers

    @cached_property
    def _levels(self) -> Sequence[_Level]:
        """What `match` needs of each column. The last level's pairs are the keys, so their places are the numbers."""
        if len(self.columns) == 1:
            return [_Level(self.columns[0], None)]
        numbers, values = _encoded(self.columns[0])
        levels = [_Level(values, None)]
        for column in self.columns[1:]:
            codes, values = _encoded(column)
            numbers, pairs = _encoded(wrap(numbers * len(values) + codes, pa.int64()))
            levels.append(_Level(values, pairs))
        return levels

    def may_be_within(self, bounds: Mapping[int, Bound]) -> bool:
        """Whether rows within these bounds, by the column's place in the key, may have one of the keys."""
        return all(self._meets(place, bound) for place, bound in bounds.items())

    def _meets(self, place: int, bound: Bound) -> bool:
        values = self._sorted[place]
        if values is None or not len(values):
            return True
        low, high = bound
        if isinstance(values, np.ndarray):
            return bool(np.searchsorted(values, low, "left") < np.searchsorted(values, high, "right"))
        return bisect.bisect_left(values, low) < bisect.bisect_right(values, high)

    @cached_property
    def _sorted(self) -> Sequence[Any]:
        return [_sorted_values(column) for column in self.columns]


@dataclass(frozen=True, slots=True)
class _Level:
    values: Any
    """The distinct values of this column."""
    pairs: Any
    """The distinct keys up to this column: the number up to the one before, and the place in `values`, in one."""


def _known(column: Any, values: Any) -> tuple[Numbers, Numbers]:
    found: Any = compute.index_in(column, value_set=values, skip_nulls=True)
    places = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)
    return places, _as_numbers(found.drop_null())


def _sorted_values(column: Any) -> Any:
    """Return a column's values as `ordered_value` has them, sorted, or None for a type that has no bounds."""
    type_ = column.type
    if pt.is_integer(type_) or pt.is_timestamp(type_):
        return np.sort(_as_numbers(column.cast(pa.int64())))
    if pt.is_date32(type_):
        return np.sort(_as_numbers(column.cast(pa.int32())))
    if pt.is_string(type_) or pt.is_decimal(type_):
        return column.take(compute.sort_indices(column)).to_pylist()
    return None


def ordered_value(value: Any, type_: pa.DataType) -> Any:
    """Return a value of statistics as bounds have it: days and microseconds as numbers; None if it is of no use.

    Floats have none because of NaN, truth values and bytes because nobody skips files by them.
    """
    if isinstance(value, dt.datetime):
        return _microseconds(value) if pt.is_timestamp(type_) else None
    if isinstance(value, dt.date):
        return (value - _EPOCH.date()).days if pt.is_date32(type_) else None
    is_use = (
        (isinstance(value, int) and pt.is_integer(type_))
        or (isinstance(value, str) and pt.is_string(type_))
        or (isinstance(value, Decimal) and pt.is_decimal(type_))
    )
    return value if is_use else None


def _microseconds(value: dt.datetime) -> int:
    return (value.replace(tzinfo=value.tzinfo or dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)
