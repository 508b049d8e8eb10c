"""What goes and what stays when the log is trimmed: a pure decision, as properties over whole logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from plugins.data_file import data_file

from penstock.changelog.entry import Entry
from penstock.changelog.retention import NOTHING_KEPT, Retention, Shelf, Stretch, count_droppable, stretches
from penstock.model.lsn import NOWHERE, Lsn

NOW_US = 1_000_000_000
EMPTY_BYTES = 4096
"""What an entry without data takes."""


def make_entry(sequence: int, end: int, written_us: int, size_bytes: int, *, is_complete: bool) -> Entry:
    file = data_file(size_bytes=size_bytes)
    return Entry(
        sequence=sequence,
        session="s",
        written_us=written_us,
        is_complete=is_complete,
        start_lsn=NOWHERE,
        end_lsn=Lsn(end),
        transactions=1,
        transactions_file=None,
        files=(file,),
        truncates=(),
    )


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Entries in order, some of them chains, the last perhaps open; written at times that only grow."""
    count = draw(st.integers(0, 12))
    times = sorted(draw(st.lists(st.integers(0, NOW_US), min_size=count, max_size=count)))
    end = 100
    entries = []
    for index in range(count):
        is_complete = draw(st.booleans())
        end += 10 * is_complete
        size = draw(st.integers(0, 10_000))
        entries.append(make_entry(index + 1, end, times[index], size, is_complete=is_complete))
    return entries


retentions = st.builds(
    Retention,
    keep_ms=st.integers(0, NOW_US // 1000),
    keep_bytes=st.integers(0, 100_000),
    max_bytes=st.none() | st.integers(1, 150_000),
)
needs = st.builds(Lsn, st.integers(90, 230))


@dataclass(frozen=True)
class Trimmed:
    """What became of a log."""

    gone: Sequence[Entry]
    stayed: Sequence[Entry]

    def bytes_with(self, entry: Entry) -> int:
        """Bytes of the log with an entry and all behind it."""
        return size_of([each for each in (*self.gone, *self.stayed) if each.sequence >= entry.sequence])


def size_of(entries: Sequence[Entry]) -> int:
    return sum(entry.size_bytes for entry in entries)


def trimmed(log: list[Entry], needed: Lsn, retention: Retention, now_us: int = NOW_US) -> Trimmed:
    count = Shelf().take(log, needed, retention, now_us)
    return Trimmed(log[:count], log[count:])


def closes(log: Sequence[Entry], entry: Entry) -> Entry | None:
    """Return the complete entry that an entry belongs to, if its chain is closed."""
    return next((each for each in log if each.sequence >= entry.sequence and each.is_complete), None)


def unneeded(log: Sequence[Entry], needed: Lsn) -> list[Entry]:
    closed = ((entry, closes(log, entry)) for entry in log)
    return [entry for entry, closing in closed if closing is not None and closing.end_lsn <= needed]


@given(logs(), needs, retentions)
def test_nothing_that_is_needed_ever_goes(log: list[Entry], needed: Lsn, retention: Retention) -> None:
    gone = trimmed(log, needed, retention).gone
    assert {entry.sequence for entry in gone} <= {entry.sequence for entry in unneeded(log, needed)}


@given(logs(), needs, retentions)
def test_a_chain_goes_or_stays_whole(log: list[Entry], needed: Lsn, retention: Retention) -> None:
    gone = trimmed(log, needed, retention).gone
    assert not gone or gone[-1].is_complete


@given(logs(), needs, retentions)
def test_the_last_complete_entry_stays(log: list[Entry], needed: Lsn, retention: Retention) -> None:
    last = [entry for entry in log if entry.is_complete][-1:]
    assert all(entry in trimmed(log, needed, retention).stayed for entry in last)


@given(logs(), needs, retentions)
def test_what_is_old_and_outside_of_the_size_never_stays(log: list[Entry], needed: Lsn, retention: Retention) -> None:
    found = trimmed(log, needed, retention)
    kept = unneeded(found.stayed, needed)
    last = [entry for entry in log if entry.is_complete][-1:]
    for index, entry in enumerate(kept):
        closing = closes(log, entry)
        assert closing is not None
        is_last = closing in last
        is_young = NOW_US - closing.written_us < retention.keep_ms * 1000
        # A chain is judged whole: by the part of the log from its first entry on.
        first = min(index for index, each in enumerate(kept) if closes(log, each) == closing)
        is_within = size_of(kept[first:]) <= retention.keep_bytes
        assert is_last or is_young or is_within, index


@given(logs(), needs, retentions)
def test_what_is_young_or_within_the_size_goes_only_when_the_log_is_full(
    log: list[Entry], needed: Lsn, retention: Retention
) -> None:
    found = trimmed(log, needed, retention)
    for entry in (each for each in found.gone if each.is_complete):
        first = min(each.sequence for each in log if closes(log, each) == entry)
        kept = [each for each in unneeded(log, needed) if each.sequence >= first]
        is_young = NOW_US - entry.written_us < retention.keep_ms * 1000
        is_within = size_of(kept) <= retention.keep_bytes
        is_full = retention.max_bytes is not None and found.bytes_with(log[first - 1]) >= retention.max_bytes
        assert is_full or not (is_young or is_within)


@given(logs(), needs, retentions)
def test_a_log_is_full_only_of_what_is_needed(log: list[Entry], needed: Lsn, retention: Retention) -> None:
    """The receiver pauses when the log is full: what is only kept for replay must have gone before."""
    stayed = trimmed(log, needed, retention).stayed
    if retention.max_bytes is not None and size_of(stayed) >= retention.max_bytes:
        last = [entry for entry in log if entry.is_complete][-1:]
        assert all(closes(log, entry) in last for entry in unneeded(stayed, needed))


@given(logs(), needs)
def test_without_a_retention_only_what_is_needed_and_the_last_entry_stay(log: list[Entry], needed: Lsn) -> None:
    stayed = trimmed(log, needed, NOTHING_KEPT).stayed
    last = [entry for entry in log if entry.is_complete][-1:]
    assert all(closes(log, entry) in last for entry in unneeded(stayed, needed))


@given(logs(), st.lists(st.tuples(st.integers(0, 12), needs), max_size=8), retentions)
def test_a_shelf_that_grew_with_the_log_decides_as_a_new_one(
    log: list[Entry], steps: list[tuple[int, Lsn]], retention: Retention
) -> None:
    shelf, written, present = Shelf(), 0, list[Entry]()
    for count, needed in steps:
        present += log[written : written + count]
        written += count
        expected = Shelf().take(present, needed, retention, NOW_US)
        assert shelf.take(present, needed, retention, NOW_US) == expected
        del present[:expected]


def test_a_date_in_the_future_keeps_nothing() -> None:
    """A clock that was wrong for a while must not hold the log for years."""
    log = [make_entry(n, 100 + n, NOW_US * 1000, 10, is_complete=True) for n in (1, 2, 3)]
    assert len(trimmed(log, Lsn(200), Retention(keep_ms=1000)).gone) == 2


def test_either_promise_keeps() -> None:
    log = [make_entry(n, 100 + n, n * 1_000_000, 10, is_complete=True) for n in range(1, 11)]
    now_us, needed = 10_500_000, Lsn(200)
    by_time = trimmed(log, needed, Retention(keep_ms=3000), now_us)
    by_size = trimmed(log, needed, Retention(keep_bytes=5 * (EMPTY_BYTES + 10)), now_us)
    by_both = trimmed(log, needed, Retention(keep_ms=3000, keep_bytes=5 * (EMPTY_BYTES + 10)), now_us)
    assert [len(each.stayed) for each in (by_time, by_size, by_both)] == [3, 5, 5]


def test_an_open_transaction_counts_towards_a_full_log() -> None:
    kept = [make_entry(n, 100 + n, NOW_US, 0, is_complete=True) for n in (1, 2, 3)]
    growing = make_entry(4, 103, NOW_US, 5 * EMPTY_BYTES, is_complete=False)
    retention = Retention(keep_ms=1000, max_bytes=8 * EMPTY_BYTES)
    assert not trimmed(kept, Lsn(200), retention).gone
    assert len(trimmed([*kept, growing], Lsn(200), retention).gone) == 2


class Counted(Sequence[Stretch]):
    """A log that counts how often it is asked."""

    def __init__(self, log: list[Stretch]) -> None:
        self.log = log
        self.asked = 0

    def __len__(self) -> int:
        return len(self.log)

    def __getitem__(self, index: Any) -> Any:
        self.asked += 1
        return self.log[index]


def test_the_decision_takes_few_steps_however_long_the_log_is() -> None:
    log = Counted(stretches(make_entry(n, n, NOW_US, 10, is_complete=True) for n in range(1, 100_001)))
    assert count_droppable(log, Lsn(50_000), Retention(keep_ms=1000), now_us=NOW_US) == 0
    assert log.asked < 30
