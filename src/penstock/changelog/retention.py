"""What the log keeps beyond need: whole stretches from its old end go, the rest stays.

An entry that a table may still need never goes. One that nobody needs stays while it is younger than
`keep_ms` or within the newest `keep_bytes` of what nobody needs: each is a promise of its own. Neither
holds against `max_bytes`: what is only kept for replay gives way before the receiver has to pause.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.changelog.entry import Entry
from penstock.model.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept for replay, and how large the log may become with it."""

    keep_ms: int = 0
    keep_bytes: int = 0
    max_bytes: int | None = None
    """At this size the receiver pauses; None if it never does."""


NOTHING_KEPT = Retention()


@dataclass(frozen=True, slots=True)
class Stretch:
    """A complete entry and the chain that it closes, if it does: what goes or stays whole."""

    entries: int
    end_lsn: Lsn
    written_us: int
    start_byte: int
    """How many bytes of entries came before it; differences of these are sizes, so no sum is taken twice."""
    end_byte: int


def stretches(entries: Iterable[Entry], start_byte: int = 0) -> list[Stretch]:
    """Return the stretches that entries form; those of an open chain at the end are none yet."""
    found: list[Stretch] = []
    count, end_byte = 0, start_byte
    for entry in entries:
        count, end_byte = count + 1, end_byte + entry.size_bytes
        if entry.is_complete:
            found.append(Stretch(count, entry.end_lsn, entry.written_us, start_byte, end_byte))
            count, start_byte = 0, end_byte
    return found


def count_droppable(
    log: Sequence[Stretch], needed: Lsn, retention: Retention, *, now_us: int, open_bytes: int = 0
) -> int:
    """Return how many stretches may go, from the oldest on, when changes are needed from `needed` on.

    The last stretch always stays: it says where the log ends and how entries are numbered. `open_bytes`
    is what an open chain behind it takes.
    """
    unneeded = bisect_right(log, needed, key=lambda stretch: stretch.end_lsn)
    droppable = 0
    while droppable < min(unneeded, len(log) - 1):
        oldest = log[droppable]
        kept_bytes = log[unneeded - 1].end_byte - oldest.start_byte
        all_bytes = log[-1].end_byte + open_bytes - oldest.start_byte
        is_kept = kept_bytes <= retention.keep_bytes or _is_young(oldest, retention, now_us)
        if is_kept and not _is_full(all_bytes, retention):
            break
        droppable += 1
    return droppable


def _is_young(stretch: Stretch, retention: Retention, now_us: int) -> bool:
    # A date in the future is a clock that was set back: nothing follows from it, and it must not hold the log for long.
    return 0 <= now_us - stretch.written_us < retention.keep_ms * 1000


def _is_full(size_bytes: int, retention: Retention) -> bool:
    return retention.max_bytes is not None and size_bytes >= retention.max_bytes


class Shelf:
    """The log's entries as stretches, so that a decision costs a few steps however long the log is.

    An hour of a busy log is thousands of entries, and the question comes with every one of them.
    """

    def __init__(self) -> None:
        self._stretches: list[Stretch] = []
        self._shelved = 0
        self._end_byte = 0

    def take(self, entries: Sequence[Entry], needed: Lsn, retention: Retention, now_us: int) -> int:
        """Return how many of the log's entries go now, from the oldest on; the caller drops them."""
        added = stretches(entries[self._shelved :], self._end_byte)
        if added:
            self._stretches += added
            self._shelved += sum(stretch.entries for stretch in added)
            self._end_byte = added[-1].end_byte
        open_bytes = sum(entry.size_bytes for entry in entries[self._shelved :])
        count = count_droppable(self._stretches, needed, retention, now_us=now_us, open_bytes=open_bytes)
        dropped = sum(stretch.entries for stretch in self._stretches[:count])
        del self._stretches[:count]
        self._shelved -= dropped
        return dropped
