"""Which files of a table are rewritten together, whatever its format is: decisions, and nothing else.

Batches leave small files behind. The smallest are put together, and with them every file that is not much larger
than all before it: so what a row costs over its life is a few rewritings, and the files that remain get larger
from one to the next. A file of which many rows are gone is rewritten whatever its size. A table that has come to rest
is put in order for good: what would be too much work while changes go on is then done once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from penstock.model.lsn import Lsn
from penstock.model.table import TableId

# With fewer, what is gained is less than a commit costs that others have to read.
_MIN_FILES = 8
# A file joins those before it if it is at most so many times as large as they are together: then each rewriting makes
# it half as large again, and a row is written ten times on its way from one megabyte to sixty-four.
_JOINED_TIMES = 2
# To open a file costs a reader as much as to read so many bytes more; so tiny files weigh as much as a small one.
_LEAST_BYTES = 64 << 10
# From so many of a file's rows on, readers pay more for those that are gone than one rewriting costs.
_WORN_SHARE = 0.2
# At rest, from so many on: a row that changed costs a hundred times its own size at most. In a table that is no larger
# than so many files of the wanted size: a larger one takes long to read anyway, and longer to rewrite.
_RESTING_WORN_SHARE = 0.01
_RESTING_FILES = 4


@dataclass(frozen=True, slots=True)
class UpkeepPolicy:
    """How much upkeep tables get."""

    every_s: float | None = 60.0
    """How long to wait between two upkeeps of a table; None for ever."""
    target_file_bytes: int = 64 << 20
    """A file of half that size is large enough; none is made much larger."""
    keep_s: float = 3600.0
    """For how long the table can be read as it was: what no younger version needs is removed."""
    most_versions: int = 600
    """From so many on, a sixth of it at rest, those are forgotten by which no file lives; for a format that lists all
    versions at every commit, with a kilobyte each. That takes a look at each that stays, so it is not always done."""
    all_versions_s: float = 300.0
    """Younger ones than this are not forgotten for being many."""
    orphan_s: float = 86_400.0
    """At what age a file that no version ever had is nobody's: no writer takes that long to commit what it wrote."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file, as a table's metadata knows it."""

    name: str
    size_bytes: int
    rows: int
    gone: int
    """How many of them are deleted."""

    @property
    def live_bytes(self) -> int:
        """About what its rows would take without those that are gone."""
        return self.size_bytes * (self.rows - self.gone) // self.rows if self.rows else 0

    @property
    def weight(self) -> int:
        """What it costs readers."""
        return max(self.live_bytes, _LEAST_BYTES)

    def is_worn(self, share: float) -> bool:
        """Whether so many of its rows are gone."""
        return self.gone >= share * self.rows


class Rest:
    """Remembers how far each table was at its last upkeep."""

    def __init__(self) -> None:
        self._positions: dict[TableId, Lsn] = {}

    def is_resting(self, table: TableId, position: Lsn) -> bool:
        """Whether a table is where it was when this was last asked."""
        before, self._positions[table] = self._positions.get(table), position
        return before == position


def plan_rewrites(
    files: Iterable[StoredFile], target_bytes: int, *, is_resting: bool = False
) -> list[list[StoredFile]]:
    """Return groups of files, each to be rewritten as one."""
    known = list(files)
    is_put_in_order = is_resting and sum(file.live_bytes for file in known) <= _RESTING_FILES * target_bytes
    worn_share = _RESTING_WORN_SHARE if is_put_in_order else _WORN_SHARE
    small = [file for file in known if file.live_bytes < target_bytes // 2]
    run = _ordered(small) if is_put_in_order else growing_run(small)
    chosen = {file.name for file in run}
    worn = [file for file in known if file.is_worn(worn_share) and file.name not in chosen]
    groups = [group for each in (run, worn) for group in _cut(each, target_bytes)]
    # What is alone is as large as it can get already, unless it is worn: then it is not as it should be.
    return [group for group in groups if len(group) > 1 or group[0].is_worn(worn_share)]


def growing_run(files: Iterable[StoredFile]) -> list[StoredFile]:
    """Return the smallest files, up to the last that is not much larger than all before it; none if they are few."""
    ordered = _ordered(files)
    before = [0, *accumulate(file.weight for file in ordered)]
    joined = [place for place, file in enumerate(ordered) if file.weight <= _JOINED_TIMES * before[place]]
    length = max(joined, default=-1) + 1
    return ordered[:length] if length >= _MIN_FILES else []


def _ordered(files: Iterable[StoredFile]) -> list[StoredFile]:
    return sorted(files, key=lambda file: (file.weight, file.name))


def _cut(files: Sequence[StoredFile], target_bytes: int) -> list[list[StoredFile]]:
    groups: list[list[StoredFile]] = []
    room = 0
    for file in files:
        if not groups or file.live_bytes > room:
            groups.append([])
            room = target_bytes
        groups[-1].append(file)
        room -= file.live_bytes
    return groups
