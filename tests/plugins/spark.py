"""Spark for tests: one session for the whole run, started when a test first needs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.config.destination import SQLITE_PACKAGE
from penstock.spark.session import FORMATS, SparkSettings, open_session

# No test runs long enough to earn back what Java's second compiler costs, which is half of the JVM's time; programs
# that tests start inherit this.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark leaves the sockets that results come through to the garbage collector."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) or item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder: Path = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
        "spark.sql.shuffle.partitions": "1",
    }
    settings = SparkSettings(
        master="local[2]",
        conf=conf,
        formats=tuple(FORMATS),
        packages=(SQLITE_PACKAGE,),
        log_file=folder / "jvm.log",
    )
    session = open_session(settings, "penstock-tests")
    yield session
    session.stop()
