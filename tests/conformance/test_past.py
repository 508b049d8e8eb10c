"""Tables that keep the past, through the same suite in every lake, and read by Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.destinations.delta import DeltaDestination
from penstock.destinations.iceberg import CatalogSettings, IcebergDestination
from penstock.model.mode import TableMode, TableModes
from penstock.model.table import PipelineId, TableSchema
from penstock.store.memory import MemoryStore
from penstock.testing.destination_suite import ITEMS
from penstock.testing.past_suite import CORNERS, NOON, PastLake, PastSuite, in_both_modes

pytestmark = pytest.mark.spark


@pytest.fixture
def iceberg(spark: SparkSession, iceberg_catalog: CatalogSettings) -> Iterator[PastLake]:
    store, opened = MemoryStore(), list[IcebergDestination]()

    def open_lake(mode: TableMode) -> IcebergDestination:
        destination = IcebergDestination(
            iceberg_catalog,
            pipeline=PipelineId("p"),
            spark=lambda: spark,
            tables=store,
            modes=TableModes(mode),
            clock=lambda: NOON,
        )
        opened.append(destination)
        return destination

    def rows(schema: TableSchema) -> list[dict[str, Any]]:
        return spark.read.table(str(opened[0].table_name(schema.id))).toArrow().to_pylist()

    yield PastLake(open_lake, rows, lambda: spark)
    for each in opened:
        each.shutdown()


class TestIceberg(PastSuite):
    @pytest.fixture
    def lake(self, iceberg: PastLake) -> PastLake:
        return iceberg


@in_both_modes
def test_spark_reads_what_delta_keeps(spark: SparkSession, tmp_path: Path, mode: TableMode) -> None:
    store = MemoryStore()

    def location(schema: TableSchema) -> str:
        return f"{tmp_path}/{store.get_table_mapping(schema.id)}"

    def rows(schema: TableSchema) -> list[dict[str, Any]]:
        return spark.read.format("delta").load(location(schema)).toArrow().to_pylist()

    def open_lake(mode: TableMode) -> DeltaDestination:
        return DeltaDestination(
            str(tmp_path),
            pipeline=PipelineId("p"),
            spark=lambda: spark,
            tables=store,
            modes=TableModes(mode),
            clock=lambda: NOON,
        )

    table = PastLake(open_lake, rows, lambda: spark).table(ITEMS, mode)
    table.copy()
    table.apply(*CORNERS[:4])
    table.apply(*CORNERS[4:], start=140)
    table.check()
