from __future__ import annotations

import datetime as dt
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plugins.changing_items import ChangingItems
from plugins.iceberg import MakeCatalog
from plugins.interrupted import Interrupted, InterruptedChanges
from plugins.rest_catalog import StartRestServer, rest_catalog_at
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from penstock import failpoint
from penstock.config.destination import IcebergCatalogConfig, JdbcCatalogConfig
from penstock.contract.batch import TableChanges
from penstock.destinations.iceberg import CatalogSettings, IcebergDestination
from penstock.destinations.iceberg.client import Mark, MarkKeys, is_outrun
from penstock.destinations.memory import MemoryDestination
from penstock.errors import DestinationError, ErrorKind
from penstock.model.cell import UNCHANGED, TableRow
from penstock.model.event import Event
from penstock.model.lsn import Lsn
from penstock.model.mode import TableMode, TableModes
from penstock.model.table import Column, Kind, PipelineId, TableId, TableName, TableSchema
from penstock.store.memory import MemoryStore
from penstock.testing.batch import ArrowEvents, ArrowRows, transaction
from penstock.testing.destination_suite import (
    COPIED,
    EVERYTHING,
    INT4,
    INT8,
    ITEMS,
    START,
    TEXT,
    TYPES,
    Harness,
    Make,
    delete,
    insert,
    renamed,
    truncate,
    update,
)
from penstock.testing.proxy import Proxy

pytestmark = pytest.mark.spark

KEYLESS = TableSchema(TableId(5), TableName("public", "keyless"), (Column("a", INT8), Column("b", TEXT)))
ODD = TableSchema(
    TableId(6),
    TableName("Odd schema/..", 'ta"ble `x`.${y} é'),
    (Column("the key", TEXT, key_ordinal=0), Column("a,b;{c}=`${d}`.e", TEXT), Column("_op", TEXT)),
)
KEYS = {type_: pair for type_, pair in TYPES.items() if type_.kind not in {Kind.ARRAY, Kind.BYTES, Kind.BOOL}}
JDBC = IcebergCatalogConfig(jdbc=JdbcCatalogConfig())


class Lake:
    """An Iceberg destination, read back with Spark; `again` is the destination of a later process."""

    def __init__(self, spark: SparkSession, catalog: CatalogSettings, **options: Any) -> None:
        self.spark, self.catalog, self.options, self.store = spark, catalog, options, MemoryStore()
        self.again()

    def again(self) -> None:
        self.destination = IcebergDestination(
            self.catalog,
            **{"pipeline": PipelineId("p"), "spark": lambda: self.spark, "tables": self.store, **self.options},
        )
        self.harness = Harness(self.destination, self.read, lambda: self.spark)

    def name(self, schema: TableSchema) -> str:
        return str(self.destination.table_name(schema.id))

    def read(self, schema: TableSchema) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in schema.column_names) for row in self.all_columns(schema)]

    def all_columns(self, schema: TableSchema) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.spark.read.table(self.name(schema)).toArrow().to_pylist()
        return rows

    def sql(self, statement: str, schema: TableSchema = ITEMS) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.spark.sql(statement.format(t=self.name(schema))).toArrow().to_pylist()
        return rows

    def call(self, procedure: str, schema: TableSchema = ITEMS, arguments: str = "") -> None:
        """Run one of Iceberg's own procedures, as a user's maintenance does."""
        place = self.name(schema).partition(".")[2]
        self.spark.sql(f"call {self.catalog.name}.system.{procedure}(table => '{place}'{arguments})")

    def snapshots(self, schema: TableSchema = ITEMS) -> list[dict[str, str]]:
        found = self.sql("select summary from {t}.snapshots order by committed_at", schema)
        return [dict(each["summary"]) for each in found]


@pytest.fixture
def lake(spark: SparkSession, iceberg_catalog: CatalogSettings) -> Lake:
    return Lake(spark, iceberg_catalog)


def test_rows_say_which_change_wrote_them_last(spark: SparkSession, iceberg_catalog: CatalogSettings) -> None:
    copied_at = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
    lake = Lake(spark, iceberg_catalog, clock=lambda: copied_at)
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
    assert lake.snapshots()[-1]["penstock.p.16400.lsn"] == "0/82"


def test_a_table_that_was_made_with_other_cdc_columns_says_so_until_it_is_copied_again(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    lake.options["cdc_columns"] = False
    lake.again()
    with pytest.raises(DestinationError, match="made with cdc_columns: true, and now it is false"):
        lake.harness.apply(ITEMS, [insert(ITEMS, 4, "a", "b")])
    lake.harness.copy(ITEMS, COPIED)
    lake.harness.apply(ITEMS, [insert(ITEMS, 4, "a", "b")])
    lake.harness.holds(ITEMS, *COPIED, (4, "a", "b"))


def test_any_names_are_kept_in_tables_columns_and_deletes(lake: Lake) -> None:
    lake.harness.copy(ODD, [("it's \\ ${z}", "1", "x"), ("k", "2", "y")])
    lake.harness.apply(ODD, [update(ODD, "it's \\ ${z}", UNCHANGED, "new"), delete(ODD, "k")])
    lake.harness.holds(ODD, ("it's \\ ${z}", "1", "new"))
    # Iceberg's own writer spells such columns another way in its files.
    lake.call("rewrite_data_files", ODD, ", options => map('rewrite-all', 'true')")
    lake.harness.apply(ODD, [update(ODD, "it's \\ ${z}", UNCHANGED, "newer")], start=200)
    lake.harness.holds(ODD, ("it's \\ ${z}", "1", "newer"))


def test_names_that_differ_only_in_case_are_two_tables(lake: Lake) -> None:
    upper = renamed(ITEMS, TableName("Public", "ITEMS"), TableId(9))
    lake.harness.copy(ITEMS, COPIED)
    lake.harness.copy(upper, COPIED[:1])
    lake.harness.holds(ITEMS, *COPIED)
    lake.harness.holds(upper, *COPIED[:1])


def test_a_warehouse_may_be_called_anything(spark: SparkSession, make_catalog: MakeCatalog, tmp_path: Path) -> None:
    lake = Lake(spark, make_catalog(tmp_path / "le lac % #é", None))
    lake.harness.copy(ITEMS, COPIED)
    lake.harness.apply(ITEMS, [update(ITEMS, 1, "x", UNCHANGED), insert(ITEMS, 4, "y", None)])
    lake.harness.holds(ITEMS, (1, "x", "body one"), *COPIED[1:], (4, "y", None))


def test_keys_of_every_ordered_type_are_found_within_their_bounds(lake: Lake) -> None:
    columns = tuple(Column(f"k{number}", type_, key_ordinal=number) for number, type_ in enumerate(KEYS))
    schema = TableSchema(TableId(8), TableName("public", "keys"), (*columns, Column("body", TEXT)))
    low, high = (tuple(pair[side] for pair in KEYS.values()) for side in (0, 1))
    lake.harness.copy(schema, [(*low, "low"), (*high, "high")])
    lake.harness.apply(schema, [update(schema, *low, UNCHANGED), update(schema, *high, "new")])
    lake.again()
    lake.harness.apply(schema, [delete(schema, *low)], start=200)
    lake.harness.holds(schema, (*high, "new"))


def test_our_columns_can_be_left_out(spark: SparkSession, iceberg_catalog: CatalogSettings) -> None:
    lake = Lake(spark, iceberg_catalog, cdc_columns=False)
    lake.harness.copy(ITEMS, COPIED)
    lake.harness.apply(ITEMS, [insert(ITEMS, 4, "four", None)])
    lake.harness.apply(ITEMS, [insert(ITEMS, 4, "four", None)])
    lake.harness.holds(ITEMS, *COPIED, (4, "four", None))
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


def test_inserts_are_applied_without_a_look_at_what_the_table_has(lake: Lake, tmp_path: Path) -> None:
    lake.harness.copy(ITEMS, COPIED)
    [file] = (tmp_path / "lake").rglob("data/*.parquet")
    away = file.rename(tmp_path / "moved away")
    lake.harness.apply(ITEMS, [insert(ITEMS, 4, "four", None)])
    with pytest.raises(DestinationError):  # an update has to look
        lake.harness.apply(ITEMS, [update(ITEMS, 1, "uno", UNCHANGED)], start=200)
    away.rename(file)
    lake.harness.holds(ITEMS, *COPIED, (4, "four", None))


def test_an_unchanged_value_of_a_row_the_lake_lost_is_an_error_not_a_null(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    for changes in ([update(ITEMS, 77, "x", UNCHANGED)], [update(ITEMS, 78, "x", UNCHANGED, old=[77])]):
        with pytest.raises(DestinationError, match="does not have"):
            lake.harness.apply(ITEMS, changes)
    lake.harness.holds(ITEMS, *COPIED)
    assert lake.destination.watermark(ITEMS.id) == START


def test_the_bounds_in_manifests_are_those_of_the_values_by_copy_and_by_change(lake: Lake) -> None:
    low, high = (tuple(pair[side] for pair in TYPES.values()) for side in (0, 1))
    lake.harness.copy(EVERYTHING, [(1, *low), (2, *high)])
    lake.harness.apply(EVERYTHING, [insert(EVERYTHING, 11, *low), insert(EVERYTHING, 12, *high)])
    described = lake.sql("select readable_metrics.* from {t}.files order by file_path", EVERYTHING)
    assert len(described) == 2
    rows = lake.read(EVERYTHING)
    for place, column in enumerate(EVERYTHING.columns):
        if column.type.kind in {Kind.ARRAY, Kind.BYTES, Kind.FLOAT8, Kind.FLOAT4, Kind.NUMERIC}:
            continue
        for metrics in (each[column.name] for each in described):
            values = [row[place] for row in rows if row[place] is not None]
            assert metrics["value_count"] == 2
            assert metrics["null_value_count"] == 0
            assert metrics["lower_bound"] in values or column.type.kind is Kind.TEXT
            assert any(metrics["upper_bound"] == value for value in values) or column.type.kind is Kind.TEXT
            assert metrics["lower_bound"] <= metrics["upper_bound"]
            if column.name != "id":
                assert metrics["lower_bound"] <= min(values)
                assert max(values) <= metrics["upper_bound"]


def test_a_key_beyond_the_hundredth_column_has_bounds_too(lake: Lake) -> None:
    wide = tuple(Column(f"c{number}", INT4) for number in range(120))
    schema = TableSchema(TableId(11), TableName("public", "wide"), (*wide, Column("id", INT8, key_ordinal=0)))
    lake.harness.copy(schema, [(*range(120), 7)])
    [described] = lake.sql("select readable_metrics.id.lower_bound as low from {t}.files", schema)
    assert described["low"] == 7


def test_a_row_is_deleted_once_however_often_its_key_changes(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    for number in range(4):
        if number == 2:
            lake.again()
        lake.harness.apply(ITEMS, [update(ITEMS, 1, f"v{number}", UNCHANGED)], start=200 + 10 * number)
    assert [each.get("added-position-deletes") for each in lake.snapshots()][-4:] == ["1"] * 4
    lake.harness.holds(ITEMS, (1, "v3", "body one"), *COPIED[1:])


def test_a_copy_appears_in_one_commit_with_its_new_columns(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    lake.harness.apply(ITEMS, [update(ITEMS, 1, "x", "y")])
    before = len(lake.snapshots())
    other = TableSchema(ITEMS.id, ITEMS.name, (ITEMS.columns[0], Column("body", INT4), Column("more", TEXT)))
    lake.destination.write_table_rows(other, ArrowRows(other, [(1, 2, "three")], Lsn(500), lambda: lake.spark))
    assert len(lake.snapshots()) == before + 1
    lake.harness.holds(other, (1, 2, "three"))
    assert (lake.destination.watermark(ITEMS.id), lake.destination.copied_parts(ITEMS.id)) == (Lsn(500), 1)
    lake.harness.apply(other, [update(other, 1, UNCHANGED, "four")], start=500)
    lake.harness.holds(other, (1, 2, "four"))


def test_a_part_that_the_table_already_has_is_refused(lake: Lake) -> None:
    rows = [ArrowRows(ITEMS, [row], START, lambda: lake.spark, part) for part, row in enumerate(COPIED)]
    for part in rows:
        lake.destination.write_table_rows(ITEMS, part)
    with pytest.raises(DestinationError, match="earlier parts"):
        lake.destination.write_table_rows(ITEMS, rows[1])
    lake.harness.holds(ITEMS, *COPIED)


def test_a_part_without_the_table_is_refused(lake: Lake) -> None:
    with pytest.raises(DestinationError, match=r"no copy of public\.items"):
        lake.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, COPIED, START, lambda: lake.spark, 1))


def test_the_tables_of_other_writers_are_left_alone(lake: Lake) -> None:
    lake.spark.sql(f"create namespace {lake.catalog.name}.public")
    lake.spark.sql(f"create table {lake.catalog.name}.public.items (id int, name string, body string) using iceberg")
    lake.spark.sql(f"insert into {lake.catalog.name}.public.items values (1, 'theirs', '')")
    for _ in range(2):  # the second time the table is known, and would be emptied first
        with pytest.raises(DestinationError, match="did not make") as raised:
            lake.harness.copy(ITEMS, COPIED)
        assert raised.value.kind is ErrorKind.DESTINATION_UNSUPPORTED
    lake.harness.holds(ITEMS, (1, "theirs", ""))


def test_a_folder_with_a_delta_table_is_left_alone(lake: Lake, tmp_path: Path) -> None:
    log = tmp_path / "lake" / "public" / "items" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").touch()
    with pytest.raises(DestinationError, match="Delta table"):
        lake.harness.copy(ITEMS, COPIED)


def test_the_name_that_a_table_had_in_a_delta_lake_is_not_its_name_here(lake: Lake) -> None:
    lake.store.store_table_mapping(ITEMS.id, "public/items")
    assert lake.destination.watermark(ITEMS.id) is None
    lake.harness.copy(ITEMS, COPIED)
    assert lake.store.get_table_mapping(ITEMS.id) == "public.items"
    lake.harness.holds(ITEMS, *COPIED)


def test_files_that_are_not_parquet_are_refused_when_rows_are_looked_for(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    lake.sql("alter table {t} set tblproperties ('write.format.default' = 'orc')")
    lake.call("rewrite_data_files", arguments=", options => map('rewrite-all', 'true')")
    with pytest.raises(DestinationError, match="not Parquet"):
        lake.harness.apply(ITEMS, [delete(ITEMS, 1)])
    lake.harness.apply(ITEMS, [insert(ITEMS, 4, "four", None)])
    lake.harness.holds(ITEMS, *COPIED, (4, "four", None))


def test_a_table_raised_to_another_format_is_refused(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    lake.sql("alter table {t} set tblproperties ('format-version' = '3')")
    with pytest.raises(DestinationError, match="format version 3"):
        lake.harness.apply(ITEMS, [delete(ITEMS, 1)])
    with pytest.raises(DestinationError, match="format version 3"):
        lake.harness.copy(ITEMS, COPIED)


def test_statements_of_others_are_seen_and_kept(lake: Lake) -> None:
    """Their deletes are by position too, in files that Spark wrote."""
    lake.harness.copy(ITEMS, COPIED)
    lake.harness.apply(ITEMS, [update(ITEMS, 2, "ours", UNCHANGED)])
    lake.sql("update {t} set name = 'theirs' where id = 1")
    lake.sql("delete from {t} where id = 3")
    assert lake.destination.watermark(ITEMS.id) == Lsn(110)
    lake.harness.apply(ITEMS, [update(ITEMS, 1, "again ours", UNCHANGED), insert(ITEMS, 3, "new", "c")], start=200)
    lake.harness.holds(ITEMS, (1, "again ours", "body one"), (2, "ours", "body two"), (3, "new", "c"))


def test_compaction_and_expiry_lose_neither_rows_nor_the_position(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    for number in range(3):
        lake.harness.apply(ITEMS, [update(ITEMS, 1, f"v{number}", UNCHANGED)], start=200 + 10 * number)
    lake.call("rewrite_data_files", arguments=", options => map('rewrite-all', 'true')")
    assert (lake.destination.watermark(ITEMS.id), lake.destination.copied_parts(ITEMS.id)) == (Lsn(230), 1)
    lake.call("expire_snapshots", arguments=", older_than => timestamp '2999-01-01', retain_last => 1")
    lake.call("rewrite_manifests")
    assert not any("penstock.p.16400.lsn" in each for each in lake.snapshots()[-1:])
    assert (lake.destination.watermark(ITEMS.id), lake.destination.copied_parts(ITEMS.id)) == (Lsn(230), 1)
    lake.harness.apply(ITEMS, [update(ITEMS, 1, "last", UNCHANGED), delete(ITEMS, 2)], start=300)
    lake.harness.holds(ITEMS, (1, "last", "body one"), COPIED[2])


def test_a_table_taken_back_to_an_older_snapshot_has_that_ones_position(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    lake.harness.apply(ITEMS, [insert(ITEMS, 4, "four", None)])
    [first] = lake.sql("select snapshot_id as id from {t}.snapshots order by committed_at limit 1")
    lake.harness.apply(ITEMS, [delete(ITEMS, 4)], start=200)
    lake.call("rollback_to_snapshot", arguments=f", snapshot_id => {first['id']}")
    assert lake.destination.watermark(ITEMS.id) == START
    lake.harness.apply(ITEMS, [insert(ITEMS, 4, "four", None)])
    lake.harness.holds(ITEMS, *COPIED, (4, "four", None))


CHANGES: dict[str, list[Make]] = {
    "append": [insert(ITEMS, 4, "four", None)],
    "rewrite": [update(ITEMS, 1, "uno", UNCHANGED), delete(ITEMS, 2), insert(ITEMS, 4, "four", None)],
    "truncate": [truncate(ITEMS), insert(ITEMS, 4, "four", None), update(ITEMS, 4, "vier", UNCHANGED)],
    "key change": [update(ITEMS, 3, "one", UNCHANGED, old=[1]), update(ITEMS, 1, "three", UNCHANGED, old=[3])],
}


def applied(lake: Lake, changes: list[Make], happens: Callable[[], object]) -> None:
    events = ArrowEvents([ITEMS], transaction(100, *changes), Lsn(110), lambda: lake.spark)
    lake.destination.write_events(Interrupted(events, happens))


def expected(changes: list[Make]) -> set[tuple[Any, ...]]:
    memory = MemoryDestination()
    memory.write_table_rows(ITEMS, ArrowRows(ITEMS, COPIED, START))
    memory.write_events(ArrowEvents([ITEMS], transaction(100, *changes), Lsn(110)))
    return {row.values for row in memory.current_rows(ITEMS)}


@pytest.mark.parametrize("way", CHANGES)
def test_a_dead_drivers_late_commit_is_not_repeated(lake: Lake, way: str) -> None:
    lake.harness.copy(ITEMS, COPIED)
    late = Lake(lake.spark, lake.catalog)
    late.store = lake.store
    late.again()
    applied(lake, CHANGES[way], partial(late.harness.apply, ITEMS, CHANGES[way]))
    assert sorted(lake.read(ITEMS)) == sorted(expected(CHANGES[way]))
    assert lake.destination.watermark(ITEMS.id) == Lsn(110)


@pytest.mark.parametrize("moment", ["files_written", "commit", "committed"])
@pytest.mark.parametrize("way", CHANGES)
def test_a_failure_at_any_step_of_a_commit_is_made_good_by_trying_again(lake: Lake, way: str, moment: str) -> None:
    lake.harness.copy(ITEMS, COPIED)
    failpoint.arm(f"iceberg.{moment}=raise*1")
    try:
        with pytest.raises(failpoint.FailpointError):
            lake.harness.apply(ITEMS, CHANGES[way])
    finally:
        failpoint.arm("")
    lake.again()
    assert lake.destination.watermark(ITEMS.id) == (Lsn(110) if moment == "committed" else START)
    lake.harness.apply(ITEMS, CHANGES[way], [insert(ITEMS, 9, "nine", None)])
    assert sorted(lake.read(ITEMS)) == sorted({*expected(CHANGES[way]), (9, "nine", None)})


@pytest.mark.parametrize("moment", ["commit", "committed"])
def test_a_copy_that_fails_at_its_commit_is_there_whole_or_not_at_all(lake: Lake, moment: str) -> None:
    lake.harness.copy(ITEMS, COPIED[:1])
    failpoint.arm(f"iceberg.{moment}=raise*1@2")  # the first commit empties the table
    try:
        with pytest.raises(failpoint.FailpointError):
            lake.harness.copy(ITEMS, COPIED, at=Lsn(500))
    finally:
        failpoint.arm("")
    lake.again()
    is_there = moment == "committed"
    assert lake.destination.copied_parts(ITEMS.id) == int(is_there)
    assert lake.destination.watermark(ITEMS.id) == (Lsn(500) if is_there else Lsn(0))
    lake.harness.holds(ITEMS, *(COPIED if is_there else ()))


@pytest.mark.parametrize("way", CHANGES)
def test_a_compaction_meanwhile_makes_us_look_again_and_write_once(lake: Lake, way: str) -> None:
    lake.harness.copy(ITEMS, COPIED[:1])
    lake.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, COPIED[1:], START, lambda: lake.spark, 1))
    rewrite_all = ", options => map('rewrite-all', 'true')"
    applied(lake, CHANGES[way], partial(lake.call, "rewrite_data_files", arguments=rewrite_all))
    assert sorted(lake.read(ITEMS)) == sorted(expected(CHANGES[way]))
    operations = [row["operation"] for row in lake.sql("select operation from {t}.snapshots order by committed_at")]
    assert operations[-2] == "replace"
    committed = {row["path"] for row in lake.sql("select file_path as path from {t}.all_files")}
    assert {str(path) for path in Path(lake.catalog.properties["warehouse"]).rglob("*.parquet")} == committed


def test_a_writer_who_is_always_faster_is_an_error_to_be_tried_again(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    events = ArrowEvents([ITEMS], transaction(100, insert(ITEMS, 4, "four", None)), Lsn(110), lambda: lake.spark)

    class Always(Interrupted):
        def tables(self) -> dict[TableId, TableChanges]:
            happens = [self.happens] * 1000
            return {id_: _Always(changes, happens) for id_, changes in self.events.tables().items()}

    class _Always(InterruptedChanges):
        def arrow(self) -> Iterator[pa.RecordBatch]:
            self._happens.pop()()
            return self._changes.arrow()

    def other() -> None:
        lake.sql(f"alter table {{t}} set tblproperties ('x' = '{random.random()}')")

    with pytest.raises(DestinationError) as raised:
        lake.destination.write_events(Always(events, other))
    assert raised.value.kind is ErrorKind.DESTINATION_CONFLICT
    lake.harness.holds(ITEMS, *COPIED)


def test_random_histories_with_restarts_and_compactions_give_the_sources_rows(lake: Lake) -> None:
    # pytest-randomly seeds the module's generator, and prints the seed
    workload = ChangingItems(random.getrandbits(32))
    for _ in range(40):
        workload.change()
    copied = [TableRow(row) for row in workload.table()]
    lake.harness.copy(ITEMS, [row.values for row in copied])
    lsn, held = int(START), list[Event]()
    for _batch in range(8):
        # the last transaction of every batch comes again with the next one, as after a lost answer
        events = list(held)
        for _transaction in range(6):
            lsn += 10
            held = transaction(lsn, *[workload.change() for _ in range(workload.random.randrange(1, 12))])
            events += held
        lake.destination.write_events(ArrowEvents([ITEMS], events, Lsn(lsn + 1), lambda: lake.spark))
        found = lake.read(ITEMS)
        assert set(found) == workload.table()
        assert len(found) == len(workload.rows)
        if workload.random.random() < 0.3:
            lake.again()
        if workload.random.random() < 0.3:
            lake.call("rewrite_data_files", arguments=", options => map('rewrite-all', 'true')")
        if workload.random.random() < 0.2:
            lake.call("rewrite_position_delete_files", arguments=", options => map('rewrite-all', 'true')")


@pytest.fixture
def any_catalog(request: pytest.FixtureRequest, make_catalog: MakeCatalog, tmp_path: Path) -> CatalogSettings:
    """A catalog of the kind that a test asks for."""
    if request.param == "rest":
        found: CatalogSettings = request.getfixturevalue("rest_catalog")
        return found
    return make_catalog(tmp_path / "lake", JDBC if request.param == "jdbc" else None)


@pytest.fixture
def any_lake(spark: SparkSession, any_catalog: CatalogSettings) -> Lake:
    lake = Lake(spark, any_catalog)
    lake.destination.startup()
    return lake


in_catalogs_of_every_kind = pytest.mark.parametrize("any_catalog", ["hadoop", "jdbc", "rest"], indirect=True)
in_shared_catalogs = pytest.mark.parametrize("any_catalog", ["jdbc", "rest"], indirect=True)


@in_catalogs_of_every_kind
def test_tables_are_copied_and_changed_in_parallel(any_lake: Lake) -> None:
    tables = [renamed(ITEMS, TableName("public", f"t{number}"), TableId(100 + number)) for number in range(6)]
    barrier = threading.Barrier(len(tables))

    def replicate(schema: TableSchema) -> None:
        barrier.wait(timeout=60)
        any_lake.harness.copy(schema, COPIED)
        for number in range(3):
            any_lake.harness.apply(schema, [update(schema, 1, f"v{number}", UNCHANGED)], start=200 + 10 * number)

    with ThreadPoolExecutor(len(tables)) as threads:
        list(threads.map(replicate, tables))
    for schema in tables:
        any_lake.harness.holds(schema, (1, "v2", "body one"), *COPIED[1:])


@in_shared_catalogs
def test_a_shared_catalog_keeps_tables_over_restarts(any_lake: Lake) -> None:
    lake = any_lake
    lake.harness.copy(ITEMS, COPIED)
    lake.harness.copy(ODD, [("k", "2", "y")])
    lake.harness.apply(ITEMS, [update(ITEMS, 1, "uno", UNCHANGED), delete(ITEMS, 2)])
    lake.again()
    assert lake.destination.watermark(ITEMS.id) == Lsn(110)
    lake.harness.copy(ITEMS, COPIED, at=Lsn(300))
    lake.harness.apply(ITEMS, [truncate(ITEMS), insert(ITEMS, 1, "a", "b")], start=300)
    lake.harness.holds(ITEMS, (1, "a", "b"))
    lake.harness.holds(ODD, ("k", "2", "y"))


@in_shared_catalogs
@pytest.mark.parametrize("way", CHANGES)
def test_a_shared_catalog_takes_one_of_two_commits(any_lake: Lake, way: str) -> None:
    lake = any_lake
    lake.harness.copy(ITEMS, COPIED)
    late = Lake(lake.spark, lake.catalog)
    late.store = lake.store
    late.again()
    applied(lake, CHANGES[way], partial(late.harness.apply, ITEMS, CHANGES[way]))
    assert sorted(lake.read(ITEMS)) == sorted(expected(CHANGES[way]))
    assert len(lake.snapshots()) == 2


def test_a_jdbc_catalog_is_a_file_in_the_warehouse_if_nothing_else_is_said(
    spark: SparkSession, make_catalog: MakeCatalog, tmp_path: Path
) -> None:
    Lake(spark, make_catalog(tmp_path / "lake", JDBC)).destination.startup()
    assert (tmp_path / "lake" / "catalog.sqlite").is_file()


@in_catalogs_of_every_kind
def test_a_replacement_takes_the_place_of_the_version_that_was_read_or_of_none(any_lake: Lake) -> None:
    any_lake.harness.copy(ITEMS, COPIED)
    library = any_lake.destination._library()
    present = library.open("public.items")
    assert present is not None
    replacement = library.replace("public.items", present, present.schema, {})
    any_lake.harness.apply(ITEMS, [insert(ITEMS, 4, "four", None)])
    with pytest.raises(Py4JJavaError) as refused:
        replacement.commit(MarkKeys(PipelineId("p"), ITEMS.id), Mark(Lsn(300), 1))
    assert is_outrun(refused.value)
    any_lake.harness.holds(ITEMS, *COPIED, (4, "four", None))


@pytest.fixture
def network(start_rest_server: StartRestServer) -> Iterator[Proxy]:
    """What is between us and the server of a catalog."""
    with Proxy("127.0.0.1", start_rest_server()) as network:
        yield network


COMMITS = b"POST /v1/namespaces/public/tables/items HTTP"
TRY_AGAIN = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def test_a_commit_whose_answer_is_lost_is_not_made_again(spark: SparkSession, network: Proxy) -> None:
    lake = Lake(spark, rest_catalog_at(spark, network.port))
    lake.harness.copy(ITEMS, COPIED)
    network.lose_answer_to(COMMITS)
    with pytest.raises(DestinationError) as failed:
        lake.harness.apply(ITEMS, CHANGES["append"])
    assert failed.value.kind is ErrorKind.DESTINATION_UNAVAILABLE
    assert network.has_lost_answer
    assert lake.destination.watermark(ITEMS.id) == Lsn(110)
    lake.harness.apply(ITEMS, CHANGES["append"])
    assert sorted(lake.read(ITEMS)) == sorted(expected(CHANGES["append"]))
    assert len(lake.snapshots()) == 2


@pytest.mark.parametrize("way", CHANGES)
def test_a_commit_that_is_refused_because_it_was_made_before_stays(
    spark: SparkSession, network: Proxy, way: str
) -> None:
    lake = Lake(spark, rest_catalog_at(spark, network.port))
    lake.harness.copy(ITEMS, COPIED)
    network.lose_answer_to(COMMITS, TRY_AGAIN)
    lake.harness.apply(ITEMS, CHANGES[way])
    assert network.has_lost_answer
    assert sorted(lake.read(ITEMS)) == sorted(expected(CHANGES[way]))
    assert len(lake.snapshots()) == 2


@pytest.mark.parametrize("mode", [TableMode.CURRENT, TableMode.HISTORY])
def test_a_table_that_is_refused_because_it_was_made_before_stays(
    spark: SparkSession, network: Proxy, mode: TableMode
) -> None:
    lake = Lake(spark, rest_catalog_at(spark, network.port), modes=TableModes(mode))
    network.lose_answer_to(COMMITS, TRY_AGAIN)
    lake.harness.copy(ITEMS, COPIED)
    assert network.has_lost_answer
    assert sorted(lake.read(ITEMS)) == sorted(COPIED)
    assert len(lake.snapshots()) == 1


def test_a_catalog_that_cannot_be_reached_is_named_at_start(spark: SparkSession, tmp_path: Path) -> None:
    settings = CatalogSettings("far", {"type": "rest", "uri": "http://127.0.0.1:1", "warehouse": "w"})
    destination = IcebergDestination(settings, pipeline=PipelineId("p"), spark=lambda: spark, tables=MemoryStore())
    with pytest.raises(DestinationError, match="Opening the rest catalog far"):
        destination.startup()
