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

_NUMBERS = itertools.count()

MakeCatalog = Callable[[Path, IcebergCatalogConfig | None], CatalogSettings]


def new_catalog(spark: SparkSession, warehouse: Path, catalog: IcebergCatalogConfig | None = None) -> CatalogSettings:
    """Make a catalog from its configuration, as the replicator does; a folder if nothing else is said."""
    name, chosen = f"lake_{next(_NUMBERS)}", catalog or IcebergCatalogConfig(hadoop=HadoopCatalogConfig())
    config = IcebergConfig(warehouse=str(warehouse), catalog_name=name, catalog=chosen)
    for name, value in config.spark_conf.items():
        spark.conf.set(name, value)
    return CatalogSettings(config.catalog_name, config.catalog_properties)


@pytest.fixture
def make_catalog(spark: SparkSession) -> MakeCatalog:
    return partial(new_catalog, spark)


@pytest.fixture
def iceberg_catalog(make_catalog: MakeCatalog, tmp_path: Path) -> CatalogSettings:
    """A catalog that is a folder."""
    return make_catalog(tmp_path / "lake", None)
