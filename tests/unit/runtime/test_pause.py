"""When a table's next batch is due."""

from __future__ import annotations

from plugins.data_file import data_file

from penstock.changelog.entry import DataFile
from penstock.model.lsn import Lsn
from penstock.model.table import TableId
from penstock.runtime.pause import Pauses

TABLE, OTHER = TableId(1), TableId(2)
END = Lsn(100)
MIB = 1 << 20


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def changes(inserts: int = 0, updates: int = 0, deletes: int = 0, memory_bytes: int = 1000) -> DataFile:
    counts = {"inserts": inserts, "updates": updates, "deletes": deletes}
    return data_file(table=TABLE, rows=sum(counts.values()), memory_bytes=memory_bytes, **counts)


def test_updates_and_deletes_wait_for_their_turn() -> None:
    clock = Clock()
    pauses = Pauses(2.0, clock)
    assert pauses.is_due(TABLE, END, [changes(updates=1)]), "the first never waits"
    pauses.begin(TABLE)
    clock.now += 1.9
    assert not pauses.is_due(TABLE, END, [changes(updates=1)])
    assert not pauses.is_due(TABLE, END, [changes(inserts=5), changes(deletes=1)])
    assert not pauses.is_due(TABLE, END, [], is_truncated=True)
    clock.now += 0.1
    assert pauses.is_due(TABLE, END, [changes(updates=1)])


def test_inserts_alone_do_not_wait() -> None:
    pauses = Pauses(2.0, Clock())
    pauses.begin(TABLE)
    assert pauses.is_due(TABLE, END, [changes(inserts=5), changes(inserts=1)])


def test_large_amounts_do_not_wait() -> None:
    pauses = Pauses(2.0, Clock())
    pauses.begin(TABLE)
    assert not pauses.is_due(TABLE, END, [changes(updates=9, memory_bytes=4 * MIB - 1), changes(memory_bytes=4 * MIB)])
    assert pauses.is_due(TABLE, END, [changes(updates=9, memory_bytes=4 * MIB), changes(memory_bytes=4 * MIB)])


def test_tables_have_turns_of_their_own() -> None:
    pauses = Pauses(2.0, Clock())
    pauses.begin(TABLE)
    assert pauses.is_due(OTHER, END, [changes(updates=1)])


def test_without_a_time_nothing_waits() -> None:
    pauses = Pauses(0.0, Clock())
    pauses.begin(TABLE)
    assert pauses.is_due(TABLE, END, [changes(updates=1)])


def test_a_table_that_waits_need_not_be_looked_at_until_its_time_or_more_changes_come() -> None:
    clock = Clock()
    pauses = Pauses(2.0, clock)
    pauses.begin(TABLE)
    assert not pauses.is_waiting(TABLE, END), "nobody has looked yet"
    assert not pauses.is_due(TABLE, END, [changes(updates=1)])
    assert pauses.is_waiting(TABLE, END)
    assert not pauses.is_waiting(TABLE, Lsn(101))
    clock.now += 2.0
    assert not pauses.is_waiting(TABLE, END)
