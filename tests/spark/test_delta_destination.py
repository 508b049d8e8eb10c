from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from plugins.changing_items import ChangingItems
from pyspark.sql import SparkSession

from penstock.destinations.delta import DeltaDestination
from penstock.destinations.memory import MemoryDestination
from penstock.errors import DestinationError, ErrorKind
from penstock.model.cell import UNCHANGED, TableRow
from penstock.model.event import Event
from penstock.model.lsn import Lsn
from penstock.model.table import Column, Kind, PipelineId, TableId, TableName, TableSchema
from penstock.store.memory import MemoryStore
from penstock.testing.batch import ArrowEvents, ArrowRows, transaction
from penstock.testing.destination_suite import (
    COPIED,
    INT8,
    ITEMS,
    START,
    TEXT,
    TYPES,
    Harness,
    delete,
    insert,
    truncate,
    update,
)

pytestmark = pytest.mark.spark

KEYLESS = TableSchema(TableId(5), TableName("public", "keyless"), (Column("a", INT8), Column("b", TEXT)))
ODD = TableSchema(
    TableId(6),
    TableName("Odd schema/..", 'ta"ble `x` ${y}'),
    (Column("the key", TEXT, key_ordinal=0), Column("a,b;{c}=`${d}`.e", TEXT), Column("_op", TEXT)),
)
KEYS = {type_: pair for type_, pair in TYPES.items() if type_.kind not in {Kind.ARRAY, Kind.BYTES, Kind.BOOL}}


class Lake:
    """A Delta destination below a folder, read back with Spark."""

    def __init__(self, spark: SparkSession, path: Path, **options: Any) -> None:
        self.spark, self.path, self.store = spark, path, MemoryStore()
        self.destination = DeltaDestination(
            str(path), pipeline=PipelineId("p"), spark=lambda: spark, tables=self.store, **options
        )
        self.harness = Harness(self.destination, self.read, lambda: spark)

    def location(self, schema: TableSchema) -> str:
        return f"{self.path}/{self.store.get_table_mapping(schema.id)}"

    def read(self, schema: TableSchema) -> list[tuple[Any, ...]]:
        rows = self.all_columns(schema)
        return [tuple(row[name] for name in schema.column_names) for row in rows]

    def all_columns(self, schema: TableSchema) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.spark.read.format("delta").load(self.location(schema)).toArrow().to_pylist()
        return rows


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def test_rows_say_which_change_wrote_them_last(spark: SparkSession, tmp_path: Path) -> None:
    copied_at = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
    lake = Lake(spark, tmp_path, clock=lambda: copied_at)
    lake.harness.copy(ITEMS, COPIED)
    committed_at = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
    events = transaction(120, update(ITEMS, 1, "x", "y"), insert(ITEMS, 9, "n", None), commit_time=committed_at)
    lake.destination.write_events(ArrowEvents([ITEMS], events, Lsn(130), lambda: spark))
    found = {row["id"]: (row["_CHANGE_TYPE"], row["_LSN"], row["_TIMESTAMP"]) for row in lake.all_columns(ITEMS)}
    assert found == {
        1: ("UPDATE", 120, committed_at),
        2: ("INSERT", 100, copied_at),
        3: ("INSERT", 100, copied_at),
        9: ("INSERT", 120, committed_at),
    }
    said = DeltaTable(lake.location(ITEMS)).history(1)[0]
    assert '"lsn": "0/82"' in said["userMetadata"]


def test_any_names_are_kept_in_folders_columns_and_merges(lake: Lake) -> None:
    lake.harness.copy(ODD, [("it's \\ ${z}", "1", "x"), ("k", "2", "y")])
    lake.harness.apply(ODD, [update(ODD, "it's \\ ${z}", UNCHANGED, "new"), delete(ODD, "k")])
    lake.harness.holds(ODD, ("it's \\ ${z}", "1", "new"))
    assert Path(lake.location(ODD)).parent.parent == lake.path


def test_keys_of_every_ordered_type_are_found_within_their_bounds(lake: Lake) -> None:
    columns = tuple(Column(f"k{number}", type_, key_ordinal=number) for number, type_ in enumerate(KEYS))
    schema = TableSchema(TableId(8), TableName("public", "keys"), (*columns, Column("body", TEXT)))
    low, high = (tuple(pair[side] for pair in KEYS.values()) for side in (0, 1))
    lake.harness.copy(schema, [(*low, "low"), (*high, "high")])
    lake.harness.apply(schema, [update(schema, *low, UNCHANGED), update(schema, *high, "new")])
    lake.harness.apply(schema, [delete(schema, *low)], start=200)
    lake.harness.holds(schema, (*high, "new"))


def test_our_columns_can_be_left_out(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, cdc_columns=False)
    lake.harness.copy(ITEMS, COPIED)
    lake.harness.apply(ITEMS, [insert(ITEMS, 4, "four", None)])
    lake.harness.apply(ITEMS, [insert(ITEMS, 4, "four", None)])
    lake.harness.holds(ITEMS, *COPIED, (4, "four", None))
    assert lake.destination.watermark(ITEMS.id) == Lsn(110)
    assert set(lake.all_columns(ITEMS)[0]) == set(ITEMS.column_names)


def test_a_table_without_a_key_takes_inserts_and_truncates_and_nothing_else(lake: Lake) -> None:
    lake.harness.copy(KEYLESS, [(1, "a"), (1, "a")])
    lake.harness.apply(KEYLESS, [insert(KEYLESS, 1, "a")])
    lake.harness.holds(KEYLESS, (1, "a"), (1, "a"), (1, "a"))
    lake.harness.apply(KEYLESS, [insert(KEYLESS, 2, "b"), truncate(KEYLESS), insert(KEYLESS, 3, "c")], start=200)
    lake.harness.holds(KEYLESS, (3, "c"))
    with pytest.raises(DestinationError, match=r"public\.keyless has no key") as raised:
        lake.harness.apply(KEYLESS, [update(KEYLESS, 3, "d")], start=300)
    assert raised.value.kind is ErrorKind.DESTINATION_UNSUPPORTED
    lake.harness.holds(KEYLESS, (3, "c"))


def test_an_unchanged_value_of_a_row_the_lake_lost_is_an_error_not_a_null(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    with pytest.raises(DestinationError, match="does not have"):
        lake.harness.apply(ITEMS, [update(ITEMS, 77, "x", UNCHANGED)])
    with pytest.raises(DestinationError, match="does not have"):
        lake.harness.apply(ITEMS, [update(ITEMS, 78, "x", UNCHANGED, old=[77])])
    lake.harness.holds(ITEMS, *COPIED)
    assert lake.destination.watermark(ITEMS.id) == START


def test_random_histories_in_random_pieces_give_the_sources_rows(lake: Lake) -> None:
    # pytest-randomly seeds the module's generator, and prints the seed
    workload, memory = ChangingItems(random.getrandbits(32)), MemoryDestination()
    for _ in range(40):
        workload.change()
    copied = [TableRow(row) for row in workload.table()]
    lake.harness.copy(ITEMS, [row.values for row in copied])
    memory.write_table_rows(ITEMS, ArrowRows(ITEMS, [row.values for row in copied], START))
    lsn, held = int(START), list[Event]()
    for _batch in range(3):
        # the last two transactions of every batch come again with the next one, as after a lost answer
        events = list(held)
        for _transaction in range(12):
            lsn += 10
            held = transaction(lsn, *[workload.change() for _ in range(workload.random.randrange(1, 12))])
            events += held
        batch = ArrowEvents([ITEMS], events, Lsn(lsn + 1), lambda: lake.spark)
        lake.destination.write_events(batch)
        memory.write_events(batch)
        assert set(lake.read(ITEMS)) == workload.table()
    assert {row.values for row in memory.current_rows(ITEMS)} == workload.table()
