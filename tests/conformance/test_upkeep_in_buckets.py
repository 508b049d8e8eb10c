"""Upkeep of tables in buckets of S3: files are rewritten and removed there as on a disk."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from plugins.s3 import Bucket
from pyspark.sql import SparkSession

from penstock.destinations.delta import DeltaDestination
from penstock.destinations.iceberg import CatalogSettings, IcebergDestination
from penstock.lake.upkeep import UpkeepPolicy
from penstock.model.mode import TableMode, TableModes
from penstock.model.table import PipelineId, TableSchema
from penstock.storage.local import new_file
from penstock.storage.place import files_at
from penstock.store.memory import MemoryStore
from penstock.testing.batch import no_spark
from penstock.testing.destination_suite import ITEMS
from penstock.testing.upkeep_suite import LATER, KeptLake, MakeLake, UpkeepSuite

pytestmark = pytest.mark.spark

POLICY = UpkeepPolicy(keep_s=3600, rest_s=0, pause_s=math.inf)
BEGAN = dt.datetime.now(dt.UTC)
LONG = dt.timedelta(days=30)
STRAY = "stray.parquet"


class DeltaLake:
    """A Delta table in a folder of a bucket, with a clock of its own."""

    def __init__(self, bucket: Bucket, folder: str, mode: TableMode = TableMode.CURRENT) -> None:
        self.bucket, self.folder, self.mode, self.store = bucket, folder, mode, MemoryStore()
        self.later = dt.timedelta()

    def open(self) -> DeltaDestination:
        return DeltaDestination(
            f"s3://{self.bucket.name}/{self.folder}",
            pipeline=PipelineId("p"),
            spark=no_spark,
            tables=self.store,
            modes=TableModes(self.mode),
            upkeep=POLICY,
            s3=self.bucket.settings,
            clock=lambda: BEGAN + self.later,
        )

    @property
    def table(self) -> DeltaTable:
        place = f"s3://{self.bucket.name}/{self.folder}/public/items"
        return DeltaTable(place, storage_options=self.bucket.settings.options)

    def rows(self, _schema: TableSchema) -> list[dict[str, Any]]:
        found = QueryBuilder().register("t", self.table).execute("select * from t").read_all()
        return pa.table(found).to_pylist()

    def kept(self) -> KeptLake:
        return KeptLake(
            self.open(),
            self.rows,
            lambda _schema: len(self.table.file_uris()),
            lambda _schema: self.table.optimize.compact(),
            self.open,
        )


class TestDelta(UpkeepSuite):
    @pytest.fixture
    def make(self, bucket: Bucket) -> MakeLake:
        numbers = iter(range(100))
        return lambda mode: DeltaLake(bucket, f"lake/{next(numbers)}", mode).kept()

    @pytest.fixture
    def moments(self) -> Sequence[str]:
        return "delta.upkeep_written", "delta.commit", "delta.committed"


def stored(bucket: Bucket, folder: str) -> set[str]:
    files = files_at(f"s3://{bucket.name}/{folder}", bucket.settings)
    return {name for name in files.names(folder) if name.endswith(".parquet")}


def leave_stray(bucket: Bucket, folder: str) -> None:
    """Leave a file behind that nobody committed, as a killed process does."""
    with new_file(files_at(f"s3://{bucket.name}/{folder}", bucket.settings), f"{folder}/{STRAY}") as new:
        new.file.write(b"x")


def test_what_is_out_of_retention_leaves_the_bucket_of_a_delta_table(bucket: Bucket) -> None:
    lake = DeltaLake(bucket, "lake")
    kept, folder = lake.kept(), "lake/public/items"
    kept.fill()
    leave_stray(bucket, folder)
    held = kept.held()
    kept.upkeep()
    assert len(stored(bucket, folder)) > 2
    lake.later = LONG
    kept.upkeep()
    assert len(stored(bucket, folder)) == 1
    assert kept.held() == held


def test_an_iceberg_table_in_a_bucket_gets_its_upkeep(
    spark: SparkSession, bucket: Bucket, bucket_catalog: CatalogSettings
) -> None:
    store, later = MemoryStore(), [dt.timedelta()]
    name, folder = f"{bucket_catalog.name}.public.items", "lake/public/items/data"

    def opened() -> IcebergDestination:
        return IcebergDestination(
            bucket_catalog,
            pipeline=PipelineId("p"),
            spark=lambda: spark,
            tables=store,
            upkeep=POLICY,
            clock=lambda: BEGAN + later[0],
        )

    def rows(_schema: TableSchema) -> list[dict[str, Any]]:
        return spark.read.table(name).toArrow().to_pylist()

    def files(_schema: TableSchema) -> int:
        return int(spark.read.table(f"{name}.data_files").count())

    kept = KeptLake(opened(), rows, files, lambda _: None, opened, lambda: spark)
    kept.fill()
    leave_stray(bucket, folder)
    held = kept.held()
    assert kept.upkeep().written_files == 1
    assert (kept.held(), files(ITEMS)) == (held, 1)
    kept.apply(*LATER)
    held = kept.held()
    later[0] = LONG
    done = kept.upkeep()
    assert done.expired_versions
    assert done.removed_files
    assert STRAY not in stored(bucket, folder)
    assert kept.held() == held
