"""Tables that are not copied begin empty and have every change from then on; the others are copied as ever."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plugins.pipeline import PUBLICATION, Pipelines

from penstock.destinations.memory import MemoryDestination
from penstock.model.table import TableId
from penstock.postgres.catalog import describe_table
from penstock.postgres.connection import connect
from penstock.store.memory import MemoryStore
from penstock.testing.postgres import Database

pytestmark = pytest.mark.postgres

Publish = Callable[[str], None]


def oid(database: Database, table: str) -> int:
    ((found,),) = database.execute(f"select '{table}'::regclass::oid::bigint")
    assert isinstance(found, int)
    return found


def keys(destination: MemoryDestination, database: Database, table: str) -> list[Any]:
    """Return the keys that a table has at the destination, changes applied."""
    with closing(connect(database.address, application_name="test")) as connection:
        schema = describe_table(connection, TableId(oid(database, table)))
    return sorted(row.values[0] for row in destination.current_rows(schema))


@pytest.fixture
def filled(database: Database, publish: Publish) -> Database:
    publish(
        "create table a (id int primary key); create table b (id int primary key);"
        "insert into a values (1), (2); insert into b values (1), (2)"
    )
    return database


@pytest.mark.parametrize(
    ("setting", "a", "b"),
    [
        ("all", [1, 2, 3], [1, 2, 3]),
        ("none", [3], [3]),
        ({"only": ["public.a"]}, [1, 2, 3], [3]),
        ({"except": ["public.a"]}, [3], [1, 2, 3]),
    ],
)
def test_a_table_that_is_not_copied_has_what_changes_from_then_on(
    filled: Database, pipelines: Pipelines, setting: Any, a: list[int], b: list[int]
) -> None:
    destination = MemoryDestination()
    pipeline = pipelines.start(destination, table_sync_copy=setting)
    pipelines.catch_up(pipeline)
    filled.execute("insert into a values (3); insert into b values (3)")
    pipelines.catch_up(pipeline)
    assert (keys(destination, filled, "a"), keys(destination, filled, "b")) == (a, b)
    assert {table.phase for table in pipeline.report.tables} == {"ready"}
    assert {table.copied_percent for table in pipeline.report.tables} == {100.0}


def test_a_table_can_be_named_by_its_id(filled: Database, pipelines: Pipelines) -> None:
    destination = MemoryDestination()
    pipeline = pipelines.start(destination, table_sync_copy={"only": [oid(filled, "b")]})
    pipelines.catch_up(pipeline)
    assert (keys(destination, filled, "a"), keys(destination, filled, "b")) == ([], [1, 2])


def test_of_a_partitioned_table_the_root_is_named_where_the_publication_has_the_root(
    database: Database, pipelines: Pipelines
) -> None:
    database.execute("create table root (id int primary key) partition by range (id)")
    database.execute("create table leaf partition of root default; insert into root values (1)")
    database.execute(f"create publication {PUBLICATION} for table root with (publish_via_partition_root)")
    destination = MemoryDestination()
    pipeline = pipelines.start(destination, table_sync_copy={"except": ["public.root"]})
    pipelines.catch_up(pipeline)
    database.execute("insert into root values (2)")
    pipelines.catch_up(pipeline)
    assert keys(destination, database, "root") == [2]


def test_a_restart_does_not_empty_a_table_that_was_not_copied(filled: Database, pipelines: Pipelines) -> None:
    destination, store = MemoryDestination(), MemoryStore()
    pipeline = pipelines.start(destination, store, table_sync_copy="none")
    pipelines.catch_up(pipeline)
    filled.execute("insert into a values (3)")
    pipelines.catch_up(pipeline)
    pipelines.stop(pipeline)
    filled.execute("insert into a values (4)")
    pipelines.catch_up(pipelines.start(destination, store, table_sync_copy="none"))
    assert keys(destination, filled, "a") == [3, 4]


def test_a_table_that_is_not_copied_need_not_be_readable(filled: Database, tmp_path: Path) -> None:
    role = f"replicates only {filled.name}"
    filled.execute(f'create role "{role}" login replication; grant select on a to "{role}"')
    pipelines = Pipelines(replace(filled, username=role), tmp_path / "state")
    destination = MemoryDestination()
    try:
        pipeline = pipelines.start(destination, table_sync_copy={"except": ["public.b"]})
        pipelines.catch_up(pipeline)
        filled.execute("insert into b values (3)")
        pipelines.catch_up(pipeline)
    finally:
        pipelines.close()
        filled.execute(f'drop owned by "{role}"; drop role "{role}"')
    assert (keys(destination, filled, "a"), keys(destination, filled, "b")) == ([1, 2], [3])
