"""What a lake must do for tables that keep the past, as a suite of tests: subclass it and say how to open your lake.

    class TestMine(PastSuite):
        @pytest.fixture
        def lake(self) -> PastLake: ...

Every row is compared, our columns included, with what `penstock.testing.past` makes of the same changes one by one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.contract.destination import Destination, Positioned
from penstock.errors import DestinationError, ErrorKind
from penstock.model.cell import UNCHANGED, Cell, OldRow, OldRowKind, Unchanged, UpdatedRow
from penstock.model.event import Delete, Event, Update
from penstock.model.lsn import Lsn
from penstock.model.mode import TableMode
from penstock.model.table import Column, ReplicaIdentity, TableSchema
from penstock.spark.settling import Removal
from penstock.testing.batch import ArrowEvents, ArrowRows, Spark, no_spark, transaction
from penstock.testing.destination_suite import (
    COPIED,
    EVERYTHING,
    ITEMS,
    PARTS,
    START,
    TEXT,
    TYPES,
    Make,
    delete,
    insert,
    truncate,
    update,
)
from penstock.testing.past import PastModel

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
"""What the clock of a lake under test says, always."""
FULL = replace(ITEMS, identity=ReplicaIdentity.FULL)
KEYLESS = replace(FULL, columns=tuple(replace(column, key_ordinal=None) for column in ITEMS.columns))
MODES = [TableMode.HISTORY, TableMode.SCD2]
in_both_modes = pytest.mark.parametrize("mode", MODES)


def full_update(schema: TableSchema, old: Sequence[Cell], *values: Cell | Unchanged) -> Make:
    """Return an update with the whole old row, as under REPLICA IDENTITY FULL."""
    return lambda at: Update(at, schema.id, UpdatedRow(values), OldRow(OldRowKind.FULL, tuple(old)))


def full_delete(schema: TableSchema, *old: Cell) -> Make:
    """Return a delete with the whole old row."""
    return lambda at: Delete(at, schema.id, OldRow(OldRowKind.FULL, old))


def moment(lsn: int) -> dt.datetime:
    """Return when a transaction of these tests committed: the first two before the copy's clock."""
    return NOON + dt.timedelta(seconds=lsn - START - 15)


@dataclass(frozen=True)
class PastLake:
    """A lake under test."""

    open: Callable[[TableMode], Destination]
    """Open the lake with a mode for all its tables; again, it is the same lake. Its clock says `NOON`."""
    rows: Callable[[TableSchema], Iterable[Mapping[str, Any]]]
    """Return a table's rows, all columns, by their names."""
    spark: Spark = no_spark

    def table(self, schema: TableSchema, mode: TableMode) -> PastTable:
        """Return a table that is not copied yet."""
        return PastTable(self, schema, mode, self.open(mode), PastModel(schema))


@dataclass
class PastTable:
    """A table under test, and what it must have."""

    lake: PastLake
    schema: TableSchema
    mode: TableMode
    destination: Destination
    model: PastModel
    events: list[Event] = field(default_factory=list)

    def copy(self, rows: Sequence[Sequence[Cell]] = COPIED, at: Lsn = START, *, is_again: bool = False) -> None:
        """Copy the table."""
        self.destination.truncate_table(self.schema.id)
        self.copy_part(rows, at, 0)
        self.model.copy(rows, at, NOON, is_again=is_again)
        self.events.clear()

    def copy_part(self, rows: Sequence[Sequence[Cell]], at: Lsn, part: int) -> None:
        """Copy one part, behind the model's back."""
        self.destination.write_table_rows(self.schema, ArrowRows(self.schema, rows, at, self.lake.spark, part))

    def apply(self, *transactions: Sequence[Make], start: int = START) -> None:
        """Apply transactions ten positions apart, in one batch that repeats everything since the copy."""
        for number, changes in enumerate(transactions):
            lsn = start + 10 * number
            events = transaction(lsn, *changes, commit_time=moment(lsn))
            self.model.apply(events)
            self.events += events
        end = Lsn(start + 10 * len(transactions))
        self.destination.write_events(ArrowEvents([self.schema], self.events, end, self.lake.spark))

    def check(self) -> None:
        """Assert that the table has exactly what it must have."""
        found = list(self.lake.rows(self.schema))
        if self.mode is TableMode.HISTORY:
            assert recorded(self.schema, found) == expected_changes(self.model)
        else:
            assert versions(self.schema, found) == expected_versions(self.model)


def recorded(schema: TableSchema, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the rows of a `history` table in a form to compare."""
    return sorted((*_place(row), repr(_values(schema, row))) for row in rows)


def versions(schema: TableSchema, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the rows of an `scd2` table in a form to compare."""
    times = ("_TIMESTAMP", "_valid_from", "_valid_to")
    return sorted(
        (*_place(row), repr(_values(schema, row)), *(_utc(row[name]) for name in times), row["_is_current"])
        for row in rows
    )


def _place(row: Mapping[str, Any]) -> tuple[int, int, str]:
    return row["_LSN"], row["_ORDINAL"], row["_CHANGE_TYPE"]


def _values(schema: TableSchema, row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(_plain(row[name]) for name in schema.column_names)


def _plain(value: Any) -> Any:
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value


def _utc(value: Any) -> str:
    return str(_plain(value))


def expected_changes(model: PastModel) -> list[Any]:
    """Return what `recorded` gives of a right table."""
    found = ((each.position, each.kind, each.values) for each in model.changes)
    return sorted((int(at.commit_lsn), at.ordinal, kind, repr(values)) for at, kind, values in found)


def expected_versions(model: PastModel) -> list[Any]:
    """Return what `versions` gives of a right table."""
    return sorted(
        (
            int(each.position.commit_lsn),
            each.position.ordinal,
            each.kind,
            repr(each.values),
            *(_utc(time) for time in (each.valid_from, each.valid_from, each.valid_to)),
            each.is_current,
        )
        for each in model.versions
    )


CORNERS: list[list[Make]] = [
    [insert(ITEMS, 4, "four", "x"), update(ITEMS, 4, "vier", UNCHANGED), update(ITEMS, 1, "uno", UNCHANGED)],
    [update(ITEMS, 1, "eins", UNCHANGED), delete(ITEMS, 2), insert(ITEMS, 2, "again", None)],
    [update(ITEMS, 7, "moved", UNCHANGED, old=[1]), update(ITEMS, 8, "moved on", UNCHANGED, old=[7])],
    [update(ITEMS, 99, "three", UNCHANGED, old=[3]), update(ITEMS, 3, "two", UNCHANGED, old=[2])],
    [update(ITEMS, 2, "swapped", UNCHANGED, old=[99]), delete(ITEMS, 4)],
    [insert(ITEMS, 5, "gone", "y"), truncate(ITEMS), insert(ITEMS, 5, "stays", "z"), truncate(ITEMS)],
    [insert(ITEMS, 1, "new", "n"), insert(ITEMS, 6, "six", "s"), update(ITEMS, 6, "sechs", UNCHANGED)],
    [update(ITEMS, 1, "neu", None), delete(ITEMS, 6)],
]
"""Everything that is hard, in transactions."""


class PastSuite:
    """The behaviour; each test is given a fresh lake by the fixture `lake`."""

    @in_both_modes
    @pytest.mark.parametrize("size", [2, len(CORNERS)])
    def test_every_change_is_kept_however_batches_are_cut(self, lake: PastLake, mode: TableMode, size: int) -> None:
        """Several changes of one key, key changes, truncates and unchanged values, from table and batch."""
        table = lake.table(ITEMS, mode)
        table.copy()
        for first in range(0, len(CORNERS), size):
            table.apply(*CORNERS[first : first + size], start=START + 10 * first)
        table.check()

    @in_both_modes
    def test_old_rows_are_used_where_the_source_logs_them(self, lake: PastLake, mode: TableMode) -> None:
        """Deletes show all of the row, and unchanged values need no look into the table."""
        table = lake.table(FULL, mode)
        table.copy()
        one, two, three = COPIED
        table.apply(
            [full_update(FULL, one, 1, "uno", UNCHANGED), full_delete(FULL, *two)],
            [full_update(FULL, three, 33, "moved", UNCHANGED)],
        )
        table.check()

    def test_a_table_without_a_key_has_a_history(self, lake: PastLake) -> None:
        """Updates show the old row as well as the new one."""
        table = lake.table(KEYLESS, TableMode.HISTORY)
        table.copy([*COPIED, COPIED[0]])
        table.apply([full_update(KEYLESS, COPIED[0], 1, "x", UNCHANGED), full_delete(KEYLESS, *COPIED[1])])
        table.apply([insert(KEYLESS, 1, "x", None), truncate(KEYLESS)], start=200)
        table.check()

    def test_versions_of_a_table_without_a_key_end_by_truncates_only(self, lake: PastLake) -> None:
        """Updates and deletes are refused, with a way out."""
        table = lake.table(KEYLESS, TableMode.SCD2)
        table.copy()
        table.apply([insert(KEYLESS, 1, "x", None), truncate(KEYLESS), insert(KEYLESS, 2, "y", None)])
        table.check()
        with pytest.raises(DestinationError) as raised:
            table.apply([full_delete(KEYLESS, 2, "y", None)], start=200)
        assert "history" in raised.value.remedy

    @in_both_modes
    def test_values_of_every_type_are_kept(self, lake: PastLake, mode: TableMode) -> None:
        """By copy, insert and update, and where an update leaves them unchanged."""
        table = lake.table(EVERYTHING, mode)
        rows = [(number, *(pair[number] for pair in TYPES.values())) for number in (0, 1)]
        table.copy(rows)
        kept: list[Cell | Unchanged] = [UNCHANGED] * len(TYPES)
        table.apply([update(EVERYTHING, 0, *kept), insert(EVERYTHING, 2, *rows[1][1:]), delete(EVERYTHING, 1)])
        table.apply([update(EVERYTHING, 3, *kept, old=[2])], start=200)
        table.check()

    @in_both_modes
    def test_keys_of_several_columns_are_compared_whole(self, lake: PastLake, mode: TableMode) -> None:
        """As in tables of the present."""
        table = lake.table(PARTS, mode)
        table.copy([("a", "eu", 1), ("b", "us", 1), ("c", "eu", 2)])
        table.apply(
            [update(PARTS, "a2", "eu", 1), delete(PARTS, "us", 1)],
            [update(PARTS, UNCHANGED, "asia", 2, old=["eu", 2]), insert(PARTS, "d", "it's", 3)],
        )
        table.check()

    @in_both_modes
    def test_a_copy_of_several_snapshots_shows_only_what_it_is_settled_to(
        self, lake: PastLake, mode: TableMode
    ) -> None:
        """What the parts had of rows that were touched meanwhile leaves no trace."""
        table = lake.table(ITEMS, mode)
        destination = table.destination
        assert isinstance(destination, Positioned)
        destination.truncate_table(ITEMS.id)
        table.copy_part([(1, "old", None), (2, "two", "b")], START, 0)
        table.copy_part([(1, "newer", None), (3, "gone", None)], START, 1)
        keys = pa.table({"id": pa.array([1, 3, 4], pa.int64())})
        settled = Lsn(START + 50)
        for _ in range(2):
            destination.write_events(Removal(ITEMS, keys, Lsn(settled - 1), lake.spark))
        table.copy_part([(1, "newest", "n"), (4, "four", None)], settled, 2)
        table.model.copy([(2, "two", "b")], START, NOON)
        table.model.copy([(1, "newest", "n"), (4, "four", None)], settled, NOON)
        table.check()
        assert (destination.watermark(ITEMS.id), destination.copied_parts(ITEMS.id)) == (settled, 3)
        table.apply([update(ITEMS, 1, "on", UNCHANGED), update(ITEMS, 2, "on", UNCHANGED)], start=settled)
        table.check()

    @in_both_modes
    def test_a_copy_that_starts_again_leaves_nothing_of_the_first_attempt(
        self, lake: PastLake, mode: TableMode
    ) -> None:
        """However far it came: one part, several, or up to its settling."""
        table = lake.table(ITEMS, mode)
        settled = Lsn(START + 50)
        for parts in (1, 2, 3):
            table.destination.truncate_table(ITEMS.id)
            for part in range(min(parts, 2)):
                table.copy_part([COPIED[part]], START, part)
            if parts == len(COPIED):
                table.destination.write_events(
                    Removal(ITEMS, pa.table({"id": pa.array([1], pa.int64())}), Lsn(settled - 1), lake.spark)
                )
                table.copy_part(COPIED[:1], settled, 2)
        table.copy(COPIED, Lsn(START + 100))
        table.check()

    @in_both_modes
    def test_another_copy_keeps_the_past(self, lake: PastLake, mode: TableMode) -> None:
        """All versions end where it begins, and the history says so; an attempt that failed leaves nothing."""
        table = lake.table(ITEMS, mode)
        table.copy()
        table.apply([update(ITEMS, 1, "uno", "u"), delete(ITEMS, 2)])
        table.destination.truncate_table(ITEMS.id)
        table.destination.truncate_table(ITEMS.id)
        table.copy_part([(77, "never", None)], Lsn(400), 0)
        table.copy([(1, "again", "a"), (9, "nine", None)], Lsn(500), is_again=True)
        table.check()
        table.apply([update(ITEMS, 1, "on", UNCHANGED), update(ITEMS, 9, "neun", UNCHANGED)], start=500)
        table.check()
        table.copy([], Lsn(600), is_again=True)
        table.check()

    @in_both_modes
    def test_a_copy_that_another_driver_began_meanwhile_is_not_added_to(self, lake: PastLake, mode: TableMode) -> None:
        """Its rows would be there twice; the next attempt starts from what is kept."""
        table = lake.table(ITEMS, mode)
        table.copy()
        table.apply([delete(ITEMS, 2)])
        table.destination.truncate_table(ITEMS.id)
        lake.table(ITEMS, mode).copy_part(COPIED, Lsn(400), 0)
        with pytest.raises(DestinationError) as raised:
            table.copy_part(COPIED, Lsn(400), 0)
        assert raised.value.kind is ErrorKind.DESTINATION_CONFLICT
        table.copy(COPIED, Lsn(500), is_again=True)
        table.check()

    def test_what_is_kept_is_not_removed_for_another_mode_or_other_columns(self, lake: PastLake) -> None:
        """Neither changes nor a copy; a table of the present, which a copy brings back, is replaced."""
        table = lake.table(ITEMS, TableMode.CURRENT)
        table.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, COPIED, START, lake.spark))
        table = lake.table(ITEMS, TableMode.HISTORY)
        with pytest.raises(DestinationError, match=r"mode history.*mode current") as raised:
            table.apply([insert(ITEMS, 4, "x", None)])
        assert raised.value.remedy.startswith("Resync")
        table.model = PastModel(ITEMS)
        table.copy()
        table.apply([insert(ITEMS, 4, "x", None)])
        wider = replace(ITEMS, columns=(*ITEMS.columns, Column("more", TEXT)))
        for other in (lake.table(ITEMS, TableMode.CURRENT), lake.table(wider, TableMode.HISTORY)):
            other.destination.truncate_table(ITEMS.id)
            with pytest.raises(DestinationError, match="keeps of the past") as raised:
                other.copy_part([], Lsn(500), 0)
            assert raised.value.kind is ErrorKind.DESTINATION_UNSUPPORTED
        table.check()

    @in_both_modes
    def test_columns_named_like_ours_are_refused(self, lake: PastLake, mode: TableMode) -> None:
        """Whatever their case; those of the other mode are free."""
        name = "_Ordinal" if mode is TableMode.HISTORY else "_VALID_to"
        schema = replace(ITEMS, columns=(*ITEMS.columns, Column(name, TEXT)))
        with pytest.raises(DestinationError, match=name) as raised:
            lake.table(schema, mode).copy([])
        assert "mode current" in raised.value.remedy
        free = replace(ITEMS, columns=(*ITEMS.columns, Column("_valid_to", TEXT)))
        lake.table(free, TableMode.HISTORY).copy([])
