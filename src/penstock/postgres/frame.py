"""The frames of the Postgres protocol: a type byte, a length that counts itself, a body.

Bytes go in as the network has them; whole frames, or the bytes themselves, come out in order.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.errors import WireError

HEADER = struct.Struct("!cI")
_LENGTH_BYTES = 4
MAX_FRAME_BYTES = 1 << 30
"""No message is longer: a row, the longest thing there is, is limited to a gigabyte by the server."""


class Frame(NamedTuple):
    """One message."""

    tag: bytes
    body: bytes


def encode_frame(tag: bytes, body: bytes) -> bytes:
    """Return a message as it goes over the wire."""
    return HEADER.pack(tag, len(body) + _LENGTH_BYTES) + body


class FrameBuffer:
    """Bytes that have arrived and are not yet looked at."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes)

    def feed(self, data: bytes | memoryview) -> None:
        """Take bytes that have arrived."""
        self._bytes += data

    def next_frame(self, max_bytes: int = MAX_FRAME_BYTES) -> Frame | None:
        """Take the next frame; None while it is not whole. One longer than `max_bytes` is refused before it comes."""
        if len(self._bytes) < HEADER.size:
            return None
        tag, length = HEADER.unpack_from(self._bytes)
        if not _LENGTH_BYTES <= length <= max_bytes:
            raise WireError(f"message {tag!r} claims a length of {length} bytes: that is not the Postgres protocol")
        end = length + 1
        if len(self._bytes) < end:
            return None
        frame = Frame(tag, bytes(self._bytes[HEADER.size : end]))
        del self._bytes[:end]
        return frame

    def peek(self, size: int) -> bytes:
        """Return the first bytes without taking them."""
        return bytes(self._bytes[:size])

    def take_into(self, view: memoryview) -> int:
        """Move bytes out as they came, as many as fit; return how many."""
        size = min(len(view), len(self._bytes))
        view[:size] = self._bytes[:size]
        del self._bytes[:size]
        return size
