"""Every destination that runs without a service, through the same suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.destinations.delta import DeltaDestination
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
class TestDelta(DestinationSuite):
    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> Harness:
        store = MemoryStore()
        destination = DeltaDestination(str(tmp_path), pipeline=PipelineId("p"), spark=lambda: spark, tables=store)
        destination.startup()

        def read(schema: TableSchema) -> Sequence[Sequence[Any]]:
            table = spark.read.format("delta").load(f"{tmp_path}/{store.get_table_mapping(schema.id)}")
            return [tuple(row.values()) for row in table.select(*schema.column_names).toArrow().to_pylist()]

        return Harness(destination, read, lambda: spark)
