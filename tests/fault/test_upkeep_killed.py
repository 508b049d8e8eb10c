"""The product as users run it, with upkeep every second and writers at work, killed while files are rewritten."""

from __future__ import annotations

import secrets

import pytest
import yaml
from plugins.iceberg import MakeCatalog
from plugins.replicator import CDC_COLUMNS, Replicator, assert_lake_equals_source, comparable, finish, source_rows
from pyspark.sql import SparkSession

from penstock.destinations.iceberg.catalog import place_of, sql_name
from penstock.model.table import TableName
from penstock.testing.postgres import Database
from penstock.testing.workload import TABLES, Workload, create_source

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_source_equals_lake_after_kills_during_upkeep(
    spark: SparkSession, replicator: Replicator, database: Database, make_catalog: MakeCatalog, lake: str
) -> None:
    seed = secrets.randbelow(1 << 32)
    print("seed", seed)  # noqa: T201
    path = replicator.folder / "penstock.yaml"
    config = yaml.safe_load(path.read_text())
    place = {"path" if lake == "delta" else "warehouse": str(replicator.lake)}
    config["destination"] = {lake: {**place, "upkeep": {"every_s": 1, "keep_versions_s": 5}}}
    path.write_text(yaml.safe_dump(config))
    create_source(database, "test_pub")
    with Workload(database, seed):
        for moment in (f"{lake}.upkeep_written=kill@2", f"{lake}.upkeep_written=kill", f"{lake}.committed=kill@40"):
            replicator.start(moment)
            assert replicator.wait(240) == -9, replicator.log
    finish(replicator)
    assert "table was kept up" in replicator.log
    assert "upkeep failed" not in replicator.log
    if lake == "delta":
        assert_lake_equals_source(spark, replicator, database)
        return
    catalog = make_catalog(replicator.lake, None)
    for table in TABLES:
        name = sql_name(catalog.name, place_of(TableName("public", table.strip('"'))))
        found = comparable(spark.read.table(name).drop(*CDC_COLUMNS).toArrow().to_pylist())
        assert found == comparable(source_rows(database, table)), table
