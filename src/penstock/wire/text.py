"""Columns of Postgres's text output into Arrow columns: exact, or refused.

Rule 1: a column is cast as a whole only if its text proves that Arrow's cast is exact for all of it
(the casts also accept forms that Postgres never prints, and 39-digit decimals silently wrap).
Rule 2: what is not regular is read one distinct value at a time by `literal` and `array`, strictly.
Rule 3: the result for a value does not depend on its neighbours, and no message contains it.
"""

from __future__ import annotations

import binascii
import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.errors import ConversionError, WireError
from penstock.model.cell import Cell
from penstock.model.special import SpecialValues
from penstock.model.table import Kind, PgType
from penstock.wire.array import REGULAR, delimiter_of, lists, parse_array, row_of, split_arrays
from penstock.wire.arrow import MAX_DECIMAL_PRECISION, ArrowArray, arrow_type, compute, element_of
from penstock.wire.literal import (
    MAX_DATE,
    MAX_TIMESTAMP,
    MIN_DATE,
    MIN_TIMESTAMP,
    Special,
    parse_date,
    parse_float,
    parse_numeric,
    parse_timestamp,
    parse_timestamptz,
)


class UnconvertibleValueError(ConversionError):
    """A value that its target type cannot hold, under the policy `error`."""

    def __init__(self, what: str, row: int) -> None:
        super().__init__(what)
        self.row = row
        """Index of the first such value in its column."""


def convert_text(values: ArrowArray, type: PgType, policy: SpecialValues = SpecialValues.ERROR) -> ArrowArray:  # noqa: A002
    """Convert a column of Postgres's text (string or binary, NULLs kept) to `arrow_type(type, policy)`.

    Raises `UnconvertibleValueError` for a special value under the policy `error`, and `WireError`
    for text that is not of the type.
    """
    try:
        return _convert(values.cast(pa.string()), type, policy)
    except ValueError:
        # Without its cause: Arrow's messages quote the value.
        raise WireError(f"the server sent text that is not a value of type {type.name}") from None


def cell_values(array: ArrowArray, type: PgType) -> list[Cell]:  # noqa: A002
    """Return a converted column as Python objects; times with a zone are in `datetime.UTC`."""
    if (type.element or type).kind is not Kind.TIMESTAMPTZ or pa.types.is_string(array.type):
        cells: list[Cell] = array.to_pylist()
        return cells
    # Arrow's own objects would have a ZoneInfo, which is another class and needs a time zone database.
    naive: pa.DataType = pa.timestamp("us") if type.element is None else pa.list_(pa.timestamp("us"))
    moments: Any = array.cast(naive)
    return [_in_utc(moment) for moment in moments.to_pylist()]


def _in_utc(value: Any) -> Cell:
    if isinstance(value, list):
        return [_in_utc(item) for item in value]
    moment: Cell = value and value.replace(tzinfo=dt.UTC)
    return moment


@dataclass(frozen=True, slots=True)
class _Proof:
    """What shows, without a regular expression, that a whole column is regular: cheaper by half or more."""

    alphabet: bytes
    """Together the values have no other characters."""
    lengths: tuple[int, int] = (1, 1 << 31)
    """Every value is as long as one of these or something between."""
    suffix: str = ""
    """Every value ends so."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How the text of some type is read: `cast` reads what matches `regular`, exactly; `parse` the rest."""

    target: pa.DataType
    regular: str
    cast: Callable[[ArrowArray], ArrowArray]
    parse: Callable[[str], Any]
    proof: _Proof | None = None


def _convert(values: ArrowArray, type: PgType, policy: SpecialValues) -> ArrowArray:  # noqa: A002
    if pa.types.is_string(arrow_type(type, policy)):
        return values
    match type.kind:
        case Kind.BOOL:
            return _booleans(values)
        case Kind.BYTES:
            return _bytes(values)
        case Kind.ARRAY:
            return _arrays(values, type, policy)
        case _:
            return _scalars(values, type, policy)


def _booleans(values: ArrowArray) -> ArrowArray:
    is_true: ArrowArray = compute.equal(values, "t")
    _require(compute.or_(is_true, compute.equal(values, "f")))
    return is_true


def _bytes(values: ArrowArray) -> ArrowArray:
    """Decode hexadecimal: of small values all at once, as they lie behind each other; large ones in place."""
    if values.nbytes > _LARGE_BYTES * max(1, len(values)):
        return _large_bytes(values)
    filled = values.fill_null(r"\x")
    _require(compute.starts_with(filled, r"\x"))
    digits = compute.utf8_slice_codeunits(filled, 2)
    _require(compute.equal(compute.bit_wise_and(compute.binary_length(digits), 1), 0))
    offsets = _offsets(digits)
    halves = compute.shift_right(compute.subtract(offsets, offsets[0]), pa.scalar(1, pa.int32()))
    data = pa.py_buffer(binascii.unhexlify(_data(digits)))
    decoded = pa.Array.from_buffers(pa.binary(), len(values), [None, halves.buffers()[1], data])
    nulled: ArrowArray = compute.if_else(values.is_valid(), decoded, pa.scalar(None, pa.binary()))
    return nulled


def _large_bytes(values: ArrowArray) -> ArrowArray:
    decoded = [_unhexlify(each) if each is not None else None for each in _views(values)]
    if len(decoded) > 1 or decoded[0] is None:
        return pa.array(decoded, pa.binary())
    offsets = pa.array([0, len(decoded[0])], pa.int32())
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets.buffers()[1], pa.py_buffer(decoded[0])])


def _views(values: ArrowArray) -> Iterator[memoryview | None]:
    """Yield the values without copying them, as Arrow's own scalars would."""
    buffer: Any = values.buffers()[2]
    data, offsets = memoryview(buffer), _offsets(values).to_pylist()
    for is_valid, start, end in zip(values.is_valid().to_pylist(), offsets, offsets[1:], strict=False):
        yield data[start:end] if is_valid else None


def _unhexlify(text: memoryview) -> bytes:
    if bytes(text[:2]) != rb"\x":
        raise ValueError("not a form that Postgres prints")
    return binascii.unhexlify(text[2:])


def _arrays(values: ArrowArray, type: PgType, policy: SpecialValues) -> ArrowArray:  # noqa: A002
    element = element_of(type)
    try:
        texts = _split(values, delimiter_of(element), policy)
    except UnconvertibleValueError as nested:
        # An element of an earlier row may be special too, and the first is to be named.
        _arrays(values.slice(0, nested.row), type, policy)
        raise
    lengths = compute.list_value_length(texts)
    try:
        elements = convert_text(compute.list_flatten(texts), element, policy)
    except UnconvertibleValueError as error:
        raise UnconvertibleValueError(f"{error.message}, in an array", row_of(lengths, error.row)) from None
    return lists(lengths, elements, arrow_type(type, policy))


def _split(values: ArrowArray, delimiter: str, policy: SpecialValues) -> ArrowArray:
    split = partial(split_arrays, delimiter=delimiter)
    parse = partial(parse_array, delimiter=delimiter)
    return _piecewise(values, _Form(pa.list_(pa.string()), REGULAR, split, parse), policy)


def _scalars(values: ArrowArray, type: PgType, policy: SpecialValues) -> ArrowArray:  # noqa: A002
    form = _numeric_form(type) if type.kind is Kind.NUMERIC else _FORMS[type.kind]
    if form.proof is not None and _is_proved(values, form.proof):
        try:
            return form.cast(values)
        except ValueError:
            # Some of it is special or malformed: the pieces tell which.
            pass
    return _piecewise(values, form, policy)


def _is_proved(values: ArrowArray, proof: _Proof) -> bool:
    shortest, longest = compute.min_max(compute.binary_length(values)).as_py().values()
    if shortest is None:
        return True
    if shortest < proof.lengths[0] or longest > proof.lengths[1]:
        return False
    if proof.suffix and not _holds(compute.ends_with(values, proof.suffix)):
        return False
    return not _data(values).translate(None, proof.alphabet)


def _piecewise(values: ArrowArray, form: _Form, policy: SpecialValues) -> ArrowArray:
    is_irregular = compute.invert(compute.match_substring_regex(values, form.regular)).fill_null(False)
    cast = form.cast(compute.if_else(is_irregular, pa.scalar(None, pa.string()), values))
    rest: Any = values.filter(is_irregular).dictionary_encode()
    if not len(rest):
        return cast
    # The dictionary is in order of appearance, so the first special value met is the first of the column.
    parsed = [_settle(form.parse(text), policy, values, text) for text in rest.dictionary.to_pylist()]
    return _overlay(cast, is_irregular, pa.array(parsed, form.target).take(rest.indices))


def _settle(value: Any, policy: SpecialValues, values: ArrowArray, text: str) -> Any:
    """Apply the policy to a parsed value, if it is special."""
    if not isinstance(value, Special):
        return value
    if policy is SpecialValues.ERROR:
        raise UnconvertibleValueError(value.what, compute.index(values, pa.scalar(text)).as_py())
    return value.nearest if policy is SpecialValues.CLAMP else None


def _overlay(base: ArrowArray, mask: ArrowArray, replacements: ArrowArray) -> ArrowArray:
    """Put the replacements, in order, where the mask is true. Arrow's own function for it knows no lists."""
    replaced = compute.add(compute.cumulative_sum(mask.cast(pa.int64())), len(base) - 1)
    kept = compute.subtract(compute.cumulative_sum(pa.repeat(1, len(base))), 1)
    return pa.concat_arrays([base, replacements]).take(compute.if_else(mask, replaced, kept))


def _cast(values: ArrowArray, target: pa.DataType, lowest: int, highest: int) -> ArrowArray:
    """Cast to a number or a time, and refuse what is out of bounds."""
    result = values.cast(target)
    _require(compute.greater_equal(result, pa.scalar(lowest, target)))
    _require(compute.less_equal(result, pa.scalar(highest, target)))
    return result


def _cast_float(values: ArrowArray, target: pa.DataType) -> ArrowArray:
    """Cast digits; infinity would be an overflow, as the words for it are not digits."""
    result = values.cast(target)
    _require(compute.is_finite(result))
    return result


def _refuse(_: str) -> None:
    raise ValueError("not a form that Postgres prints")


def _holds(mask: ArrowArray) -> bool:
    return bool(compute.all(mask, min_count=0).as_py())


def _require(mask: ArrowArray) -> None:
    """Refuse the column unless the mask is true of every value that is not NULL."""
    if not _holds(mask):
        raise ValueError("not a form that Postgres prints")


def _offsets(values: ArrowArray) -> ArrowArray:
    return pa.Array.from_buffers(pa.int32(), len(values) + 1, [None, values.buffers()[1]], offset=values.offset)


def _data(values: ArrowArray) -> bytes:
    """Return the characters of all values as one."""
    data = values.buffers()[2]
    if data is None or not len(values):
        return b""
    offsets = _offsets(values)
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    return data.slice(start, end - start).to_pybytes()


_LARGE_BYTES = 1 << 20
_DIGITS = b"0123456789"
_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"


def _integer_form(target: pa.DataType, lowest: int, highest: int) -> _Form:
    cast = partial(_cast, target=target, lowest=lowest, highest=highest)
    return _Form(target, r"\A-?[0-9]+\z", cast, _refuse, _Proof(_DIGITS + b"-"))


def _float_form(target: pa.DataType) -> _Form:
    cast = partial(_cast_float, target=target)
    return _Form(target, r"\A[-+.e0-9]+\z", cast, parse_float, _Proof(_DIGITS + b"-+.e"))


def _numeric_form(type: PgType) -> _Form:  # noqa: A002
    assert type.precision is not None
    precision, scale = type.precision, type.scale or 0
    target = pa.decimal128(precision, scale)
    whole = f"(?:0|[0-9]{{1,{precision - scale}}})" if precision > scale else "0"
    fraction = rf"(?:\.[0-9]{{1,{scale}}})?" if scale else ""
    parse = partial(parse_numeric, precision=precision, scale=scale)
    # The cast wraps silently when a number, brought to the scale, has more than 38 digits. One of so many characters
    # cannot; of longer ones the regular expression counts the digits.
    proof = _Proof(_DIGITS + b"-.", lengths=(1, MAX_DECIMAL_PRECISION - scale))
    return _Form(target, rf"\A-?{whole}{fraction}\z", lambda values: values.cast(target), parse, proof)


def _date_form() -> _Form:
    target = pa.date32()
    cast = partial(_cast, target=target, lowest=MIN_DATE, highest=MAX_DATE)
    return _Form(target, rf"\A{_DATE}\z", cast, parse_date, _Proof(_DIGITS + b"-"))


def _timestamp_form() -> _Form:
    target = pa.timestamp("us")
    cast = partial(_cast, target=target, lowest=MIN_TIMESTAMP, highest=MAX_TIMESTAMP)
    # The cast takes times without seconds too: the shortest length excludes them.
    proof = _Proof(_DIGITS + b"-: .", lengths=(19, 26))
    return _Form(target, rf"\A{_DATE} {_TIME}\z", cast, parse_timestamp, proof)


def _timestamptz_form() -> _Form:
    target = pa.timestamp("us", "UTC")
    cast = partial(_cast, target=target, lowest=MIN_TIMESTAMP, highest=MAX_TIMESTAMP)
    # Our sessions run in UTC. Other offsets are read one by one: they can carry a moment out of bounds.
    proof = _Proof(_DIGITS + b"-: .+", lengths=(22, 29), suffix="+00")
    return _Form(target, rf"\A{_DATE} {_TIME}\+00\z", cast, parse_timestamptz, proof)


_FORMS: dict[Kind, _Form] = {
    Kind.INT2: _integer_form(pa.int16(), -(1 << 15), (1 << 15) - 1),
    Kind.INT4: _integer_form(pa.int32(), -(1 << 31), (1 << 31) - 1),
    Kind.INT8: _integer_form(pa.int64(), -(1 << 63), (1 << 63) - 1),
    Kind.OID: _integer_form(pa.int64(), 0, (1 << 32) - 1),
    Kind.FLOAT4: _float_form(pa.float32()),
    Kind.FLOAT8: _float_form(pa.float64()),
    Kind.DATE: _date_form(),
    Kind.TIMESTAMP: _timestamp_form(),
    Kind.TIMESTAMPTZ: _timestamptz_form(),
}
