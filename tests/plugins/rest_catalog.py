"""A REST catalog for tests: the server of Iceberg's own compatibility kit, over a SQLite file and a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from plugins.iceberg import new_catalog_name, open_catalog
from plugins.java_server import fetched_jar, serving
from pyspark.sql import SparkSession

from penstock.config.destination import SQLITE_PACKAGE, IcebergCatalogConfig, IcebergConfig, RestCatalogConfig
from penstock.destinations.iceberg import CatalogSettings
from penstock.postgres.embedded import free_port
from penstock.spark.session import resolve_jars

_MAIN = "org.apache.iceberg.rest.RESTCatalogServer"
# What it needs besides what Spark has. Iceberg's without the libraries that its runtime for Spark brings in itself.
_JARS = Path(__file__).with_suffix(".sha256")

StartRestServer = Callable[[], int]
"""Starts a server without any tables, and returns its port."""


@pytest.fixture
def start_rest_server(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRestServer]:
    sums = [line.split() for line in _JARS.read_text().splitlines()]
    own = [fetched_jar(spark, "rest-catalog", path, sha256) for sha256, path in sums]
    # Its own first: Spark has an older servlet API.
    jars = [*own, *resolve_jars([SQLITE_PACKAGE]), Path(pyspark.__file__).parent / "jars" / "*"]
    with contextlib.ExitStack() as stack:

        def start() -> int:
            folder, port = tmp_path_factory.mktemp("rest"), free_port()
            settings = {
                "CATALOG_REST_PORT": str(port),
                "CATALOG_WAREHOUSE": str(folder / "lake"),
                "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.sqlite",
            }
            stack.enter_context(serving(port, jars, [_MAIN], folder / "server.log", settings))
            return port

        yield start


@pytest.fixture
def rest_catalog(spark: SparkSession, start_rest_server: StartRestServer) -> CatalogSettings:
    """A catalog that a server of a test's own keeps."""
    return rest_catalog_at(spark, start_rest_server())


def rest_catalog_at(spark: SparkSession, port: int) -> CatalogSettings:
    """Let the session know the catalog that answers there."""
    chosen = IcebergCatalogConfig(rest=RestCatalogConfig(uri=f"http://127.0.0.1:{port}"))
    return open_catalog(spark, IcebergConfig(catalog_name=new_catalog_name(), catalog=chosen))
