"""A copy in parts, as data: which blocks of which files are read together, and from which position changes matter.

Rule 1: parts are read in order, each as of one snapshot; the first snapshot's position is the copy's `since`.
Rule 2: a row that no transaction touched between two snapshots lies in the same block of the same file in both. So
the parts hold every untouched row exactly once, whichever snapshots they were read as of.
Rule 3: rows that were touched since may be missing, outdated or twice. They are in the change log from `since` on, by
key; once the parts are there, those keys are removed and read anew as of the last snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from penstock.model.lsn import Lsn
from penstock.model.table import TableName


@dataclass(frozen=True, slots=True)
class CopyRange:
    """A part of a table: the rows of one leaf in the blocks from `first_block` up to, not including, `end_block`."""

    relation: TableName
    file: int
    """The number of the leaf's file as of the snapshot: in another file, blocks mean nothing."""
    first_block: int = 0
    end_block: int | None = None
    """None for all blocks from the first on."""
    blocks: int = 0
    """How many there were when the plan was made."""
    condition: str | None = None
    """What else must be true of a row, in SQL."""


@dataclass(frozen=True, slots=True)
class CopyOutline:
    """What must be remembered of a copy for another process, with another snapshot, to go on with it."""

    since: Lsn
    ranges: tuple[CopyRange, ...]
    part_blocks: int
    """How many blocks a part has at least; the last one may have fewer."""

    @property
    def parts(self) -> Sequence[tuple[CopyRange, ...]]:
        """The ranges, grouped; a table without any is one part without ranges."""
        parts: list[tuple[CopyRange, ...]] = []
        current: list[CopyRange] = []
        for each in self.ranges:
            current.append(each)
            if sum(part.blocks for part in current) >= self.part_blocks:
                parts.append(tuple(current))
                current = []
        return [*parts, tuple(current)] if current or not parts else parts

    @property
    def files(self) -> dict[TableName, int]:
        """The file of each leaf: while these are the same, blocks mean the same."""
        return {each.relation: each.file for each in self.ranges}

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads back; a leaf's ranges by where they start."""
        return {"since": str(self.since), "part_blocks": self.part_blocks, "leaves": _leaves(self.ranges)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CopyOutline:
        """Rebuild what `to_json` gave."""
        ranges = tuple(each for leaf in data["leaves"] for each in _ranges(**leaf))
        return cls(Lsn.parse(data["since"]), ranges, data["part_blocks"])


def _leaves(ranges: Sequence[CopyRange]) -> list[dict[str, Any]]:
    leaves = []
    for (relation, file), group in groupby(ranges, lambda each: (each.relation, each.file)):
        members = list(group)
        leaves.append(
            {
                "schema": relation.schema,
                "name": relation.name,
                "file": file,
                "starts": [each.first_block for each in members],
                "blocks": sum(each.blocks for each in members),
            }
        )
    return leaves


def _ranges(schema: str, name: str, file: int, starts: list[int], blocks: int) -> list[CopyRange]:
    relation = TableName(schema, name)
    return [
        CopyRange(relation, file, start, end, (blocks if end is None else end) - start)
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]
