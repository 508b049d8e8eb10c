"""The product as users run it, log and lake in a bucket of S3, with writers at work, and killed at steps of both."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, QueryBuilder
from plugins.replicator import CDC_COLUMNS, Replicator, comparable, finish, source_rows
from plugins.s3 import Bucket
from pyspark.sql import SparkSession

from penstock.destinations.delta.schema import folder_name
from penstock.destinations.iceberg import CatalogSettings
from penstock.destinations.iceberg.catalog import place_of, sql_name
from penstock.model.table import TableName
from penstock.testing.postgres import Database
from penstock.testing.workload import TABLES, Workload, create_source

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

PUBLICATION = "test_pub"
Rows = list[dict[str, Any]]
MOMENTS = ("files_written", "commit", "committed")
LOG_MOMENTS = ("changelog.after_data", "storage.before_put", "changelog.after_entry")


def replicate_into(replicator: Replicator, destination: dict[str, Any]) -> None:
    path = replicator.folder / "penstock.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "destination": destination}))


def delta_rows(bucket: Bucket, table: str) -> Rows:
    place = f"s3://{bucket.name}/lake/{folder_name(TableName('public', table))}"
    opened = QueryBuilder().register("t", DeltaTable(place, storage_options=bucket.settings.options))
    rows: Rows = pa.table(opened.execute("select * from t").read_all()).drop_columns(list(CDC_COLUMNS)).to_pylist()
    return rows


def assert_equal_to_source(read: Callable[[str], Rows], database: Database) -> None:
    for table in TABLES:
        lake, source = comparable(read(table.strip('"'))), comparable(source_rows(database, table))
        missing, extra = set(source) - set(lake), set(lake) - set(source)
        assert (missing, extra) == (set(), set()), table
        assert source == lake, f"{table}: rows are there more than once"


def kill_at_every_step(replicator: Replicator, database: Database, bucket: Bucket, destination: dict[str, Any]) -> None:
    seed = secrets.randbelow(1 << 32)
    print("seed", seed)  # noqa: T201
    chance = random.Random(seed)
    replicate_into(replicator, destination)
    replicator.configure(log={"location": f"s3://{bucket.name}/log", "s3": bucket.config})
    [kind] = destination
    create_source(database, PUBLICATION)
    checked = replicator.run("check")
    assert checked.returncode == 0, checked.stdout
    assert f"s3://{bucket.name}/lake" in checked.stdout
    assert f"log: s3://{bucket.name}/log can be written" in checked.stdout
    with Workload(database, seed):
        for moment, logged in zip(MOMENTS, LOG_MOMENTS, strict=True):
            # The driver's receivers die too, one after the other, until it does.
            replicator.start(f"{kind}.{moment}=kill@{chance.randrange(1, 12)},{logged}=kill@{chance.randrange(4, 12)}")
            assert replicator.wait(240) == -9, replicator.log
    finish(replicator)
    assert not list((replicator.folder / ".penstock").rglob("*.parquet"))
    assert replicator.run("log", "verify").returncode == 0
    assert str(bucket.settings.secret_access_key) not in checked.stdout + replicator.log


def test_source_equals_delta_after_kills_at_every_step_of_a_commit(
    replicator: Replicator, database: Database, bucket: Bucket
) -> None:
    destination = {"path": f"s3://{bucket.name}/lake", "s3": bucket.config}
    kill_at_every_step(replicator, database, bucket, {"delta": destination})
    assert_equal_to_source(lambda table: delta_rows(bucket, table), database)


def test_source_equals_iceberg_after_kills_at_every_step_of_a_commit(
    spark: SparkSession, replicator: Replicator, database: Database, bucket: Bucket, bucket_catalog: CatalogSettings
) -> None:
    properties = bucket_catalog.properties
    destination = {
        "warehouse": properties["warehouse"],
        "catalog": {"jdbc": {"uri": properties["uri"]}},
        "catalog_name": bucket_catalog.name,
        "s3": bucket.config,
    }
    kill_at_every_step(replicator, database, bucket, {"iceberg": destination})

    def rows(table: str) -> Rows:
        name = sql_name(bucket_catalog.name, place_of(TableName("public", table)))
        return spark.read.table(name).drop(*CDC_COLUMNS).toArrow().to_pylist()

    assert_equal_to_source(rows, database)
