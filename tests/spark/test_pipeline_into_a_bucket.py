"""A pipeline whose lake is in a bucket: tasks of Spark's write the copy there, and this process the changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from plugins.pipeline import PUBLICATION, Pipelines
from plugins.s3 import Bucket
from pyspark.sql import SparkSession

from penstock.contract import Destination
from penstock.destinations.delta import DeltaDestination
from penstock.destinations.iceberg import CatalogSettings, IcebergDestination
from penstock.model.table import PipelineId
from penstock.store.memory import MemoryStore

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.cluster]

ROWS = 5000
P = PipelineId("p")
Lake = tuple[Destination, MemoryStore, Callable[[], pa.Table]]


@pytest.fixture
def delta(spark: SparkSession, bucket: Bucket) -> Lake:
    path, store = f"s3://{bucket.name}/lake", MemoryStore()
    made = DeltaDestination(path, pipeline=P, spark=lambda: spark, tables=store, s3=bucket.settings)

    def read() -> pa.Table:
        table = DeltaTable(f"{path}/public/t", storage_options=bucket.settings.options)
        return pa.table(QueryBuilder().register("t", table).execute("select id, pad from t").read_all())

    return made, store, read


@pytest.fixture
def iceberg(spark: SparkSession, bucket_catalog: CatalogSettings) -> Iterator[Lake]:
    store = MemoryStore()
    made = IcebergDestination(bucket_catalog, pipeline=P, spark=lambda: spark, tables=store)
    yield made, store, lambda: spark.read.table(f"{bucket_catalog.name}.public.t").select("id", "pad").toArrow()
    made.shutdown()


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_a_pipeline_copies_into_a_bucket_and_follows(
    request: pytest.FixtureRequest, spark: SparkSession, pipelines: Pipelines, name: str
) -> None:
    lake: Lake = request.getfixturevalue(name)
    destination, store, read = lake
    source = pipelines.database
    source.execute("create table public.t (id bigint primary key, pad text)")
    source.execute(f"insert into t select g, repeat(md5(g::text), 30) from generate_series(1, {ROWS}) g")
    source.execute(f"create publication {PUBLICATION} for all tables")
    pipeline = pipelines.start(destination, store, spark=lambda: spark)
    pipelines.catch_up(pipeline, 120)
    source.execute("update t set pad = 'new' where id % 7 = 0")
    source.execute("delete from t where id % 11 = 0")
    source.execute(f"insert into t values ({ROWS + 1}, null)")
    pipelines.catch_up(pipeline)
    pipelines.stop(pipeline)
    assert rows_of(read()) == sorted(source.execute("select id, pad from t"))
    assert "test-secret" not in repr((destination, pipeline.report))


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
