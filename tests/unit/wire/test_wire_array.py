"""The array syntax: what the server prints reads back, and nothing else is read."""

from __future__ import annotations

import contextlib
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.table import Kind, PgType
from penstock.testing.strategies import print_array
from penstock.wire.array import REGULAR, delimiter_of, lists, parse_array, row_of, split_arrays
from penstock.wire.literal import Special

# Weighted towards the syntax itself, and towards white space that the server does and does not quote.
TEXTS = st.text(st.sampled_from('aN,;:{}"\\ \t\v\u00a0\u2003é[]=0')) | st.sampled_from(["NULL", "null", "", "{}"])
ARRAYS = st.lists(st.none() | TEXTS, max_size=6)
DELIMITERS = st.sampled_from(",;:")


@given(ARRAYS, DELIMITERS)
def test_every_array_reads_back(elements: list[str | None], delimiter: str) -> None:
    assert parse_array(print_array(elements, delimiter), delimiter) == elements


@given(ARRAYS, st.integers(-9, 9))
def test_lower_bounds_are_dropped(elements: list[str | None], lower: int) -> None:
    text = f"[{lower}:{lower + len(elements) - 1}]={print_array(elements)}"
    assert parse_array(text, ",") == elements


@given(st.lists(st.none() | ARRAYS, max_size=8), DELIMITERS)
def test_splitting_a_column_equals_parsing_each_value(column: list[list[str | None] | None], delimiter: str) -> None:
    printed = [None if elements is None else print_array(elements, delimiter) for elements in column]
    python_form = re.compile(REGULAR.replace(r"\z", r"\Z"))
    regular = [text if text is None or python_form.match(text) else None for text in printed]
    expected = [None if text is None else parse_array(text, delimiter) for text in regular]
    assert split_arrays(pa.array(regular, pa.string()), delimiter).to_pylist() == expected


@given(st.text(st.sampled_from('a,{}"\\ N[]:=1'), max_size=12))
def test_arbitrary_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_array(text, ",")


@pytest.mark.parametrize(
    "text", ["", "{", "}", "{a", "a}", "{a}b", "{a,}", "{,a}", "{a,,b}", '{"a}', '{"a"b}', "{a b}", "{a\\,b}", "[0:0]"]
)
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="array"):
        parse_array(text, ",")


@pytest.mark.parametrize("text", ["{,}", "{a,}", "{a,,b}"])
def test_an_empty_element_without_quotes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="empty element"):
        split_arrays(pa.array(["{}", text, "{a}"]), ",")


@pytest.mark.parametrize("text", ["{{1,2},{3,4}}", "[1:1][-2:-1]={{1,2}}", "{{{1}}}", '{{"}"}}'])
def test_more_than_one_dimension_is_special(text: str) -> None:
    assert parse_array(text, ",") == Special("more than one dimension in an array", None)


def test_braces_inside_quotes_are_no_dimension() -> None:
    assert parse_array('{"{1}"}', ",") == ["{1}"]


@pytest.mark.parametrize(
    ("name", "delimiter"),
    [("text", ","), ("box", ";"), ("geometry(Point,4326)", ":"), ("gis.geography", ":"), ("point", ",")],
)
def test_the_delimiter_follows_the_element_type(name: str, delimiter: str) -> None:
    assert delimiter_of(PgType(name, Kind.TEXT)) == delimiter


@given(st.lists(st.none() | st.lists(st.integers(0, 9), max_size=4), max_size=8))
def test_lists_are_rebuilt_from_lengths_and_elements(column: list[list[int] | None]) -> None:
    lengths = pa.array([None if row is None else len(row) for row in column], pa.int32())
    elements = [element for row in column for element in row or []]
    assert lists(lengths, pa.array(elements, pa.int64()), pa.list_(pa.int64())).to_pylist() == column
    owners = [index for index, row in enumerate(column) for _ in row or []]
    assert [row_of(lengths, element) for element in range(len(elements))] == owners
