"""Upkeep of a lake's tables, as tests that any `Maintained` destination must pass: rows and position stay as they are.

Whatever happens to a table, with or without upkeep in between, its rows are the same: so tables are compared with
others that went through the same batches and never had any.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import pytest

from penstock import failpoint
from penstock.contract import Destination, Maintained, Positioned, Upkeep
from penstock.failpoint import FailpointError
from penstock.model.cell import UNCHANGED
from penstock.model.lsn import Lsn
from penstock.model.mode import TableMode
from penstock.model.table import TableSchema
from penstock.testing.batch import ArrowEvents, ArrowRows, Spark, no_spark, transaction
from penstock.testing.destination_suite import COPIED, ITEMS, START, Make, delete, insert, truncate, update

in_every_mode = pytest.mark.parametrize("mode", list(TableMode))
"""Run a test for all modes."""

BATCHES: list[list[Make]] = [
    [
        insert(ITEMS, 10 + number, f"n{number}", f"body {number}"),
        update(ITEMS, 1, f"v{number}", UNCHANGED),
        *([delete(ITEMS, 9 + number)] if number in {3, 7} else []),
    ]
    for number in range(10)
]
"""Each leaves a small file behind, and rows that are gone in others."""
LATER: list[list[Make]] = [
    [update(ITEMS, 10, "late", UNCHANGED), delete(ITEMS, 11), insert(ITEMS, 11, "again", None)],
    [update(ITEMS, 77, "moved", UNCHANGED, old=[13]), update(ITEMS, 1, "last", UNCHANGED), insert(ITEMS, 78, "x", "y")],
]
"""Changes of rows that were just rewritten."""
LAST: list[list[Make]] = [[delete(ITEMS, 77), update(ITEMS, 10, "at last", UNCHANGED)]]
"""Changes of these again."""


@dataclass
class KeptLake:
    """A lake under test, with one table."""

    destination: Destination
    rows: Callable[[TableSchema], Iterable[Mapping[str, Any]]]
    """Return the table's rows, all columns, by their names, as another program reads them."""
    files: Callable[[TableSchema], int]
    """Return how many data files the table has."""
    compact: Callable[[TableSchema], object]
    """Compact the table with somebody else's means."""
    reopen: Callable[[], Destination]
    """Open the lake once more, as after a restart."""
    spark: Spark = no_spark
    at: int = field(default=int(START), init=False)

    def fill(self) -> None:
        """Copy rows, and apply batches that leave small files behind."""
        self.destination.truncate_table(ITEMS.id)
        self.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, COPIED, START, self.spark))
        for batch in BATCHES:
            self.apply(batch)

    def apply(self, *transactions: Sequence[Make]) -> None:
        """Apply a batch."""
        events = []
        for changes in transactions:
            # Behind the copy's clock: else versions would be ordered by it.
            moment = dt.datetime(2030, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=self.at)
            events += transaction(self.at, *changes, commit_time=moment)
            self.at += 10
        self.destination.write_events(ArrowEvents([ITEMS], events, Lsn(self.at), self.spark))

    def upkeep(self, meanwhile: Callable[[], object] = lambda: None, *, is_brief: bool = False) -> Upkeep:
        """Give the table its upkeep; while rows are read, something else happens, once, or behind it if none are."""
        waiting = [meanwhile]

        def happen() -> bool:
            while waiting:
                waiting.pop()()
            return False

        assert isinstance(self.destination, Maintained)
        done = self.destination.upkeep(ITEMS, happen, is_brief=is_brief)
        happen()
        return done

    def content(self) -> list[str]:
        """Return the table's rows in a form to compare."""
        return sorted(repr({name: _plain(value) for name, value in row.items()}) for row in self.rows(ITEMS))

    def held(self) -> tuple[list[str], tuple[Lsn | None, int]]:
        """Return the rows, and the position that they are of."""
        return self.content(), self.position()

    def position(self) -> tuple[Lsn | None, int]:
        """Return how far the table is, as it says itself."""
        assert isinstance(self.destination, Positioned)
        return self.destination.watermark(ITEMS.id), self.destination.copied_parts(ITEMS.id)


def _plain(value: Any) -> Any:
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value


MakeLake: TypeAlias = Callable[[TableMode], KeptLake]


_Held: TypeAlias = tuple[list[str], tuple[Lsn | None, int]]


class UpkeepSuite:
    """The behaviour; each test makes lakes with the fixture `make`, whose clocks all say the same."""

    _expected: ClassVar[dict[tuple[type, TableMode, int], _Held]] = {}

    @pytest.fixture(autouse=True)
    def disarmed(self) -> Iterator[None]:
        """Leave no failpoint armed."""
        yield
        failpoint.arm("")

    def expected(self, make: MakeLake, mode: TableMode, *batches: Sequence[Sequence[Make]]) -> _Held:
        """Return what a filled table has after some batches, and its position, if it never gets any upkeep."""
        name = type(self), mode, len(batches)
        if name not in self._expected:
            twin = make(mode)
            twin.fill()
            for batch in batches:
                twin.apply(*batch)
            self._expected[name] = twin.held()
        return self._expected[name]

    @in_every_mode
    def test_small_files_are_put_together_and_nothing_else_changes(self, make: MakeLake, mode: TableMode) -> None:
        """Also for those who write or read after it, and after a restart."""
        lake = make(mode)
        lake.fill()
        before = lake.files(ITEMS)
        done = lake.upkeep()
        assert (done.rewritten_files, done.written_files, done.files) == (before, 1, 1)
        assert lake.files(ITEMS) == 1
        assert lake.held() == self.expected(make, mode)
        assert lake.upkeep().is_idle
        lake.destination = lake.reopen()
        lake.apply(*LATER)
        assert lake.held() == self.expected(make, mode, LATER)

    @in_every_mode
    def test_changes_that_are_applied_meanwhile_are_kept(self, make: MakeLake, mode: TableMode) -> None:
        """Rows that go while they are being rewritten are gone from the new file too."""
        lake = make(mode)
        lake.fill()
        assert lake.upkeep(lambda: lake.apply(*LATER)).written_files == 1
        assert lake.held() == self.expected(make, mode, LATER)
        lake.apply(*LAST)
        assert lake.held() == self.expected(make, mode, LATER, LAST)

    @in_every_mode
    def test_a_brief_upkeep_puts_small_files_together_while_changes_are_applied(
        self, make: MakeLake, mode: TableMode
    ) -> None:
        """And leaves rows and position as they are; the next whole one goes on from there."""
        lake = make(mode)
        lake.fill()
        before = lake.files(ITEMS)
        done = lake.upkeep(lambda: lake.apply(*LATER), is_brief=True)
        assert (done.rewritten_files, done.written_files) == (before, 1)
        assert lake.held() == self.expected(make, mode, LATER)
        assert lake.upkeep(is_brief=True).is_idle
        lake.upkeep(lambda: lake.apply(*LAST))
        assert lake.held() == self.expected(make, mode, LATER, LAST)

    @in_every_mode
    def test_upkeep_gives_way_to_another_compaction(self, make: MakeLake, mode: TableMode) -> None:
        """Whoever commits first wins, and no row is there twice."""
        lake = make(mode)
        lake.fill()
        assert lake.upkeep(lambda: lake.compact(ITEMS)).rewritten_files == 0
        assert lake.held() == self.expected(make, mode)
        lake.apply(*LATER)
        assert lake.held() == self.expected(make, mode, LATER)

    def test_upkeep_again_and_again_keeps_the_files_few_and_the_rows_right(self, make: MakeLake) -> None:
        """Each finds what the one before it left: also deletes that were too few then to be put together."""
        lake = make(TableMode.CURRENT)
        lake.fill()
        ids = set(range(100, 118))
        for first in (100, 109):
            for number in range(first, first + 9):
                lake.apply([insert(ITEMS, number, "new", "b")])
            lake.apply([update(ITEMS, 1, f"v{first}", UNCHANGED)])
            assert lake.upkeep(lambda: lake.apply([update(ITEMS, 2, f"v{lake.at}", UNCHANGED)])).written_files == 1
            for number in range(first, first + 9):
                lake.apply([update(ITEMS, 1, f"v{number}", UNCHANGED), delete(ITEMS, number)])
                ids.remove(number)
            assert lake.upkeep().written_files == 1
        found = {row["id"]: row["name"] for row in lake.rows(ITEMS)}
        assert found.keys() == {1, 2, 3, 10, 11, 13, 14, 15, 17, 18, 19, *ids}
        assert found[1] == "v117"
        assert len(list(lake.rows(ITEMS))) == len(found)

    @in_every_mode
    def test_a_table_at_rest_is_put_in_order(self, make: MakeLake, mode: TableMode) -> None:
        """Once: what few changes left behind, which is not worth the work while more of them come."""
        lake = make(mode)
        lake.fill()
        lake.upkeep(lambda: lake.apply([insert(ITEMS, 50, "late", "b"), update(ITEMS, 1, "last", UNCHANGED)]))
        before, files = lake.held(), lake.files(ITEMS)
        assert files > 1
        assert lake.upkeep().rewritten_files == 0, "more may come"
        done = lake.upkeep()
        assert (done.rewritten_files, done.written_files, lake.files(ITEMS)) == (files, 1, 1)
        assert lake.upkeep().is_idle
        assert lake.held() == before
        lake.apply([delete(ITEMS, 50)])
        assert lake.content() != before[0]

    def test_upkeep_gives_way_to_a_truncate(self, make: MakeLake) -> None:
        """What was truncated does not come back."""
        lake = make(TableMode.CURRENT)
        lake.fill()
        done = lake.upkeep(lambda: lake.apply([truncate(ITEMS), insert(ITEMS, 5, "only", None)]))
        assert done.rewritten_files == 0
        assert [row["id"] for row in lake.rows(ITEMS)] == [5]
        lake.apply([delete(ITEMS, 5)])
        assert not list(lake.rows(ITEMS))

    def test_upkeep_that_is_cut_off_at_any_step_costs_nothing(self, make: MakeLake, moments: Sequence[str]) -> None:
        """The next one does what is left; `moments` come in order, and only behind the last is anything committed."""
        lake = make(TableMode.CURRENT)
        lake.fill()
        before = lake.files(ITEMS)
        for moment in moments:
            assert lake.files(ITEMS) == before
            failpoint.arm(f"{moment}=raise*1")
            with pytest.raises(FailpointError):
                lake.upkeep()
            lake.destination = lake.reopen()
            assert lake.held() == self.expected(make, TableMode.CURRENT)
        assert lake.files(ITEMS) == 1
        assert lake.upkeep().is_idle
        assert lake.held() == self.expected(make, TableMode.CURRENT)

    def test_upkeep_ends_soon_when_all_does(self, make: MakeLake) -> None:
        """Nothing is rewritten once everything stops."""
        lake = make(TableMode.CURRENT)
        lake.fill()
        before = lake.files(ITEMS), lake.content()
        assert isinstance(lake.destination, Maintained)
        assert lake.destination.upkeep(ITEMS, lambda: True).is_idle
        assert (lake.files(ITEMS), lake.content()) == before

    def test_a_table_that_is_not_there_or_empty_needs_none(self, make: MakeLake) -> None:
        """It is no error either."""
        lake = make(TableMode.CURRENT)
        assert lake.upkeep().is_idle
        lake.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, [], START, lake.spark))
        assert lake.upkeep().is_idle
        assert lake.content() == []
        lake.apply([insert(ITEMS, 1, "first", None)])
        assert len(lake.content()) == 1
