"""Every destination that runs without a service, through the same suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from penstock.destinations.delta import DeltaDestination
from penstock.destinations.iceberg import CatalogSettings, IcebergDestination
from penstock.destinations.memory import MemoryDestination
from penstock.model.table import PipelineId, TableSchema
from penstock.store.memory import MemoryStore
from penstock.testing.destination_suite import DestinationSuite, Harness


class TestMemory(DestinationSuite):
    @pytest.fixture
    def harness(self) -> Harness:
        destination = MemoryDestination()
        destination.startup()
        return Harness(destination, lambda schema: [row.values for row in destination.current_rows(schema)])


@pytest.mark.spark
@pytest.mark.cluster
class TestDelta(DestinationSuite):
    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> Harness:
        store = MemoryStore()
        destination = DeltaDestination(str(tmp_path), pipeline=PipelineId("p"), spark=lambda: spark, tables=store)
        destination.startup()

        def read(schema: TableSchema) -> Sequence[Sequence[Any]]:
            table = DeltaTable(tmp_path / str(store.get_table_mapping(schema.id)))
            rows = pa.table(QueryBuilder().register("t", table).execute("select * from t").read_all())
            return [tuple(row.values()) for row in rows.select(schema.column_names).to_pylist()]

        return Harness(destination, read, lambda: spark)


class IcebergHarness:
    """Iceberg in a catalog that a subclass's fixture `catalog` says."""

    @pytest.fixture
    def harness(self, spark: SparkSession, catalog: CatalogSettings) -> Iterator[Harness]:
        store = MemoryStore()
        destination = IcebergDestination(catalog, pipeline=PipelineId("p"), spark=lambda: spark, tables=store)
        destination.startup()

        def read(schema: TableSchema) -> Sequence[Sequence[Any]]:
            rows = spark.read.table(str(destination.table_name(schema.id))).toArrow()
            return [tuple(row.values()) for row in rows.select(schema.column_names).to_pylist()]

        yield Harness(destination, read, lambda: spark)
        destination.shutdown()


@pytest.mark.spark
@pytest.mark.cluster
class TestIceberg(IcebergHarness, DestinationSuite):
    @pytest.fixture
    def catalog(self, iceberg_catalog: CatalogSettings) -> CatalogSettings:
        return iceberg_catalog


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.long  # a server for each; the tests of the destination have a copy and a batch of every kind
class TestIcebergInARestCatalog(IcebergHarness, DestinationSuite):
    @pytest.fixture
    def catalog(self, rest_catalog: CatalogSettings) -> CatalogSettings:
        return rest_catalog
