r"""The text syntax of Postgres arrays: `{1,NULL,"a \"b\""}`, with bounds in front where they do not start at 1.

The server quotes an element that is empty, reads NULL, or contains white space, a brace, a quote,
a backslash or the delimiter; so what is not quoted can be split without looking further.
"""

from __future__ import annotations

import re
from functools import lru_cache

import pyarrow as pa

from penstock.model.table import PgType
from penstock.wire.arrow import ArrowArray, compute
from penstock.wire.literal import Special

# Exactly the characters that the server takes for white space: it quotes no others, so \s would be too many.
_NOT_BARE = r'"\\{} \t\n\r\v\f'
REGULAR = rf"\A\{{[^{_NOT_BARE}]*\}}\z"
"""Arrays without quotes, inner braces and bounds, which `split_arrays` reads."""

_BOUNDS = re.compile(r"((?:\[-?\d+:-?\d+\])+)=", re.ASCII)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_MULTIDIMENSIONAL = Special("more than one dimension in an array", None)

# pg_type.typdelim of the types that do not use a comma: box, and PostGIS's.
_DELIMITERS = {"box": ";", "geometry": ":", "geography": ":"}


def delimiter_of(element: PgType) -> str:
    """Return what separates the elements of an array of this type."""
    return _DELIMITERS.get(element.name.partition("(")[0].rpartition(".")[2], ",")


def parse_array(text: str, delimiter: str) -> list[str | None] | Special:
    """Read one array of one dimension into its elements' texts; its bounds are dropped."""
    bounds = _BOUNDS.match(text)
    body = text[bounds.end() :] if bounds else text
    if body.startswith("{{") or (bounds is not None and bounds[1].count("[") > 1):
        return _MULTIDIMENSIONAL
    if body == "{}":
        return []
    if not body.startswith("{"):
        raise ValueError("not an array")
    return _elements(body, delimiter)


def split_arrays(values: ArrowArray, delimiter: str) -> ArrowArray:
    """Split a column of `REGULAR` arrays and NULLs into lists of their elements' texts."""
    split = compute.split_pattern(compute.utf8_slice_codeunits(values, 1, -1), delimiter)
    texts = split.flatten()
    # An empty text is what splitting an empty array gives; the server quotes those that are elements.
    is_empty = compute.equal(values, "{}")
    is_element = compute.not_equal(texts, "")
    if len(texts) - _count(is_element) != _count(is_empty):
        raise ValueError("an empty element without quotes")
    lengths = compute.if_else(is_empty, pa.scalar(0, pa.int32()), compute.list_value_length(split))
    elements = texts.filter(is_element)
    not_null = compute.if_else(compute.equal(elements, "NULL"), pa.scalar(None, pa.string()), elements)
    return lists(lengths, not_null, pa.list_(pa.string()))


def lists(lengths: ArrowArray, elements: ArrowArray, target: pa.DataType) -> ArrowArray:
    """Build lists of the given lengths, NULL where the length is, from all their elements in a row."""
    ends = compute.cumulative_sum(lengths.fill_null(0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, elements, type=target, mask=lengths.is_null())


def row_of(lengths: ArrowArray, element: int) -> int:
    """Return the row whose list holds the element at an index among all."""
    ends = compute.cumulative_sum(lengths.fill_null(0))
    return _count(compute.less_equal(ends, element))


def _elements(body: str, delimiter: str) -> list[str | None]:
    form = _element_form(delimiter)
    elements: list[str | None] = []
    at, more = 1, True
    while more:
        match = form.match(body, at)
        if match is None:
            raise ValueError("not an array")
        elements.append(_element(match))
        at, more = match.end(), match["next"] == delimiter
    if at != len(body):
        raise ValueError("text after the array's end")
    return elements


def _element(match: re.Match[str]) -> str | None:
    quoted = match["quoted"]
    if quoted is not None:
        return _ESCAPED.sub(r"\1", quoted) if "\\" in quoted else quoted
    return None if match["bare"] == "NULL" else match["bare"]


@lru_cache(maxsize=8)
def _element_form(delimiter: str) -> re.Pattern[str]:
    quoted = r'"(?P<quoted>[^"\\]*(?:\\.[^"\\]*)*)"'
    bare = rf"(?P<bare>[^{_NOT_BARE}{delimiter}]+)"
    return re.compile(rf"(?:{quoted}|{bare})(?P<next>[{delimiter}}}])", re.DOTALL)


def _count(mask: ArrowArray) -> int:
    return int(compute.sum(mask, min_count=0).as_py())
