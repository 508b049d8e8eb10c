"""The ranges of blocks that a table is copied in: how they are planned, and how much of them was read.

Ranges of one snapshot cover every row exactly once: they divide the blocks without gap or overlap,
and the last one is open, for blocks that were added after the plan was made. Reading them is another module's
business: whoever only plans need not load its compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.model.copying import CopyRange
from penstock.model.table import TableSchema
from penstock.postgres.catalog import Leaf, blocks
from penstock.postgres.connection import Connection
from penstock.postgres.publication import PublishedTable

BLOCK_BYTES = 8192
"""What Postgres is built with, nearly everywhere; only progress is told by it."""
BLOCKS_PER_RANGE = 16384
"""128 MiB of heap: seconds of work for one task, and little to repeat when one fails."""
LEAST_BLOCKS_PER_RANGE = 1024
"""8 MiB of heap: with less, connecting takes longer than reading."""
RANGES_WANTED = 8
"""Of a table large enough: tasks take what comes next, so with a few ranges a core all end at about the same time."""
MAX_RANGES = 10_000
"""More tasks than this only burden Spark's scheduler."""


@dataclass(frozen=True, slots=True)
class Copied:
    """How much of a table was read."""

    rows: int = 0
    blocks: int = 0

    def __add__(self, other: Copied) -> Copied:
        return Copied(self.rows + other.rows, self.blocks + other.blocks)

    @property
    def bytes(self) -> int:
        """What the blocks take on the source's disk."""
        return self.blocks * BLOCK_BYTES


def plan_ranges(
    connection: Connection,
    table: PublishedTable | TableSchema,
    *,
    blocks_per_range: int = BLOCKS_PER_RANGE,
    max_ranges: int = MAX_RANGES,
) -> tuple[CopyRange, ...]:
    """Divide a table, or each of its leaf partitions, into ranges; every leaf has one at least."""
    leaves = blocks(connection, table.id)
    total = sum(leaf.blocks for leaf in leaves)
    # Each leaf may end with a range that is not full, hence the allowance.
    full_ranges = max(max_ranges - len(leaves), 1)
    wanted = max(LEAST_BLOCKS_PER_RANGE, -(-total // RANGES_WANTED))
    size = max(min(blocks_per_range, wanted), -(-total // full_ranges))
    return tuple(part for leaf in leaves for part in _divide(leaf, size))


def _divide(leaf: Leaf, size: int) -> Iterator[CopyRange]:
    starts = range(0, max(leaf.blocks, 1), size)
    for start in starts:
        end = None if start == starts[-1] else start + size
        yield CopyRange(leaf.name, leaf.file, start, end, min(leaf.blocks - start, size))
