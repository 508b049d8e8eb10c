"""Spools: what a streamed transaction's blocks were is read back, in bounded pieces, and leaves no file behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plugins.generated_streams import Stream, cut, streams, writable

from penstock.model.lsn import Lsn
from penstock.receiver import spool as spool_module
from penstock.receiver.spool import Spools
from penstock.testing.pgoutput import encode, frame, xlog_data
from penstock.wire.pgoutput import LogicalMessage


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def large_frame(size: int) -> bytes:
    message = LogicalMessage(transactional=True, lsn=Lsn(1), prefix="", content=b"x" * size)
    return frame(xlog_data(encode(message, 7), Lsn(1)))


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stream=streams(), read_bytes=st.sampled_from([64, 100, 1000]))
def test_frames_are_read_back_whole_and_as_often_as_wanted(tmp_path: Path, stream: Stream, read_bytes: int) -> None:
    spools = Spools(tmp_path / "spool")
    for block in cut(stream):
        spools.get(7).append(block)
    assert spools.size_bytes == len(stream.data)
    ends = set(np.cumsum([len(each) for each in stream.frames]).tolist()) | {0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_module, "_READ_BYTES", read_bytes)
        for _ in range(2):
            read = b""
            for piece in spools.get(7).read():
                read += bytes(piece.data)
                assert len(read) in ends
                assert len(piece) <= max(read_bytes, max(map(len, stream.frames)) + 5)
            assert read == stream.data
    spools.close()
    assert not files_of(tmp_path / "spool")


@pytest.mark.parametrize("size", [1, 100, 199, 200, 201, 5000])
def test_a_frame_larger_than_a_read_comes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(spool_module, "_READ_BYTES", 256)
    spools, data = Spools(tmp_path / "spool"), large_frame(3) + large_frame(size) + large_frame(3)
    spools.get(7).append(writable(data))
    assert b"".join(bytes(piece.data) for piece in spools.get(7).read()) == data
    spools.close()


def test_each_transaction_has_a_file_of_its_own_until_it_is_removed(tmp_path: Path) -> None:
    spools = Spools(tmp_path / "spool")
    for xid in (7, 8, 9):
        spools.get(xid).append(writable(large_frame(xid)))
    assert files_of(tmp_path / "spool") == ["7", "8", "9"]
    spools.remove(8)
    spools.remove(8)
    assert files_of(tmp_path / "spool") == ["7", "9"]
    assert spools.size_bytes == len(large_frame(7) + large_frame(9))
    assert not list(spools.get(8).read())
    spools.close()
    assert not files_of(tmp_path / "spool")


def test_what_an_earlier_run_left_is_gone_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "spool-1").mkdir()
    (tmp_path / "spool-1" / "7").write_bytes(b"half of a frame")
    (tmp_path / "precious").write_bytes(b"somebody else's")
    spools = Spools(tmp_path)
    assert files_of(tmp_path) == ["precious"]
    assert not list(spools.get(7).read())
    spools.close()


def test_parts_rolled_back_are_listed_in_order_and_once(tmp_path: Path) -> None:
    spools = Spools(tmp_path / "spool")
    spools.get(7).aborted += [12, 9, 12]
    assert spools.get(7).aborted_parts().tolist() == [9, 12]
    spools.close()
