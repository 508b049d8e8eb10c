"""Deletion vectors in the bytes that Delta's protocol gives them: which rows of a data file are gone.

A vector is a Roaring bitmap of row positions behind a magic number. A small one travels in the table's log,
in an alphabet of 85 characters; larger ones share one file for each commit, every one with its length and checksum.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

_MAGIC = struct.Struct("<I")
_PORTABLE = 1681511377
_LENGTH = struct.Struct(">I")
_FILE_VERSION = b"\x01"
_UUID_LENGTH = 20
# Small enough that the log stays small, large enough for the few deletes that most files ever see.
_MAX_INLINE_BYTES = 1024
_ALPHABET = np.frombuffer(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#", np.uint8
)
_POWERS = np.array([85**4, 85**3, 85**2, 85, 1], np.uint64)
_WORD_BYTES, _WORD_CHARACTERS = 4, 5


def to_base85(data: bytes) -> str:
    """Write bytes in Z85; zeros fill the last group of four."""
    padded = data + bytes(-len(data) % _WORD_BYTES)
    words = np.frombuffer(padded, ">u4").astype(np.uint64)
    digits = words[:, None] // _POWERS % np.uint64(85)
    return _ALPHABET[digits.astype(np.intp)].tobytes().decode()


def from_base85(text: str, size: int) -> bytes:
    """Read so many bytes back."""
    values = np.zeros(256, np.uint64)
    values[_ALPHABET] = np.arange(85, dtype=np.uint64)
    digits = values[np.frombuffer(text.encode(), np.uint8)].reshape(-1, _WORD_CHARACTERS)
    words: NDArray[np.uint64] = (digits * _POWERS).sum(axis=1)
    return words.astype(">u4").tobytes()[:size]


def unique_id(vector: Mapping[str, Any] | None) -> str | None:
    """Return what tells a file's vectors apart, as the protocol has it; None for no vector."""
    if vector is None:
        return None
    plain = f"{vector['storageType']}{vector['pathOrInlineDv']}"
    offset = vector.get("offset")
    return plain if offset is None else f"{plain}@{offset}"


def encode(positions: BitMap64) -> bytes:
    """Return a bitmap as a vector's bytes; neighbouring rows become runs, which take no room."""
    positions.run_optimize()
    return _MAGIC.pack(_PORTABLE) + positions.serialize()


def decode(data: bytes) -> BitMap64:
    """Return a vector's bitmap; raises `ValueError` for bytes that are none."""
    if len(data) < _MAGIC.size or _MAGIC.unpack_from(data)[0] != _PORTABLE:
        raise ValueError("it is not in the protocol's portable format")
    return BitMap64.deserialize(data[_MAGIC.size :])


def bitmap(positions: NDArray[np.int64]) -> BitMap64:
    """Return row positions as a bitmap."""
    return BitMap64(positions.astype(np.uint64))


def positions(bitmap_: BitMap64) -> NDArray[np.int64]:
    """Return a bitmap's row positions, in order."""
    return np.frombuffer(bitmap_.to_array(), np.uint64).astype(np.int64)


def stored_path(vector: Mapping[str, Any]) -> str:
    """Return the file that holds a vector: below the table's folder, or in full where it was stored as such."""
    place: str = vector["pathOrInlineDv"]
    if vector["storageType"] == "p":
        return place
    prefix, name = place[:-_UUID_LENGTH], uuid.UUID(bytes=from_base85(place[-_UUID_LENGTH:], 16))
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"


def read_inline(vector: Mapping[str, Any]) -> BitMap64:
    """Return the bitmap of a vector that is in the log itself."""
    return decode(from_base85(vector["pathOrInlineDv"], vector["sizeInBytes"]))


def read_stored(vector: Mapping[str, Any], content: bytes) -> BitMap64:
    """Return the bitmap of a vector from the bytes of its file, from the vector's offset on."""
    size: int = vector["sizeInBytes"]
    start, end = _LENGTH.size, _LENGTH.size + size
    data, checksum = content[start:end], content[end : end + _LENGTH.size]
    if content[:start] != _LENGTH.pack(size) or checksum != _LENGTH.pack(zlib.crc32(data)):
        raise ValueError("it fails its checksum")
    return decode(data)


class VectorWriter:
    """Gives a commit's vectors their places: in the log, or in one file for all that are too large for it."""

    def __init__(self, new_id: uuid.UUID) -> None:
        self._id = new_id
        self._content = bytearray(_FILE_VERSION)

    def add(self, rows: BitMap64) -> dict[str, Any]:
        """Return what the log says of a vector with these rows."""
        data = encode(rows)
        described = {"sizeInBytes": len(data), "cardinality": len(rows)}
        if len(data) <= _MAX_INLINE_BYTES:
            return {"storageType": "i", "pathOrInlineDv": to_base85(data), **described}
        offset = len(self._content)
        self._content += _LENGTH.pack(len(data)) + data + _LENGTH.pack(zlib.crc32(data))
        return {"storageType": "u", "pathOrInlineDv": to_base85(self._id.bytes), "offset": offset, **described}

    @property
    def file(self) -> tuple[str, bytes] | None:
        """The file's name and content, if a vector needs one."""
        if len(self._content) == len(_FILE_VERSION):
            return None
        return f"deletion_vector_{self._id}.bin", bytes(self._content)
