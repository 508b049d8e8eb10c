"""How a table's copy is getting on, across the parts and snapshots that it may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.postgres.ranges import BLOCK_BYTES, Copied
from penstock.runtime.pace import Pace


@dataclass
class CopyProgress:
    """Written by the worker that copies, read by whoever reports."""

    total_blocks: int
    estimated_rows: int | None
    """About how many rows there are, if the source has counted since the table was made."""
    resumed: Copied = field(default_factory=Copied)
    """What was there already when this process took the copy up."""
    clock: Callable[[], float] = time.monotonic
    # What is committed, and how to learn what of a part is read: replaced together, so that nobody counts a part twice.
    _parts: tuple[Copied, Callable[[], Copied]] = (Copied(), Copied)
    _ended_s: float | None = None

    def __post_init__(self) -> None:
        self._started_s = self.clock()
        self._pace = Pace(self._started_s)

    def start_part(self, reading: Callable[[], Copied]) -> None:
        """Watch the part that is now read."""
        self._parts = (self._parts[0], reading)

    def finish_part(self) -> None:
        """Note that the part is committed."""
        self._parts = (self._read, Copied)

    def finish(self) -> None:
        """Stop the clock."""
        self._ended_s = self.clock()

    @property
    def is_finished(self) -> bool:
        """Whether all of it is committed."""
        return self._ended_s is not None

    @property
    def _read(self) -> Copied:
        """What this process has read."""
        done, reading = self._parts
        return done + reading()

    @property
    def copied(self) -> Copied:
        """All that is copied."""
        return self.resumed + self._read

    @property
    def rows(self) -> int:
        """How many rows."""
        return self.copied.rows

    @property
    def bytes(self) -> int:
        """How much of the source's table, on its disk."""
        return min(self.copied.bytes, self.total_bytes)

    @property
    def total_bytes(self) -> int:
        """How large the source's table was when the copy began."""
        return self.total_blocks * BLOCK_BYTES

    @property
    def seconds(self) -> float:
        """For how long this process has been copying."""
        return (self.clock() if self._ended_s is None else self._ended_s) - self._started_s

    @property
    def percent(self) -> float:
        """How much of all blocks; a table without any has its copy all before it, or all behind."""
        if self.is_finished:
            return 100.0
        return 100 * self.bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def rows_per_second(self) -> float:
        """How fast this process copies."""
        if self.is_finished:
            return self._read.rows / self.seconds if self.seconds > 0 else 0.0
        return self._noted_pace.rows_per_second

    @property
    def seconds_left(self) -> float | None:
        """How long the rest will take at the pace so far; None while that is unknown."""
        if self.is_finished:
            return 0.0
        return self._noted_pace.seconds_left

    @property
    def _noted_pace(self) -> Pace:
        read = self._read
        self._pace.note(self.clock(), read, self.total_blocks - self.resumed.blocks - read.blocks)
        return self._pace
