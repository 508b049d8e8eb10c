"""Every step of a batch interrupted in every way, with a writer at work: source and lake agree, changes are there once.

`make test` tries some of the matrix, `make test-faults` all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest
from deltalake import DeltaTable
from plugins.driver import DriverSettings, Jvm, MakeDriver
from plugins.fault_matrix import Cell, Matrix, World, every_cell, modes_of, some_cells
from plugins.iceberg import MakeCatalog
from plugins.kept import read_delta, read_iceberg
from pyspark.sql import SparkSession

from penstock.destinations.iceberg import CatalogSettings
from penstock.destinations.iceberg.catalog import place_of, sql_name
from penstock.model.mode import TableMode
from penstock.model.table import TableName
from penstock.testing.postgres import Cluster

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

Begin: TypeAlias = Callable[[Path, Sequence[Cell]], AbstractContextManager[World]]
"""Makes a world of its own in a folder, with the tables of some cells."""


@pytest.fixture
def delta_world(cluster: Cluster, make_driver: MakeDriver) -> Begin:
    @contextmanager
    def begin(folder: Path, cells: Sequence[Cell]) -> Iterator[World]:
        with cluster.database() as database:
            driver = make_driver(DriverSettings(database, folder, modes_of(cells)))
            lake = driver.settings.lake
            with closing(World(database, driver, read_delta(lake), partial(set_delta_property, lake), cells)) as world:
                yield world

    return begin


@pytest.fixture
def iceberg_world(cluster: Cluster, make_driver: MakeDriver, spark: SparkSession, make_catalog: MakeCatalog) -> Begin:
    @contextmanager
    def begin(folder: Path, cells: Sequence[Cell]) -> Iterator[World]:
        catalog = make_catalog(folder / "lake", None)
        interfere = partial(set_iceberg_property, spark, catalog, folder / "lake")
        with cluster.database() as database:
            driver = make_driver(DriverSettings(database, folder, modes_of(cells), (catalog, Jvm.of(spark))))
            with closing(World(database, driver, read_iceberg(spark, catalog), interfere, cells)) as world:
                yield world

    return begin


def set_delta_property(lake: Path, name: str) -> None:
    """Commit something that changes no row, as another writer, while the driver waits."""
    table = DeltaTable(lake / "public" / name)
    before = table.version()
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    assert DeltaTable(lake / "public" / name).version() == before + 1, "the driver did not wait"


def set_iceberg_property(spark: SparkSession, catalog: CatalogSettings, lake: Path, name: str) -> None:
    version = lake / "public" / name / "metadata" / "version-hint.text"
    before = int(version.read_text())
    table = sql_name(catalog.name, place_of(TableName("public", name)))
    spark.sql(f"alter table {table} set tblproperties ('written.by' = 'another')")
    assert int(version.read_text()) == before + 1, "the driver did not wait"


def try_cells(lake: str, cells: Sequence[Cell], begin: Begin, folder: Path) -> Matrix:
    """Try one after the other; what a cell breaks is not held against the next."""
    matrix, left = Matrix(lake), list(cells)
    while left:
        with begin(folder / str(len(left)), left) as world:
            is_sound = True
            while left and is_sound:
                cell = left.pop(0)
                fault = world.fault(cell)
                matrix.note(cell, fault)
                is_sound = fault is None
    return matrix


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.spark)])
def lake(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def begin(lake: str, request: pytest.FixtureRequest) -> Begin:
    found: Begin = request.getfixturevalue(f"{lake}_world")
    return found


def test_a_driver_interrupted_at_any_step_loses_and_repeats_nothing(
    lake: str, begin: Begin, tmp_path: Path, tell_matrix: Callable[[Matrix], None]
) -> None:
    matrix = try_cells(lake, some_cells(lake), begin, tmp_path)
    tell_matrix(matrix)
    assert not matrix.faults


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mode", TableMode)
def test_whatever_is_interrupted_in_whatever_way_nothing_is_lost_or_repeated(
    lake: str, mode: TableMode, begin: Begin, tmp_path: Path, tell_matrix: Callable[[Matrix], None]
) -> None:
    matrix = try_cells(lake, every_cell(lake, mode), begin, tmp_path)
    tell_matrix(matrix)
    assert not matrix.faults
