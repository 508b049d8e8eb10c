"""Columns of COPY BINARY into Arrow columns, equal to what `text` makes of the same values as the server prints them.

Rule 1: only types whose binary form is simple and fixed are read from it; all others are asked for as
printed. Rule 2: a binary value that its Arrow type does not hold exactly is put in words that the
server could have printed, and goes through `text`: policies, messages and rows are the same by either way.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import WireError
from penstock.model.policy import ValuePolicies
from penstock.model.table import Column, Kind, PgType, TableSchema
from penstock.wire.arrow import ArrowArray, arrow_type, compute, is_decimal, wrap, wrap_mask
from penstock.wire.binary_scan import (
    UUID_BYTES,
    Located,
    Part,
    locate_rows,
    read_bools,
    read_decimals,
    read_integers,
    read_uuids,
    skip_versions,
)
from penstock.wire.column import arrow_schema, convert_column
from penstock.wire.literal import MAX_DATE, MAX_TIMESTAMP, MIN_DATE, MIN_TIMESTAMP
from penstock.wire.scan import FRAME_BYTES, Bytes, Places, Stop, gather, measure
from penstock.wire.stream import POSTGRES_EPOCH_US

_DAY_US = 86_400_000_000
_LEAST_BYTES = 256  # of the buffer: a frame's beginning tells how much more is wanted
_MOST_BYTES = 1 << 30  # places in a buffer are of 32 bits, and one frame more may be in it
_BYTES_PER_CELL = 16
"""With smaller values on average a batch ends early: in memory each takes this much or more, however small it was."""
_SPARE = 8  # with less than this part of it free a buffer counts as full: small reads cost more than they bring
_MODIFIER = re.compile(r"\(\d+(?:,-?\d+)?\)")
_NUMERIC = struct.Struct("!hhHH")
_WORDS = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_NEGATIVE = 0x4000


class _MalformedError(Exception):
    """A value that is not of its column's type."""


@dataclass(frozen=True, slots=True)
class _Values:
    """One column's values: where they lie in the bytes, and how to convert those that have to be printed."""

    data: Bytes
    starts: Places
    lengths: Places
    type: PgType
    convert: Callable[[ArrowArray], ArrowArray]

    def bitmap(self) -> Bytes:
        return np.zeros((len(self.lengths) + 7) // 8, np.uint8)

    def array(self, type_: pa.DataType, nulls: int, validity: Bytes, *buffers: NDArray[Any]) -> ArrowArray:
        """Return an Arrow array of what a compiled loop has read."""
        if nulls < 0:
            raise _MalformedError
        valid = pa.py_buffer(validity.data) if nulls else None
        return pa.Array.from_buffers(
            type_, len(self.lengths), [valid, *(pa.py_buffer(buffer.data) for buffer in buffers)], nulls
        )


_Reader: TypeAlias = Callable[[_Values], ArrowArray]


def is_printed(type: PgType) -> bool:  # noqa: A002
    """Whether a type's values are to be sent as the server prints them, because we do not read its binary form."""
    return _reader(type) is None


def base_name(type_name: str) -> str:
    """Return a type's name, as `format_type` prints it, without its modifiers."""
    return _MODIFIER.sub("", type_name)


def _reader(type: PgType) -> _Reader | None:  # noqa: A002
    """Return what reads a type's binary form. Domains have that of their base type, as they have its kind."""
    match type.kind:
        case Kind.TEXT:
            # Its name is all that tells the many types of this kind apart; of a domain it does not tell enough.
            return _TEXTS.get(base_name(type.name))
        case Kind.NUMERIC:
            return _decimals if is_decimal(type) else None
        case _:
            return _SCALARS.get(type.kind)


class CopyDecoder:
    """Turns one copy's frames, as they come off the wire, into record batches. Knows neither sockets nor clocks.

    `on_error` translates the body of an error that the server sends. Bytes are put into `room`, and told
    of with `advance`; whenever a batch `is_due` it is to be taken, before more bytes come.
    """

    def __init__(
        self, schema: TableSchema, policies: ValuePolicies, batch_bytes: int, on_error: Callable[[bytes], Exception]
    ) -> None:
        self._schema = schema
        self._policies = policies
        self._on_error = on_error
        self._base_bytes = min(max(batch_bytes, _LEAST_BYTES), _MOST_BYTES)
        self._buffer = np.empty(self._base_bytes, np.uint8)
        self._have = self._at = self._wanted = 0
        width = len(schema.columns)
        places = width, max(1, batch_bytes // _BYTES_PER_CELL // max(1, width))
        self._starts, self._lengths = np.empty(places, np.int32), np.empty(places, np.int32)
        self._state = np.zeros(len(Located), np.int64)
        self._taken_rows = 0
        self._said_rows: int | None = None
        self._is_full = self._is_copied = False
        self.is_over = False
        """Whether the copy has ended, whole."""

    @property
    def room(self) -> memoryview:
        """Where the next bytes go; never empty while no batch is due."""
        return self._buffer[self._have :].data

    @property
    def is_due(self) -> bool:
        """Whether a batch should be taken."""
        return bool(self._rows) and (self._is_full or self.is_over)

    @property
    def _rows(self) -> int:
        return int(self._state[Located.ROWS])

    def advance(self, count: int) -> None:
        """Take note of bytes that were put into the room."""
        self._have += count
        self._scan()

    def take(self) -> pa.RecordBatch:
        """Return the rows that have come, as a batch, and go on to what came behind them."""
        rows = self._rows
        batch = self._build(self._starts[:, :rows], self._lengths[:, :rows], rows)
        self._taken_rows += rows
        self._state[Located.ROWS] = 0
        self._is_full = False
        self._scan()
        return batch

    def _scan(self) -> None:
        while not self.is_over:
            self._at, stop, self._wanted = locate_rows(
                self._buffer, self._at, self._have, self._state, self._starts, self._lengths
            )
            if stop == Stop.MALFORMED:
                raise WireError(
                    f"copying {self._schema.name}: the server sent something that is not a row of"
                    f" {len(self._schema.columns)} columns in COPY's binary format"
                )
            if stop != Stop.OTHER:
                self._make_room(has_all_places=stop == Stop.FULL)
                return
            self._meet_frame()

    def _make_room(self, *, has_all_places: bool) -> None:
        """Say that a batch is due, or else see to it that there is room for more."""
        size = len(self._buffer)
        lacks_room = size - self._have < size // _SPARE or self._wanted > size - self._at
        # Rows that were found have their places in this buffer: it stays as it is until they are taken.
        self._is_full = bool(self._rows) and (has_all_places or lacks_room)
        if lacks_room and not self._is_full:
            self._move(max(self._base_bytes, self._wanted))

    def _move(self, size: int) -> None:
        """Move what is left to the front of a buffer of such a size."""
        rest = self._buffer[self._at : self._have]
        if size != len(self._buffer):
            self._buffer = np.empty(size, np.uint8)
        elif self._at == 0:
            return
        self._buffer[: len(rest)] = rest
        self._have, self._at = len(rest), 0

    def _meet_frame(self) -> None:
        """Read a frame that is not data: an error, or how the copy ended."""
        start, self._at = self._at, self._at + self._wanted
        tag, body = bytes([self._buffer[start]]), self._buffer[start + FRAME_BYTES : self._at].tobytes()
        match tag:
            case b"N" | b"S" | b"A":
                pass  # notices, settings and notifications may come at any time
            case b"E":
                raise self._on_error(body)
            case b"c" if self._state[Located.PART] == Part.NOTHING:
                self._is_copied = True
            case b"C" if self._is_copied:
                self._said_rows = _copied_rows(body)
            case b"Z" if self._said_rows == self._taken_rows + self._rows:
                self.is_over = True
            case _:
                raise WireError(
                    f"copying {self._schema.name}: message {tag!r} from the server where none may come,"
                    " or after another number of rows than it counted"
                )

    def _build(self, starts: Places, lengths: Places, rows: int) -> pa.RecordBatch:
        schema = self._schema
        if not schema.columns:
            empty: Any = pa.Array.from_buffers(pa.struct([]), rows, [None])
            return pa.RecordBatch.from_struct_array(empty)
        arrays = [self._column(column, starts[index], lengths[index]) for index, column in enumerate(schema.columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))

    def _column(self, column: Column, starts: Places, lengths: Places) -> ArrowArray:
        schema, policies = self._schema, self._policies
        values = _Values(
            self._buffer,
            starts,
            lengths,
            column.type,
            convert=lambda texts: convert_column(schema, column, texts, policies),
        )
        read = _reader(column.type) or _printed
        try:
            return read(values)
        except _MalformedError:
            raise WireError(
                f"table {schema.name}, column {column.name}: the server sent bytes that are not a value of type"
                f" {column.type.name}"
            ) from None
        except pa.ArrowInvalid:
            # Without its cause: Arrow's message quotes the value.
            raise WireError(
                f"table {schema.name}, column {column.name}: the server sent text that is not UTF-8",
                remedy="Check the database's encoding: SQL_ASCII lets any bytes in.",
            ) from None


def _copied_rows(body: bytes) -> int | None:
    """Return how many rows a copy had, as its end says: `COPY 12`."""
    word, _, count = body.rstrip(b"\0").partition(b" ")
    return int(count) if word == b"COPY" and count.isdigit() else None


def _binary(values: _Values) -> ArrowArray:
    validity, lengths = values.bitmap(), values.lengths
    offsets, content = np.empty(len(lengths) + 1, np.int32), np.empty(measure(lengths), np.uint8)
    nulls = gather(values.data, values.starts, lengths, offsets, content, validity)
    return values.array(pa.binary(), nulls, validity, offsets, content)


def _text(values: _Values) -> ArrowArray:
    # The cast checks the encoding; nothing is copied.
    return _binary(values).cast(pa.string())


def _printed(values: _Values) -> ArrowArray:
    return values.convert(_text(values))


def _jsonb(values: _Values) -> ArrowArray:
    if skip_versions(values.data, values.starts, values.lengths):
        raise _MalformedError
    return _text(values)


def _uuids(values: _Values) -> ArrowArray:
    validity, count = values.bitmap(), len(values.lengths)
    offsets = np.empty(count + 1, np.int32)
    texts = np.empty(UUID_BYTES * int(np.count_nonzero(values.lengths >= 0)), np.uint8)
    nulls = read_uuids(values.data, values.starts, values.lengths, offsets, texts, validity)
    return values.array(pa.string(), nulls, validity, offsets, texts)


def _booleans(values: _Values) -> ArrowArray:
    bits, validity = values.bitmap(), values.bitmap()
    nulls = read_bools(values.data, values.starts, values.lengths, bits, validity)
    return values.array(pa.bool_(), nulls, validity, bits)


def _integers(values: _Values, *, width: int, stored: type[np.signedinteger[Any]]) -> ArrowArray:
    return _read_integers(values, width, stored)[1]


def _read_integers(values: _Values, width: int, stored: type[np.signedinteger[Any]]) -> tuple[NDArray[Any], ArrowArray]:
    """Return integers twice: as numbers that can still be changed, and as the column that they are the memory of."""
    validity, numbers = values.bitmap(), np.empty(len(values.lengths), stored)
    nulls = read_integers(values.data, values.starts, values.lengths, width, numbers, validity)
    return numbers, values.array(arrow_type(values.type), nulls, validity, numbers)


def _floats(values: _Values, *, stored: type[np.signedinteger[Any]], read_as: type[np.floating[Any]]) -> ArrowArray:
    numbers, array = _read_integers(values, np.dtype(stored).itemsize, stored)
    floats = numbers.view(read_as)
    is_nan = np.isnan(floats)
    if is_nan.any():
        floats[is_nan] = np.nan  # there are many; printed they are all one
    return array


@dataclass(frozen=True, slots=True)
class _Calendar:
    """How dates or times are counted: from `epoch`, between bounds, and the words for what is outside of them."""

    stored: type[np.signedinteger[Any]]
    epoch: int
    lowest: int
    highest: int
    words: tuple[str, str, str, str]
    """For infinity, minus infinity, a year before 1 AD and a year past 9999."""


def _moments(values: _Values, *, calendar: _Calendar) -> ArrowArray:
    stored = np.iinfo(calendar.stored)
    numbers, array = _read_integers(values, stored.bits // 8, calendar.stored)
    is_low, is_high = numbers < calendar.lowest - calendar.epoch, numbers > calendar.highest - calendar.epoch
    is_special = is_low | is_high
    if not is_special.any():
        numbers += calendar.epoch
        return array
    conditions = [numbers == stored.max, numbers == stored.min, is_low]
    which = np.select(conditions, [np.int64(0), np.int64(1), np.int64(2)], np.int64(3))
    texts = pa.array(calendar.words).take(_where(is_special, wrap(which, pa.int64())))
    numbers += calendar.epoch
    return _replaced(array, is_special, values.convert(texts))


def _where(mask: NDArray[np.bool_], array: ArrowArray) -> ArrowArray:
    """Return the array with NULL where the mask is false."""
    kept: ArrowArray = compute.if_else(wrap_mask(mask), array, pa.scalar(None, array.type))
    return kept


def _replaced(array: ArrowArray, mask: NDArray[np.bool_], others: ArrowArray) -> ArrowArray:
    replaced: ArrowArray = compute.if_else(wrap_mask(mask), others, array)
    return replaced


def _decimals(values: _Values) -> ArrowArray:
    precision, scale = cast("int", values.type.precision), values.type.scale or 0
    limit = np.array(divmod(10**precision, 1 << 64)[::-1], np.uint64)
    count, validity = len(values.lengths), values.bitmap()
    words, is_irregular = np.empty(2 * count, np.uint64), np.empty(count, np.bool_)
    nulls = read_decimals(values.data, values.starts, values.lengths, scale, limit, words, validity, is_irregular)
    array = values.array(arrow_type(values.type), nulls, validity, words)
    if not is_irregular.any():
        return array
    texts: list[str | None] = [None] * count
    for row in np.flatnonzero(is_irregular):
        start = values.starts[row]
        texts[row] = print_numeric(values.data[start : start + values.lengths[row]].tobytes())
    return _replaced(array, is_irregular, values.convert(pa.array(texts, pa.string())))


def print_numeric(value: bytes) -> str:
    """Print a numeric's binary form: the same number as the server prints, though not with as many zeros."""
    count, weight, sign, _ = _NUMERIC.unpack_from(value)
    if sign in _WORDS:
        return _WORDS[sign]
    groups = struct.unpack_from(f"!{count}H", value, _NUMERIC.size)
    digits = "".join(f"{group:04}" for group in groups)
    point = 4 * (weight + 1)
    whole, fraction = digits[: max(point, 0)].ljust(point, "0"), "0" * -point + digits[max(point, 0) :]
    return f"{'-' if sign == _NEGATIVE else ''}{whole or '0'}.{fraction or '0'}"


def _calendar(stored: type[np.signedinteger[Any]], unit: Literal["day", "us"], suffix: str = "") -> _Calendar:
    low, high, per_day = (MIN_DATE, MAX_DATE, 1) if unit == "day" else (MIN_TIMESTAMP, MAX_TIMESTAMP, _DAY_US)
    words = "infinity", "-infinity", f"0001-01-01{suffix} BC", f"10000-01-01{suffix}"
    return _Calendar(stored, POSTGRES_EPOCH_US // _DAY_US * per_day, low, high, words)


_TEXTS: dict[str, _Reader] = {
    **dict.fromkeys(("text", "character varying", "character", "bpchar", "name", "json"), _text),
    "jsonb": _jsonb,
    "uuid": _uuids,
}
_SCALARS: dict[Kind, _Reader] = {
    Kind.BOOL: _booleans,
    Kind.INT2: partial(_integers, width=2, stored=np.int16),
    Kind.INT4: partial(_integers, width=4, stored=np.int32),
    Kind.INT8: partial(_integers, width=8, stored=np.int64),
    Kind.OID: partial(_integers, width=4, stored=np.int64),
    Kind.FLOAT4: partial(_floats, stored=np.int32, read_as=np.float32),
    Kind.FLOAT8: partial(_floats, stored=np.int64, read_as=np.float64),
    Kind.BYTES: _binary,
    Kind.DATE: partial(_moments, calendar=_calendar(np.int32, "day")),
    Kind.TIMESTAMP: partial(_moments, calendar=_calendar(np.int64, "us", " 00:00:00")),
    Kind.TIMESTAMPTZ: partial(_moments, calendar=_calendar(np.int64, "us", " 00:00:00+00")),
}
