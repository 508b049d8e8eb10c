"""The intake: whatever pieces a stream arrives in, what is handed over is the stream, cut where it may be."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plugins.generated_streams import Stream, streams

from penstock.errors import SourceError, WireError
from penstock.model.lsn import NOWHERE, Lsn
from penstock.receiver.intake import Intake
from penstock.testing.pgoutput import encode, frame, keepalive, xlog_data
from penstock.wire.pgoutput import BeginMessage, CommitMessage, LogicalMessage

BLOCK_BYTES = st.sampled_from([64, 200, 1000, 1 << 20])
CHUNK_BYTES = st.sampled_from([1, 7, 100, 1 << 20])


def refuse(tag: bytes, _: bytes) -> None:
    raise AssertionError(f"another frame: {tag!r}")


def hand_over(intake: Intake) -> tuple[bytes, bool]:
    """Cut as the receiver does; say whether that was between transactions."""
    is_whole = intake.whole_bytes > 0
    block = bytes((intake.cut_whole() if is_whole else intake.cut_all()).data)
    assert block, "a full intake that has nothing to hand over would stand still"
    return block, is_whole


def push(intake: Intake, data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Put bytes in; yield what has to be handed over for them to fit."""
    while True:
        while intake.is_full:
            if intake.wanted_bytes:
                intake.grow()
            else:
                yield hand_over(intake)
        if not data:
            return
        room = intake.room
        count = min(len(room), len(data))
        room[:count] = data[:count]
        intake.advance(count)
        data = data[count:]


def boundaries(frames: tuple[bytes, ...]) -> set[int]:
    """Return the places between transactions and blocks."""
    found, at, is_open = {0}, 0, False
    for each in frames:
        at += len(each)
        tag = each[30:31] if each[5:6] == b"w" else b"k"
        is_open = tag in b"BS" or (is_open and tag not in b"CE")
        if not is_open:
            found.add(at)
    return found


@settings(max_examples=150)
@given(stream=streams(), block_bytes=BLOCK_BYTES, chunk_bytes=CHUNK_BYTES)
def test_what_is_handed_over_is_the_stream_and_whole_parts_end_between_transactions(
    stream: Stream, block_bytes: int, chunk_bytes: int
) -> None:
    intake, data, between = Intake(NOWHERE, refuse, block_bytes), stream.data, boundaries(stream.frames)
    handed = b""
    for start in range(0, len(data), chunk_bytes):
        for block, is_whole in push(intake, data[start : start + chunk_bytes]):
            handed += block
            assert not is_whole or len(handed) in between
        assert intake.capacity <= max(block_bytes, 2 * max(map(len, stream.frames)) + 5)
    assert handed + bytes(intake.cut_all().data) == data


@settings(max_examples=80)
@given(stream=streams(), seed=st.integers(0, 1 << 32))
def test_the_end_position_is_behind_what_is_whole_and_never_behind_a_commit_to_come(stream: Stream, seed: int) -> None:
    rng, intake, data, at = random.Random(seed), Intake(NOWHERE, refuse), stream.data, 0
    ends = list(accumulate(map(len, stream.frames)))
    while at < len(data):
        size = rng.randint(1, 300)
        assert not list(push(intake, data[at : at + size]))
        at = min(len(data), at + size)
        frames = bisect_right(ends, at)
        assert all(intake.end_lsn >= commit.end_lsn for commit in stream.commits if commit.frame < frames)
        assert all(intake.end_lsn <= commit.commit_lsn for commit in stream.commits if commit.frame >= frames)
        assert intake.commits == sum(commit.frame < frames for commit in stream.commits)
        whole = boundaries(stream.frames[:frames])
        assert intake.whole_bytes in whole
        assert intake.is_in_transaction == (ends[frames - 1] not in whole if frames else False)


OTHERS = [frame(b"SERROR\0C57P01\0Mgoing\0\0", b"N"), frame(b"TimeZone\0UTC\0", b"S"), frame(b"", b"c")]


@settings(max_examples=80)
@given(stream=streams(), chunk_bytes=CHUNK_BYTES, seed=st.integers(0, 1 << 32))
def test_frames_that_are_not_the_streams_are_given_away_in_order_and_vanish(
    stream: Stream, chunk_bytes: int, seed: int
) -> None:
    rng, mixed, expected = random.Random(seed), b"", []
    for each in stream.frames:
        for other in rng.sample(OTHERS, rng.randint(0, 2)):
            mixed += other
            expected.append((other[:1], other[5:]))
        mixed += each
    met: list[tuple[bytes, bytes]] = []
    intake, handed = Intake(NOWHERE, lambda tag, body: met.append((tag, body)), 1000), b""
    for start in range(0, len(mixed), chunk_bytes):
        handed += b"".join(block for block, _ in push(intake, mixed[start : start + chunk_bytes]))
    assert handed + bytes(intake.cut_all().data) == stream.data
    assert met == expected


def message(size: int) -> bytes:
    return frame(
        xlog_data(encode(LogicalMessage(transactional=False, lsn=Lsn(1), prefix="", content=bytes(size))), Lsn(1))
    )


@pytest.mark.parametrize("size", [800, 850, 900, 950, 1000, 5000])
def test_a_frame_about_as_large_as_the_buffer_or_larger_comes_through(size: int) -> None:
    intake, data = Intake(NOWHERE, refuse, 1000), message(10) + message(size) + message(10)
    handed = b"".join(block for at in range(0, len(data), 50) for block, _ in push(intake, data[at : at + 50]))
    assert handed + bytes(intake.cut_all().data) == data
    assert intake.capacity == 1000


def test_an_error_of_the_server_reaches_whoever_knows_it() -> None:
    def fail(tag: bytes, body: bytes) -> None:
        raise SourceError(f"{tag.decode()} {body.decode()}")

    with pytest.raises(SourceError, match="E gone"):
        list(push(Intake(NOWHERE, fail), frame(b"gone", b"E")))


def test_a_keepalive_counts_between_transactions_only() -> None:
    intake = Intake(Lsn(5), refuse)
    list(push(intake, frame(keepalive(Lsn(10)))))
    assert (intake.end_lsn, intake.received, intake.take_reply_requested()) == (10, 10, False)
    list(push(intake, frame(xlog_data(encode(BeginMessage(Lsn(30), 0, 7)), Lsn(40)))))
    list(push(intake, frame(keepalive(Lsn(50), reply_requested=True))))
    assert (intake.end_lsn, intake.received, intake.is_in_transaction) == (10, 50, True)
    assert intake.take_reply_requested()
    assert not intake.take_reply_requested()
    list(push(intake, frame(xlog_data(encode(CommitMessage(Lsn(30), Lsn(31), 0)), Lsn(40)))))
    assert (intake.end_lsn, intake.received, intake.commits) == (31, 50, 1)
    intake.forget_commits()
    assert intake.commits == 0


@pytest.mark.parametrize(
    "data",
    [
        frame(b""),
        frame(b"w" + bytes(24)),
        frame(b"w" + bytes(24)) + frame(keepalive(Lsn(1))),
        frame(keepalive(Lsn(1)) + b"\0"),
        frame(keepalive(Lsn(1))[:-1]),
        frame(b"x" + bytes(30)),
        b"d" + bytes(4),
        b"d\0\0\0\3",
        b"d\x40\0\1\0",
        b"d\xff\xff\xff\xff",
        b"\0\xff\xff\xff\xff",
    ],
)
def test_what_is_no_frame_of_a_stream_is_refused_and_never_waited_for(data: bytes) -> None:
    with pytest.raises(WireError, match="malformed"):
        list(push(Intake(NOWHERE, refuse), data))
