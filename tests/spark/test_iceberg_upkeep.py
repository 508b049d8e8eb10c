"""Upkeep of Iceberg tables, as Spark reads them."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plugins.iceberg import MakeCatalog
from plugins.rest_catalog import StartRestServer, rest_catalog_at
from pyspark.sql import SparkSession

from penstock.destinations.iceberg import CatalogSettings, IcebergDestination
from penstock.lake.upkeep import UpkeepPolicy
from penstock.model.cell import UNCHANGED
from penstock.model.lsn import Lsn
from penstock.model.mode import TableMode, TableModes
from penstock.model.table import PipelineId, TableSchema
from penstock.store.memory import MemoryStore
from penstock.testing.batch import ArrowRows
from penstock.testing.destination_suite import ITEMS, START, delete, insert, update
from penstock.testing.upkeep_suite import LATER, KeptLake, MakeLake, UpkeepSuite

pytestmark = pytest.mark.spark

POLICY = UpkeepPolicy(keep_s=3600, rest_s=0, pause_s=math.inf)
BEGAN = dt.datetime.now(dt.UTC)


class Lake:
    """A lake with a clock of its own."""

    def __init__(self, spark: SparkSession, catalog: CatalogSettings, mode: TableMode = TableMode.CURRENT) -> None:
        self.spark, self.catalog, self.mode, self.store = spark, catalog, mode, MemoryStore()
        self.policy, self.later = POLICY, dt.timedelta()
        self.opened: list[IcebergDestination] = []

    def open(self) -> IcebergDestination:
        destination = IcebergDestination(
            self.catalog,
            pipeline=PipelineId("p"),
            spark=lambda: self.spark,
            tables=self.store,
            modes=TableModes(self.mode),
            upkeep=self.policy,
            clock=lambda: BEGAN + self.later,
        )
        self.opened.append(destination)
        return destination

    @property
    def folder(self) -> Path:
        return Path(str(self.catalog.folder)) / "public" / "items"

    def rows(self, _schema: TableSchema = ITEMS) -> list[dict[str, Any]]:
        return self.select("*")

    def select(self, what: str, table: str = "") -> list[dict[str, Any]]:
        name = f"{self.catalog.name}.public.items{table}"
        return self.spark.sql(f"select {what} from {name}").toArrow().to_pylist()

    def count(self, table: str) -> int:
        return int(self.select("count(*) as n", table)[0]["n"])

    def compact(self, _schema: TableSchema) -> None:
        self.spark.sql(
            f"call {self.catalog.name}.system.rewrite_data_files("
            "table => 'public.items', options => map('rewrite-all', 'true'))"
        )

    def alter(self, what: str) -> None:
        self.spark.sql(f"alter table {self.catalog.name}.public.items {what}")

    def kept(self) -> KeptLake:
        def files(_schema: TableSchema) -> int:
            return self.count(".data_files")

        return KeptLake(self.open(), self.rows, files, self.compact, self.open, lambda: self.spark)


@pytest.fixture
def lake(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Lake]:
    """A lake in folders, unless a test asks for another catalog's fixture."""
    lake = Lake(spark, request.getfixturevalue(getattr(request, "param", "iceberg_catalog")))
    yield lake
    for each in lake.opened:
        each.shutdown()


class IcebergUpkeep(UpkeepSuite):
    """What is the same in every kind of catalog."""

    @pytest.fixture
    def make(self, spark: SparkSession, next_catalog: Callable[[], CatalogSettings]) -> Iterator[MakeLake]:
        lakes: list[Lake] = []

        def make(mode: TableMode) -> KeptLake:
            lakes.append(Lake(spark, next_catalog(), mode))
            return lakes[-1].kept()

        yield make
        for each in [each for lake in lakes for each in lake.opened]:
            each.shutdown()

    @pytest.fixture
    def moments(self) -> Sequence[str]:
        return "iceberg.upkeep_written", "iceberg.commit", "iceberg.committed"


class TestIceberg(IcebergUpkeep):
    @pytest.fixture
    def next_catalog(self, make_catalog: MakeCatalog, tmp_path: Path) -> Callable[[], CatalogSettings]:
        numbers = itertools.count()
        return lambda: make_catalog(tmp_path / str(next(numbers)), None)


@pytest.mark.long  # each makes servers of its own
class TestIcebergInARestCatalog(IcebergUpkeep):
    @pytest.fixture
    def next_catalog(self, spark: SparkSession, start_rest_server: StartRestServer) -> Callable[[], CatalogSettings]:
        return lambda: rest_catalog_at(spark, start_rest_server())


@pytest.mark.parametrize("lake", ["iceberg_catalog", "rest_catalog"], indirect=True)
def test_deletes_are_put_together_and_go_with_the_files_that_they_name(lake: Lake) -> None:
    kept = lake.kept()
    rows = [(number, "n", f"b{number}") for number in range(5000)]
    kept.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, rows, START, lambda: lake.spark))
    for number in range(9):
        kept.apply([delete(ITEMS, number)])
    kept.upkeep()
    assert (lake.count(".data_files"), lake.count(".delete_files")) == (1, 1)
    assert sorted(row["id"] for row in lake.rows()) == list(range(9, 5000))
    kept.apply([delete(ITEMS, number) for number in range(9, 1000)])
    # While the worn file is rewritten, it loses more.
    done = kept.upkeep(lambda: kept.apply([delete(ITEMS, number) for number in range(1000, 1100)]))
    assert (done.rewritten_files, done.written_files) == (1, 1)
    assert (lake.count(".data_files"), lake.count(".delete_files")) == (1, 1)
    assert sorted(row["id"] for row in lake.rows()) == list(range(1100, 5000))
    kept.apply([delete(ITEMS, 1100), update(ITEMS, 1101, "found", UNCHANGED)])
    assert {row["id"]: row["body"] for row in lake.rows() if row["name"] == "found"} == {1101: "b1101"}
    assert lake.count("") == 3899


def test_a_pause_is_enough_to_put_a_small_table_in_order(lake: Lake) -> None:
    lake.policy = replace(POLICY, rest_s=math.inf, pause_s=5)
    kept = lake.kept()
    rows = [(number, "n", None) for number in range(50)]
    kept.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, rows, START, lambda: lake.spark))
    kept.apply([delete(ITEMS, 7), insert(ITEMS, 90, "n", None)])
    content = kept.content()
    lake.later = dt.timedelta(seconds=4)
    assert kept.upkeep().rewritten_files == 0
    lake.later = dt.timedelta(seconds=5)
    assert kept.upkeep().rewritten_files == 2
    assert (lake.count(".data_files"), lake.count(".delete_files")) == (1, 0)
    assert kept.content() == content


def test_versions_are_thinned_out_and_every_file_lives_as_long_as_before(lake: Lake) -> None:
    lake.policy = replace(POLICY, most_superfluous=3, all_versions_s=300)
    kept = lake.kept()
    kept.fill()
    # What the table's own properties say of retention is for others.
    lake.alter("set tblproperties ('history.expire.max-snapshot-age-ms' = '1')")
    [full] = lake.select("snapshot_id", ".snapshots order by committed_at desc limit 1")
    rows = lake.count("")
    kept.upkeep()
    kept.apply([insert(ITEMS, 50, "late", "b")])
    files, snapshots = set((lake.folder / "data").iterdir()), lake.count(".snapshots")
    # Iceberg's own clock dates versions: what is later than they are counts from now.
    lake.later = dt.datetime.now(dt.UTC) - BEGAN + dt.timedelta(seconds=400)
    done = kept.upkeep()
    # What stays is the version before the files were put together, and the present one; the rewriting's own goes.
    assert (done.expired_versions, lake.count(".snapshots")) == (snapshots - 2, 2)
    assert set((lake.folder / "data").iterdir()) == files
    assert len(list((lake.folder / "metadata").glob("snap-*.avro"))) == 2
    assert lake.count(f" version as of {full['snapshot_id']}") == rows
    content, position = kept.held()
    lake.later += dt.timedelta(seconds=POLICY.keep_s)
    kept.upkeep()
    # At rest: all rows are in one new file, and no other is left of those that the versions had.
    assert (lake.count(".snapshots"), lake.count(".files")) == (1, 1)
    assert [path in files for path in (lake.folder / "data").glob("*.parquet")] == [False]
    kept.destination = lake.open()
    assert kept.held() == (content, position)


def test_a_brief_upkeep_forgets_no_version_and_batches_leave_few_manifests(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    assert lake.count(".manifests") < 8, "of twenty that ten batches with updates have written"
    kept.upkeep()
    before = lake.count(".snapshots")
    lake.later = dt.datetime.now(dt.UTC) - BEGAN + dt.timedelta(seconds=2 * POLICY.keep_s)
    assert kept.upkeep(is_brief=True).expired_versions == 0
    assert lake.count(".snapshots") == before
    assert kept.upkeep().expired_versions > 0


def test_files_stay_for_readers_when_they_are_replaced_long_after_the_last_change(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    kept.upkeep()
    kept.apply([insert(ITEMS, 50, "late", "b")])
    kept.upkeep()
    [last] = lake.select("snapshot_id, committed_at", ".snapshots order by committed_at desc limit 1")
    rows = lake.count("")
    lake.later = last["committed_at"] - BEGAN + dt.timedelta(seconds=POLICY.keep_s, milliseconds=1)
    assert kept.upkeep().rewritten_files == 2
    assert lake.count(".snapshots") == 2
    assert lake.count(f" version as of {last['snapshot_id']}") == rows


def test_old_versions_go_with_their_files_and_the_position_stays(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    snapshots = lake.count(".snapshots")
    replaced = set((lake.folder / "data").iterdir())
    assert kept.upkeep().expired_versions == 0
    kept.apply([update(ITEMS, 1, "once more", UNCHANGED)])
    content, position = kept.held()
    lake.later = dt.timedelta(seconds=3 * POLICY.keep_s)
    assert kept.upkeep().expired_versions == snapshots + 1
    assert lake.count(".snapshots") == 1
    assert not replaced & set((lake.folder / "data").iterdir())
    kept.destination = lake.open()
    assert (kept.content(), kept.position()) == (content, position)
    # A compaction of somebody else's has no position of its own, and its ancestors are gone.
    lake.compact(ITEMS)
    kept.upkeep()
    assert lake.count(".snapshots") == 1
    kept.destination = lake.open()
    assert (kept.content(), kept.position()) == (content, position)
    kept.apply(*LATER)
    assert kept.position() == (Lsn(kept.at), 1)


def test_what_a_killed_writer_left_goes_after_a_day(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    left = lake.folder / "data" / "part-left.parquet"
    left.write_bytes(b"")
    kept.upkeep()
    assert left.exists()
    lake.later = dt.timedelta(hours=30)
    assert kept.upkeep().removed_files
    assert not left.exists()
    for file in (lake.folder / "data").iterdir():
        os.utime(file, (0, 0))
    content = kept.content()
    assert kept.upkeep().removed_files == 0
    assert kept.content() == content
