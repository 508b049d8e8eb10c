"""COPY BINARY into Arrow columns: as from what the server prints, whatever the values and in whatever pieces."""

from __future__ import annotations

import contextlib
import re
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from penstock.errors import ConversionError, ErrorKind, PenstockError, SourceError, WireError
from penstock.model.policy import DEFAULT_POLICIES, ValuePolicies
from penstock.model.special import SpecialValues
from penstock.model.table import Column, Kind, PgType, TableId, TableName, TableSchema
from penstock.testing.strategies import array_type, numeric_type, simple_type
from penstock.wire import binary_scan
from penstock.wire.arrow import ArrowArray
from penstock.wire.binary import CopyDecoder, base_name, is_printed, print_numeric
from penstock.wire.column import convert_column
from penstock.wire.text import UnconvertibleValueError

HEADER = binary_scan.SIGNATURE + bytes(8)
TRAILER = b"\xff\xff"
BYTES = simple_type(Kind.BYTES)
TEXT = simple_type(Kind.TEXT)
INT4 = simple_type(Kind.INT4)
DAY_US = 86_400_000_000

Row = Sequence[bytes | None]
Sent = tuple[bytes, str]
"""A value in binary, and as the server prints it."""


# What a server sends, written plainly.


def framed(tag: bytes, body: bytes) -> bytes:
    return tag + struct.pack("!I", len(body) + 4) + body


def encoded(row: Row) -> bytes:
    values = [struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value for value in row]
    return struct.pack("!h", len(row)) + b"".join(values)


def copied(rows: Sequence[Row], *, end: bytes | None = None) -> bytes:
    bodies = [*map(encoded, rows), TRAILER]
    bodies[0] = HEADER + bodies[0]
    frames = b"".join(framed(b"d", body) for body in bodies)
    return frames + (ending(len(rows)) if end is None else end)


def ending(rows: int) -> bytes:
    return framed(b"c", b"") + framed(b"C", b"COPY %d\0" % rows) + framed(b"Z", b"T")


def table(*types: PgType) -> TableSchema:
    columns = tuple(Column(f"c{index}", type_) for index, type_ in enumerate(types))
    return TableSchema(TableId(1), TableName("public", "t"), columns)


def decode(
    data: bytes,
    schema: TableSchema,
    policies: ValuePolicies = DEFAULT_POLICIES,
    *,
    batch_bytes: int = 1 << 20,
    chunk: int = 1 << 20,
) -> list[pa.RecordBatch]:
    """Feed a decoder, in chunks; the copy must be over at the end."""
    decoder = CopyDecoder(schema, policies, batch_bytes, lambda body: SourceError(f"said {len(body)} bytes"))
    batches, at = [], 0
    while at < len(data):
        room = decoder.room
        assert len(room)
        piece = data[at : at + min(chunk, len(room))]
        room[: len(piece)] = piece
        at += len(piece)
        decoder.advance(len(piece))
        while decoder.is_due:
            batches.append(decoder.take())
    if not decoder.is_over:
        raise EOFError
    for batch in batches:
        batch.validate(full=True)
    return batches


def column_of(batches: Sequence[pa.RecordBatch]) -> ArrowArray:
    arrays: list[Any] = [batch.column(0) for batch in batches]
    return pa.concat_arrays(arrays)


# Values of every type that is read in binary, each with its text; dates and numerics by arithmetic of their own.


def print_date(days: int) -> tuple[str, str]:
    """Return a day, counted from 2000-01-01, as the server prints it, and what follows behind a time."""
    # Counted from 2000-03-01 in cycles of 400 years, leap days come last in everything.
    cycle, day = divmod(days - 60, 146_097)
    century = min(day // 36_524, 3)
    day -= century * 36_524
    quarter = min(day // 1461, 24)
    day -= quarter * 1461
    year = min(day // 365, 3)
    day -= year * 365
    month = (5 * day + 2) // 153
    year += 2000 + 400 * cycle + 100 * century + 4 * quarter + (month >= 10)
    bc = " BC" if year <= 0 else ""
    return f"{1 - year if year <= 0 else year:04}-{(month + 2) % 12 + 1:02}-{day - (153 * month + 2) // 5 + 1:02}", bc


def sent_date(days: int) -> Sent:
    words = {(1 << 31) - 1: "infinity", -(1 << 31): "-infinity"}
    return struct.pack("!i", days), words.get(days) or "".join(print_date(days))


def sent_timestamp(us: int, offset: str) -> Sent:
    words = {(1 << 63) - 1: "infinity", -(1 << 63): "-infinity"}
    days, rest = divmod(us, DAY_US)
    seconds, fraction = divmod(rest, 1_000_000)
    date, bc = print_date(days)
    time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + f".{fraction:06}".rstrip("0").rstrip(".")
    return struct.pack("!q", us), words.get(us) or f"{date} {time}{offset}{bc}"


def sent_numeric(value: Decimal | str) -> Sent:
    if isinstance(value, str):
        sign = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}[value]
        return struct.pack("!HhHH", 0, 0, sign, 0), value
    printed = f"{value.copy_abs():f}"
    whole, _, fraction = printed.partition(".")
    digits = whole.zfill(-(-len(whole) // 4) * 4) + fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int(digits[at : at + 4]) for at in range(0, len(digits), 4)]
    weight = -(-len(whole) // 4) - 1
    while groups and groups[0] == 0:
        del groups[0]
        weight -= 1
    while groups and groups[-1] == 0:
        del groups[-1]
    head = struct.pack("!HhHH", len(groups), weight if groups else 0, 0x4000 if value < 0 else 0, len(fraction))
    return head + struct.pack(f"!{len(groups)}H", *groups), f"{value:f}"


def sent_float(bits: int, size: int) -> Sent:
    raw = bits.to_bytes(size)
    (value,) = struct.unpack("!f" if size == 4 else "!d", raw)
    text = f"{value:.9g}" if size == 4 else repr(value).removesuffix(".0")
    return raw, {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(text, text)


def near(*numbers: int) -> SearchStrategy[int]:
    return st.sampled_from([number + step for number in numbers for step in (-1, 0, 1)])


def integers(bits: int) -> SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def numerics(precision: int, scale: int) -> SearchStrategy[Decimal]:
    """Generate numbers that fit, that nearly do, and that do not at all."""
    limit = 10**precision
    unscaled = st.integers(-limit, limit) | near(0, limit, -limit, 10**38, 1 << 64, 1 << 127, 1 << 128)
    exponents = st.just(-scale) | st.integers(-50, 50)
    return st.tuples(unscaled, exponents).map(
        lambda pair: Decimal((int(pair[0] < 0), tuple(map(int, str(abs(pair[0])))), pair[1]))
    )


def sent(type_: PgType) -> SearchStrategy[Sent]:  # noqa: PLR0911
    """Generate values of a type, special ones among them."""
    match type_.kind:
        case Kind.BOOL:
            return st.sampled_from([(b"\0", "f"), (b"\1", "t")])
        case Kind.INT2 | Kind.INT4 | Kind.INT8:
            size = int(type_.kind.value[-1])
            return integers(8 * size).map(lambda number: (number.to_bytes(size, signed=True), str(number)))
        case Kind.OID:
            return st.integers(0, (1 << 32) - 1).map(lambda number: (number.to_bytes(4), str(number)))
        case Kind.FLOAT4 | Kind.FLOAT8:
            size = int(type_.kind.value[-1])
            return st.integers(0, (1 << 8 * size) - 1).map(lambda bits: sent_float(bits, size))
        case Kind.NUMERIC:
            words = st.sampled_from(["NaN", "Infinity", "-Infinity"])
            return (numerics(type_.precision or 0, type_.scale or 0) | words).map(sent_numeric)
        case Kind.BYTES:
            return st.binary(max_size=20).map(lambda value: (value, rf"\x{value.hex()}"))
        case Kind.DATE:
            edges = near(-730_119, 2_921_939, 0)  # 0001-01-01 and 9999-12-31
            days = integers(32) | st.integers(-800_000, 3_000_000) | edges | st.just((1 << 31) - 1)
            return (days | st.just(-(1 << 31))).map(sent_date)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            offset = "+00" if type_.kind is Kind.TIMESTAMPTZ else ""
            edges = near(-730_119 * DAY_US, 2_921_940 * DAY_US, 0)
            ordinary = st.integers(-730_119 * DAY_US, 2_921_940 * DAY_US)
            extreme = st.sampled_from([(1 << 63) - 1, -(1 << 63)])
            return (integers(64) | ordinary | edges | extreme).map(lambda us: sent_timestamp(us, offset))
        case _:
            return _sent_text(type_.name)


def _sent_text(name: str) -> SearchStrategy[Sent]:
    if name == "uuid":
        return st.binary(min_size=16, max_size=16).map(lambda value: (value, str(uuid.UUID(bytes=value))))
    version = b"\1" if name == "jsonb" else b""
    return st.text(max_size=20).map(lambda text: (version + text.encode(), text))


TEXTS = ["text", "character varying(20)", "character(5)", "bpchar", "name", "json", "jsonb", "uuid"]
TYPES: list[PgType] = [simple_type(kind) for kind in Kind if kind not in {Kind.NUMERIC, Kind.ARRAY, Kind.TEXT}]
TYPES += [PgType(name, Kind.TEXT) for name in TEXTS]
TYPES += [numeric_type(*each) for each in [(1, 0), (5, 2), (12, 2), (18, 18), (20, 3), (38, 0), (38, 38), (38, 10)]]


@dataclass(frozen=True)
class Outcome:
    """What came of a column: its values, or the error with the row that it names."""

    values: str | None = None
    arrow_type: pa.DataType | None = None
    error: tuple[str, str, int] | None = None


def outcome_of(convert: Any) -> Outcome:
    try:
        array: ArrowArray = convert()
    except UnconvertibleValueError as error:
        return Outcome(error=(error.message, error.remedy, error.row))
    return Outcome(repr(array.to_pylist()), array.type)


@pytest.mark.parametrize("type_", TYPES, ids=lambda type_: type_.name)
@given(policy=st.sampled_from([SpecialValues.ERROR, SpecialValues.NULL, SpecialValues.CLAMP]), data=st.data())
def test_a_column_is_what_its_printed_values_convert_to(
    type_: PgType, policy: SpecialValues, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.none() | sent(type_), min_size=1, max_size=12))
    schema, policies = table(type_), ValuePolicies(policy)
    texts = pa.array([value and value[1] for value in values], pa.string())
    rows = [[value and value[0]] for value in values]
    expected = outcome_of(lambda: convert_column(schema, schema.columns[0], texts, policies))
    assert outcome_of(lambda: column_of(decode(copied(rows), schema, policies))) == expected


@given(value=numerics(20, 5))
@example(Decimal(0))
@example(Decimal("-1E+40"))
@example(Decimal("0.00000001"))
@example(Decimal("123456789.000012"))
def test_a_numeric_is_printed_as_the_number_it_is(value: Decimal) -> None:
    assert Decimal(print_numeric(sent_numeric(value)[0])) == value


def test_numerics_of_many_thousand_digits_are_special_and_not_an_accident() -> None:
    huge = struct.pack("!HhHH", 30_000, 29_999, 0, 0) + struct.pack("!H", 1) * 30_000
    schema = table(numeric_type(38, 0))
    with pytest.raises(ConversionError, match="more digits than its decimal holds"):
        decode(copied([[huge]]), schema)
    [batch] = decode(copied([[huge]]), schema, ValuePolicies(SpecialValues.CLAMP))
    assert batch.column(0).to_pylist() == [Decimal("9" * 38)]


def test_leading_and_trailing_zero_digits_of_a_numeric_change_nothing() -> None:
    padded = struct.pack("!HhHH5H", 5, 2, 0x4000, 2, 0, 0, 12, 3400, 0)
    [batch] = decode(copied([[padded]]), table(numeric_type(12, 2)))
    assert batch.column(0).to_pylist() == [Decimal("-12.34")]


# How rows come: in frames, of any size, in pieces, in batches.


def rows_of(width: int) -> SearchStrategy[list[list[bytes | None]]]:
    value = st.none() | st.binary(max_size=40)
    return st.lists(st.lists(value, min_size=width, max_size=width), max_size=12)


def cells(batches: Sequence[pa.RecordBatch]) -> list[list[Any]]:
    return [list(row.values()) for batch in batches for row in batch.to_pylist()]


@given(
    rows=st.integers(1, 4).flatmap(rows_of),
    batch_bytes=st.sampled_from([1, 30, 300, 1 << 20]),
    chunk=st.sampled_from([1, 3, 50, 1 << 20]),
)
def test_rows_are_the_same_in_whatever_pieces_they_come_and_batches_they_go(
    rows: list[list[bytes | None]], batch_bytes: int, chunk: int
) -> None:
    width = len(rows[0]) if rows else 1
    batches = decode(copied(rows), table(*[BYTES] * width), batch_bytes=batch_bytes, chunk=chunk)
    assert cells(batches) == rows
    assert all(batch.num_rows for batch in batches)


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_rows_without_columns_are_counted(rows: int) -> None:
    batches = decode(copied([[]] * rows), table(), batch_bytes=2000)
    assert sum(batch.num_rows for batch in batches) == rows
    assert all(batch.num_columns == 0 for batch in batches)


def test_a_row_larger_than_a_batch_makes_one_and_the_buffer_is_small_again_behind_it() -> None:
    rows: list[Row] = [[b"a"], [b"b" * 3_000_000], [b"c"], [b"d"]]
    decoder = CopyDecoder(table(BYTES), DEFAULT_POLICIES, 1000, lambda _: AssertionError())
    data, rooms, found = copied(rows), [], []
    while not decoder.is_over:
        room = decoder.room
        rooms.append(len(room))
        piece, data = data[: min(len(room), 4096)], data[min(len(room), 4096) :]
        room[: len(piece)] = piece
        decoder.advance(len(piece))
        while decoder.is_due:
            found += [len(value or b"") for value in decoder.take().column(0).to_pylist()]
    assert found == [1, 3_000_000, 1, 1]
    assert max(rooms) > 2_900_000
    assert rooms[-1] <= 1000


def test_many_small_values_end_a_batch_early_so_that_memory_stays_bounded() -> None:
    rows: list[Row] = [[None] * 10] * 1000
    batches = decode(copied(rows), table(*[INT4] * 10), batch_bytes=16_000)
    assert max(batch.num_rows for batch in batches) == 100
    assert sum(batch.num_rows for batch in batches) == 1000


def test_notices_settings_and_notifications_in_between_are_passed_over() -> None:
    first, second = framed(b"d", HEADER + encoded([b"1"])), framed(b"d", encoded([b"2"]))
    between = framed(b"N", b"SWARNING\0\0") + framed(b"S", b"a\0b\0") + framed(b"A", b"\0\0\0\1a\0\0")
    data = between + first + between + second + between + framed(b"d", TRAILER) + ending(2)
    for chunk in (1, 7, 1 << 20):
        assert cells(decode(data, table(BYTES), chunk=chunk)) == [[b"1"], [b"2"]]


def test_the_header_may_come_alone_and_with_an_extension() -> None:
    header = binary_scan.SIGNATURE + struct.pack("!II", 0x0000FFFF, 3) + b"ext"
    data = b"".join(framed(b"d", body) for body in (header, encoded([b"1"]), TRAILER)) + ending(1)
    assert cells(decode(data, table(BYTES))) == [[b"1"]]


def test_an_error_of_the_server_is_raised_as_translated() -> None:
    data = framed(b"d", HEADER + encoded([b"1"])) + framed(b"E", b"SERROR\0\0")
    with pytest.raises(SourceError, match="said 8 bytes"):
        decode(data, table(BYTES))


ROW = framed(b"d", HEADER + encoded([b"1"]))
END = framed(b"d", TRAILER)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(framed(b"d", encoded([b"1"])) + END + ending(1), id="no header"),
        pytest.param(framed(b"d", b"PGCOPY\n\xff\r\r\0" + bytes(8) + encoded([b"1"])), id="another signature"),
        pytest.param(framed(b"d", HEADER[:-1]), id="half a header"),
        pytest.param(framed(b"d", binary_scan.SIGNATURE + b"\0\1\0\0" + bytes(4)), id="with oids"),
        pytest.param(framed(b"d", binary_scan.SIGNATURE + bytes(4) + b"\0\0\0\1"), id="extension beyond its frame"),
        pytest.param(ROW + framed(b"d", b""), id="an empty frame"),
        pytest.param(ROW + framed(b"d", b"\0"), id="half a count"),
        pytest.param(ROW + framed(b"d", encoded([b"1", b"2"])), id="too many columns"),
        pytest.param(ROW + framed(b"d", encoded([])), id="too few columns"),
        pytest.param(ROW + framed(b"d", encoded([b"1"]) + b"x"), id="bytes behind a row"),
        pytest.param(ROW + framed(b"d", encoded([b"1"]) * 2), id="two rows in a frame"),
        pytest.param(ROW + framed(b"d", encoded([b"12"])[:-1]), id="a value beyond its frame"),
        pytest.param(ROW + framed(b"d", b"\0\1\0\0\0"), id="half a length"),
        pytest.param(ROW + framed(b"d", b"\0\1\xff\xff\xff\xfe"), id="a length below -1"),
        pytest.param(ROW + END + framed(b"d", encoded([b"1"])), id="a row behind the trailer"),
        pytest.param(ROW + END + END, id="two trailers"),
        pytest.param(ROW + framed(b"d", TRAILER + b"x"), id="bytes behind the trailer"),
        pytest.param(ROW + ending(1), id="no trailer"),
        pytest.param(ROW + END + framed(b"C", b"COPY 1\0") + framed(b"Z", b"T"), id="not said to be done"),
        pytest.param(ROW + END + framed(b"c", b"") + framed(b"Z", b"T"), id="not said to be complete"),
        pytest.param(ROW + END + ending(2), id="fewer rows than counted"),
        pytest.param(ROW + framed(b"d", encoded([b"1"])) + END + ending(1), id="more rows than counted"),
        pytest.param(ROW + END + framed(b"c", b"") + framed(b"C", b"SELECT 1\0") + framed(b"Z", b"T"), id="no copy"),
        pytest.param(ROW + framed(b"D", b""), id="a frame of something else"),
        pytest.param(ROW + b"d\0\0\0\3", id="a frame shorter than its length"),
        pytest.param(ROW + b"d\x7f\0\0\0", id="a frame longer than any"),
    ],
)
def test_what_is_not_a_copy_of_the_table_is_refused_without_quoting_it(data: bytes) -> None:
    for chunk in (1, 1 << 20):
        with pytest.raises(WireError, match=r"public\.t"):
            decode(data, table(BYTES), chunk=chunk)


@given(length=st.integers(0, 60))
def test_a_copy_that_is_cut_short_is_not_over(length: int) -> None:
    data = copied([[b"1"], [None]])
    with pytest.raises(EOFError):
        decode(data[: len(data) - 1 - length], table(BYTES), chunk=5)


class NotACopyError(Exception):
    pass


def plainly_decoded(data: bytes, width: int) -> list[list[bytes | None]]:
    """Decode a copy as the manual describes it."""
    rows: list[list[bytes | None]] = []
    said: list[bytes] = []
    has_header = has_trailer = False
    at = 0
    while at + 5 <= len(data):
        tag, size = data[at : at + 1], int.from_bytes(data[at + 1 : at + 5])
        check(4 <= size <= (1 << 30) + 4)
        if at + 1 + size > len(data):
            break
        body, at = data[at + 5 : at + 1 + size], at + 1 + size
        if tag in b"NSA":
            continue
        if tag != b"d":
            said.append(tag + body)
            check(has_trailer and len(said) <= 3)
            check(said[-1] == [b"c", b"CCOPY %d\0" % len(rows), said[-1] if tag == b"Z" else b""][len(said) - 1])
            if len(said) == 3:
                return rows
            continue
        check(not has_trailer)
        if not has_header:
            check(body[:11] == HEADER[:11] and len(body) >= 19 and body[11:13] == b"\0\0")
            extension = int.from_bytes(body[15:19])
            check(19 + extension <= len(body))
            body, has_header = body[19 + extension :], True
            if not body:
                continue
        check(len(body) >= 2)
        if body[:2] == TRAILER:
            check(body == TRAILER)
            has_trailer = True
        else:
            rows.append(plain_row(body, width))
    raise EOFError


def plain_row(body: bytes, width: int) -> list[bytes | None]:
    check(body[:2] == width.to_bytes(2))
    row: list[bytes | None] = []
    at = 2
    for _ in range(width):
        check(at + 4 <= len(body))
        length = int.from_bytes(body[at : at + 4], signed=True)
        at += 4
        check(length >= -1 and at + max(length, 0) <= len(body))
        row.append(None if length < 0 else body[at : at + length])
        at += max(length, 0)
    check(at == len(body))
    return row


def check(condition: bool) -> None:
    if not condition:
        raise NotACopyError


@given(
    rows=rows_of(2),
    damage=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=4), st.integers(0, 4)), max_size=2),
    chunk=st.sampled_from([1, 11, 1 << 20]),
)
def test_damaged_copies_are_refused_or_read_as_the_plain_decoder_does(
    rows: list[list[bytes | None]], damage: list[tuple[int, bytes, int]], chunk: int
) -> None:
    data = bytearray(copied(rows))
    for place, replacement, length in damage:
        data[place : place + length] = replacement
    # What comes after the damage may be refused at once or waited for in vain: neither is a copy.
    expected: Any = None
    with contextlib.suppress(NotACopyError, EOFError):
        expected = plainly_decoded(bytes(data), 2)
    found: Any = None
    with contextlib.suppress(WireError, SourceError, EOFError):
        found = cells(decode(bytes(data), table(BYTES, BYTES), chunk=chunk))
    assert found == expected


# Values that are not of their type.


@pytest.mark.parametrize(
    "type_", [type_ for type_ in TYPES if type_.kind not in {Kind.BYTES, Kind.TEXT}], ids=lambda type_: type_.name
)
@given(data=st.data())
def test_a_value_of_another_length_than_its_type_has_is_refused(type_: PgType, data: st.DataObject) -> None:
    value, _ = data.draw(sent(type_))
    wrong = data.draw(st.binary(max_size=40).filter(lambda each: len(each) != len(value)))
    if type_.kind is Kind.NUMERIC:
        wrong = data.draw(st.sampled_from([value[:-1], value + b"x", value + b"xx", value[:5], b""]))
    with pytest.raises(WireError, match=rf"public\.t, column c0: .* type {re.escape(type_.name)}"):
        decode(copied([[value], [wrong]]), table(type_), ValuePolicies(SpecialValues.NULL))


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (simple_type(Kind.BOOL), b"\2"),
        (PgType("uuid", Kind.TEXT), bytes(15)),
        (PgType("jsonb", Kind.TEXT), b"\2{}"),
        (PgType("jsonb", Kind.TEXT), b""),
        (numeric_type(12, 2), struct.pack("!HhHHH", 1, 0, 0, 0, 10_000)),
        (numeric_type(12, 2), struct.pack("!HhHHH", 1, 0, 1, 0, 1)),
    ],
    ids=str,
)
def test_a_value_that_its_type_does_not_have_is_refused(type_: PgType, value: bytes) -> None:
    with pytest.raises(WireError, match=r"public\.t, column c0: the server sent bytes that are not a value"):
        decode(copied([[None], [value]]), table(type_))


@pytest.mark.parametrize("type_", [TEXT, PgType("jsonb", Kind.TEXT), array_type(INT4)], ids=lambda type_: type_.name)
def test_text_that_is_not_utf8_is_refused_without_quoting_it(type_: PgType) -> None:
    with pytest.raises(WireError, match=r"public\.t, column c0: .* not UTF-8") as caught:
        decode(copied([[b"\1secret\xff"]]), table(type_))
    assert "secret" not in caught.value.message
    assert "SQL_ASCII" in caught.value.remedy


def test_a_printed_value_that_is_not_of_its_type_is_refused() -> None:
    with pytest.raises(PenstockError, match=r"public\.t, column c0: ") as caught:
        decode(copied([[b"{1,x}"]]), table(array_type(INT4)))
    assert caught.value.kind is ErrorKind.WIRE


def test_types_that_are_not_read_in_binary_are_printed() -> None:
    printed = ["interval", "public.text", "public.uuid", "public.word", '"char"', "xml", "inet", "time(3)", "text[]"]
    assert all(is_printed(PgType(name, Kind.TEXT)) for name in printed)
    assert is_printed(PgType("numeric", Kind.NUMERIC))
    assert is_printed(PgType("numeric(50,3)", Kind.NUMERIC, 50, 3))
    assert is_printed(array_type(INT4))
    assert not any(is_printed(type_) for type_ in TYPES)


def test_the_base_name_of_a_type_has_no_modifiers() -> None:
    names = {
        "character varying(20)": "character varying",
        "numeric(12,-2)": "numeric",
        "timestamp(3) without time zone": "timestamp without time zone",
        "date": "date",
    }
    assert {name: base_name(name) for name in names} == names
