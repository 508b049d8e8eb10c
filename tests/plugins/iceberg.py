"""Iceberg catalogs for tests: each of its own, known to the session of the whole run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.config.destination import HadoopCatalogConfig, IcebergCatalogConfig, IcebergConfig
from penstock.destinations.iceberg import CatalogSettings
from penstock.storage.s3 import S3Settings

_NUMBERS = itertools.count()

MakeCatalog = Callable[[Path, IcebergCatalogConfig | None], CatalogSettings]


def new_catalog(spark: SparkSession, warehouse: Path, catalog: IcebergCatalogConfig | None = None) -> CatalogSettings:
    """Make a catalog from its configuration, as the replicator does; a folder if nothing else is said."""
    chosen = catalog or IcebergCatalogConfig(hadoop=HadoopCatalogConfig())
    return open_catalog(spark, IcebergConfig(warehouse=str(warehouse), catalog_name=new_catalog_name(), catalog=chosen))


def open_catalog(spark: SparkSession, config: IcebergConfig, s3: S3Settings | None = None) -> CatalogSettings:
    """Let the session know a catalog, as the replicator does."""
    for name, value in config.spark_conf.items():
        spark.conf.set(name, value)
    return CatalogSettings(config.catalog_name, config.catalog_properties, s3)


def new_catalog_name() -> str:
    """Return a name that no other test has."""
    return f"lake_{next(_NUMBERS)}"


@pytest.fixture
def make_catalog(spark: SparkSession) -> MakeCatalog:
    return partial(new_catalog, spark)


@pytest.fixture
def iceberg_catalog(make_catalog: MakeCatalog, tmp_path: Path) -> CatalogSettings:
    """A catalog that is a folder."""
    return make_catalog(tmp_path / "lake", None)
