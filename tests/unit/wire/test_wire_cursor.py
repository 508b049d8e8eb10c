"""The cursor reads what is there, and refuses everything else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import WireError
from penstock.model.lsn import Lsn
from penstock.wire.cursor import Cursor

READS: dict[str, tuple[Callable[[Cursor], object], bytes, object]] = {
    "u8": (Cursor.u8, b"\xff", 255),
    "i16": (Cursor.i16, b"\xff\xfe", -2),
    "i32": (Cursor.i32, b"\xff\xff\xff\xfe", -2),
    "u32": (Cursor.u32, b"\xff\xff\xff\xfe", 0xFFFFFFFE),
    "i64": (Cursor.i64, b"\xff" * 8, -1),
    "lsn": (Cursor.lsn, b"\xff" * 8, Lsn(0xFFFFFFFFFFFFFFFF)),
    "text": (Cursor.text, "né\0".encode(), "né"),
    "block": (Cursor.block, b"\0\0\0\x02ab", b"ab"),
    "count": (Cursor.count, b"\0\x02", 2),
    "tagged": (lambda c: c.tagged(2, 1, {0: None}, {}), b"\0\x01\0\0\0\x02ab", (None, b"ab")),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_a_read_takes_exactly_its_bytes(name: str, wrap: Callable[[bytes], bytes | memoryview]) -> None:
    read, data, expected = READS[name]
    cursor = Cursor(wrap(data + b"tail"))
    assert read(cursor) == expected
    assert cursor.rest() == b"tail"
    cursor.finish()


@pytest.mark.parametrize("name", READS)
def test_a_read_past_the_end_is_refused(name: str) -> None:
    read, data, _ = READS[name]
    for size in range(len(data)):
        with pytest.raises(WireError):
            read(Cursor(data[:size]))


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (Cursor.block, b"\xff\xff\xff\xff"),
        (Cursor.count, b"\xff\xff"),
        (lambda c: c.tagged(1, 1, {}, {}), b"\x01\xff\xff\xff\xff"),
    ],
)
def test_negative_lengths_are_refused(read: Callable[[Cursor], object], data: bytes) -> None:
    with pytest.raises(WireError, match="negative"):
        read(Cursor(data + bytes(8)))


def test_text_that_is_not_utf8_is_refused_without_showing_it() -> None:
    with pytest.raises(WireError, match="not UTF-8") as raised:
        Cursor(b"secret\xff\0").text()
    assert "secret" not in str(raised.value)


@given(st.binary(max_size=64), st.lists(st.sampled_from(sorted(READS)), max_size=8))
def test_arbitrary_bytes_are_read_or_refused(data: bytes, names: list[str]) -> None:
    cursor = Cursor(data)
    try:
        for name in names:
            READS[name][0](cursor)
        cursor.finish()
    except WireError:
        pass
