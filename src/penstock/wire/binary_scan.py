"""COPY BINARY as bytes: compiled loops that find the values of rows, and loops that read one column each.

`locate_rows` checks every length against its frame, so the loops behind it need only check that a
value has the length of its type. Whatever is not exactly the protocol is reported, never guessed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.wire.big_endian import i64, u16, u32
from penstock.wire.compiled import compiled
from penstock.wire.scan import FRAME_BYTES, NULL, Bytes, Numbers, Places, Stop

Words = NDArray[np.uint64]

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
"""What the header begins with; flags and the length of an extension follow."""
MALFORMED = -1
"""What a loop returns instead of the number of NULLs when a value is not of the type."""
UUID_BYTES = 36
"""Of a uuid's text."""

_MAX_FRAME_BYTES = (1 << 30) + FRAME_BYTES  # no server can build a longer message; places in a block fit 32 bits
_DATA = 0x64  # d
_COUNT_BYTES, _LENGTH_BYTES = 2, 4
_ROW_BYTES = FRAME_BYTES + _COUNT_BYTES  # before a row's values
_TRAILER = 0xFFFF  # -1 where a row has the number of its values
_SIGNATURE = np.frombuffer(SIGNATURE, np.uint8)
_HEADER_BYTES = len(SIGNATURE) + 8
_CRITICAL_FLAGS = 0xFFFF0000  # "bits 16-31 are reserved to denote critical file format issues"
_MAX_U32 = 0xFFFFFFFF
_JSONB_VERSION = 1
_UUID_RAW_BYTES = 16
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_DASH = 0x2D
_NUMERIC_HEADER_BYTES = 8
_POSITIVE, _NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY = 0x0000, 0x4000, 0xC000, 0xD000, 0xF000
_BASE = 10000  # of a numeric's digits
_BASE_DIGITS = 4
_POWERS = np.array([1, 10, 100, 1000, _BASE], np.uint64)
_SMALL_GROUPS, _SMALL_DIGITS = 4, 18  # what fits a word, with its sign, in groups of four digits and in all
_SMALL_LIMIT = np.uint64(10**_SMALL_DIGITS)
_TENS = np.array([10**power for power in range(_SMALL_DIGITS + 1)], np.int64)
_NOT_SMALL = np.iinfo(np.int64).min
_LOW_HALF, _HALF_BITS = np.uint64(_MAX_U32), np.uint64(32)
_ZERO, _ONE, _MAX_WORD = np.uint64(0), np.uint64(1), np.uint64((1 << 64) - 1)


class Located(IntEnum):
    """The places of what `locate_rows` keeps in its state."""

    PART = 0
    """Which `Part` comes next."""
    ROWS = 1
    """How many rows have been found."""


class Part(IntEnum):
    """The parts of a copy, in order."""

    HEADER = 0
    ROWS = 1
    NOTHING = 2
    """Behind the trailer."""


class _Outcome(IntEnum):
    REGULAR = 0
    IRREGULAR = 1
    MALFORMED = 2


@compiled
def _mark(validity: Bytes, row: int) -> None:
    validity[row >> 3] |= np.uint8(1 << (row & 7))


@compiled
def _skip_header(data: Bytes, at: int, end: int) -> int:
    """Return where the header ends, or -1 if there is none, or one that asks for more than we know."""
    if end - at < _HEADER_BYTES:
        return -1
    for place in range(_SIGNATURE.shape[0]):
        if data[at + place] != _SIGNATURE[place]:
            return -1
    at += _SIGNATURE.shape[0]
    extension = u32(data, at + 4)
    if u32(data, at) & _CRITICAL_FLAGS or extension > end - at - 8:
        return -1
    return int(at + 8 + extension)


@compiled
def _locate_values(data: Bytes, at: int, end: int, row: int, starts: NDArray[Any], lengths: NDArray[Any]) -> int:
    """Note where the values of one row lie; return where it ends, or -1 if it is malformed."""
    for column in range(starts.shape[0]):
        if end - at < _LENGTH_BYTES:
            return -1
        length = u32(data, at)
        at += _LENGTH_BYTES
        if length == _MAX_U32:
            lengths[column, row] = NULL
        elif length > end - at:
            return -1
        else:
            starts[column, row] = at
            lengths[column, row] = length
            at += length
    return at


@compiled
def _locate_row(
    data: Bytes, at: int, end: int, state: Numbers, starts: NDArray[np.int32], lengths: NDArray[np.int32]
) -> bool:
    """Read one frame's body: a row, the trailer, or the header with or without either; say whether it is that."""
    if state[Located.PART] == Part.HEADER.value:
        at = _skip_header(data, at, end)
        state[Located.PART] = Part.ROWS.value
        if at < 0 or at == end:
            return at == end
    if state[Located.PART] != Part.ROWS.value or end - at < _COUNT_BYTES:
        return False
    count = u16(data, at)
    at += _COUNT_BYTES
    if count == _TRAILER:
        state[Located.PART] = Part.NOTHING.value
        return at == end
    if count != starts.shape[0] or _locate_values(data, at, end, state[Located.ROWS], starts, lengths) != end:
        return False
    state[Located.ROWS] += 1
    return True


@compiled
def _locate_plain_rows(
    data: Bytes, at: int, end: int, state: Numbers, starts: NDArray[np.int32], lengths: NDArray[np.int32]
) -> int:
    """Go over whole frames that hold a row and nothing else, as nearly all do; return where the first other one begins.

    One function for all of them: called for each row, as `_locate_row` is, it would take twice as long.
    """
    columns, row = starts.shape[0], state[Located.ROWS]
    while end - at >= _ROW_BYTES and row < starts.shape[1]:
        after = at + u32(data, at + 1) + 1
        if data[at] != _DATA or after > end or u16(data, at + FRAME_BYTES) != columns:
            break
        place = at + _ROW_BYTES
        for column in range(columns):
            if after - place < _LENGTH_BYTES:
                place = -1
                break
            length = np.int32(u32(data, place))
            place += _LENGTH_BYTES
            if length < NULL or length > after - place:
                place = -1
                break
            starts[column, row] = place
            lengths[column, row] = length
            if length > 0:
                place += int(length)
        if place != after:
            break
        at = after
        row += 1
    state[Located.ROWS] = row
    return at


@compiled
def locate_rows(
    data: Bytes, at: int, end: int, state: Numbers, starts: NDArray[np.int32], lengths: NDArray[np.int32]
) -> tuple[int, int, int]:
    """Find the values of the rows in `data[at:end]`, adding to those that `Located` counts; columns first, then rows.

    Returns where it stopped, why, and how many bytes the frame there has if that is known. A frame
    holds one row (manual, "COPY Operations"); the first has the header before it.
    """
    while True:
        if state[Located.PART] == Part.ROWS.value:
            at = _locate_plain_rows(data, at, end, state, starts, lengths)
        size = 0
        stop = Stop.END.value
        if end - at >= FRAME_BYTES:
            size = u32(data, at + 1) + 1
            if size < FRAME_BYTES or size > _MAX_FRAME_BYTES:
                stop = Stop.MALFORMED.value
            elif end - at >= size and data[at] != _DATA:
                stop = Stop.OTHER.value
            elif end - at >= size and state[Located.ROWS] == starts.shape[1]:
                stop = Stop.FULL.value
            elif end - at >= size:
                if _locate_row(data, at + FRAME_BYTES, at + size, state, starts, lengths):
                    at += size
                    continue
                stop = Stop.MALFORMED.value
        return at, stop, size


@compiled
def read_bools(data: Bytes, starts: Places, lengths: Places, bits: Bytes, validity: Bytes) -> int:
    """Read booleans into a bitmap; `bits` and `validity` are all zero before."""
    nulls = 0
    for row in range(lengths.shape[0]):
        if lengths[row] == NULL:
            nulls += 1
            continue
        if lengths[row] != 1 or data[starts[row]] > 1:
            return MALFORMED
        _mark(validity, row)
        if data[starts[row]] == 1:
            _mark(bits, row)
    return nulls


@compiled
def read_integers(
    data: Bytes, starts: Places, lengths: Places, width: int, numbers: NDArray[Any], validity: Bytes
) -> int:
    """Read integers of 2, 4 or 8 bytes; as unsigned ones where `numbers` are wider. NULL is 0."""
    nulls = 0
    for row in range(lengths.shape[0]):
        if lengths[row] == NULL:
            nulls += 1
            numbers[row] = 0
            continue
        if lengths[row] != width:
            return MALFORMED
        _mark(validity, row)
        if width == 8:  # noqa: PLR2004
            numbers[row] = i64(data, starts[row])
        elif width == 4:  # noqa: PLR2004
            numbers[row] = u32(data, starts[row])
        else:
            numbers[row] = u16(data, starts[row])
    return nulls


@compiled
def skip_versions(data: Bytes, starts: Places, lengths: Places) -> int:
    """Move the places of jsonb values behind their version; 0, unless one has another version than we know."""
    for row in range(lengths.shape[0]):
        if lengths[row] == NULL:
            continue
        if lengths[row] < 1 or data[starts[row]] != _JSONB_VERSION:
            return MALFORMED
        starts[row] += 1
        lengths[row] -= 1
    return 0


@compiled
def read_uuids(
    data: Bytes, starts: Places, lengths: Places, offsets: NDArray[np.int32], texts: Bytes, validity: Bytes
) -> int:
    """Write uuids as text, `UUID_BYTES` for each that is not NULL."""
    nulls = 0
    to = 0
    for row in range(lengths.shape[0]):
        offsets[row] = to
        if lengths[row] == NULL:
            nulls += 1
            continue
        if lengths[row] != _UUID_RAW_BYTES:
            return MALFORMED
        _mark(validity, row)
        for place in range(_UUID_RAW_BYTES):
            if place in (4, 6, 8, 10):
                texts[to] = _DASH
                to += 1
            byte = data[starts[row] + place]
            texts[to] = _HEX[byte >> 4]
            texts[to + 1] = _HEX[byte & 15]
            to += 2
    offsets[lengths.shape[0]] = to
    return nulls


@compiled
def _multiply_add(low: Any, high: Any, factor: Any, summand: Any) -> Any:
    """Return (low, high) * factor + summand; the caller knows that it fits."""
    first = (low & _LOW_HALF) * factor + summand
    second = (low >> _HALF_BITS) * factor + (first >> _HALF_BITS)
    return (second << _HALF_BITS) | (first & _LOW_HALF), high * factor + (second >> _HALF_BITS)


@compiled
def _read_magnitude(data: Bytes, at: int, count: int, exponent: Any) -> Any:
    """Read so many digits to the base 10000, the first of which counts 10 ** exponent; return two words and an outcome.

    Irregular is what has a fraction, or more than fits two words: a decimal of 38 digits would.
    """
    low, high = _ZERO, _ZERO
    is_regular = True
    for place in range(count):
        digit = u16(data, at + 2 * place)
        if digit >= _BASE:
            return low, high, _Outcome.MALFORMED.value
        # How many of its four decimal digits are whole.
        kept = 0 if exponent <= -_BASE_DIGITS else _BASE_DIGITS + exponent if exponent < 0 else _BASE_DIGITS
        factor, divisor = _POWERS[kept], _POWERS[_BASE_DIGITS - kept]
        summand = np.uint64(digit) // divisor
        is_regular = is_regular and summand * divisor == np.uint64(digit) and high < _MAX_WORD // factor
        if is_regular:
            low, high = _multiply_add(low, high, factor, summand)
        exponent -= _BASE_DIGITS
    exponent += _BASE_DIGITS
    # Zeros at the end are not sent.
    while exponent > 0 and is_regular and (low != _ZERO or high != _ZERO):
        factor = _POWERS[min(exponent, _BASE_DIGITS)]
        is_regular = high < _MAX_WORD // factor
        if is_regular:
            low, high = _multiply_add(low, high, factor, _ZERO)
        exponent -= _BASE_DIGITS
    return low, high, _Outcome.REGULAR.value if is_regular else _Outcome.IRREGULAR.value


@compiled
def _read_decimal(data: Bytes, at: int, length: int, scale: int, limit: Words, words: Words, place: int) -> int:
    """Read one numeric: how many digits, the weight of the first as a power of 10000, a sign, a scale, the digits."""
    words[place] = words[place + 1] = _ZERO
    if length < _NUMERIC_HEADER_BYTES or length != _NUMERIC_HEADER_BYTES + 2 * u16(data, at):
        return _Outcome.MALFORMED.value
    weight, sign = np.int64(np.int16(u16(data, at + 2))), u16(data, at + 4)
    if sign in (_NAN, _INFINITY, _MINUS_INFINITY):
        return _Outcome.IRREGULAR.value
    if sign not in (_POSITIVE, _NEGATIVE):
        return _Outcome.MALFORMED.value
    exponent = _BASE_DIGITS * weight + scale
    low, high, outcome = _read_magnitude(data, at + _NUMERIC_HEADER_BYTES, u16(data, at), exponent)
    if outcome != _Outcome.REGULAR.value:
        return outcome  # type: ignore[no-any-return]
    if high > limit[1] or (high == limit[1] and low >= limit[0]):
        return _Outcome.IRREGULAR.value
    if sign == _NEGATIVE:
        low = ~low + _ONE
        high = ~high + (_ONE if low == _ZERO else _ZERO)
    words[place], words[place + 1] = low, high
    return _Outcome.REGULAR.value


@compiled
def _read_small_decimal(data: Bytes, at: int, length: int, exponent: Any) -> Any:
    """Read a numeric of a few digits as an integer; `_NOT_SMALL` if it is another one, has a fraction, or is none.

    The exponent is the scale. Most numerics are small, and need one division or none.
    """
    count, sign = (length - _NUMERIC_HEADER_BYTES) >> 1, u16(data, at + 4)
    if length & 1 or not 0 <= count <= _SMALL_GROUPS or u16(data, at) != count or sign not in (_POSITIVE, _NEGATIVE):
        return _NOT_SMALL
    number = np.int64(0)
    for place in range(count):
        digit = u16(data, at + _NUMERIC_HEADER_BYTES + 2 * place)
        if digit >= _BASE:
            return _NOT_SMALL
        number = number * _BASE + digit
    # The power of ten that the last group counts.
    power = _BASE_DIGITS * (np.int64(np.int16(u16(data, at + 2))) - count + 1) + exponent
    if count == 0:
        power = 0
    if power < -_BASE_DIGITS or _BASE_DIGITS * count + power > _SMALL_DIGITS:
        return _NOT_SMALL
    if power < 0:
        whole = number // _TENS[-power]
        return _NOT_SMALL if whole * _TENS[-power] != number else -whole if sign == _NEGATIVE else whole
    number *= _TENS[power]
    return -number if sign == _NEGATIVE else number


@compiled
def read_decimals(
    data: Bytes,
    starts: Places,
    lengths: Places,
    scale: int,
    limit: Words,
    words: Words,
    validity: Bytes,
    is_irregular: NDArray[np.bool_],
) -> int:
    """Read numerics as integers of two words, the lower first, in units of the scale.

    Those that such a decimal below the limit does not hold exactly, infinities and NaN among them,
    are marked as irregular.
    """
    nulls = 0
    small_limit = np.int64(_SMALL_LIMIT if limit[1] != _ZERO else min(limit[0], _SMALL_LIMIT))
    for row in range(lengths.shape[0]):
        is_irregular[row] = False
        if lengths[row] == NULL:
            nulls += 1
            words[2 * row] = words[2 * row + 1] = _ZERO
            continue
        small = _read_small_decimal(data, starts[row], lengths[row], scale)
        if -small_limit < small < small_limit:
            _mark(validity, row)
            words[2 * row] = np.uint64(small)
            words[2 * row + 1] = np.uint64(small >> 63)
            continue
        outcome = _read_decimal(data, starts[row], lengths[row], scale, limit, words, 2 * row)
        if outcome == _Outcome.MALFORMED.value:
            return MALFORMED
        _mark(validity, row)
        is_irregular[row] = outcome == _Outcome.IRREGULAR.value
    return nulls


def warm_up() -> None:
    """Compile everything, or load it: the first range of a copy should not wait for a compiler."""
    data, state, places = np.zeros(8, np.uint8), np.zeros(len(Located), np.int64), np.zeros((1, 1), np.int32)
    locate_rows(data, 0, 0, state, places, places)
    none = places[0, :0]
    read_bools(data, none, none, data, data)
    for kind in (np.int16, np.int32, np.int64):
        read_integers(data, none, none, 4, np.zeros(0, kind), data)
    skip_versions(data, none, none)
    read_uuids(data, none, none, places[0], data, data)
    words = np.zeros(2, np.uint64)
    read_decimals(data, none, none, 0, words, words, data, np.zeros(0, np.bool_))
