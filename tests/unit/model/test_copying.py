"""Parts read as of different snapshots, settled by what was touched meanwhile, are the table as of the last one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.copying import CopyOutline, CopyRange
from penstock.model.lsn import Lsn
from penstock.model.table import TableName

RELATION = TableName("public", "t")
NAMES = st.builds(TableName, st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=5))


def ranges_of(leaf: TableName, file: int, sizes: list[int]) -> list[CopyRange]:
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    ends = [*starts[1:], None]
    return [CopyRange(leaf, file, *each) for each in zip(starts, ends, sizes, strict=True)]


OUTLINES = st.builds(
    lambda since, leaves, part_blocks: CopyOutline(
        Lsn(since),
        tuple(each for leaf, (file, sizes) in leaves.items() for each in ranges_of(leaf, file, sizes)),
        part_blocks,
    ),
    st.integers(0, 1 << 60),
    st.dictionaries(NAMES, st.tuples(st.integers(1, 99), st.lists(st.integers(1, 50), min_size=1, max_size=6))),
    st.integers(1, 100),
)


@given(OUTLINES)
def test_an_outline_survives_json(outline: CopyOutline) -> None:
    assert CopyOutline.from_json(json.loads(json.dumps(outline.to_json()))) == outline


@given(OUTLINES)
def test_parts_are_the_ranges_in_order_each_large_enough_but_the_last(outline: CopyOutline) -> None:
    parts = outline.parts
    assert tuple(each for part in parts for each in part) == outline.ranges
    assert all(sum(each.blocks for each in part) >= outline.part_blocks for part in parts[:-1])
    assert parts


BLOCKS = 6


@dataclass
class Heap:
    """A table as Postgres keeps it: versions of rows in blocks; a change may put the new version anywhere."""

    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The block and the value of each key."""
    log: list[set[int]] = field(default_factory=list)
    """The keys that each transaction touched."""

    def run(self, changes: list[tuple[str, int, int, int]]) -> None:
        touched: set[int] = set()
        for kind, key, other, block in changes:
            if kind == "put":
                self.rows[key] = (block, other)
            elif kind == "delete":
                self.rows.pop(key, None)
            elif key in self.rows and other not in self.rows:
                self.rows[other] = (block, self.rows.pop(key)[1])
                touched.add(other)
            touched.add(key)
        self.log.append(touched)

    def read(self, blocks: range) -> list[tuple[int, int]]:
        return [(key, value) for key, (block, value) in self.rows.items() if block in blocks]


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete", "move"]), st.integers(0, 9), st.integers(0, 9), st.integers(0, BLOCKS - 1)
    ),
    max_size=8,
)


@given(CHANGES, st.lists(CHANGES, min_size=BLOCKS, max_size=BLOCKS), st.lists(st.booleans(), min_size=BLOCKS))
def test_parts_of_different_snapshots_settled_by_the_log_are_the_table_as_of_the_last(
    before: list[tuple[str, int, int, int]], between: list[list[tuple[str, int, int, int]]], renewed: list[bool]
) -> None:
    heap = Heap()
    heap.run(before)
    first = len(heap.log)
    seen, copied = Heap(dict(heap.rows)), list[tuple[int, int]]()
    for block in range(BLOCKS):
        copied += seen.read(range(block, block + 1))
        heap.run(between[block])
        if renewed[block]:
            seen = Heap(dict(heap.rows))
    last = Heap(dict(heap.rows))
    touched = set().union(*heap.log[first:])
    settled = [(key, value) for key, value in copied if key not in touched]
    settled += [(key, value) for key, value in last.read(range(BLOCKS)) if key in touched]
    assert sorted(settled) == sorted(last.read(range(BLOCKS)))
