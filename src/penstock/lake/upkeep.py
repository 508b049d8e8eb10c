"""Which files of a table are rewritten together, whatever its format is: decisions, and nothing else.

Batches leave small files behind. The smallest are put together, and with them every file that is not much larger
than all before it: so what a row costs over its life is a few rewritings, and the files that remain get larger
from one to the next. A file of which many rows are gone is rewritten whatever its size. Between two upkeeps, after some
batches, the smallest files are put together: of a small table, to open them takes readers longer than all its rows. A
table that has come to rest is put in order for good: what would be too much work while changes go on is then done once.
A small one does not have to rest for long: it is little work, and without a single deleted row it is read much faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate

from penstock.model.lsn import Lsn
from penstock.model.mode import TableMode
from penstock.model.table import TableId

# With fewer, what is gained is less than a commit costs that others have to read.
_MIN_FILES = 4
# A file joins those before it if it is at most so many times as large as they are together: then each rewriting makes
# it half as large again, and a row is written ten times on its way from one megabyte to sixty-four.
_JOINED_TIMES = 2
# To open a file costs a reader as much as to read so many bytes more; so tiny files weigh as much as a small one.
_LEAST_BYTES = 64 << 10
# From so many of a file's rows on, readers pay more for those that are gone than one rewriting costs.
_WORN_SHARE = 0.2
# A brief upkeep leaves larger files alone, so that it is brief: they are fewer, and take long to read anyway.
_BRIEF_BYTES = 1 << 20
# At rest each of these is less strict: what is rewritten is up to sixteen times as much as was added, and a hundred
# times what was changed. In a table that is no larger than so many files of the wanted size: a larger one takes long to
# read anyway, and longer to rewrite.
_RESTING_MIN_FILES = 2
_RESTING_JOINED_TIMES = 16
_RESTING_WORN_SHARE = 0.01
_RESTING_FILES = 4
# What may be put in order in a pause, at most once a minute: it takes a third of a second.
_PAUSING_BYTES = 16 << 20
# Who keeps versions for longer wants to travel to each of them.
_TIME_TRAVEL_S = 3600.0


@dataclass(frozen=True, slots=True)
class UpkeepPolicy:
    """How much upkeep tables get."""

    every_s: float | None = 60.0
    """How long to wait between two upkeeps of a table; None for ever, and for brief ones too."""
    brief_after: int = 4
    """After so many batches of a table its small files are put together: with its deletes each takes a reader of
    Iceberg ten milliseconds, and a small table a tenth of a second in all."""
    target_file_bytes: int = 64 << 20
    """A file of half that size is large enough; none is made much larger."""
    keep_s: float = 3600.0
    """For how long files stay that the table had: who reads it since before they were replaced still needs them."""
    rest_s: float = 60.0
    """A table that has not changed for so long is at rest."""
    pause_s: float = 4.0
    """A small one may be put in order after so long."""
    all_versions_s: float = 600.0
    """For how long every version can be read, where that is less: who reads a table often pays for each of them."""
    most_young: int = 300
    """So many of these at most, where a format need not keep them in one piece."""
    most_superfluous: int = 150
    """So many versions are forgotten together by which no file lives, fewer at rest; for a format that lists all
    versions at every commit, with a kilobyte each. It takes a look at each that stays, so it is not done one by one."""
    orphan_s: float = 86_400.0
    """At what age a file that no version ever had is nobody's: no writer takes that long to commit what it wrote."""

    def forgets_early(self, mode: TableMode) -> bool:
        """Whether versions may be forgotten before their files: not those of a history, which others read on from."""
        return mode is not TableMode.HISTORY and self.keep_s <= _TIME_TRAVEL_S


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


@dataclass(frozen=True, slots=True)
class Rewrites:
    """What is to be rewritten."""

    groups: list[list[StoredFile]]
    """Files of which each group becomes one."""
    in_order: bool
    """Whether that leaves nothing to be done."""


class Calm(Enum):
    """How long a table has been without changes."""

    NONE = auto()
    PAUSE = auto()
    REST = auto()


class Rest:
    """Remembers since when each table is where it is, as its upkeeps find it, and when it was changed last."""

    def __init__(self) -> None:
        self._found: dict[TableId, tuple[Lsn, float]] = {}
        self._changed_s: dict[TableId, float] = {}

    def note_change(self, table: TableId, now_s: float) -> None:
        """Remember that a batch was applied."""
        self._changed_s[table] = now_s

    def calm(self, table: TableId, position: Lsn, now_s: float, policy: UpkeepPolicy) -> Calm:
        """Return whether a table is where it was at an earlier upkeep, long ago, or no batch came for a while."""
        before = self._found.get(table)
        if before is None or before[0] != position:
            self._found[table] = position, now_s
        elif now_s - before[1] >= policy.rest_s:
            return Calm.REST
        return Calm.PAUSE if now_s - self._changed_s.get(table, now_s) >= policy.pause_s else Calm.NONE


def choose_rewrites(files: Sequence[StoredFile], target_bytes: int, calm: Calm, *, is_brief: bool) -> Rewrites:
    """Return what an upkeep of this kind is to rewrite."""
    if is_brief:
        return Rewrites(plan_brief_rewrites(files, target_bytes), in_order=False)
    in_order = can_be_put_in_order(files, target_bytes, calm)
    return Rewrites(plan_rewrites(files, target_bytes, in_order=in_order), in_order)


def can_be_put_in_order(files: Iterable[StoredFile], target_bytes: int, calm: Calm) -> bool:
    """Whether a table is so small that it may be rewritten for little."""
    most_bytes = {Calm.NONE: -1, Calm.PAUSE: _PAUSING_BYTES, Calm.REST: _RESTING_FILES * target_bytes}[calm]
    return sum(file.live_bytes for file in files) <= most_bytes


def plan_rewrites(files: Iterable[StoredFile], target_bytes: int, *, in_order: bool = False) -> list[list[StoredFile]]:
    """Return groups of files, each to be rewritten as one; what leaves the table `in_order`, if that is wanted."""
    known = list(files)
    worn_share = _RESTING_WORN_SHARE if in_order else _WORN_SHARE
    small = [file for file in known if file.live_bytes < target_bytes // 2]
    run = growing_run(small, _RESTING_MIN_FILES, _RESTING_JOINED_TIMES) if in_order else growing_run(small)
    chosen = {file.name for file in run}
    worn = [file for file in known if file.is_worn(worn_share) and file.name not in chosen]
    # Large worn files stay apart from small ones, whose next rewriting would be theirs too; at rest there is none.
    lists = [_ordered([*run, *worn])] if in_order else [run, worn]
    groups = [group for each in lists for group in _cut(each, target_bytes)]
    # What is alone is as large as it can get already, unless it is worn: then it is not as it should be.
    return [group for group in groups if len(group) > 1 or group[0].is_worn(worn_share)]


def plan_brief_rewrites(files: Iterable[StoredFile], target_bytes: int) -> list[list[StoredFile]]:
    """Return groups of small files, each to be rewritten as one, that are little work."""
    most_bytes = min(_BRIEF_BYTES, target_bytes // 2)
    run = growing_run(file for file in files if file.size_bytes < most_bytes)
    return [group for group in _cut(run, target_bytes) if len(group) > 1]


def growing_run(
    files: Iterable[StoredFile], min_files: int = _MIN_FILES, joined_times: int = _JOINED_TIMES
) -> list[StoredFile]:
    """Return the smallest files, up to the last that is not much larger than all before it; none if they are few."""
    ordered = _ordered(files)
    before = [0, *accumulate(file.weight for file in ordered)]
    joined = [place for place, file in enumerate(ordered) if file.weight <= joined_times * before[place]]
    length = max(joined, default=-1) + 1
    return ordered[:length] if length >= min_files else []


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
