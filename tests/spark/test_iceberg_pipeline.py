"""The product as users run it, into Iceberg, with writers at work and killed within a commit."""

from __future__ import annotations

import random
import secrets
from pathlib import Path
from typing import Any

import pytest
import yaml
from plugins.iceberg import MakeCatalog
from plugins.replicator import CDC_COLUMNS, Replicator, comparable, finish, source_rows
from pyspark.sql import SparkSession

from penstock.destinations.iceberg import CatalogSettings
from penstock.destinations.iceberg.catalog import place_of, sql_name
from penstock.model.table import TableName
from penstock.testing.postgres import Database
from penstock.testing.workload import TABLES, Workload, create_source

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

PUBLICATION = "test_pub"


def replicate_into_iceberg(replicator: Replicator, catalog: dict[str, Any]) -> None:
    path = replicator.folder / "penstock.yaml"
    config = yaml.safe_load(path.read_text())
    config["destination"] = {"iceberg": {"warehouse": str(replicator.lake), "catalog": catalog}}
    path.write_text(yaml.safe_dump(config))


def assert_tables_equal_source(spark: SparkSession, catalog: CatalogSettings, database: Database) -> None:
    for table in TABLES:
        name = sql_name(catalog.name, place_of(TableName("public", table.strip('"'))))
        lake = comparable(spark.read.table(name).drop(*CDC_COLUMNS).toArrow().to_pylist())
        source = comparable(source_rows(database, table))
        missing, extra = set(source) - set(lake), set(lake) - set(source)
        assert (missing, extra) == (set(), set()), table
        assert source == lake, f"{table}: rows are there more than once"


@pytest.mark.long
def test_source_equals_iceberg_after_kills_at_every_step_of_a_commit(
    spark: SparkSession, replicator: Replicator, database: Database, make_catalog: MakeCatalog
) -> None:
    seed = secrets.randbelow(1 << 32)
    print("seed", seed)  # noqa: T201
    chance = random.Random(seed)
    replicate_into_iceberg(replicator, {"hadoop": {}})
    create_source(database, PUBLICATION)
    with Workload(database, seed):
        for moment in ("commit", "committed", "files_written"):
            replicator.start(f"iceberg.{moment}=kill@{chance.randrange(1, 25)}")
            assert replicator.wait(240) == -9, replicator.log
    finish(replicator)
    assert_tables_equal_source(spark, make_catalog(replicator.lake, None), database)


def test_a_check_and_a_single_run_need_no_more_than_the_configuration(
    spark: SparkSession, replicator: Replicator, database: Database
) -> None:
    replicate_into_iceberg(replicator, {"jdbc": {}})
    database.execute(
        "create table public.numbers (id smallint primary key, note text, more smallint[]);"
        "insert into public.numbers values (1, 'one', '{1,NULL}'), (2, NULL, NULL);"
        f"create publication {PUBLICATION} for table public.numbers"
    )
    checked = replicator.run("check")
    assert checked.returncode == 0, checked.stdout
    assert f"iceberg can be written in {replicator.lake}, jdbc catalog penstock" in checked.stdout
    finish(replicator)
    database.execute("update public.numbers set note = 'uno' where id = 1; delete from public.numbers where id = 2")
    finish(replicator)
    [row] = (
        spark.read.parquet(*_data_files(replicator.lake)).where("note = 'uno'").drop(*CDC_COLUMNS).toArrow().to_pylist()
    )
    assert row == {"id": 1, "note": "uno", "more": [1, None]}


def _data_files(lake: Path) -> list[str]:
    return [str(path) for path in (lake / "public" / "numbers" / "data").glob("part-*.parquet")]
