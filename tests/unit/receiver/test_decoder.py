"""The compiled decoder equals the reference: for every stream, however it is cut, and for every damage to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plugins.generated_streams import Stream, cut, describe, streams, writable
from plugins.segments import assemble, assert_same, decode

from penstock.changelog.segment import Segment
from penstock.errors import WireError
from penstock.model.lsn import NOWHERE, Lsn
from penstock.model.table import ReplicaIdentity
from penstock.receiver import decoder as decoder_module
from penstock.receiver.decoder import Decoder, LoggedRelation
from penstock.receiver.intake import Intake
from penstock.receiver.spool import Spools
from penstock.testing.changelog import two_column_table
from penstock.testing.pgoutput import encode, frame, frames, xlog_data
from penstock.wire.pgoutput import (
    BeginMessage,
    CommitMessage,
    InsertMessage,
    Message,
    RelationMessage,
    StreamAbortMessage,
    StreamCommitMessage,
    StreamStartMessage,
    StreamStopMessage,
    TruncateMessage,
)
from penstock.wire.scan import Bytes, Indexed

MakeDecoder = Callable[[Lsn], Decoder]

many = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def make_decoder(tmp_path: Path) -> Iterator[MakeDecoder]:
    """Give decoders, one at a time."""
    made: list[Decoder] = []

    def make(end_lsn: Lsn) -> Decoder:
        for old in made:
            old.spools.close()
        made[:] = [Decoder(describe, end_lsn, Spools(tmp_path / "spool"))]
        return made[0]

    yield make
    for old in made:
        old.spools.close()


@many
@given(stream=streams())
def test_every_stream_however_it_is_cut_decodes_as_the_reference_does(
    make_decoder: MakeDecoder, stream: Stream
) -> None:
    decoder = make_decoder(stream.end_lsn)
    expected, end_lsn = assemble(describe, stream.data, stream.end_lsn)
    assert_same(decode(decoder, cut(stream)), expected)
    assert decoder._state[Indexed.END_LSN] == end_lsn


@settings(many, max_examples=80)
@given(stream=streams(), limits=st.tuples(st.integers(1, 3), st.integers(1, 8)))
def test_what_has_no_more_room_is_built_and_decoding_goes_on(
    make_decoder: MakeDecoder, stream: Stream, limits: tuple[int, int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_module, "_ROWS", limits[0])
        patch.setattr(decoder_module, "_CELLS", limits[1])
        segment = decode(make_decoder(stream.end_lsn), [writable(stream.data)])
    assert_same(segment, assemble(describe, stream.data, stream.end_lsn)[0])


def two_columns(_: RelationMessage) -> LoggedRelation:
    return LoggedRelation(two_column_table(), 1, (0,))


RELATION = RelationMessage(1, "public", "t1", ReplicaIdentity.DEFAULT, ())
INSERT = InsertMessage(1, (b"1", b"v"))
TRUNCATE = TruncateMessage((1,), cascade=False, restart_identity=False)


def transaction(commit_lsn: int, *messages: Message) -> list[Message]:
    return [BeginMessage(Lsn(commit_lsn), 0, 7), *messages, CommitMessage(Lsn(commit_lsn), Lsn(commit_lsn + 1), 0)]


def block(xid: int, *messages: tuple[int, Message]) -> bytes:
    inside = b"".join(frame(xlog_data(encode(message, part), NOWHERE)) for part, message in messages)
    return frames([StreamStartMessage(xid, is_first=False)]) + inside + frames([StreamStopMessage()])


@pytest.fixture
def decoder(make_decoder: MakeDecoder) -> Decoder:
    made = make_decoder(NOWHERE)
    made.describe = two_columns
    return made


def test_a_single_row_is_not_overwritten_by_the_next_block(decoder: Decoder) -> None:
    """A column of one number is contiguous as it lies: wrapping it would not copy it."""
    parts = [transaction(10, RELATION, INSERT), transaction(20, INSERT)]
    segment = decode(decoder, (writable(frames(part)) for part in parts))
    [table] = segment.tables.values()
    assert [batch.column("_commit_lsn").to_pylist() for batch in table.batches] == [[10], [20]]
    assert [batch.column("end_lsn").to_pylist() for batch in segment.transactions] == [[11], [21]]


def test_a_streamed_transaction_that_the_log_has_still_describes_its_tables(make_decoder: MakeDecoder) -> None:
    decoder = make_decoder(Lsn(21))
    decoder.describe = two_columns
    streamed = block(7, (7, RELATION), (7, INSERT)) + frames([StreamCommitMessage(7, Lsn(20), Lsn(21), 0)])
    segment = decode(decoder, [writable(streamed + frames(transaction(30, INSERT)))])
    [table] = segment.tables.values()
    assert [batch.column("_commit_lsn").to_pylist() for batch in table.batches] == [[30]]
    assert segment.transaction_count == 1


def test_rolled_back_parts_and_wholes_leave_neither_rows_nor_files(decoder: Decoder, tmp_path: Path) -> None:
    undone = (8, INSERT), (8, TRUNCATE)
    streamed = block(7, (7, RELATION), (7, INSERT), *undone) + block(30, (30, RELATION), (30, INSERT))
    aborts = frames([StreamAbortMessage(7, 8), StreamAbortMessage(30, 30)])
    commit = frames([StreamCommitMessage(7, Lsn(20), Lsn(21), 0)])
    segment = decode(decoder, [writable(streamed), writable(aborts), writable(commit)])
    [table] = segment.tables.values()
    assert (table.rows, segment.transaction_count, segment.truncates) == (1, 1, [])
    assert not list((tmp_path / "spool").glob("*/*"))


BEGIN = BeginMessage(Lsn(10), 0, 7)


@pytest.mark.parametrize(
    "data",
    [
        frames([BEGIN, StreamStartMessage(7, is_first=True)]),
        frames([BEGIN, StreamCommitMessage(7, Lsn(20), Lsn(21), 0)]),
        frames([StreamCommitMessage(7, Lsn(20), Lsn(1 << 63), 0)]),
        frames([StreamCommitMessage(7, Lsn(20), Lsn(21), 1 << 62)]),
        frames([StreamStopMessage()]),
        frames([StreamStartMessage(7, is_first=True), StreamStartMessage(8, is_first=True)]),
        frames([StreamStartMessage(7, is_first=True), BEGIN]),
        frames([StreamStartMessage(7, is_first=True), StreamCommitMessage(7, Lsn(20), Lsn(21), 0)]),
        frames([StreamStartMessage(7, is_first=True)]) + frame(xlog_data(b"E\0", NOWHERE)),
        block(7, (7, INSERT)) + frames([StreamCommitMessage(7, Lsn(20), Lsn(21), 0)]),
        frames(transaction(10, RELATION))
        + block(7, (7, INSERT))
        + frames([StreamCommitMessage(7, Lsn(20), Lsn(21), 0)]),
        frames([TRUNCATE]),
    ],
)
def test_what_cannot_be_is_refused_by_decoder_and_reference(decoder: Decoder, data: bytes) -> None:
    with pytest.raises(WireError):
        decoder.feed(writable(data))
    with pytest.raises(WireError):
        assemble(two_columns, data, NOWHERE)


def test_text_that_is_not_utf8_is_refused_naming_the_column_and_no_value(decoder: Decoder) -> None:
    data = frames(transaction(10, RELATION, InsertMessage(1, (b"1", b"secret\xff"))))
    with pytest.raises(WireError, match=r"public\.t1, column v") as caught:
        decoder.feed(writable(data))
    assert "secret" not in str(caught.value)


# Damage.


_TAGS = (b"b", b"\xff", b"\0", b"u", b"n", b"t", b"K", b"O", b"N", b"E", b"S", b"\x80")


def damage(rng: random.Random, body: bytes) -> bytes:
    place = rng.randrange(len(body))
    return rng.choice(
        [
            body[:place],
            body + rng.randbytes(rng.randint(1, 3)),
            body[:place] + bytes([body[place] ^ (1 << rng.randrange(8))]) + body[place + 1 :],
            body[:place] + rng.choice(_TAGS) + body[place + 1 :],
        ]
    )


def damaged(stream: Stream) -> list[bytes]:
    """Damage one frame's body; its length is right again."""
    all_, place = list(stream.frames), stream.rng.randrange(len(stream.frames))
    all_[place] = frame(damage(stream.rng, all_[place][5:]))
    return all_


def outcome(work: Callable[[], Segment]) -> Segment | None:
    """Return what came of it, or None if that was an error of the stream."""
    try:
        return work()
    except WireError:
        return None


def surrounded(sent: Sequence[bytes], around: int = 0) -> Bytes:
    """Return frames as the intake hands them over, with other bytes before and behind them."""
    data = b"".join(sent)
    intake = Intake(NOWHERE, lambda *_: None)
    intake.room[: len(data)] = data
    intake.advance(len(data))
    block = intake.cut_all()
    assert bytes(block.data) == data
    padded = np.full(len(block) + 128, around, np.uint8)
    padded[64:-64] = block
    return padded[64:-64]


@many
@given(stream=streams(max_steps=4, is_streaming=False, has_logged=False))
def test_damage_is_refused_where_the_reference_refuses_it_and_means_the_same_otherwise(
    make_decoder: MakeDecoder, stream: Stream
) -> None:
    sent = damaged(stream)
    expected = outcome(lambda: assemble(describe, b"".join(sent), stream.end_lsn)[0])
    for around in (0x74, 0xFF):  # what lies around a block has no influence: nothing reads it
        actual = outcome(lambda: decode(make_decoder(stream.end_lsn), [surrounded(sent, around)]))  # noqa: B023
        assert (actual is None) == (expected is None)
        if actual is not None and expected is not None:
            assert_same(actual, expected)


@many
@given(stream=streams())
def test_damage_is_refused_or_passed_over_and_never_logged(make_decoder: MakeDecoder, stream: Stream) -> None:
    """What the log has already, and what is rolled back, is not read at all: damage there goes unseen."""
    sent = damaged(stream)
    expected = outcome(lambda: assemble(describe, b"".join(sent), stream.end_lsn)[0])
    actual = outcome(lambda: decode(make_decoder(stream.end_lsn), [surrounded(sent)]))
    if expected is not None:
        assert actual is not None
        assert_same(actual, expected)
