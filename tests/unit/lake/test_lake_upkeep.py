"""Which files are rewritten together, and that rewriting keeps every row and every deletion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.lake import rewrite
from penstock.lake.key import Numbers
from penstock.lake.layout import Layout
from penstock.lake.rewrite import Rewriting, SourceFile, StoppedError, clustering
from penstock.lake.upkeep import (
    Calm,
    Rest,
    StoredFile,
    UpkeepPolicy,
    can_be_put_in_order,
    choose_rewrites,
    growing_run,
    plan_brief_rewrites,
    plan_rewrites,
)
from penstock.model.lsn import Lsn
from penstock.model.mode import TableMode
from penstock.model.table import TableId
from penstock.testing.destination_suite import ITEMS

TARGET = 64 << 20
MEGABYTE = 1 << 20


def files(*sizes: int, gone: int = 0) -> list[StoredFile]:
    return [StoredFile(f"f{number}", size, 100, gone) for number, size in enumerate(sizes)]


def names(groups: list[list[StoredFile]]) -> list[list[str]]:
    return [[file.name for file in group] for group in groups]


@dataclass
class Stream:
    """A table that grows, and how much was written to put its files together."""

    stored: list[StoredFile] = field(default_factory=list)
    written: int = 0

    def add(self, name: str) -> None:
        self.stored.append(StoredFile(name, 20_000, 100, 0))

    def rewrite(self, groups: list[list[StoredFile]]) -> None:
        for group in groups:
            size = sum(file.size_bytes for file in group)
            self.written += size
            self.stored = [file for file in self.stored if file not in group]
            self.stored.append(StoredFile(f"+{group[0].name}", size, 100, 0))


def test_a_few_small_files_wait_for_company() -> None:
    assert plan_rewrites(files(*[1000] * 3), TARGET) == []
    assert len(plan_rewrites(files(*[1000] * 4), TARGET)) == 1


def test_a_large_file_is_not_rewritten_for_the_sake_of_small_ones() -> None:
    assert names(plan_rewrites(files(*[1000] * 8, 20 * MEGABYTE), TARGET)) == [[f"f{number}" for number in range(8)]]


def test_a_file_joins_once_those_before_it_are_half_as_large() -> None:
    assert len(growing_run(files(*[MEGABYTE] * 8, 15 * MEGABYTE))) == 9
    assert len(growing_run(files(*[MEGABYTE] * 8, 17 * MEGABYTE))) == 8


def test_one_odd_small_file_does_not_keep_the_others_apart() -> None:
    assert len(growing_run(files(100_000, *[MEGABYTE] * 20))) == 21


def test_files_that_are_large_enough_are_left_alone() -> None:
    assert plan_rewrites(files(*[TARGET // 2] * 50), TARGET) == []


def test_what_is_rewritten_together_makes_a_file_of_the_wanted_size() -> None:
    groups = plan_rewrites(files(*[TARGET // 4] * 40), TARGET)
    assert [sum(file.live_bytes for file in group) for group in groups] == [TARGET] * 10


@pytest.mark.parametrize(("gone", "is_worn"), [(19, False), (20, True), (100, True)])
def test_worn_files_are_rewritten_whatever_their_size(gone: int, is_worn: bool) -> None:
    assert bool(plan_rewrites(files(4 * TARGET, gone=gone), TARGET)) is is_worn


def test_worn_small_files_are_rewritten_together() -> None:
    assert names(plan_rewrites(files(1000, 2000, 3000, gone=50), TARGET)) == [["f0", "f1", "f2"]]


def test_a_brief_upkeep_puts_small_files_together_and_leaves_all_others_alone() -> None:
    small = [StoredFile(f"s{number}", 1000, 100, 99) for number in range(8)]
    others = [*files(*[MEGABYTE] * 20), StoredFile("worn", MEGABYTE, 100, 90), StoredFile("large", TARGET, 1000, 999)]
    assert names(plan_brief_rewrites([*small, *others], TARGET)) == [[file.name for file in small]]
    assert plan_brief_rewrites([*small[:3], *others], TARGET) == []


@given(st.lists(st.integers(1, 2 * MEGABYTE), max_size=60), st.sampled_from([MEGABYTE, 2 * MEGABYTE, TARGET]))
def test_brief_upkeeps_come_to_an_end_too(sizes: list[int], target: int) -> None:
    stream = Stream(files(*sizes))
    for _ in range(20):
        groups = plan_brief_rewrites(stream.stored, target)
        assert all(len(group) > 1 for group in groups)
        assert all(file.size_bytes < min(MEGABYTE, target // 2) for group in groups for file in group)
        stream.rewrite(groups)
    assert not plan_brief_rewrites(stream.stored, target)


def test_a_table_rests_if_it_has_been_where_it_is_for_long_enough() -> None:
    rest = Rest()
    asked = [(1, 10, 0), (1, 10, 59), (1, 10, 60), (1, 20, 90), (2, 20, 120), (1, 20, 149), (2, 30, 180), (1, 20, 150)]
    found = [rest.calm(TableId(table), Lsn(position), now_s, UpkeepPolicy()) for table, position, now_s in asked]
    assert [calm is Calm.REST for calm in found] == [False, False, True, False, False, False, False, True]
    assert Calm.PAUSE not in found, "nothing is known of changes"


def test_a_table_pauses_if_no_batch_came_for_a_while() -> None:
    rest, policy, found = Rest(), UpkeepPolicy(), []
    for changed_s, position, now_s in [(0, 10, 3), (0, 10, 4), (5, 20, 6), (5, 20, 9), (5, 20, 66)]:
        rest.note_change(TableId(1), changed_s)
        found.append(rest.calm(TableId(1), Lsn(position), now_s, policy))
    assert found == [Calm.NONE, Calm.PAUSE, Calm.NONE, Calm.PAUSE, Calm.REST]


def test_put_in_order_small_files_need_no_company() -> None:
    assert names(plan_rewrites(files(1000, 1000), TARGET, in_order=True)) == [["f0", "f1"]]
    assert plan_rewrites(files(1000, TARGET), TARGET, in_order=True) == []


def test_put_in_order_no_file_is_rewritten_for_much_less_than_it_is() -> None:
    assert names(plan_rewrites(files(MEGABYTE, 17 * MEGABYTE), TARGET, in_order=True)) == []
    assert names(plan_rewrites(files(MEGABYTE, 16 * MEGABYTE), TARGET, in_order=True)) == [["f0", "f1"]]


@pytest.mark.parametrize(("gone", "is_rewritten"), [(0, False), (1, True)])
def test_put_in_order_a_file_is_rewritten_for_few_rows_that_are_gone(gone: int, is_rewritten: bool) -> None:
    assert bool(plan_rewrites(files(TARGET, gone=gone), TARGET, in_order=True)) is is_rewritten


def test_put_in_order_worn_files_and_small_ones_become_one() -> None:
    worn = StoredFile("worn", 20 * MEGABYTE, 100, 2)
    assert names(plan_rewrites([worn, *files(1000, 1000)], TARGET, in_order=True)) == [["f0", "f1", "worn"]]


def test_only_small_tables_are_put_in_order() -> None:
    small, large, too_large = files(16 * MEGABYTE), files(*[TARGET] * 4), files(*[TARGET] * 4, 1000)
    allowed = {
        calm: [can_be_put_in_order(each, TARGET, calm) for each in ([], small, large, too_large)] for calm in Calm
    }
    assert allowed == {
        Calm.NONE: [False, False, False, False],
        Calm.PAUSE: [True, True, False, False],
        Calm.REST: [True, True, True, False],
    }


def test_an_upkeep_does_what_its_kind_and_the_table_allow() -> None:
    two, four, large = files(1000, 1000), files(*[1000] * 4), files(*[TARGET] * 5, 1000, 1000)
    asked = [
        (two, True, Calm.NONE),
        (two, True, Calm.REST),
        (two, False, Calm.NONE),
        (two, False, Calm.PAUSE),
        (four, True, Calm.REST),
        (large, False, Calm.REST),
    ]
    found = [choose_rewrites(each, TARGET, calm, is_brief=brief) for each, brief, calm in asked]
    assert [[len(group) for group in each.groups] for each in found] == [[], [], [], [2], [4], []]
    assert [each.in_order for each in found] == [False, False, False, True, False, False]


@given(st.lists(st.tuples(st.integers(1, 2 * TARGET), st.integers(0, 100)), max_size=60), st.booleans())
def test_no_file_is_rewritten_twice_and_rewriting_comes_to_an_end(found: list[tuple[int, int]], in_order: bool) -> None:
    stored = [StoredFile(f"f{number}", size, 100, gone) for number, (size, gone) in enumerate(found)]
    for round_ in range(20):
        groups = plan_rewrites(stored, TARGET, in_order=in_order)
        chosen = [file.name for group in groups for file in group]
        assert len(set(chosen)) == len(chosen)
        if not groups:
            break
        made = [
            StoredFile(f"{round_}.{number}", sum(file.live_bytes for file in group), 100, 0)
            for number, group in enumerate(groups)
        ]
        stored = [file for file in stored if file.name not in chosen] + made
    assert not plan_rewrites(stored, TARGET, in_order=in_order)


@pytest.mark.parametrize(("brief_after", "most_small", "most_written"), [(60, 66, 12), (4, 8, 30)])
def test_a_stream_leaves_few_files_and_writes_each_row_a_few_times(
    brief_after: int, most_small: int, most_written: int
) -> None:
    stream = Stream()
    for second in range(24 * 3600):
        stream.add(str(second))
        if second % 60 == 59:
            stream.rewrite(plan_rewrites(stream.stored, TARGET))
        elif second % brief_after == brief_after - 1:
            stream.rewrite(plan_brief_rewrites(stream.stored, TARGET))
        assert sum(file.size_bytes < MEGABYTE for file in stream.stored) <= most_small
    total = sum(file.size_bytes for file in stream.stored)
    assert len(stream.stored) < 2 * total // TARGET + 20
    assert stream.written < most_written * total
    sizes = sorted(file.size_bytes for file in stream.stored if file.size_bytes < TARGET // 2)
    assert all(after > before for before, after in pairwise(sizes))


places = st.sets(st.integers(0, 19))


@given(st.lists(st.tuples(places, places, st.booleans()), min_size=1, max_size=5))
def test_rows_deleted_while_they_are_rewritten_are_deleted_in_the_new_file(
    found: list[tuple[set[int], set[int], bool]],
) -> None:
    """Each source had rows gone before, loses others meanwhile, or goes as a whole."""
    sources = [SourceFile(str(number), 20, BitMap64(before)) for number, (before, _, _) in enumerate(found)]
    now = {str(number): BitMap64(before | more) for number, (before, more, goes) in enumerate(found) if not goes}

    def read(path: str, wanted: Numbers) -> Iterator[pa.Table]:
        for part in np.array_split(wanted, 3):
            yield pa.table({"key": (part * 7) % 20, "file": pa.array([path] * len(part), pa.string()), "place": part})

    rewriting = Rewriting(sources, read, ["key"], lambda: False)
    written = [row for table in rewriting.tables() for row in table.to_pylist()]
    before = {(source.path, place) for source in sources for place in source.places.tolist()}
    assert {(row["file"], row["place"]) for row in written} == before
    assert [row["key"] for row in written] == sorted(row["key"] for row in written)
    after = {(path, place) for path, gone in now.items() for place in range(20) if place not in gone}
    lost = rewriting.lost(now)
    if lost is None:
        assert 2 * len(after) < len(written)
    else:
        kept = [row for number, row in enumerate(written) if number not in set(lost.tolist())]
        assert {(row["file"], row["place"]) for row in kept} == after


def test_rows_that_come_back_meanwhile_make_a_rewriting_worthless() -> None:
    rewriting = Rewriting([SourceFile("a", 4, BitMap64([1]))], _numbers, [], lambda: False)
    list(rewriting.tables())
    assert rewriting.lost({"a": BitMap64([2])}) is None
    lost = rewriting.lost({"a": BitMap64([1, 2])})
    assert lost is not None
    assert lost.tolist() == [1]


def test_what_is_sorted_at_once_is_bounded_and_so_are_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "_SORTED_BYTES", 8 * 100)
    monkeypatch.setattr(rewrite, "_GROUP_BYTES", 8 * 30)
    rewriting = Rewriting([SourceFile("a", 250, BitMap64())], _numbers, ["n"], lambda: False)
    assert [table.num_rows for table in rewriting.tables()] == [30, 30, 30, 10, 30, 30, 30, 10, 30, 20]


def test_rewriting_ends_when_all_does() -> None:
    with pytest.raises(StoppedError):
        list(Rewriting([SourceFile("a", 4, BitMap64())], _numbers, [], lambda: True).tables())


def _numbers(_path: str, wanted: Numbers) -> Iterator[pa.Table]:
    for start in range(0, len(wanted), 10):
        yield pa.table({"n": wanted[start : start + 10]})


@pytest.mark.parametrize(
    ("mode", "columns"),
    [
        (TableMode.CURRENT, ["id"]),
        (TableMode.HISTORY, ["id", "_LSN", "_ORDINAL"]),
        (TableMode.SCD2, ["_is_current", "id", "_LSN", "_ORDINAL"]),
    ],
)
def test_rows_are_ordered_by_what_they_are_looked_for_by(mode: TableMode, columns: list[str]) -> None:
    assert clustering(ITEMS, Layout(mode)) == columns
