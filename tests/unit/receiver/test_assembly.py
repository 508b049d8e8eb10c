"""The reference for the receiver's decoder, fed with messages by hand: what a change means, and what cannot be."""

from __future__ import annotations

import pytest

from penstock.errors import WireError
from penstock.model.cell import UNCHANGED, OldRowKind
from penstock.model.lsn import NOWHERE, Lsn
from penstock.model.table import ReplicaIdentity
from penstock.receiver.decoder import LoggedRelation
from penstock.testing.assembly import Assembler, Change
from penstock.testing.changelog import two_column_table
from penstock.testing.pgoutput import encode, frame, frames, keepalive, xlog_data
from penstock.wire.pgoutput import (
    BeginMessage,
    CommitMessage,
    DeleteMessage,
    InsertMessage,
    Message,
    OriginMessage,
    RelationMessage,
    StreamAbortMessage,
    StreamCommitMessage,
    StreamStartMessage,
    StreamStopMessage,
    TruncateMessage,
    UpdateMessage,
)

RELATION = RelationMessage(1, "public", "t1", ReplicaIdentity.DEFAULT, ())
TRUNCATE = TruncateMessage((1,), cascade=False, restart_identity=False)


def make_assembler(end_lsn: int = 0) -> Assembler:
    assembler = Assembler(lambda _: LoggedRelation(two_column_table(), 1, (0,)), Lsn(end_lsn))
    assembler.feed(RELATION)
    return assembler


def feed_transaction(assembler: Assembler, commit_lsn: int, *changes: Message) -> None:
    assembler.feed(BeginMessage(Lsn(commit_lsn), 0, 9))
    for change in changes:
        assembler.feed(change)
    assembler.feed(CommitMessage(Lsn(commit_lsn), Lsn(commit_lsn + 1), 0))


def feed_block(assembler: Assembler, xid: int, *changes: tuple[int, Message]) -> None:
    assembler.feed_payload(encode(StreamStartMessage(xid, is_first=False)))
    for part, change in changes:
        assembler.feed_payload(encode(change, part))
    assembler.feed_payload(encode(StreamStopMessage()))


def changes_of(assembler: Assembler) -> list[Change]:
    return [change for table in assembler.changes.values() for change in table]


def keys_of(assembler: Assembler) -> list[object]:
    return [change.values[0] for change in changes_of(assembler)]


def insert(key: bytes = b"1") -> InsertMessage:
    return InsertMessage(1, (key, b"v"))


def test_ordinals_count_changes_and_nothing_else() -> None:
    assembler = make_assembler()
    feed_transaction(assembler, 10, insert(), RELATION, OriginMessage(Lsn(0), "o"), insert(b"2"))
    assert [change.ordinal for change in changes_of(assembler)] == [1, 2]
    assert assembler.transactions[0].changes == 2


def test_transactions_that_the_log_has_are_passed_over() -> None:
    assembler = make_assembler(end_lsn=21)
    feed_transaction(assembler, 10, insert(), TRUNCATE)
    feed_transaction(assembler, 20, insert())
    feed_transaction(assembler, 21, insert())
    assert [change.transaction.commit_lsn for change in changes_of(assembler)] == [21]
    assert not assembler.truncates
    assert assembler.end_lsn == 22


def test_an_unchanged_value_is_named_and_left_out() -> None:
    assembler = make_assembler()
    feed_transaction(assembler, 10, UpdateMessage(1, None, None, (b"1", UNCHANGED)))
    [change] = changes_of(assembler)
    assert (change.values, change.unchanged, change.old_key) == ((b"1", None), ["v"], None)


def test_a_changed_key_is_kept_and_an_equal_one_is_not() -> None:
    assembler = make_assembler()
    feed_transaction(
        assembler,
        10,
        UpdateMessage(1, OldRowKind.KEY, (b"1", None), (b"2", UNCHANGED)),
        UpdateMessage(1, OldRowKind.KEY, (b"2", None), (UNCHANGED, b"w")),
    )
    first, second = changes_of(assembler)
    assert (first.old_key, first.unchanged) == ((b"1",), ["v"])
    assert (second.old_key, second.values, second.unchanged) == (None, (b"2", b"w"), None)


def test_a_full_old_row_fills_in_what_was_not_sent_again() -> None:
    assembler = make_assembler()
    feed_transaction(assembler, 10, UpdateMessage(1, OldRowKind.FULL, (b"1", b"big"), (b"1", UNCHANGED)))
    [change] = changes_of(assembler)
    assert (change.values, change.before, change.unchanged) == ((b"1", b"big"), (b"1", b"big"), None)


def test_a_delete_keeps_its_key_only() -> None:
    assembler = make_assembler()
    feed_transaction(assembler, 10, DeleteMessage(1, OldRowKind.FULL, (b"1", b"big")))
    [change] = changes_of(assembler)
    assert (change.values, change.before) == ([b"1", None], (b"1", b"big"))


def test_a_streamed_transaction_takes_its_place_when_it_commits() -> None:
    assembler = make_assembler()
    feed_block(assembler, 7, (7, RELATION), (7, insert(b"1")))
    feed_transaction(assembler, 10, insert(b"2"))
    feed_block(assembler, 7, (7, insert(b"3")), (7, TRUNCATE))
    assembler.feed(StreamCommitMessage(7, Lsn(20), Lsn(21), 0))
    assert keys_of(assembler) == [b"2", b"1", b"3"]
    assert [change.ordinal for change in changes_of(assembler)] == [1, 1, 2]
    assert [truncate.position.ordinal for truncate in assembler.truncates] == [3]
    assert [each.commit_lsn for each in assembler.transactions] == [10, 20]


def test_what_was_rolled_back_leaves_nothing_and_takes_no_ordinal() -> None:
    assembler = make_assembler()
    feed_block(assembler, 7, (7, RELATION), (7, insert(b"1")), (8, insert(b"2")), (8, TRUNCATE), (9, insert(b"3")))
    feed_block(assembler, 30, (30, RELATION), (30, insert(b"4")))
    assembler.feed(StreamAbortMessage(7, 8))
    assembler.feed(StreamAbortMessage(30, 30))
    assembler.feed(StreamCommitMessage(7, Lsn(20), Lsn(21), 0))
    assert keys_of(assembler) == [b"1", b"3"]
    assert [change.ordinal for change in changes_of(assembler)] == [1, 2]
    assert not assembler.truncates


def test_a_streamed_transaction_that_the_log_has_still_describes_its_tables() -> None:
    assembler = Assembler(lambda _: LoggedRelation(two_column_table(), 1, (0,)), Lsn(21))
    feed_block(assembler, 7, (7, RELATION), (7, insert(b"1")))
    assembler.feed(StreamCommitMessage(7, Lsn(20), Lsn(21), 0))
    feed_transaction(assembler, 30, insert(b"2"))
    assert keys_of(assembler) == [b"2"]


def test_the_description_that_arrived_last_holds_whenever_its_transaction_commits() -> None:
    names = {"old": two_column_table(1), "new": two_column_table(2)}
    assembler = Assembler(lambda message: LoggedRelation(names[message.name], 1, (0,)), NOWHERE)
    old = RelationMessage(1, "public", "old", ReplicaIdentity.DEFAULT, ())
    new = RelationMessage(1, "public", "new", ReplicaIdentity.DEFAULT, ())
    feed_block(assembler, 7, (7, old), (7, insert(b"1")))
    for message in (BeginMessage(Lsn(10), 0, 9), new, insert(b"2"), CommitMessage(Lsn(10), Lsn(11), 0)):
        assembler.feed_payload(encode(message))
    assembler.feed(StreamCommitMessage(7, Lsn(20), Lsn(21), 0))
    feed_transaction(assembler, 30, insert(b"3"))
    assert {key[0]: [change.values[0] for change in table] for key, table in assembler.changes.items()} == {
        1: [b"1"],
        2: [b"2", b"3"],
    }


def test_frames_are_read_through_keepalives() -> None:
    assembler = make_assembler()
    messages: list[Message] = [BeginMessage(Lsn(10), 0, 9), insert(), CommitMessage(Lsn(10), Lsn(11), 0)]
    first, *rest = (frame(xlog_data(encode(message), NOWHERE)) for message in messages)
    assembler.feed_frames(first + frame(keepalive(Lsn(9))) + b"".join(rest))
    assert frames(messages) == first + b"".join(rest)
    assert assembler.segment().transaction_count == 1


BEGIN = BeginMessage(Lsn(1), 0, 9)


@pytest.mark.parametrize(
    "messages",
    [
        [insert()],
        [TRUNCATE],
        [CommitMessage(Lsn(1), Lsn(2), 0)],
        [BEGIN, BeginMessage(Lsn(2), 0, 9)],
        [BEGIN, CommitMessage(Lsn(3), Lsn(4), 0)],
        [BEGIN, CommitMessage(Lsn(1), Lsn(1 << 63), 0)],
        [BEGIN, InsertMessage(2, (b"1", b"v"))],
        [BEGIN, InsertMessage(1, (b"1",))],
        [BEGIN, DeleteMessage(1, OldRowKind.KEY, ())],
        [BEGIN, UpdateMessage(1, OldRowKind.KEY, (b"1",), (b"1", b"v"))],
        [BEGIN, StreamStartMessage(7, is_first=True)],
        [BEGIN, StreamCommitMessage(7, Lsn(1), Lsn(2), 0)],
        [StreamStopMessage()],
        [BeginMessage(Lsn(1 << 63), 0, 9)],
        [BeginMessage(Lsn(1), 1 << 62, 9)],
    ],
)
def test_what_cannot_be_is_refused(messages: list[Message]) -> None:
    assembler = make_assembler()
    *allowed, refused = messages
    for message in allowed:
        assembler.feed(message)
    with pytest.raises(WireError):
        assembler.feed(refused)
