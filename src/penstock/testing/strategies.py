"""Hypothesis strategies for positions, types, and values with the text that Postgres prints for them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from penstock.model.cell import Cell
from penstock.model.lsn import Lsn
from penstock.model.table import Kind, PgType

Printed: TypeAlias = tuple[str, Cell]
"""Postgres's text for a value, and the value."""

MAX_ELEMENTS = 5
"""Of a generated array: every interesting neighbourhood fits."""

_MAX_PRECISION = 38
_SIMPLE_NAMES: dict[Kind, str] = {
    Kind.BOOL: "boolean",
    Kind.INT2: "smallint",
    Kind.INT4: "integer",
    Kind.INT8: "bigint",
    Kind.OID: "oid",
    Kind.FLOAT4: "real",
    Kind.FLOAT8: "double precision",
    Kind.TEXT: "text",
    Kind.BYTES: "bytea",
    Kind.DATE: "date",
    Kind.TIMESTAMP: "timestamp without time zone",
    Kind.TIMESTAMPTZ: "timestamp with time zone",
}
_INTEGERS: dict[Kind, tuple[int, int]] = {
    Kind.INT2: (-(1 << 15), (1 << 15) - 1),
    Kind.INT4: (-(1 << 31), (1 << 31) - 1),
    Kind.INT8: (-(1 << 63), (1 << 63) - 1),
    Kind.OID: (0, (1 << 32) - 1),
}


def lsns() -> SearchStrategy[Lsn]:
    """Generate positions from the whole of the log."""
    return st.integers(0, (1 << 64) - 1).map(Lsn)


def simple_type(kind: Kind) -> PgType:
    """Return the built-in type of a kind that needs no parameters."""
    return PgType(_SIMPLE_NAMES[kind], kind)


def numeric_type(precision: int, scale: int) -> PgType:
    """Return `numeric(precision,scale)`."""
    return PgType(f"numeric({precision},{scale})", Kind.NUMERIC, precision, scale)


def array_type(element: PgType) -> PgType:
    """Return the array type of an element type."""
    return PgType(f"{element.name}[]", Kind.ARRAY, element=element)


def decimal_types() -> SearchStrategy[PgType]:
    """Generate the numerics that a decimal holds."""
    scales = st.integers(1, _MAX_PRECISION).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))
    return scales.map(lambda pair: numeric_type(*pair))


def scalar_types() -> SearchStrategy[PgType]:
    """Generate types of every kind but arrays."""
    return st.one_of(st.sampled_from([simple_type(kind) for kind in _SIMPLE_NAMES]), decimal_types())


def pg_types() -> SearchStrategy[PgType]:
    """Generate types of every kind."""
    return st.one_of(scalar_types(), scalar_types().map(array_type))


def printed(type: PgType) -> SearchStrategy[Printed]:  # noqa: A002
    """Generate values that every target type holds, each with the text that a server in UTC prints for it."""
    if type.element is not None:
        return st.lists(st.none() | printed(type.element), max_size=MAX_ELEMENTS).map(_print_list)
    if type.kind in _INTEGERS:
        return st.integers(*_INTEGERS[type.kind]).map(lambda number: (str(number), number))
    if type.kind is Kind.NUMERIC:
        assert type.precision is not None
        return _numerics(type.precision, type.scale or 0)
    return _SIMPLE_VALUES[type.kind]


def print_array(elements: list[str | None], delimiter: str = ",") -> str:
    """Print an array of one dimension as the server does, from its elements' texts."""
    return "{" + delimiter.join("NULL" if text is None else _quote(text, delimiter) for text in elements) + "}"


def _quote(text: str, delimiter: str) -> str:
    special = set('{}"\\ \t\n\r\v\f' + delimiter)
    if text and text.upper() != "NULL" and not special.intersection(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _print_list(items: list[Printed | None]) -> Printed:
    return print_array([item and item[0] for item in items]), [None if item is None else item[1] for item in items]


def _numerics(precision: int, scale: int) -> SearchStrategy[Printed]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda unscaled: _print_numeric(unscaled, scale))


def _print_numeric(unscaled: int, scale: int) -> Printed:
    digits = tuple(int(digit) for digit in str(abs(unscaled)))
    value = Decimal((int(unscaled < 0), digits, -scale))
    return f"{value:f}", value


def _print_double(value: float) -> Printed:
    return _print_words(repr(value).removesuffix(".0")), value


def _print_real(value: float) -> Printed:
    # Nine digits identify every single-precision number.
    return _print_words(f"{value:.9g}"), value


def _print_words(text: str) -> str:
    return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(text, text)


def _print_timestamp(moment: dt.datetime) -> Printed:
    text = moment.isoformat(sep=" ")
    # Which of two equal wall clocks was meant is nothing that a server stores.
    return text.rstrip("0") if "." in text else text, moment.replace(fold=0)


def _print_timestamptz(moment: dt.datetime) -> Printed:
    text, _ = _print_timestamp(moment)
    return f"{text}+00", moment.replace(fold=0, tzinfo=dt.UTC)


_SIMPLE_VALUES: dict[Kind, SearchStrategy[Printed]] = {
    Kind.BOOL: st.sampled_from([("t", True), ("f", False)]),
    Kind.FLOAT4: st.floats(width=32).map(_print_real),
    Kind.FLOAT8: st.floats().map(_print_double),
    Kind.TEXT: st.text(st.characters(codec="utf-8", exclude_characters="\0")).map(lambda text: (text, text)),
    Kind.BYTES: st.binary().map(lambda data: (rf"\x{data.hex()}", data)),
    Kind.DATE: st.dates().map(lambda date: (date.isoformat(), date)),
    Kind.TIMESTAMP: st.datetimes().map(_print_timestamp),
    Kind.TIMESTAMPTZ: st.datetimes().map(_print_timestamptz),
}
