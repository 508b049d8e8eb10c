"""What every destination must do, as a suite of tests: subclass it and say how to make yours and read it back.

    class TestMine(DestinationSuite):
        @pytest.fixture
        def lake(self) -> Lake: ...

Rows are compared whole, as sets, with Postgres's meaning of each change as the measure.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeAlias

from penstock.contract.destination import Destination, Positioned
from penstock.model.cell import UNCHANGED, Cell, OldRow, OldRowKind, TableRow, Unchanged, UpdatedRow
from penstock.model.event import Delete, Event, Insert, Truncate, Update
from penstock.model.lsn import Lsn, Position
from penstock.model.table import Column, Kind, PgType, TableId, TableName, TableSchema
from penstock.testing.batch import ArrowEvents, ArrowRows, Spark, no_spark, transaction

Make: TypeAlias = Callable[[Position], Event]

INT8 = PgType("bigint", Kind.INT8)
INT4 = PgType("integer", Kind.INT4)
TEXT = PgType("text", Kind.TEXT)

ITEMS = TableSchema(
    TableId(16_400),
    TableName("public", "items"),
    (Column("id", INT8, nullable=False, key_ordinal=0), Column("name", TEXT), Column("body", TEXT)),
)
"""A key, a value, and a value that may be TOASTed."""

PARTS = TableSchema(
    TableId(16_410),
    TableName("shop", "parts"),
    (
        Column("note", TEXT),
        Column("region", TEXT, nullable=False, key_ordinal=1),
        Column("id", INT4, nullable=False, key_ordinal=0),
    ),
)
"""A key of two columns, which are in another order in its index."""

TYPES: dict[PgType, tuple[Cell, Cell]] = {
    PgType("boolean", Kind.BOOL): (True, False),
    PgType("smallint", Kind.INT2): (-32_768, 7),
    INT4: (2**31 - 1, 7),
    INT8: (-(2**63), 7),
    PgType("oid", Kind.OID): (2**32 - 1, 7),
    PgType("real", Kind.FLOAT4): (1.5, -0.25),
    PgType("double precision", Kind.FLOAT8): (float("inf"), 0.1),
    PgType("numeric(38,10)", Kind.NUMERIC, 38, 10): (
        Decimal("1234567890123456789012345678.0123456789"),
        Decimal("-0.0000000001"),
    ),
    PgType("numeric", Kind.NUMERIC): ("NaN", "1.20"),
    TEXT: ("naïve \U0001f30a 'x' \\ ${y} \x01", ""),
    PgType("bytea", Kind.BYTES): (b"\x00\xff", b""),
    PgType("date", Kind.DATE): (dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    PgType("timestamp without time zone", Kind.TIMESTAMP): (
        dt.datetime(1, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001  (naive is what it is)
        dt.datetime(2026, 3, 29, 2, 30, 0, 999_999),  # noqa: DTZ001
    ),
    PgType("timestamp with time zone", Kind.TIMESTAMPTZ): (
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC),
        dt.datetime(2026, 3, 29, 2, 30, tzinfo=dt.UTC),
    ),
    PgType("text[]", Kind.ARRAY, element=TEXT): (["a", None, ""], []),
    PgType("integer[]", Kind.ARRAY, element=INT4): ([1, None], [None]),
}
"""Every kind of value, with an extreme and an ordinary one."""

EVERYTHING = TableSchema(
    TableId(16_420),
    TableName("public", "everything"),
    (
        Column("id", INT8, nullable=False, key_ordinal=0),
        *(Column(f"c{number}", type_) for number, type_ in enumerate(TYPES)),
    ),
)

COPIED: tuple[tuple[Cell, ...], ...] = ((1, "one", "body one"), (2, "two", "body two"), (3, "three", None))
START = Lsn(100)


def insert(schema: TableSchema, *values: Cell) -> Make:
    """Return an insert, for `transaction`."""
    return lambda at: Insert(at, schema.id, TableRow(values))


def update(schema: TableSchema, *values: Cell | Unchanged, old: Sequence[Cell] | None = None) -> Make:
    """Return an update; `old` is the key before it."""
    former = None if old is None else OldRow(OldRowKind.KEY, tuple(old))
    return lambda at: Update(at, schema.id, UpdatedRow(values), former)


def delete(schema: TableSchema, *key: Cell) -> Make:
    """Return a delete."""
    return lambda at: Delete(at, schema.id, OldRow(OldRowKind.KEY, key))


def truncate(*schemas: TableSchema) -> Make:
    """Return a truncate."""
    return lambda at: Truncate(at, tuple(schema.id for schema in schemas), cascade=False, restart_identity=False)


@dataclass(frozen=True)
class Harness:
    """A destination under test, and how its tables are read back."""

    destination: Destination
    read: Callable[[TableSchema], Iterable[Sequence[Any]]]
    """Return a table's rows, the source's columns only, in table order."""
    spark: Spark = no_spark

    def copy(self, schema: TableSchema, rows: Sequence[Sequence[Cell]], at: Lsn = START) -> None:
        """Copy a table as a table-sync worker does."""
        self.destination.truncate_table(schema.id)
        self.destination.write_table_rows(schema, ArrowRows(schema, rows, at, self.spark))

    def apply(
        self, schema: TableSchema, *transactions: Sequence[Make], start: int = START, end: int = 0
    ) -> ArrowEvents:
        """Apply transactions ten positions apart, in one batch, and return that batch."""
        events: list[Event] = []
        for number, changes in enumerate(transactions):
            events += transaction(start + 10 * number, *changes)
        batch = ArrowEvents([schema], events, Lsn(end or start + 10 * len(transactions)), self.spark)
        self.destination.write_events(batch)
        return batch

    def holds(self, schema: TableSchema, *rows: Sequence[Cell]) -> None:
        """Assert that the table has exactly these rows."""
        found, wanted = (Counter(repr(tuple(map(_plain, row))) for row in side) for side in (self.read(schema), rows))
        missing, unexpected = sorted((wanted - found).elements()), sorted((found - wanted).elements())
        assert found == wanted, f"{schema.name} lacks {missing} and has {unexpected} instead"


def _plain(value: Any) -> Any:
    """Take one object for UTC, whichever library made the value."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value


class DestinationSuite:
    """The behaviour; each test is given a fresh destination by the fixture `harness`."""

    def test_a_copy_is_there_when_the_call_returns(self, harness: Harness) -> None:
        """Rows of a copy are visible."""
        harness.copy(ITEMS, COPIED)
        harness.holds(ITEMS, *COPIED)

    def test_an_empty_copy_makes_an_empty_table_that_takes_changes(self, harness: Harness) -> None:
        """A table without rows exists all the same."""
        harness.copy(ITEMS, [])
        harness.holds(ITEMS)
        harness.apply(ITEMS, [insert(ITEMS, 1, "a", None)])
        harness.holds(ITEMS, (1, "a", None))

    def test_a_copy_in_several_parts_holds_them_all(self, harness: Harness) -> None:
        """`write_table_rows` may be called more than once for one copy."""
        harness.copy(ITEMS, COPIED[:1])
        harness.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, COPIED[1:], START, harness.spark, part=1))
        harness.holds(ITEMS, *COPIED)

    def test_a_positioned_destination_tells_how_many_parts_of_a_copy_it_has(self, harness: Harness) -> None:
        """The parts are counted with their data, from nothing again when the table is emptied."""
        destination = harness.destination
        if not isinstance(destination, Positioned):
            return
        assert destination.copied_parts(ITEMS.id) == 0
        for part, row in enumerate(COPIED):
            destination.write_table_rows(ITEMS, ArrowRows(ITEMS, [row], START, harness.spark, part))
            assert (destination.copied_parts(ITEMS.id), destination.watermark(ITEMS.id)) == (part + 1, START)
        harness.apply(ITEMS, [delete(ITEMS, 2)])
        assert destination.copied_parts(ITEMS.id) == len(COPIED)
        destination.truncate_table(ITEMS.id)
        assert destination.copied_parts(ITEMS.id) == 0

    def test_a_key_that_two_parts_hold_is_deleted_from_both(self, harness: Harness) -> None:
        """Parts read as of different snapshots may hold a row twice, until a delete of its key settles it."""
        if not isinstance(harness.destination, Positioned):
            return
        harness.copy(ITEMS, COPIED)
        harness.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, COPIED[:1], START, harness.spark, 1))
        harness.apply(ITEMS, [delete(ITEMS, COPIED[0][0])])
        harness.holds(ITEMS, *COPIED[1:])

    def test_inserts_updates_and_deletes_of_one_batch_leave_what_the_source_has(self, harness: Harness) -> None:
        """The last change of a key decides, across transactions."""
        harness.copy(ITEMS, COPIED)
        harness.apply(
            ITEMS,
            [insert(ITEMS, 4, "four", "x"), update(ITEMS, 1, "uno", "y"), delete(ITEMS, 2)],
            [update(ITEMS, 4, "vier", None), insert(ITEMS, 5, "five", "z")],
            [delete(ITEMS, 5)],
        )
        harness.holds(ITEMS, (1, "uno", "y"), (3, "three", None), (4, "vier", None))

    def test_a_row_deleted_and_inserted_again_is_the_new_one(self, harness: Harness) -> None:
        """Nothing of the deleted row shines through, not even where the new one has NULL."""
        harness.copy(ITEMS, COPIED)
        harness.apply(
            ITEMS,
            [delete(ITEMS, 1), insert(ITEMS, 1, None, None), update(ITEMS, 1, "again", UNCHANGED)],
            [update(ITEMS, 2, "x", UNCHANGED), delete(ITEMS, 2), insert(ITEMS, 2, "new", "new")],
        )
        harness.holds(ITEMS, (1, "again", None), (2, "new", "new"), (3, "three", None))

    def test_unchanged_toast_keeps_the_last_value_sent_wherever_that_was(self, harness: Harness) -> None:
        """From the target, an insert, or an earlier update of the batch; a sent NULL is a value."""
        harness.copy(ITEMS, COPIED)
        harness.apply(
            ITEMS,
            [update(ITEMS, 1, "from target", UNCHANGED), update(ITEMS, 1, "twice", UNCHANGED)],
            [insert(ITEMS, 4, "four", "inserted"), update(ITEMS, 4, "from insert", UNCHANGED)],
            [update(ITEMS, 2, "x", None), update(ITEMS, 2, "from null", UNCHANGED)],
            [update(ITEMS, 3, "x", UNCHANGED), update(ITEMS, 3, "y", "sent"), update(ITEMS, 3, "last", UNCHANGED)],
        )
        harness.holds(
            ITEMS, (1, "twice", "body one"), (2, "from null", None), (3, "last", "sent"), (4, "from insert", "inserted")
        )

    def test_changed_keys_move_rows_through_chains_swaps_and_reuse(self, harness: Harness) -> None:
        """1→7→8, 2 and 3 swapped through 99, and 1 used again; unchanged values move along."""
        harness.copy(ITEMS, COPIED)
        harness.apply(
            ITEMS,
            [update(ITEMS, 7, "chained", UNCHANGED, old=[1]), update(ITEMS, 8, "chained", UNCHANGED, old=[7])],
            [update(ITEMS, 99, "two", UNCHANGED, old=[2])],
            [update(ITEMS, 2, "three", UNCHANGED, old=[3]), update(ITEMS, 3, "two", UNCHANGED, old=[99])],
            [insert(ITEMS, 1, "reused", "fresh"), insert(ITEMS, 50, "other", None)],
        )
        harness.holds(
            ITEMS,
            (8, "chained", "body one"),
            (3, "two", "body two"),
            (2, "three", None),
            (1, "reused", "fresh"),
            (50, "other", None),
        )

    def test_a_moved_row_that_is_deleted_leaves_neither_key(self, harness: Harness) -> None:
        """The old key goes, and so does the new one; an inserted row that moves arrives once."""
        harness.copy(ITEMS, COPIED)
        harness.apply(
            ITEMS,
            [update(ITEMS, 9, "moved", "b", old=[1]), delete(ITEMS, 9)],
            [insert(ITEMS, 20, "new", "b"), update(ITEMS, 21, "new", UNCHANGED, old=[20])],
            [update(ITEMS, 2, "unmoved", UNCHANGED)],
        )
        harness.holds(ITEMS, (21, "new", "b"), (2, "unmoved", "body two"), (3, "three", None))

    def test_a_truncate_within_a_batch_removes_what_came_before_and_nothing_after(self, harness: Harness) -> None:
        """Only changes behind the last truncate count."""
        harness.copy(ITEMS, COPIED)
        harness.apply(
            ITEMS,
            [insert(ITEMS, 4, "gone", None), truncate(ITEMS), insert(ITEMS, 5, "gone too", None)],
            [
                truncate(ITEMS),
                insert(ITEMS, 1, "a", "b"),
                insert(ITEMS, 6, "six", "c"),
                update(ITEMS, 1, "z", UNCHANGED),
            ],
            [delete(ITEMS, 6)],
        )
        harness.holds(ITEMS, (1, "z", "b"))
        harness.apply(ITEMS, [truncate(ITEMS)], start=200)
        harness.holds(ITEMS)

    def test_a_second_copy_replaces_rows_merged_into_the_first(self, harness: Harness) -> None:
        """A resync leaves nothing of what was there, and goes on from its own position."""
        harness.copy(ITEMS, COPIED)
        harness.apply(ITEMS, [update(ITEMS, 1, "merged", "m"), delete(ITEMS, 2)])
        harness.copy(ITEMS, [(1, "again", None)], at=Lsn(500))
        harness.holds(ITEMS, (1, "again", None))
        harness.apply(ITEMS, [update(ITEMS, 1, "on", UNCHANGED)], start=500)
        harness.holds(ITEMS, (1, "on", None))

    def test_emptied_tables_that_were_never_written_are_no_error(self, harness: Harness) -> None:
        """`truncate_table` comes before every copy, the first included."""
        harness.destination.truncate_table(TableId(1))

    def test_applying_a_batch_again_changes_nothing(self, harness: Harness) -> None:
        """Repeats, in the same or in other pieces, are recognised."""
        harness.copy(ITEMS, COPIED)
        first, second = [insert(ITEMS, 4, "a", "b")], [update(ITEMS, 4, "c", UNCHANGED), delete(ITEMS, 1)]
        harness.apply(ITEMS, first)
        harness.apply(ITEMS, first)
        harness.apply(ITEMS, first, second)
        harness.apply(ITEMS, first, second)
        harness.holds(ITEMS, (2, "two", "body two"), (3, "three", None), (4, "c", "b"))

    def test_the_watermark_is_what_was_committed_last(self, harness: Harness) -> None:
        """A destination that keeps positions tells them from its own storage."""
        destination = harness.destination
        if not isinstance(destination, Positioned):
            return
        assert destination.watermark(ITEMS.id) is None
        harness.copy(ITEMS, COPIED)
        assert destination.watermark(ITEMS.id) == START
        harness.apply(ITEMS, [insert(ITEMS, 4, "a", "b")], end=117)
        assert destination.watermark(ITEMS.id) == Lsn(117)
        harness.apply(ITEMS, [update(ITEMS, 4, "b", "b")], start=120, end=137)
        assert destination.watermark(ITEMS.id) == Lsn(137)

    def test_keys_of_several_columns_are_compared_whole(self, harness: Harness) -> None:
        """Also when its index has them in another order, and when one of its columns changes."""
        harness.copy(PARTS, [("a", "eu", 1), ("b", "us", 1), ("c", "eu", 2)])
        harness.apply(
            PARTS,
            [update(PARTS, "a2", "eu", 1), delete(PARTS, "us", 1)],
            [update(PARTS, UNCHANGED, "asia", 2, old=["eu", 2]), insert(PARTS, "d", "it's", 3)],
        )
        harness.holds(PARTS, ("a2", "eu", 1), ("c", "asia", 2), ("d", "it's", 3))

    def test_every_type_arrives_as_it_was_by_copy_append_and_update(self, harness: Harness) -> None:
        """Extremes, ordinary values and NULL, whichever way they take."""
        extreme = tuple(pair[0] for pair in TYPES.values())
        ordinary = tuple(pair[1] for pair in TYPES.values())
        nothing = (None,) * len(TYPES)
        rows = (extreme, ordinary, nothing)
        harness.copy(EVERYTHING, [(i, *row) for i, row in enumerate(rows)])
        harness.apply(EVERYTHING, [insert(EVERYTHING, 10 + i, *row) for i, row in enumerate(rows)])
        harness.holds(EVERYTHING, *[(base + i, *row) for base in (0, 10) for i, row in enumerate(rows)])
        turned = (nothing, extreme, ordinary)
        harness.apply(EVERYTHING, [update(EVERYTHING, i, *row) for i, row in enumerate(turned)], start=200)
        harness.holds(
            EVERYTHING,
            *[(i, *row) for i, row in enumerate(turned)],
            *[(10 + i, *row) for i, row in enumerate(rows)],
        )

    def test_a_batch_of_several_tables_changes_each(self, harness: Harness) -> None:
        """A batch may span tables where the destination is not `Positioned`."""
        harness.copy(ITEMS, COPIED[:1])
        harness.copy(PARTS, [])
        events = transaction(100, insert(ITEMS, 2, "i", None), insert(PARTS, "p", "eu", 1))
        harness.destination.write_events(ArrowEvents([ITEMS, PARTS], events, Lsn(110), harness.spark))
        harness.holds(ITEMS, COPIED[0], (2, "i", None))
        harness.holds(PARTS, ("p", "eu", 1))


def renamed(schema: TableSchema, name: TableName, id_: TableId | None = None) -> TableSchema:
    """Return the schema under another name, and another id if given."""
    return replace(schema, name=name, id=schema.id if id_ is None else id_)
