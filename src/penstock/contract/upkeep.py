"""What is done for tables besides writing to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from penstock.model.table import TableSchema


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What one upkeep of a table did."""

    files: int = 0
    """How many data files the table has afterwards."""
    rewritten_files: int = 0
    """Data files whose rows are in others now."""
    rewritten_bytes: int = 0
    written_files: int = 0
    written_bytes: int = 0
    expired_versions: int = 0
    """Versions that the table can no longer be read at."""
    removed_files: int = 0
    """Files that no version needed any more."""

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing to do."""
        return not (self.rewritten_files or self.expired_versions or self.removed_files)

    def with_more(self, **counts: int) -> Upkeep:
        """Return the same with so much more of some."""
        return replace(self, **{name: getattr(self, name) + count for name, count in counts.items()})

    def with_rewriting(self, old: Sequence[int], new: Sequence[int]) -> Upkeep:
        """Return the same after files took the place of others; of each its bytes."""
        return self.with_more(
            files=len(new) - len(old),
            rewritten_files=len(old),
            rewritten_bytes=sum(old),
            written_files=len(new),
            written_bytes=sum(new),
        )


@runtime_checkable
class Maintained(Protocol):
    """A destination whose tables need more than what is written to them: small files put together, old ones removed."""

    @property
    def upkeep_every_s(self) -> float | None:
        """How long to wait between two upkeeps of a table; None for ever, and for brief ones too."""
        ...

    @property
    def brief_upkeep_after(self) -> int:
        """After how many batches of a table it gets a brief one, once an eighth of that time is over."""
        ...

    def upkeep(self, table: TableSchema, is_stopping: Callable[[], bool], *, is_brief: bool = False) -> Upkeep:
        """Do for a table what is due, and change neither its rows nor its position.

        In a brief one only what makes the table slower to read from batch to batch: it comes every few seconds.
        Called by one thread, table after table, for tables that are followed, while other threads go on applying
        changes, to the same table too: nobody must be made to wait for longer than a commit takes. It may be cut off
        at any moment by a crash, and should return soon once `is_stopping` is true. Raising costs the table
        nothing: it is told, and tried again next time.
        """
        ...
