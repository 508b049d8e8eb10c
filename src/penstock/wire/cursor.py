"""A bounds-checked cursor over one protocol message.

Every read of bytes that came from a server happens here. A short or malformed
message raises `WireError`; no caller indexes a buffer, so none can over-read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeVar

from penstock.errors import WireError
from penstock.model.lsn import Lsn

T = TypeVar("T")

_I16 = struct.Struct("!h")
_I32 = struct.Struct("!i")
_U32 = struct.Struct("!I")
_I64 = struct.Struct("!q")
_U64 = struct.Struct("!Q")


class Cursor:
    """Reads one message from front to back. All numbers are big-endian."""

    __slots__ = ("_at", "_data", "_size")

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data if isinstance(data, bytes) else bytes(data)
        self._size = len(self._data)
        self._at = 0

    def u8(self) -> int:
        """Read one byte."""
        at = self._at
        if at >= self._size:
            raise self._short(at, 1)
        self._at = at + 1
        return self._data[at]

    def i16(self) -> int:
        """Read a signed 16-bit number."""
        return self._number(_I16)

    def i32(self) -> int:
        """Read a signed 32-bit number."""
        return self._number(_I32)

    def u32(self) -> int:
        """Read an unsigned 32-bit number, such as an oid."""
        return self._number(_U32)

    def i64(self) -> int:
        """Read a signed 64-bit number, such as a time."""
        return self._number(_I64)

    def lsn(self) -> Lsn:
        """Read a log position."""
        return Lsn(self._number(_U64))

    def text(self) -> str:
        """Read a string that ends with a zero byte."""
        end = self._data.find(0, self._at)
        if end < 0:
            raise WireError(f"malformed message: the string at byte {self._at} does not end")
        start, self._at = self._at, end + 1
        try:
            return self._data[start:end].decode()
        except UnicodeDecodeError:
            raise WireError(f"malformed message: the string at byte {start} is not UTF-8") from None

    def block(self) -> bytes:
        """Read bytes that follow their 32-bit length."""
        return self._take(self._length(self.i32()))

    def rest(self) -> bytes:
        """Read everything that is left."""
        return self._take(self._size - self._at)

    def count(self) -> int:
        """Read a 16-bit number of things to come."""
        return self._length(self.i16())

    def tagged(
        self, count: int, framed: int, bare: Mapping[int, T], refused: Mapping[int, str]
    ) -> tuple[bytes | T, ...]:
        """Read `count` items: a tag byte each, and a block behind the tag `framed`.

        `bare` has what the tags without a block stand for; `refused` why others cannot be read.
        This is the inner loop of decoding a row, so it works on locals instead of calling the methods above.
        """
        data, size, at = self._data, self._size, self._at
        items: list[bytes | T] = []
        for _ in range(count):
            if at >= size:
                raise self._short(at, 1)
            tag = data[at]
            at += 1
            if tag != framed:
                if tag not in bare:
                    raise WireError(refused.get(tag, f"malformed message: unknown tag {chr(tag)!r} at byte {at - 1}"))
                items.append(bare[tag])
                continue
            start = at + 4
            if start > size:
                raise self._short(at, 4)
            at = start + self._length(_I32.unpack_from(data, at)[0])
            if at > size:
                raise self._short(start, at - start)
            items.append(data[start:at])
        self._at = at
        return tuple(items)

    def finish(self) -> None:
        """Refuse bytes after the message's end: they mean that it was misread."""
        if self._at != self._size:
            raise WireError(f"malformed message: {self._size - self._at} bytes follow its end at byte {self._at}")

    def _number(self, form: struct.Struct) -> int:
        at = self._at
        end = at + form.size
        if end > self._size:
            raise self._short(at, form.size)
        self._at = end
        number: int = form.unpack_from(self._data, at)[0]
        return number

    def _take(self, length: int) -> bytes:
        start, end = self._at, self._at + length
        if end > self._size:
            raise self._short(start, length)
        self._at = end
        return self._data[start:end]

    def _length(self, number: int) -> int:
        if number < 0:
            raise WireError(f"malformed message: negative length or count before byte {self._at}")
        return number

    def _short(self, at: int, wanted: int) -> WireError:
        return WireError(f"short message: {wanted} bytes were expected at byte {at} of {self._size}")
