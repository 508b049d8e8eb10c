"""A pipeline whose log is in a bucket, as is its lake: driver, receiver, tasks and other readers reach it there."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from plugins.pipeline import PUBLICATION, Pipelines
from plugins.s3 import Bucket
from pyspark.sql import SparkSession

import penstock
from penstock.changelog.folder import Folder
from penstock.changelog.verification import Verification
from penstock.changelog.visitor import open_log
from penstock.destinations.delta import DeltaDestination
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.table import PipelineId
from penstock.spark.changes import LogChanges, LogView
from penstock.store.memory import MemoryStore
from penstock.testing.postgres import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

ROWS = 500
KEPT = 1 << 40


def start(spark: SparkSession, pipelines: Pipelines, bucket: Bucket, **log: Any) -> Any:
    store = MemoryStore()
    lake = DeltaDestination(
        f"s3://{bucket.name}/lake", pipeline=PipelineId("p"), spark=lambda: spark, tables=store, s3=bucket.settings
    )
    place = {"location": f"s3://{bucket.name}/log", "s3": bucket.config, **log}
    return pipelines.start(lake, store, spark=lambda: spark, log=place)


def folder_of(bucket: Bucket) -> Folder:
    return Folder(f"s3://{bucket.name}/log", bucket.settings)


def lake_rows(bucket: Bucket) -> list[tuple[Any, ...]]:
    table = DeltaTable(f"s3://{bucket.name}/lake/public/t", storage_options=bucket.settings.options)
    read = pa.table(QueryBuilder().register("t", table).execute("select id, pad from t").read_all())
    return sorted(zip(*(column.to_pylist() for column in read.columns), strict=True))


def options_of(bucket: Bucket) -> dict[str, str]:
    settings = bucket.settings
    keys = {"s3AccessKeyId": str(settings.access_key_id), "s3SecretAccessKey": str(settings.secret_access_key)}
    place = {"log": f"s3://{bucket.name}/log", "s3Endpoint": str(settings.endpoint), "s3Region": str(settings.region)}
    return {**place, **keys, "table": "public.t"}


@pytest.mark.cluster
def test_log_and_lake_are_in_a_bucket_and_others_read_the_log_there(
    spark: SparkSession, pipelines: Pipelines, bucket: Bucket, capfd: pytest.CaptureFixture[str]
) -> None:
    source = pipelines.database
    source.execute("create table public.t (id bigint primary key, pad text)")
    source.execute(f"insert into t select g, repeat(md5(g::text), 30) from generate_series(1, {ROWS}) g")
    source.execute(f"create publication {PUBLICATION} for all tables")
    pipeline = start(spark, pipelines, bucket, keep_bytes=KEPT, max_bytes=KEPT)
    pipelines.catch_up(pipeline, 120)
    source.execute("update t set pad = 'new' where id % 7 = 0")
    source.execute("delete from t where id % 11 = 0")
    source.execute(f"insert into t values ({ROWS + 1}, null)")
    pipelines.catch_up(pipeline)
    report = pipeline.report
    pipelines.stop(pipeline)
    assert lake_rows(bucket) == sorted(source.execute("select id, pad from t"))
    assert not list(pipelines.state_dir.rglob("*.parquet"))
    assert Verification(folder_of(bucket)).run() == []
    penstock.register(spark)
    changes = spark.read.format("penstock").options(**options_of(bucket)).load()
    counted = {row["_op"]: row["count"] for row in changes.groupBy("_op").count().collect()}
    assert counted == {"I": 1, "U": ROWS // 7, "D": ROWS // 11}
    # As a destination of one's own reads a batch.
    reader = open_log(folder_of(bucket))
    [table] = {file.table for entry in reader.entries for file in entry.files}
    view = LogView(reader, ValuePolicies(), lambda: spark)
    batch = LogChanges(view, reader.schema(table, 1), reader.start_lsn, Lsn(reader.end_lsn + 1))
    assert batch.frame.count() == sum(counted.values())
    told = repr((pipeline, report, reader.folder)) + "".join(capfd.readouterr())
    assert str(bucket.settings.secret_access_key) not in told


def test_a_log_in_a_bucket_is_trimmed_and_bounded_as_on_a_disk(
    spark: SparkSession, pipelines: Pipelines, bucket: Bucket
) -> None:
    source = pipelines.database
    source.execute("create table public.t (id bigint primary key, pad text)")
    source.execute(f"create publication {PUBLICATION} for all tables")
    pipeline = start(spark, pipelines, bucket, max_bytes=100_000)
    for first in range(0, 5 * ROWS, ROWS):
        made = f"select g, repeat(md5(g::text), 30) from generate_series({first}, {first + ROWS - 1}) g"
        source.execute(f"insert into t {made}")
        pipelines.catch_up(pipeline)
    wait_until(lambda: open_log(folder_of(bucket)).size_bytes < 100_000, "the log to be trimmed")
    pipelines.stop(pipeline)
    assert lake_rows(bucket) == sorted(source.execute("select id, pad from t"))
    names = sorted(path.name for path in (bucket.root / "log").iterdir())
    assert [name for name in names if name.startswith("LOG-")] == [open_log(folder_of(bucket)).header.name]
    entries = [json.loads(path.read_text().splitlines()[0]) for path in (bucket.root / "log/entries").iterdir()]
    assert len(entries) == len(open_log(folder_of(bucket)).entries)
