from __future__ import annotations

import struct
import uuid
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.destinations.delta import vector

rows = st.sets(st.integers(0, 1 << 34) | st.integers(0, 300_000), min_size=1, max_size=300)


def bitmap_of(items: set[int]) -> BitMap64:
    return vector.bitmap(np.array(sorted(items), np.int64))


def test_base85_is_the_one_of_the_specification() -> None:
    data = bytes.fromhex("864FD26FB559F75B")
    assert vector.to_base85(data) == "HelloWorld"
    assert vector.from_base85("HelloWorld", 8) == data


@given(st.binary(max_size=50))
def test_base85_gives_every_byte_back(data: bytes) -> None:
    assert vector.from_base85(vector.to_base85(data), len(data)) == data


@given(rows)
def test_a_vector_is_read_back_from_the_log_or_from_its_file(items: set[int]) -> None:
    writer = vector.VectorWriter(uuid.UUID(int=1))
    written = [writer.add(bitmap_of(items)), writer.add(bitmap_of(set(range(0, 4000, 2))))]
    assert written[0]["cardinality"] == len(items)
    assert writer.file is not None
    name, content = writer.file
    for found, expected in zip(written, (sorted(items), list(range(0, 4000, 2))), strict=True):
        if found["storageType"] == "i":
            read = vector.read_inline(found)
        else:
            assert vector.stored_path(found) == name
            read = vector.read_stored(found, content[found["offset"] :])
        assert vector.positions(read).tolist() == expected


def test_few_rows_need_no_file_and_many_share_one() -> None:
    writer = vector.VectorWriter(uuid.UUID(int=7))
    assert writer.add(bitmap_of({1, 5}))["storageType"] == "i"
    assert writer.file is None
    first, second = (writer.add(bitmap_of(set(range(0, 9000, step)))) for step in (2, 3))
    assert (first["storageType"], first["offset"]) == ("u", 1)
    assert second["offset"] == 1 + 4 + first["sizeInBytes"] + 4
    assert vector.unique_id(first) != vector.unique_id(second)


def test_neighbouring_rows_take_no_room() -> None:
    writer = vector.VectorWriter(uuid.UUID(int=7))
    found = writer.add(bitmap_of(set(range(100_000, 900_000))))
    assert (found["storageType"], found["cardinality"]) == ("i", 800_000)
    assert len(vector.read_inline(found)) == 800_000


def test_bytes_are_laid_out_as_the_protocol_has_them() -> None:
    data = vector.encode(bitmap_of({3}))
    assert struct.unpack_from("<IQI", data) == (1681511377, 1, 0)
    writer = vector.VectorWriter(uuid.UUID(int=7))
    found = writer.add(bitmap_of(set(range(0, 9000, 2))))
    assert writer.file is not None
    content = writer.file[1]
    stored = content[5:-4]
    assert content[0] == 1
    assert struct.unpack(">I", content[1:5]) == (len(stored),) == (found["sizeInBytes"],)
    assert struct.unpack(">I", content[-4:]) == (zlib.crc32(stored),)


def test_a_vectors_place_may_have_a_prefix_or_be_a_path() -> None:
    place = vector.to_base85(uuid.UUID(int=7).bytes)
    name = f"deletion_vector_{uuid.UUID(int=7)}.bin"
    assert vector.stored_path({"storageType": "u", "pathOrInlineDv": place}) == name
    assert vector.stored_path({"storageType": "u", "pathOrInlineDv": f"ab{place}"}) == f"ab/{name}"
    assert vector.stored_path({"storageType": "p", "pathOrInlineDv": "s3://x/y.bin"}) == "s3://x/y.bin"


def test_damaged_vectors_are_refused() -> None:
    writer = vector.VectorWriter(uuid.UUID(int=7))
    found = writer.add(bitmap_of(set(range(0, 9000, 2))))
    assert writer.file is not None
    content = bytearray(writer.file[1][1:])
    content[100] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        vector.read_stored(found, bytes(content))
    with pytest.raises(ValueError, match="checksum"):
        vector.read_stored(found, b"")
    with pytest.raises(ValueError, match="portable"):
        vector.decode(b"\0" * 20)
    with pytest.raises(ValueError, match=r".+"):
        vector.decode(vector.encode(bitmap_of({1, 2}))[:-2])
