"""Which changes belong to one row, when keys change: the plan behind folding a batch to one action per key.

A *logical row* lives from its insert, or from its place in the target before the batch, through
updates and changes of its key to its delete or the end of the batch. Keys are unique at every
moment, as the source's replica identity requires; so whoever holds a key is known at each change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

Key: TypeAlias = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class KeyedChange:
    """A change, as far as identity is concerned."""

    op: str
    """I, U or D, as in the change log."""
    key: Key
    old_key: Key | None = None
    """Set where an update changed the key."""


@dataclass(frozen=True, slots=True)
class LogicalRow:
    """One row's way through the batch."""

    origin: Key | None
    """Its key in the target before the batch; None if the batch inserted it."""
    final: Key | None
    """Its key after the batch; None if the batch deleted it."""

    @property
    def is_moved(self) -> bool:
        """Whether it was in the target, under another key than it has now."""
        return self.origin is not None and self.final is not None and self.origin != self.final


@dataclass(frozen=True, slots=True)
class Trace:
    """The logical rows of a batch."""

    labels: tuple[int, ...]
    """For every change, in order, the index of its row in `rows`."""
    rows: tuple[LogicalRow, ...]

    @property
    def vacated(self) -> tuple[Key, ...]:
        """The keys that the target must lose: held before the batch, and by nobody after it."""
        finals = {row.final for row in self.rows}
        return tuple(
            dict.fromkeys(row.origin for row in self.rows if row.origin is not None and row.origin not in finals)
        )


def trace(changes: Iterable[KeyedChange]) -> Trace:
    """Follow every row through changes in commit order."""
    tracer = _Tracer()
    labels = tuple([tracer.follow(change) for change in changes])
    finals = {label: key for key, label in tracer.holders.items()}
    rows = tuple(LogicalRow(origin, finals.get(label)) for label, origin in enumerate(tracer.origins))
    return Trace(labels, rows)


@dataclass(slots=True)
class _Tracer:
    holders: dict[Key, int] = field(default_factory=dict)
    """Who holds a key now, of the rows met so far."""
    origins: list[Key | None] = field(default_factory=list)

    def follow(self, change: KeyedChange) -> int:
        if change.op == "I":
            label = self._new(None)
        else:
            label = self._leave(change.key if change.old_key is None else change.old_key)
        if change.op != "D":
            self.holders[change.key] = label
        return label

    def _leave(self, key: Key) -> int:
        """Take a row off its key; one not met before comes from the target."""
        label = self.holders.pop(key, None)
        return self._new(key) if label is None else label

    def _new(self, origin: Key | None) -> int:
        self.origins.append(origin)
        return len(self.origins) - 1
