"""Delta tables by their names in Spark's catalog."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from plugins.replicator import Replicator, finish
from pyspark.sql import SparkSession

from penstock import failpoint
from penstock.destinations.delta import CatalogNames, DeltaDestination
from penstock.errors import DestinationError, ErrorKind
from penstock.model.lsn import Lsn
from penstock.model.table import PipelineId, TableId, TableName, TableSchema
from penstock.store.memory import MemoryStore
from penstock.testing.batch import no_spark
from penstock.testing.destination_suite import COPIED, ITEMS, DestinationSuite, Harness, insert
from penstock.testing.postgres import Database

pytestmark = pytest.mark.spark

NUMBERS = itertools.count()
Open = Callable[[], Harness]


@pytest.fixture
def schema_name(spark: SparkSession) -> str:
    """A schema of the test's own: the session is everybody's."""
    return f"lake_schema_{next(NUMBERS)}"


@pytest.fixture
def opened(spark: SparkSession, tmp_path: Path, schema_name: str) -> Open:
    store = MemoryStore()

    def open_lake() -> Harness:
        destination = DeltaDestination(
            str(tmp_path),
            pipeline=PipelineId("p"),
            spark=lambda: spark,
            tables=store,
            catalog=CatalogNames(schema=schema_name),
        )
        destination.startup()

        def read(schema: TableSchema) -> Sequence[Sequence[Any]]:
            rows = spark.sql(f"select * from {destination.table_name(schema.id)}").toArrow()
            return [tuple(row.values()) for row in rows.select(schema.column_names).to_pylist()]

        return Harness(destination, read, lambda: spark)

    return open_lake


class TestByName(DestinationSuite):
    @pytest.fixture
    def harness(self, opened: Open) -> Harness:
        return opened()


def names(spark: SparkSession, schema: str) -> set[str]:
    return {row.tableName for row in spark.sql(f"show tables in {schema}").collect()}


def test_tables_have_the_names_of_the_source_and_different_ones(
    spark: SparkSession, opened: Open, schema_name: str
) -> None:
    lake = opened()
    others = [TableName("shop", "items"), TableName("public", "it's a `table`")]
    tables = [ITEMS, *(replace(ITEMS, id=TableId(500 + n), name=name) for n, name in enumerate(others))]
    for number, table in enumerate(tables):
        lake.copy(table, [(number, "x", None)])
    assert names(spark, schema_name) == {"items", "items_500", "it_27s_20a_20_60table_60"}
    for number, table in enumerate(tables):
        lake.holds(table, (number, "x", None))


def test_each_table_is_in_the_schema_it_has_at_the_source_unless_told_otherwise(
    spark: SparkSession, tmp_path: Path, schema_name: str
) -> None:
    destination = DeltaDestination(
        str(tmp_path),
        pipeline=PipelineId("p"),
        spark=lambda: spark,
        tables=MemoryStore(),
        catalog=CatalogNames(),
    )
    Harness(destination, lambda _: []).copy(replace(ITEMS, name=TableName(schema_name, "items")), COPIED)
    assert spark.sql(f"select id from {schema_name}.items").count() == len(COPIED)


def test_a_table_that_lost_its_name_gets_it_again_in_the_next_process(
    spark: SparkSession, opened: Open, schema_name: str
) -> None:
    opened().copy(ITEMS, COPIED)
    spark.sql(f"drop table {schema_name}.items")
    again = opened()
    again.apply(ITEMS, [insert(ITEMS, 4, "four", None)])
    assert names(spark, schema_name) == {"items"}
    again.holds(ITEMS, *COPIED, (4, "four", None))


def test_a_crash_before_a_table_is_named_costs_nothing(spark: SparkSession, opened: Open, schema_name: str) -> None:
    failpoint.arm("delta.registering=raise*1")
    try:
        with pytest.raises(failpoint.FailpointError):
            opened().copy(ITEMS, COPIED)
    finally:
        failpoint.arm("")
    again = opened()
    assert isinstance(again.destination, DeltaDestination)
    assert again.destination.watermark(ITEMS.id) == Lsn(100)
    again.copy(ITEMS, COPIED)
    again.holds(ITEMS, *COPIED)


def test_a_name_of_somebody_elses_is_left_alone(
    spark: SparkSession, opened: Open, schema_name: str, tmp_path: Path
) -> None:
    spark.sql(f"create schema {schema_name}")
    spark.sql(f"create table {schema_name}.items (id int) using delta location '{tmp_path}-other'")
    lake = opened()
    with pytest.raises(DestinationError, match="did not make") as raised:
        lake.copy(ITEMS, COPIED)
    assert raised.value.kind is ErrorKind.DESTINATION_UNSUPPORTED
    assert spark.sql(f"select * from {schema_name}.items").columns == ["id"]


def test_tables_that_spark_cannot_read_are_not_registered() -> None:
    destination = DeltaDestination(
        "s3://bucket/lake",
        pipeline=PipelineId("p"),
        spark=no_spark,
        tables=MemoryStore(),
        catalog=CatalogNames(),
    )
    with pytest.raises(DestinationError, match="cannot be registered"):
        destination.startup()


# Says what Hive's metastore knows of a table in it, in a process that has nothing else.
READER = """
import json, sys
from penstock.spark.session import SparkSettings, open_session

spark = open_session(SparkSettings(master="local[1]", conf=json.loads(sys.argv[1])), "reader")
print([tuple(row) for row in spark.sql("select id, note from public.numbers order by id").collect()])
spark.stop()
"""


@pytest.mark.postgres
@pytest.mark.long
def test_names_in_hives_metastore_outlive_the_process(replicator: Replicator, database: Database) -> None:
    folder = replicator.folder
    conf = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
    }
    path = folder / "penstock.yaml"
    config = yaml.safe_load(path.read_text())
    config["destination"]["delta"]["catalog"] = {}
    config["spark"]["conf"] = conf
    path.write_text(yaml.safe_dump(config))
    database.execute(
        "create table public.numbers (id int primary key, note text); insert into numbers values (1, 'a'), (2, null);"
        "create publication test_pub for table numbers"
    )
    finish(replicator)
    database.execute("update numbers set note = 'b' where id = 2")
    finish(replicator)
    command = [sys.executable, "-c", READER, json.dumps(conf)]
    read = subprocess.run(command, capture_output=True, text=True, check=False)
    assert read.stdout.strip() == "[(1, 'a'), (2, 'b')]", read.stderr
