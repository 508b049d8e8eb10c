"""What is told of a copy: true at every moment, steady between ranges, and never more than all."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.reports import make_report

from penstock.model.lsn import Lsn
from penstock.model.phase import DataSync, Errored, FinishedCopy, Init, ManualRetry, Phase, Ready
from penstock.model.table import TableId, TableName
from penstock.postgres.ranges import BLOCK_BYTES, Copied
from penstock.runtime.progress import CopyProgress
from penstock.runtime.report import (
    REPORT_FILE_NAME,
    TableReport,
    read_report,
    read_table_report,
    table_report,
    write_report,
)
from penstock.runtime.tables import TableState


@dataclass
class Copy:
    """A copy whose clock and counts are the test's."""

    total_blocks: int = 100
    resumed: Copied = field(default_factory=Copied)
    now_s: float = 1000.0
    read: Copied = field(default_factory=Copied)

    def __post_init__(self) -> None:
        self.progress = CopyProgress(self.total_blocks, None, self.resumed, clock=lambda: self.now_s)
        self.progress.start_part(lambda: self.read)

    def go_on(self, seconds: float, rows: int = 0, blocks: int = 0) -> None:
        self.now_s += seconds
        self.read += Copied(rows, blocks)

    @property
    def left_s(self) -> float:
        left_s = self.progress.seconds_left
        assert left_s is not None
        return left_s

    def told(self, phase: Phase | None = None) -> TableReport:
        state = TableState(TableId(1), TableName("public", "t"), phase or DataSync(), copy=self.progress)
        return table_report(state)


def test_before_the_first_range_there_is_no_pace_and_no_time_left() -> None:
    copy = Copy()
    copy.go_on(5)
    told = copy.told()
    assert (told.copied_percent, told.rows_per_second, told.seconds_left) == (0.0, 0.0, None)
    assert told.total_bytes == 100 * BLOCK_BYTES


def test_at_a_steady_pace_the_time_left_runs_down_like_a_clock() -> None:
    """Ranges of 10 blocks every 5 seconds, asked every second: 50 seconds in all."""
    copy = Copy()
    left = []
    for second in range(1, 50):
        copy.go_on(1, *((1000, 10) if second % 5 == 0 else (0, 0)))
        if second >= 5:
            left.append(copy.left_s)
            assert copy.progress.rows_per_second == pytest.approx(200)
    assert left == pytest.approx([50 - second for second in range(5, 50)])


def test_a_time_that_is_up_was_wrong_and_is_not_told_until_there_is_another() -> None:
    copy = Copy()
    copy.go_on(10, 1000, 50)
    assert copy.left_s == pytest.approx(10)
    copy.go_on(11)
    assert copy.progress.seconds_left is None
    assert 1000 / 21 <= copy.progress.rows_per_second < 100
    copy.go_on(9, 500, 25)
    assert copy.left_s > 0


def test_a_slow_start_fades_from_the_pace_without_a_jump() -> None:
    """Spark takes half a minute to start; then come 10 blocks every 5 seconds, 500 seconds in all."""
    copy = Copy(total_blocks=1000)
    copy.go_on(30)
    left = []
    for second in range(1, 301):
        copy.go_on(1, *((1000, 10) if second % 5 == 0 else (0, 0)))
        if second >= 5:
            left.append(copy.left_s)
    assert all(before * 0.7 < after < before for before, after in pairwise(left))
    assert left[-1] == pytest.approx(200, rel=0.05)
    assert copy.progress.rows_per_second == pytest.approx(200, rel=0.05)


def test_ranges_that_end_together_do_not_make_the_time_left_leap() -> None:
    """Four tasks of a minute each, which end within seconds of each other, again and again: 25 minutes in all."""
    copy = Copy(total_blocks=100)
    left = []
    for second in range(1, 1200):
        copy.go_on(1, *((100, 1) if second % 60 in {57, 58, 59, 0} else (0, 0)))
        if second >= 300:
            left.append((copy.left_s, 1500 - second))
    assert all(told == pytest.approx(true, abs=75) for told, true in left)


def test_when_all_is_read_nothing_is_left_however_long_the_commit_takes() -> None:
    copy = Copy()
    copy.go_on(10, 1000, 100)
    assert copy.left_s == 0
    copy.go_on(30)
    assert copy.left_s == 0


def test_a_small_table_goes_from_nothing_to_all() -> None:
    copy = Copy(total_blocks=1)
    assert copy.told().copied_percent == 0.0
    copy.go_on(0, 7, 1)
    assert copy.told().copied_percent == 100.0
    copy.progress.finish_part()
    copy.progress.finish()
    told = copy.told(FinishedCopy())
    assert (told.copied_rows, told.copied_percent, told.seconds_left) == (7, 100.0, None)


def test_an_empty_table_is_all_before_it_or_all_behind() -> None:
    copy = Copy(total_blocks=0)
    assert (copy.told().copied_percent, copy.told().total_bytes) == (0.0, 0)
    copy.progress.finish()
    assert copy.told(Ready()).copied_percent == 100.0


def test_what_an_earlier_process_copied_counts_as_done_but_not_as_pace() -> None:
    copy = Copy(resumed=Copied(blocks=60))
    assert copy.told().copied_percent == 60.0
    assert copy.told().seconds_left is None
    copy.go_on(10, 1000, 20)
    assert copy.told().copied_percent == 80.0
    assert copy.left_s == pytest.approx(10)


def test_parts_add_up() -> None:
    copy = Copy()
    copy.go_on(1, 10, 40)
    copy.progress.finish_part()
    copy.read = Copied()
    copy.progress.start_part(lambda: copy.read)
    copy.go_on(1, 10, 40)
    assert (copy.progress.rows, copy.progress.percent) == (20, 80.0)
    assert copy.left_s == pytest.approx(0.5)


def test_a_part_that_is_read_again_gives_no_negative_pace() -> None:
    copy = Copy()
    copy.go_on(10, 100, 40)
    assert copy.left_s == pytest.approx(15)
    copy.read = Copied()
    copy.go_on(1)
    assert copy.progress.rows_per_second >= 0
    copy.go_on(1, 100, 40)
    assert copy.left_s > 0


@pytest.mark.parametrize("phase", [Init(), Errored("broken", None, ManualRetry())])
def test_a_copy_that_stopped_has_neither_pace_nor_time_left(phase: Phase) -> None:
    copy = Copy()
    copy.go_on(10, 1000, 50)
    told = copy.told(phase)
    assert (told.copied_percent, told.rows_per_second, told.seconds_left) == (50.0, None, None)


def test_a_table_that_this_process_did_not_copy_has_no_figures() -> None:
    state = TableState(TableId(1), TableName("public", "t"), Ready(), Lsn(16))
    told = table_report(state)
    assert (told.copied_rows, told.copied_bytes) == (0, 0)
    assert (told.total_bytes, told.copied_percent, told.rows_per_second, told.seconds_left) == (None,) * 4


steps = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 10**9), st.integers(0, 200)), max_size=30)


@given(steps, st.integers(0, 100), st.integers(0, 100))
def test_no_history_gives_more_than_all_or_what_is_no_number(
    history: list[tuple[float, int, int]], total: int, resumed: int
) -> None:
    """Blocks may be more than were planned: the last range is open."""
    copy = Copy(total, Copied(blocks=resumed))
    for seconds, rows, blocks in history:
        copy.go_on(seconds, rows, blocks)
        told = copy.told()
        assert told.copied_percent is not None
        assert 0 <= told.copied_percent <= 100
        assert 0 <= told.copied_bytes <= (told.total_bytes or 0)
        for figure in (told.rows_per_second, told.seconds_left):
            assert figure is None or (math.isfinite(figure) and figure >= 0)


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    copy = Copy()
    copy.go_on(10, 1000, 50)
    table = copy.told()
    write_report(tmp_path, make_report(table, snapshot_age_s=1.5))
    read = read_report(tmp_path)
    assert read is not None
    assert read["snapshot_age_s"] == 1.5
    assert [read_table_report(each) for each in read["tables"]] == [table]


OLD = {
    "id": 1,
    "name": "public.t",
    "phase": "ready",
    "watermark": "0/10",
    "copied_rows": 5,
    "estimated_rows": None,
    "applied_events": 7,
    "error": None,
    "solution": None,
    "next_retry": None,
}


def test_the_file_of_an_older_or_newer_version_is_read(tmp_path: Path) -> None:
    newer = {**asdict(read_table_report(OLD)), "not_invented_yet": 1}
    (tmp_path / REPORT_FILE_NAME).write_text(json.dumps({"tables": [OLD, newer]}))
    read = read_report(tmp_path)
    assert read is not None
    first, second = [read_table_report(each) for each in read["tables"]]
    assert first == second
    assert (first.copied_rows, first.total_bytes, first.copied_percent) == (5, None, None)
