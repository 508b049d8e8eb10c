"""The assembler, fed with messages by hand and by hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.changelog.segment import Change, Segment
from penstock.errors import WireError
from penstock.model.cell import UNCHANGED, OldRowKind
from penstock.model.lsn import Lsn
from penstock.model.table import ReplicaIdentity
from penstock.receiver.assembly import Assembler, LoggedRelation
from penstock.testing.changelog import two_column_table
from penstock.wire.pgoutput import (
    BeginMessage,
    CommitMessage,
    DeleteMessage,
    InsertMessage,
    Message,
    OriginMessage,
    RelationMessage,
    TruncateMessage,
    UpdateMessage,
)

RELATION = RelationMessage(1, "public", "t1", ReplicaIdentity.DEFAULT, ())


def make_assembler(end_lsn: int = 0) -> Assembler:
    assembler = Assembler(lambda _: LoggedRelation(two_column_table(), 1, (0,)), Lsn(end_lsn))
    assembler.feed(RELATION)
    return assembler


def feed_transaction(assembler: Assembler, commit_lsn: int, *changes: Message) -> None:
    assembler.feed(BeginMessage(Lsn(commit_lsn), 0, 9))
    for change in changes:
        assembler.feed(change)
    assembler.feed(CommitMessage(Lsn(commit_lsn), Lsn(commit_lsn + 1), 0))


def changes_of(segment: Segment) -> list[Change]:
    return [change for table in segment.tables.values() for change in table.changes]


def insert(key: bytes = b"1") -> InsertMessage:
    return InsertMessage(1, (key, b"v"))


def test_ordinals_count_changes_and_nothing_else() -> None:
    assembler = make_assembler()
    feed_transaction(assembler, 10, insert(), RELATION, OriginMessage(Lsn(0), "o"), insert(b"2"))
    assert [change.ordinal for change in changes_of(assembler.segment)] == [1, 2]


def test_transactions_that_the_log_has_are_passed_over() -> None:
    assembler = make_assembler(end_lsn=21)
    feed_transaction(assembler, 10, insert(), TruncateMessage((1,), cascade=False, restart_identity=False))
    feed_transaction(assembler, 20, insert())
    feed_transaction(assembler, 21, insert())
    assert [change.transaction.commit_lsn for change in changes_of(assembler.segment)] == [21]
    assert not assembler.segment.truncates
    assert assembler.end_lsn == 22


def test_an_unchanged_value_is_named_and_left_out() -> None:
    assembler = make_assembler()
    feed_transaction(assembler, 10, UpdateMessage(1, None, None, (b"1", UNCHANGED)))
    [change] = changes_of(assembler.segment)
    assert (change.values, change.unchanged, change.old_key) == ((b"1", None), ["v"], None)


def test_a_changed_key_is_kept_and_an_equal_one_is_not() -> None:
    assembler = make_assembler()
    feed_transaction(
        assembler,
        10,
        UpdateMessage(1, OldRowKind.KEY, (b"1", None), (b"2", UNCHANGED)),
        UpdateMessage(1, OldRowKind.KEY, (b"2", None), (UNCHANGED, b"w")),
    )
    first, second = changes_of(assembler.segment)
    assert (first.old_key, first.unchanged) == ((b"1",), ["v"])
    assert (second.old_key, second.values, second.unchanged) == (None, (b"2", b"w"), None)


def test_a_full_old_row_fills_in_what_was_not_sent_again() -> None:
    assembler = make_assembler()
    feed_transaction(assembler, 10, UpdateMessage(1, OldRowKind.FULL, (b"1", b"big"), (b"1", UNCHANGED)))
    [change] = changes_of(assembler.segment)
    assert (change.values, change.before, change.unchanged) == ((b"1", b"big"), (b"1", b"big"), None)


def test_a_delete_keeps_its_key_only() -> None:
    assembler = make_assembler()
    feed_transaction(assembler, 10, DeleteMessage(1, OldRowKind.FULL, (b"1", b"big")))
    [change] = changes_of(assembler.segment)
    assert (change.values, change.before) == ([b"1", None], (b"1", b"big"))


@pytest.mark.parametrize(
    "messages",
    [
        [insert()],
        [CommitMessage(Lsn(1), Lsn(2), 0)],
        [BeginMessage(Lsn(1), 0, 9), BeginMessage(Lsn(2), 0, 9)],
        [BeginMessage(Lsn(1), 0, 9), CommitMessage(Lsn(3), Lsn(4), 0)],
        [BeginMessage(Lsn(1), 0, 9), InsertMessage(2, (b"1", b"v"))],
        [BeginMessage(Lsn(1), 0, 9), InsertMessage(1, (b"1",))],
    ],
)
def test_what_cannot_be_is_refused(messages: list[Message]) -> None:
    assembler = make_assembler()
    *allowed, refused = messages
    for message in allowed:
        assembler.feed(message)
    with pytest.raises(WireError):
        assembler.feed(refused)


@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=8), cut=st.integers(0, 40))
def test_splitting_at_any_moment_loses_and_repeats_nothing(sizes: list[int], cut: int) -> None:
    """Whatever is split off is whole transactions; what remains is the open one; together they are everything."""
    assembler, collected, fed = make_assembler(), [], 0
    for number, size in enumerate(sizes):
        commit = 10 * (number + 1)
        messages: list[Message] = [BeginMessage(Lsn(commit), 0, 9)]
        messages += [insert(str(row).encode()) for row in range(size)]
        messages.append(CommitMessage(Lsn(commit), Lsn(commit + 1), 0))
        for message in messages:
            assembler.feed(message)
            fed += 1
            if fed == cut:
                complete = assembler.segment.take_complete()
                assert {change.transaction.commit_lsn for change in changes_of(complete)} <= {
                    transaction.commit_lsn for transaction in complete.transactions
                }
                collected += changes_of(complete)
    collected += changes_of(assembler.take())
    assert [(change.transaction.commit_lsn, change.ordinal) for change in collected] == [
        (10 * (number + 1), ordinal) for number, size in enumerate(sizes) for ordinal in range(1, size + 1)
    ]
