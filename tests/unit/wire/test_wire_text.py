"""Postgres text into Arrow columns: exact for what the server prints, by policy for what is special."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import ConversionError, ErrorKind, WireError
from penstock.model.cell import Cell
from penstock.model.special import SpecialValues
from penstock.model.table import Kind, PgType
from penstock.testing.strategies import (
    Printed,
    array_type,
    numeric_type,
    pg_types,
    print_array,
    printed,
    scalar_types,
    simple_type,
)
from penstock.wire.arrow import arrow_type, has_special_values
from penstock.wire.text import UnconvertibleValueError, cell_values, convert_text

ERROR, NULL, CLAMP, STRING = SpecialValues

BOOL = simple_type(Kind.BOOL)
INT4 = simple_type(Kind.INT4)
TEXT = simple_type(Kind.TEXT)
BYTES = simple_type(Kind.BYTES)
DATE = simple_type(Kind.DATE)
TIMESTAMP = simple_type(Kind.TIMESTAMP)
TIMESTAMPTZ = simple_type(Kind.TIMESTAMPTZ)
NUMERIC = numeric_type(5, 2)
WIDE = numeric_type(38, 0)


def converted(texts: Sequence[str | None], source: PgType, policy: SpecialValues = ERROR) -> list[Cell]:
    array = convert_text(pa.array(texts, pa.string()), source, policy)
    array.validate(full=True)
    assert array.type == arrow_type(source, policy)
    return cell_values(array, source)


def utc(*fields: int) -> dt.datetime:
    return dt.datetime(*fields, tzinfo=dt.UTC)  # type: ignore[misc, arg-type]


@st.composite
def columns(draw: st.DrawFn) -> tuple[PgType, list[Printed | None]]:
    source = draw(pg_types())
    return source, draw(st.lists(st.none() | printed(source), max_size=8))


def _texts(column: list[Printed | None]) -> list[str | None]:
    return [item and item[0] for item in column]


def _cells(column: list[Printed | None]) -> list[Cell]:
    return [None if item is None else item[1] for item in column]


@given(columns())
def test_every_column_converts_to_the_values_that_were_printed(column: tuple[PgType, list[Printed | None]]) -> None:
    source, values = column
    # By repr: it tells -0.0 from 0.0, one NaN is like another, and the class of a time zone counts.
    assert repr(converted(_texts(values), source)) == repr(_cells(values))


ANY_TEXT = st.text(st.sampled_from("0159-+:. eEtfxNaTZ\\BC"), max_size=24)


@st.composite
def almost_printed(draw: st.DrawFn) -> tuple[PgType, str]:
    """Draw text that a server prints, mostly, with a character added, dropped or replaced."""
    source = draw(scalar_types())
    text, _ = draw(printed(source))
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(start + 1, len(text))))
    return source, text[:start] + draw(st.text(st.sampled_from("01-+:. eT"), max_size=1)) + text[end:]


def outcome(texts: list[str], source: PgType) -> str:
    """Return what the last text becomes."""
    try:
        return repr(converted(texts, source, NULL)[-1])
    except WireError as error:
        return str(error)


@given(almost_printed() | st.tuples(scalar_types(), ANY_TEXT))
def test_what_becomes_of_a_text_does_not_depend_on_its_neighbours(case: tuple[PgType, str]) -> None:
    source, text = case
    irregular = {Kind.DATE: "infinity", Kind.TIMESTAMP: "infinity", Kind.TIMESTAMPTZ: "infinity"}
    neighbour = irregular.get(source.kind, "NaN")
    if source.kind in {Kind.FLOAT4, Kind.FLOAT8, Kind.NUMERIC, *irregular}:
        assert outcome([text], source) == outcome([neighbour, text], source)


@given(columns(), st.integers(0, 3))
def test_a_slice_of_binary_converts_like_a_whole_of_strings(
    column: tuple[PgType, list[Printed | None]], start: int
) -> None:
    source, values = column
    binary = pa.array([None if text is None else text.encode() for text in _texts(values)], pa.binary())
    sliced = convert_text(binary.slice(start), source, ERROR)
    assert repr(cell_values(sliced, source)) == repr(_cells(values)[start:])


@given(columns())
def test_the_policy_string_keeps_the_servers_text(column: tuple[PgType, list[Printed | None]]) -> None:
    source, values = column
    if has_special_values(source):
        assert converted(_texts(values), source, STRING) == _texts(values)
    else:
        assert repr(converted(_texts(values), source, STRING)) == repr(_cells(values))


EXACT: list[tuple[PgType, str, Cell]] = [
    (simple_type(Kind.OID), "4294967295", 4294967295),
    (simple_type(Kind.INT8), "-9223372036854775808", -(1 << 63)),
    (simple_type(Kind.FLOAT8), "5e-324", 5e-324),
    (simple_type(Kind.FLOAT8), "1.7976931348623157e+308", 1.7976931348623157e308),
    (simple_type(Kind.FLOAT4), "1e-45", 2.0**-149),
    (simple_type(Kind.FLOAT4), "3.4028235e+38", (2 - 2.0**-23) * 2.0**127),
    (NUMERIC, "1", Decimal("1.00")),
    (NUMERIC, "1.5", Decimal("1.50")),
    (NUMERIC, "1.5000", Decimal("1.50")),
    (WIDE, "9" * 38, Decimal("9" * 38)),
    (numeric_type(38, 38), "-0." + "9" * 38, Decimal("-0." + "9" * 38)),
    (TEXT, "", ""),
    (BYTES, r"\x", b""),
    (TIMESTAMP, "2024-01-31 12:00:00.1", dt.datetime(2024, 1, 31, 12, 0, 0, 100_000)),  # noqa: DTZ001
    (TIMESTAMPTZ, "2024-01-31 12:00:00+05:30", utc(2024, 1, 31, 6, 30)),
    (TIMESTAMPTZ, "2024-01-31 12:00:00.000001-03", utc(2024, 1, 31, 15, 0, 0, 1)),
    (TIMESTAMPTZ, "1937-06-30 12:00:00+00:19:32", utc(1937, 6, 30, 11, 40, 28)),
    (TIMESTAMPTZ, "1883-11-18 11:00:00-04:56:02", utc(1883, 11, 18, 15, 56, 2)),
    (TIMESTAMPTZ, "10000-01-01 00:30:00+01", utc(9999, 12, 31, 23, 30)),
    (TIMESTAMPTZ, "0001-12-31 23:30:00-01 BC", utc(1, 1, 1, 0, 30)),
    (array_type(INT4), "[0:1]={1,NULL}", [1, None]),
    (array_type(TEXT), r'{NULL,"NULL","",a,"b \"c\" \\ ,{}"}', [None, "NULL", "", "a", 'b "c" \\ ,{}']),
    (array_type(PgType("box", Kind.TEXT)), "{(1,1),(0,0);(2,2),(1,1)}", ["(1,1),(0,0)", "(2,2),(1,1)"]),
    (array_type(BOOL), "{t,f,NULL}", [True, False, None]),
    (array_type(BYTES), r'{"\\x00ff",NULL}', [b"\x00\xff", None]),
]


@pytest.mark.parametrize(("source", "text", "cell"), EXACT)
def test_edges_convert_exactly_alone_and_in_company(source: PgType, text: str, cell: Cell) -> None:
    assert repr(converted([text], source)) == repr([cell])
    assert repr(converted([None, text, None, text], source)) == repr([None, cell, None, cell])


LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001
FIRST = dt.datetime(1, 1, 1)  # noqa: DTZ001

SPECIAL: list[tuple[PgType, str, str, Cell]] = [
    (DATE, "infinity", "infinity in a date", dt.date(9999, 12, 31)),
    (DATE, "-infinity", "infinity in a date", dt.date(1, 1, 1)),
    (DATE, "0044-03-15 BC", "a year before 1 AD in a date", dt.date(1, 1, 1)),
    (DATE, "4713-01-01 BC", "a year before 1 AD in a date", dt.date(1, 1, 1)),
    (DATE, "10000-01-01", "a year past 9999 in a date", dt.date(9999, 12, 31)),
    (DATE, "5874897-12-31", "a year past 9999 in a date", dt.date(9999, 12, 31)),
    (TIMESTAMP, "infinity", "infinity in a timestamp", LAST),
    (TIMESTAMP, "-infinity", "infinity in a timestamp", FIRST),
    (TIMESTAMP, "0044-03-15 12:00:00 BC", "a year before 1 AD in a timestamp", FIRST),
    (TIMESTAMP, "294276-12-31 23:59:59.999999", "a year past 9999 in a timestamp", LAST),
    (TIMESTAMPTZ, "infinity", "infinity in a timestamptz", LAST.replace(tzinfo=dt.UTC)),
    (TIMESTAMPTZ, "-infinity", "infinity in a timestamptz", FIRST.replace(tzinfo=dt.UTC)),
    (TIMESTAMPTZ, "0044-03-15 12:00:00+00 BC", "a year before 1 AD in a timestamptz", FIRST.replace(tzinfo=dt.UTC)),
    (TIMESTAMPTZ, "0001-01-01 00:00:00+01", "a year before 1 AD in a timestamptz", FIRST.replace(tzinfo=dt.UTC)),
    (TIMESTAMPTZ, "9999-12-31 23:30:00-01", "a year past 9999 in a timestamptz", LAST.replace(tzinfo=dt.UTC)),
    (NUMERIC, "NaN", "NaN in a numeric", None),
    (NUMERIC, "Infinity", "infinity in a numeric", Decimal("999.99")),
    (NUMERIC, "-Infinity", "infinity in a numeric", Decimal("-999.99")),
    (NUMERIC, "-1000", "a numeric with more digits than its decimal holds", Decimal("-999.99")),
    (NUMERIC, "999.995", "a numeric with more digits than its decimal holds", Decimal("999.99")),
    (NUMERIC, "-1.005", "a numeric with more fraction digits than its decimal holds", Decimal("-1.01")),
    # Arrow's own cast makes this a small negative number.
    (WIDE, "9" * 39, "a numeric with more digits than its decimal holds", Decimal("9" * 38)),
    (WIDE, "1" + "0" * 131071, "a numeric with more digits than its decimal holds", Decimal("9" * 38)),
    (array_type(INT4), "{{1,2},{3,4}}", "more than one dimension in an array", None),
    (array_type(TEXT), "[1:1][0:0]={{a}}", "more than one dimension in an array", None),
]
ANY_SPECIAL = pytest.mark.parametrize(("source", "text", "what", "nearest"), SPECIAL, ids=range(len(SPECIAL)))


@ANY_SPECIAL
def test_a_special_value_is_refused_by_default_naming_the_first_row(
    source: PgType, text: str, what: str, nearest: Cell
) -> None:
    with pytest.raises(UnconvertibleValueError) as raised:
        converted([None, text, text], source)
    assert raised.value.row == 1
    assert str(raised.value) == what
    assert raised.value.kind is ErrorKind.CONVERSION
    assert isinstance(raised.value, ConversionError)


@ANY_SPECIAL
def test_a_special_value_becomes_what_the_policy_says(source: PgType, text: str, what: str, nearest: Cell) -> None:
    assert converted([text, None], source, NULL) == [None, None]
    assert converted([text, None], source, CLAMP) == [nearest, None]
    assert converted([text, None], source, STRING) == [text, None]


@ANY_SPECIAL
def test_the_policy_applies_to_each_element_of_an_array(source: PgType, text: str, what: str, nearest: Cell) -> None:
    if source.kind is Kind.ARRAY:
        return
    element = print_array([text])[1:-1]
    texts = [None, "{}", f"{{NULL,{element}}}"]
    outer = array_type(source)
    assert converted(texts, outer, NULL) == [None, [], [None, None]]
    assert converted(texts, outer, CLAMP) == [None, [], [None, nearest]]
    assert converted(texts, outer, STRING) == texts
    with pytest.raises(UnconvertibleValueError, match=f"{what}, in an array") as raised:
        converted(texts, outer)
    assert raised.value.row == 2


def test_the_first_row_is_named_when_an_element_and_an_array_are_special() -> None:
    dates = array_type(DATE)
    with pytest.raises(UnconvertibleValueError) as raised:
        converted(["{2024-01-31}", "{infinity}", "{{2024-01-31}}"], dates)
    assert raised.value.row == 1
    with pytest.raises(UnconvertibleValueError) as raised:
        converted(["{2024-01-31}", "{{2024-01-31}}", "{infinity}"], dates)
    assert raised.value.row == 1


def test_numbers_that_are_words_are_ordinary_floats() -> None:
    for kind in (Kind.FLOAT4, Kind.FLOAT8):
        texts = ["NaN", "Infinity", "-Infinity", "-0", "1.5", None]
        assert repr(converted(texts, simple_type(kind))) == "[nan, inf, -inf, -0.0, 1.5, None]"


def test_a_numeric_that_no_decimal_holds_keeps_the_servers_text() -> None:
    for source in (PgType("numeric", Kind.NUMERIC), numeric_type(39, 0), numeric_type(2, -3)):
        assert converted(["NaN", "1" * 50, "-0.10"], source) == ["NaN", "1" * 50, "-0.10"]


# Several of these are forms that Arrow's casts would take.
MALFORMED: list[tuple[PgType, str]] = [
    *((BOOL, text) for text in ("true", "1", "T", " t", "")),
    *((INT4, text) for text in ("0x10", "+1", " 1", "1 ", "", "1.0", "2147483648", "1_0", "\u0661")),
    *((simple_type(Kind.OID), text) for text in ("-1", "4294967296")),
    *((simple_type(Kind.FLOAT8), text) for text in ("1e400", "inf", "nan(1)", "nan", "", "1e", "0x1p3", "+Infinity")),
    *((simple_type(Kind.FLOAT4), text) for text in ("3.5e38", "1e400")),
    *((NUMERIC, text) for text in ("1e2", "+1", "", " 1", ".", "nan", "1..2", "\u0661")),
    *((BYTES, text) for text in (r"\x0", r"\x0 ", r"\xzz", "abc", "", r"\x00 11")),
    *((DATE, text) for text in ("2024-02-30", "0000-01-01", "2024-1-31", "20240131", "2024-01-31 ", "Infinity", "")),
    *((TIMESTAMP, text) for text in ("2024-01-31", "2024-01-31 12", "2024-01-31 12:00", "2024-01-31T12:00:00")),
    *((TIMESTAMP, text) for text in ("2024-01-31 24:00:00", "2024-01-31 12:00:00+00", "2024-01-31 12:00:00.1234567")),
    *((TIMESTAMP, text) for text in ("0000-01-01 00:00:00", "2024-01-31 12:00:60", "2024-01-31 12:00:00.")),
    *((TIMESTAMPTZ, text) for text in ("2024-01-31 12:00:00", "2024-01-31 12:00+00", "2024-01-31 12:00:00Z")),
    *((TIMESTAMPTZ, text) for text in ("2024-01-31 12:00:00+0530", "2024-01-31 12+00", "2024-01-31T12:00:00+00")),
    *((array_type(INT4), text) for text in ("{", "1", "{a}", "{1,}", "{1}}", "{1 }", "{1,null}")),
]


@pytest.mark.parametrize(("source", "text"), MALFORMED)
@pytest.mark.parametrize("policy", [ERROR, NULL, CLAMP])
def test_malformed_text_is_refused_under_every_policy(source: PgType, text: str, policy: SpecialValues) -> None:
    with pytest.raises(WireError, match="the server sent text that is not a value of type"):
        converted([text], source, policy)


@given(scalar_types(), st.sampled_from(SpecialValues), ANY_TEXT)
def test_arbitrary_text_converts_or_is_refused_in_constant_words(
    source: PgType, policy: SpecialValues, text: str
) -> None:
    try:
        converted([text], source, policy)
    except UnconvertibleValueError as special:
        assert str(special) in {what for _, _, what, _ in SPECIAL}  # noqa: PT017
    except WireError as malformed:
        assert str(malformed) == f"the server sent text that is not a value of type {source.name}"  # noqa: PT017


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(WireError):
        convert_text(pa.array([b"\xff"], pa.binary()), TEXT, ERROR)


def test_a_refusal_hides_the_cast_error_that_quotes_the_value() -> None:
    with pytest.raises(WireError) as raised:
        converted(["s3cret"], INT4)
    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


@given(pg_types(), st.integers(0, 3))
@example(array_type(TIMESTAMPTZ), 2)
def test_columns_of_nulls_and_none_have_their_type(source: PgType, size: int) -> None:
    assert converted([None] * size, source) == [None] * size


def test_times_with_a_zone_are_in_datetime_utc() -> None:
    moment: Any = converted(["2024-01-31 12:00:00+00"], TIMESTAMPTZ)[0]
    assert moment.tzinfo is dt.UTC
    nested: Any = converted(['{"2024-01-31 12:00:00+00",NULL}', None], array_type(TIMESTAMPTZ))
    assert nested[0][0].tzinfo is dt.UTC
    assert nested[0][1] is None
    assert nested[1] is None


@pytest.mark.parametrize(("precision", "scale"), [(38, 38), (38, 37), (38, 30), (20, 19)])
def test_a_numeric_with_more_digits_than_its_type_is_refused_never_wrapped(precision: int, scale: int) -> None:
    source = PgType(f"numeric({precision},{scale})", Kind.NUMERIC, precision, scale)
    for text in ("1021", "5", "99999999999999", "-17.5"):
        if len(text.split(".")[0].lstrip("-")) > precision - scale:
            with pytest.raises((WireError, UnconvertibleValueError)):
                convert_text(pa.array([text], pa.string()), source, SpecialValues.ERROR)
