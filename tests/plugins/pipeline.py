"""Pipelines for tests: one line to configure, and all of them shut down at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.config.pipeline import PipelineConfig
from penstock.contract import Destination, Store
from penstock.runtime.pipeline import Pipeline
from penstock.store.memory import MemoryStore
from penstock.testing.postgres import Database

PUBLICATION = "test_pub"


def pipeline_config(database: Database, **settings: Any) -> PipelineConfig:
    connection = {
        "host": database.host,
        "port": database.port,
        "name": database.name,
        "username": database.username,
        "password": database.password,
    }
    defaults = {
        "id": "test_" + database.name.removeprefix("test_"),
        "publication_name": PUBLICATION,
        "batch": {"max_fill_ms": 50, "merge_every_ms": 0},
        "table_error_retry_delay_ms": 200,
    }
    return PipelineConfig.model_validate({**defaults, "pg_connection": connection, **settings})


class Pipelines:
    """Makes pipelines of one database and one state folder, and ends them."""

    def __init__(self, database: Database, state_dir: Path) -> None:
        self.database = database
        self.state_dir = state_dir
        self._started: list[Pipeline] = []

    def start(
        self,
        destination: Destination,
        store: Store | None = None,
        failpoints: str = "",
        spark: Callable[[], SparkSession] | None = None,
        **settings: Any,
    ) -> Pipeline:
        pipeline = Pipeline(
            pipeline_config(self.database, **settings),
            store=store or MemoryStore(),
            destination=destination,
            state_dir=self.state_dir,
            spark=spark,
            failpoints=failpoints,
        )
        pipeline.start()
        self._started.append(pipeline)
        return pipeline

    def catch_up(self, pipeline: Pipeline, timeout_s: float = 30.0) -> None:
        assert pipeline.wait_until_ready(pipeline.source_position(), timeout_s), pipeline.report

    def stop(self, pipeline: Pipeline) -> None:
        self._started.remove(pipeline)
        pipeline.shutdown_and_wait()

    def close(self) -> None:
        for pipeline in list(self._started):
            self.stop(pipeline)


@pytest.fixture
def pipelines(database: Database, tmp_path: Path) -> Iterator[Pipelines]:
    made = Pipelines(database, tmp_path / "state")
    yield made
    made.close()


@pytest.fixture
def publish(database: Database) -> Callable[[str], None]:
    """Run a script, then publish all tables."""

    def run(script: str) -> None:
        database.execute(f"{script}; create publication {PUBLICATION} for all tables")

    return run
