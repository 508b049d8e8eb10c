"""The compiled scans, one by one: where they stop, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from plugins.generated_streams import Stream, streams, writable

from penstock.model.cell import UNCHANGED, OldRowKind
from penstock.model.lsn import Lsn
from penstock.testing.pgoutput import encode, frame, keepalive, xlog_data
from penstock.wire import scan
from penstock.wire.pgoutput import (
    BeginMessage,
    CommitMessage,
    DeleteMessage,
    InsertMessage,
    Message,
    StreamStopMessage,
    TruncateMessage,
    TypeMessage,
    UpdateMessage,
)
from penstock.wire.scan import MESSAGE, Bytes, Followed, Indexed, Numbers, Stop

BEGIN, COMMIT = BeginMessage(Lsn(10), 0, 7), CommitMessage(Lsn(10), Lsn(11), 0)
INSERT = InsertMessage(1, (b"1", None))
TRUNCATE = TruncateMessage((1,), cascade=False, restart_identity=False)


def framed(*messages: Message, part: int | None = None) -> bytes:
    return b"".join(frame(xlog_data(encode(message, part), Lsn(99))) for message in messages)


def described(*relations: int, places: int = 8) -> Numbers:
    """Return a table in which each relation's description has the number of its id."""
    table = np.full(2 * places, -1, np.int64)
    for relation in relations:
        place = (relation * scan.HASH) & (places - 1)
        while table[2 * place + 1] >= 0:
            place = (place + 1) & (places - 1)
        table[2 * place : 2 * place + 2] = relation, relation
    return table


class Index:
    """One scan of messages, and what it found."""

    def __init__(self, *messages: Message, room: int = 9, relations: Numbers | None = None, logged: int = 0) -> None:
        self.data = writable(framed(*messages))
        self.state = np.zeros(len(Indexed), np.int64)
        self.state[Indexed.END_LSN] = logged
        self.rows, self.transactions = np.zeros((room, 8), np.int64), np.zeros((room, 5), np.int64)
        known = described(1) if relations is None else relations
        self.at, self.stop = scan.index(self.data, 0, len(self.data), self.state, known, self.rows, self.transactions)


@pytest.mark.parametrize(
    ("messages", "stop"),
    [
        ([BEGIN, INSERT, COMMIT], Stop.END),
        ([BEGIN, TRUNCATE], Stop.MESSAGE),
        ([TypeMessage(1, "a", "b")], Stop.MESSAGE),
        ([BEGIN, BEGIN], Stop.NOT_IN_TRANSACTION),
        ([COMMIT], Stop.NOT_IN_TRANSACTION),
        ([INSERT], Stop.NOT_IN_TRANSACTION),
        ([BEGIN, CommitMessage(Lsn(12), Lsn(13), 0)], Stop.WRONG_COMMIT),
        ([BEGIN, InsertMessage(2, ())], Stop.UNKNOWN_RELATION),
        ([BeginMessage(Lsn(1 << 63), 0, 7)], Stop.MALFORMED),
        ([BeginMessage(Lsn(1), scan.MAX_TIME_US + 1, 7)], Stop.MALFORMED),
        ([BeginMessage(Lsn(1), scan.MIN_TIME_US - 1, 7)], Stop.MALFORMED),
        ([BEGIN, CommitMessage(Lsn(10), Lsn(1 << 63), 0)], Stop.MALFORMED),
    ],
)
def test_index_stops_at_what_it_does_not_take(messages: list[Message], stop: Stop) -> None:
    found = Index(*messages)
    assert found.stop == stop
    assert found.at == len(framed(*messages) if stop is Stop.END else framed(*messages[:-1]))


def test_index_finds_rows_with_their_transaction_and_counts_on_when_it_passes_over() -> None:
    found = Index(BEGIN, INSERT, INSERT, COMMIT)
    assert found.state[Indexed.ROWS] == 2
    assert found.rows[:2, 2:].tolist() == [[ord("I"), 1, 10, 1, 0, 7], [ord("I"), 1, 10, 2, 0, 7]]
    assert found.transactions[0].tolist() == [10, 11, 0, 7, 2]
    passed = Index(BEGIN, INSERT, COMMIT, logged=11)
    assert (passed.state[Indexed.ROWS], passed.state[Indexed.TRANSACTIONS], passed.state[Indexed.ORDINAL]) == (0, 0, 1)


def test_index_without_room_stops_before_what_it_cannot_keep() -> None:
    found = Index(BEGIN, INSERT, INSERT, COMMIT, room=1)
    assert (found.stop, found.at) == (Stop.FULL, len(framed(BEGIN, INSERT)))
    assert found.state[Indexed.ORDINAL] == 1


def test_relations_that_meet_in_one_place_are_told_apart() -> None:
    ids = [1, 9, 17, 4294967295]  # the first three begin at one place of eight
    found = Index(BEGIN, *(InsertMessage(each, ()) for each in ids), relations=described(*ids))
    assert found.rows[:4, 3].tolist() == ids
    assert Index(BEGIN, InsertMessage(25, ()), relations=described(*ids)).stop == Stop.UNKNOWN_RELATION


@pytest.mark.parametrize(
    ("message", "stop"),
    [(BEGIN, Stop.MALFORMED), (COMMIT, Stop.MALFORMED), (StreamStopMessage(), Stop.BLOCK_END), (INSERT, Stop.END)],
)
def test_a_block_ends_at_its_end_and_holds_changes_only(message: Message, stop: Stop) -> None:
    before = framed(INSERT, part=7) + frame(keepalive(Lsn(1)))
    data = writable(before + framed(message))
    assert scan.seek_stream_stop(data, 0, len(data)) == (len(data) if stop is Stop.END else len(before), stop)


def locate(*changes: Message, keys: list[bool]) -> tuple[int, list[list[int]], list[bool], list[bool], list[bool]]:
    found = Index(BEGIN, *changes)
    count, width = len(changes), len(keys)
    places: list[Any] = [np.full((width, count), -9, np.int32) for _ in range(4)]
    flags: list[Any] = [np.zeros(count, np.bool_) for _ in range(3)]
    malformed = scan.locate(found.data, found.rows[:count], np.array(keys, np.bool_), *places, *flags)
    before, old_key, unchanged = (flag.tolist() for flag in flags)
    return malformed, places[1].T.tolist(), before, old_key, unchanged


def test_locate_tells_null_empty_and_unchanged_apart() -> None:
    update = UpdateMessage(1, None, None, (b"", None, UNCHANGED, b"abc"))
    malformed, lengths, before, old_key, unchanged = locate(update, keys=[True, False, False, False])
    assert (malformed, lengths) == (-1, [[0, scan.NULL, scan.UNCHANGED, 3]])
    assert (before, old_key, unchanged) == ([False], [False], [True])


def test_locate_compares_keys_by_value_and_takes_what_was_not_sent_from_the_old_row() -> None:
    changes: list[Message] = [
        UpdateMessage(1, OldRowKind.KEY, (b"a", None), (b"b", b"v")),
        UpdateMessage(1, OldRowKind.KEY, (b"a", None), (b"a", UNCHANGED)),
        UpdateMessage(1, OldRowKind.KEY, (b"a", None), (UNCHANGED, b"v")),
        UpdateMessage(1, OldRowKind.KEY, (b"", None), (None, b"v")),
        UpdateMessage(1, OldRowKind.FULL, (b"a", b"long"), (b"a", UNCHANGED)),
        DeleteMessage(1, OldRowKind.FULL, (b"a", b"long")),
        InsertMessage(1, (b"a", UNCHANGED)),
    ]
    malformed, lengths, before, old_key, unchanged = locate(*changes, keys=[True, False])
    null, left = scan.NULL, scan.UNCHANGED
    assert malformed == -1
    assert lengths == [[1, 1], [1, left], [1, 1], [null, 1], [1, 4], [1, null], [1, null]]
    assert before == [False, False, False, False, True, True, False]
    assert old_key == [True, False, False, True, False, False, False]
    assert unchanged == [False, True, False, False, False, False, False]


@pytest.mark.parametrize(
    "change",
    [
        InsertMessage(1, (b"1",)),
        InsertMessage(1, (b"1", b"2", b"3")),
        UpdateMessage(1, OldRowKind.KEY, (b"1",), (b"1", b"2")),
        DeleteMessage(1, OldRowKind.KEY, ()),
    ],
)
def test_a_row_of_another_width_is_malformed(change: Message) -> None:
    assert locate(INSERT, change, keys=[True, False])[0] == 1


@settings(max_examples=60)
@given(stream=streams())
def test_follow_reads_every_frame_and_stops_in_front_of_one_that_is_not_whole(stream: Stream) -> None:
    data: Bytes = writable(stream.data)
    place = stream.rng.randrange(len(stream.frames))
    start = sum(map(len, stream.frames[:place]))
    for end in (start, start + 1, start + 4, start + 5, start + len(stream.frames[place]) - 1):
        known = len(stream.frames[place]) if end >= start + 5 else 0
        assert scan.follow(data, 0, end, np.zeros(len(Followed), np.int64)) == (start, Stop.END, known)
    assert scan.follow(data, 0, len(data), np.zeros(len(Followed), np.int64)) == (len(data), Stop.END, 0)
    assert scan.frame_end(data, start) == start + len(stream.frames[place])


def test_a_message_begins_behind_its_envelope() -> None:
    assert framed(BEGIN)[MESSAGE:] == encode(BEGIN)


def test_everything_can_be_compiled_ahead() -> None:
    scan.warm_up()
