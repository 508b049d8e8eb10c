"""Compares two tables value for value; pure, so that its ability to find differences is itself tested.

Equal means: the same columns with the same types, and the same rows as often. NULL equals NULL and
NaN equals NaN; any other two floats are equal only if all their bits are.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import pyarrow as pa

Values: TypeAlias = tuple[Any, ...]

_NARROW = (pa.int16(), pa.list_(pa.int16()))

SHOWN = 3
"""How many differing keys are named: enough to look them up."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison found; keys are in table order, and at most `SHOWN` of each sort are kept."""

    source_rows: int
    lake_rows: int
    columns: tuple[str, ...] = ()
    """Columns that only one side has, or that have another type."""
    missing: tuple[Values, ...] = ()
    """Keys of rows that the lake does not have."""
    extra: tuple[Values, ...] = ()
    """Keys of rows that only the lake has, or has more often."""
    differing: tuple[tuple[Values, tuple[str, ...]], ...] = ()
    """Keys of rows whose values differ, and in which columns."""
    differences: int = 0
    """How many rows are missing, extra or differing."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not self.columns and self.differences == 0


def compare(source: pa.Table, lake: pa.Table, key: Sequence[str]) -> Comparison:
    """Compare tables whose rows are in any order; without a key a whole row is its own."""
    columns = _differing_columns(source.schema, lake.schema)
    if columns:
        return Comparison(source.num_rows, lake.num_rows, columns=columns)
    names = source.schema.names
    ours, theirs = _rows(source, names), _rows(lake, names)
    if ours == theirs:
        return Comparison(source.num_rows, lake.num_rows)
    places = [names.index(name) for name in key] or list(range(len(names)))
    return _describe(source.num_rows, lake.num_rows, names, places, ours - theirs, theirs - ours)


def narrowed(lake: pa.Table, source: pa.Schema) -> pa.Table:
    """Return the lake's rows with integers of 16 bits where the source has such: not every lake knows them.

    A column with a value that does not fit stays as it is, and so differs from the source's in its type.
    """
    for place, column in enumerate(lake.schema):
        wanted = source.field(column.name).type if column.name in source.names else column.type
        if wanted in _NARROW and column.type != wanted:
            with contextlib.suppress(pa.ArrowInvalid):
                lake = lake.set_column(place, pa.field(column.name, wanted), lake.column(place).cast(wanted))
    return lake


def _describe(
    source_rows: int,
    lake_rows: int,
    names: Sequence[str],
    places: Sequence[int],
    only_source: Counter[Values],
    only_lake: Counter[Values],
) -> Comparison:
    ours, theirs = _by_key(only_source, places), _by_key(only_lake, places)
    changed = [value for value in ours if value in theirs]
    missing = [value for value in ours if value not in theirs]
    # What the lake has beyond one row for each of ours: other keys, and repeats.
    extra = [value for value in theirs if value not in ours or len(theirs[value]) > len(ours[value])]
    return Comparison(
        source_rows,
        lake_rows,
        missing=_first(missing),
        extra=_first(extra),
        differing=tuple(
            (tuple(map(_readable, value)), _differing_names(names, ours[value][0], theirs[value][0]))
            for value in islice(changed, SHOWN)
        ),
        differences=len(set(changed) | set(missing) | set(extra)),
    )


def _by_key(rows: Counter[Values], places: Sequence[int]) -> dict[Values, list[Values]]:
    found: dict[Values, list[Values]] = {}
    for row in rows.elements():
        found.setdefault(tuple(row[place] for place in places), []).append(row)
    return found


def _differing_names(names: Sequence[str], ours: Values, theirs: Values) -> tuple[str, ...]:
    return tuple(name for name, left, right in zip(names, ours, theirs, strict=True) if left != right)


def _first(keys: Iterable[Values]) -> tuple[Values, ...]:
    return tuple(tuple(map(_readable, key)) for key in islice(keys, SHOWN))


def _differing_columns(source: pa.Schema, lake: pa.Schema) -> tuple[str, ...]:
    ours, theirs = _types(source), _types(lake)
    return tuple(sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)))


def _types(schema: pa.Schema) -> dict[str, str]:
    return {field.name: _type_name(field.type) for field in schema}


def _type_name(type: pa.DataType) -> str:  # noqa: A002
    """Return a type's name without what does not matter to values: the name and nullability of a list's elements."""
    if isinstance(type, pa.ListType | pa.LargeListType):
        return f"list<{_type_name(type.value_type)}>"
    return {"large_string": "string", "large_binary": "binary"}.get(str(type), str(type))


def _rows(table: pa.Table, names: Sequence[str]) -> Counter[Values]:
    if not names:
        return Counter({(): table.num_rows})
    return Counter(zip(*(_values(table.column(name)) for name in names), strict=True))


def _values(column: pa.ChunkedArray[Any]) -> list[Any]:
    """Return a column as values that can be hashed and are equal just when the column's are."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    plain: list[Any] = column.to_pylist()
    needs_care = pa.types.is_floating(column.type) or pa.types.is_nested(column.type)
    return list(map(_canonical, plain)) if needs_care else plain


@dataclass(frozen=True, slots=True)
class _Float:
    """A float by its bits; all NaNs are one."""

    bits: bytes

    @classmethod
    def of(cls, value: float) -> _Float:
        return cls(struct.pack(">d", math.nan if math.isnan(value) else value))


def _canonical(value: Any) -> Any:
    match value:
        case float():
            return _Float.of(value)
        case list():
            return tuple(map(_canonical, value))
        case dict():
            return tuple((name, _canonical(each)) for name, each in value.items())
    return value


def _readable(value: Any) -> Any:
    return struct.unpack(">d", value.bits)[0] if isinstance(value, _Float) else value
