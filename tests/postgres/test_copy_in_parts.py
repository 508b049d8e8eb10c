"""A copy in parts, each as of a snapshot of its own, with changes in between, is the source's table all the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from plugins.memory_lake import MemoryLake
from plugins.pipeline import PUBLICATION, Pipelines

from penstock import failpoint
from penstock.errors import DestinationError, ErrorKind
from penstock.runtime.pipeline import Pipeline
from penstock.store.memory import MemoryStore
from penstock.testing.postgres import Cluster, Database, wait_until

pytestmark = pytest.mark.postgres

ONE_BLOCK = {"commit_bytes": 8192}
A_SNAPSHOT_EACH = {**ONE_BLOCK, "max_snapshot_age_ms": 1}
TABLE = """
    create table t (id int primary key, v int, big text) with (fillfactor = 50, autovacuum_enabled = off);
    alter table t alter column big set storage external;
"""
ROWS = "insert into t select g, 0, repeat(md5(g::text), 3 + 100 * (g % 2)) from generate_series(1, 300) g"


def source_rows(database: Database, columns: str = "id, v, big") -> list[tuple[Any, ...]]:
    with database.connect() as connection:
        return sorted(connection.execute(f"select {columns} from t").fetchall())


def finish(pipelines: Pipelines, pipeline: Pipeline) -> None:
    """Wait for the copy, and then for what was changed in its course."""
    pipelines.catch_up(pipeline)
    pipelines.catch_up(pipeline)


def fail_and_roll_back(pipelines: Pipelines, lake: MemoryLake, store: MemoryStore, how: dict[str, int]) -> None:
    """Run a pipeline until its table stops, end it, and have the store go back to before that."""
    pipeline = pipelines.start(lake, store, initial_copy=how)
    wait_until(lambda: any(table.error for table in pipeline.report.tables), "the table to stop")
    pipelines.stop(pipeline)
    [table] = lake.tables
    store.rollback_table_replication_state(table)


def changes(chance: random.Random) -> str:
    """Return a transaction that moves rows about: old ones, new ones, to other blocks and other keys."""
    low = chance.randrange(1, 300)
    span = chance.randrange(1, 40)
    near = f"id between {low} and {low + span}"
    return chance.choice(
        [
            f"update t set v = v + 1 where {near}",
            f"update t set v = v + 1, big = repeat(md5(v::text), 60) where {near}",
            f"delete from t where {near}",
            f"insert into t select g, -1, 'new' from generate_series({low}, {low + span}) g on conflict do nothing",
            f"update t set id = id + 1000 where {near} and id + 1000 not in (select id from t)",
            "update t set id = id - 1000 where id > 1000 and id - 1000 not in (select id from t)",
            f"delete from t where {near}; insert into t values ({low}, 7, 'again') on conflict do nothing",
            "vacuum t",
        ]
    )


@settings(max_examples=4, deadline=None, phases=[Phase.generate])  # shrinking takes too long
@given(st.integers(0, 2**32))
def test_every_part_at_a_snapshot_of_its_own_with_changes_between_gives_the_exact_state(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    with (
        cluster.database() as database,
        closing(Pipelines(database, tmp_path_factory.mktemp("state"))) as pipelines,
    ):
        database.execute(f"{TABLE}{ROWS}; create publication {PUBLICATION} for all tables")

        def interfere(_: int) -> None:
            for _ in range(chance.randrange(4)):
                database.execute(changes(chance))

        lake = MemoryLake(interfere)
        finish(pipelines, pipelines.start(lake, initial_copy=A_SNAPSHOT_EACH))
        table = lake.table("t")
        assert table.copies == 1
        assert table.parts > 5
        assert sorted(table.rows) == source_rows(database)


def test_a_copy_goes_on_in_the_next_process_and_repeats_no_part(
    pipelines: Pipelines, publish: Callable[[str], None], database: Database
) -> None:
    publish(TABLE + ROWS)

    def fail(part: int) -> None:
        if part == 4:
            raise DestinationError("out of reach", kind=ErrorKind.DESTINATION_PERMISSION_DENIED)

    store, lake = MemoryStore(), MemoryLake(fail)
    fail_and_roll_back(pipelines, lake, store, ONE_BLOCK)
    assert lake.table("t").parts == 4
    database.execute("update t set v = 1 where id % 7 = 0; delete from t where id % 11 = 0; insert into t values (0)")
    lake.before_part = lambda _: None
    finish(pipelines, pipelines.start(lake, store, initial_copy=ONE_BLOCK))
    assert lake.table("t").copies == 1
    assert sorted(lake.table("t").rows) == source_rows(database)


@pytest.mark.parametrize("script", ["vacuum full t", "truncate t; insert into t values (1)", "alter table t add w int"])
def test_a_table_that_became_another_one_is_copied_from_the_beginning(
    script: str, pipelines: Pipelines, publish: Callable[[str], None], database: Database
) -> None:
    publish(TABLE + ROWS)
    done = False

    def interfere(part: int) -> None:
        nonlocal done
        if part == 3 and not done:
            done = True
            database.execute(script)

    lake = MemoryLake(interfere)
    finish(pipelines, pipelines.start(lake, initial_copy=A_SNAPSHOT_EACH))
    assert lake.table("t").copies == 2
    columns = ", ".join(lake.table("t").schema.column_names)  # type: ignore[union-attr]
    assert sorted(lake.table("t").rows, key=repr) == sorted(source_rows(database, columns), key=repr)


@pytest.mark.parametrize("point", ["table_sync.before_settling", "table_sync.touched_rows_removed"])
def test_settling_that_is_cut_off_is_done_again(
    point: str, pipelines: Pipelines, publish: Callable[[str], None], database: Database
) -> None:
    publish(TABLE + ROWS)

    def interfere(part: int) -> None:
        database.execute(f"update t set v = v + 1 where id % 50 = {part}")

    lake, store = MemoryLake(interfere), MemoryStore()
    failpoint.arm(f"{point}=raise*1")
    try:
        fail_and_roll_back(pipelines, lake, store, A_SNAPSHOT_EACH)
    finally:
        failpoint.arm("")
    finish(pipelines, pipelines.start(lake, store, initial_copy=A_SNAPSHOT_EACH))
    assert lake.table("t").copies == 1
    assert sorted(lake.table("t").rows) == source_rows(database)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("alter table t drop constraint t_pkey; alter table t replica identity full", "no key"),
        ("alter table t drop constraint t_pkey; alter table t add primary key (f)", "a key that is no exact value"),
    ],
)
def test_a_table_that_cannot_be_settled_is_one_part_of_one_snapshot(
    script: str, why: str, pipelines: Pipelines, publish: Callable[[str], None], database: Database
) -> None:
    publish(f"{TABLE} alter table t add f float8 not null default random(); {ROWS}; {script}")
    lake = MemoryLake()
    finish(pipelines, pipelines.start(lake, initial_copy=A_SNAPSHOT_EACH))
    assert lake.table("t").parts == 1, why
    assert len(lake.table("t").rows) == 300


def test_a_publication_without_updates_makes_one_part(pipelines: Pipelines, database: Database) -> None:
    database.execute(f"{TABLE}{ROWS}; create publication test_pub for table t with (publish = 'insert')")
    lake = MemoryLake()
    finish(pipelines, pipelines.start(lake, initial_copy=A_SNAPSHOT_EACH))
    assert lake.table("t").parts == 1
    assert sorted(lake.table("t").rows) == source_rows(database)


def test_a_lost_exporter_costs_no_part(
    pipelines: Pipelines, publish: Callable[[str], None], database: Database
) -> None:
    publish(TABLE + ROWS)

    def interfere(part: int) -> None:
        database.execute(f"update t set v = v + 1, id = id + 1000 where id % 50 = {part}")
        if part == 3:
            database.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'penstock snapshot'"
            )

    lake = MemoryLake(interfere)
    finish(pipelines, pipelines.start(lake, initial_copy=ONE_BLOCK))
    assert lake.table("t").copies == 1
    assert sorted(lake.table("t").rows) == source_rows(database)
