"""Whatever a table's shape, and whatever is written during its copy, the destination is the source in the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from plugins.pipeline import PUBLICATION, Pipelines, pipeline_config
from pyspark.sql import SparkSession

from penstock.contract import RowBatch
from penstock.destinations.delta import DeltaDestination
from penstock.destinations.memory import MemoryDestination
from penstock.model.table import TableId, TableName, TableSchema, quote_identifier
from penstock.runtime.pipeline import Pipeline
from penstock.store.memory import MemoryStore
from penstock.testing.postgres import Database, wait_until

pytestmark = pytest.mark.postgres

SMALL_RANGES = {"commit_bytes": 4 * 8192}
"""Four blocks to a range, so that small tables have many."""

_PAUSE_S = 0.01  # between two writes: what is measured here is not how fast anybody can catch up

PARTITIONED = """
create table parts (id int, k int, note text, primary key (id, k)) partition by list (k);
create table "parts é" partition of parts for values in (0);
create table parts_empty partition of parts for values in (99);
create table parts_sub partition of parts for values in (1, 2) partition by range (id);
create table parts_sub_low partition of parts_sub for values from (minvalue) to (500);
create table parts_sub_high (extra text, note text, id int not null, gone date, k int not null);
alter table parts_sub_high drop column gone, drop column extra;
alter table parts_sub attach partition parts_sub_high for values from (500) to (maxvalue);
insert into parts select g, g % 3, repeat('n', 100) from generate_series(1, 3000) g;
"""
PLAIN = f"""
create table parent (id int primary key, v text);
create table child (more int) inherits (parent);
alter table child add primary key (id);
insert into parent select g, 'parent' from generate_series(1, 300) g;
insert into child select g, 'child', -g from generate_series(1, 300) g;

create table wide (id int primary key, {", ".join(f"c{number} int" for number in range(1599))});
insert into wide (id, c0, c1598) select g, g, -g from generate_series(1, 40) g;

create table nothing ();
create table lines ();
insert into lines select from generate_series(1, 1000);
create table empty (id int primary key, v text);

create table dropped (a int, id int primary key, b text, c date, d text);
insert into dropped select g, g, 'b', '2024-01-01', 'd' || g from generate_series(1, 500) g;
alter table dropped drop column a, drop column c, add column e int default 7;
insert into dropped values (501, 'b', 'd', null);

create table "Tábla ""x"" 表" (" Ключ" int primary key, "a.b" text, "select" text, "tab\tc" text);
insert into "Tábla ""x"" 表" select g, 'é', '{{', ',' from generate_series(1, 500) g;

create type mood as enum ('sad', 'so "so"');
create domain positive as int check (value > 0);
create domain few as int[];
create table typed (id positive primary key, m mood, f few, n numeric(9,2), d date, many mood[]);
insert into typed select g, 'so "so"', array[g, null], g / 4.0, date '2024-01-01' + g, '{{sad,NULL}}'
from generate_series(1, 500) g;

create schema one; create schema "Two";
create table same (id int primary key, v text);
create table one.same (id int primary key, v text);
create table "Two".same (v text, id int primary key);
insert into same values (1, 'public'); insert into one.same values (1, 'one'); insert into "Two".same values ('Two', 1);

create table moved (id int primary key, v int default 0, pad text default repeat('p', 400)) with (fillfactor = 50);
insert into moved select g from generate_series(1, 3000) g;

create table whole_row (a int, b text);
alter table whole_row replica identity full;
insert into whole_row select g, 'b' from generate_series(1, 500) g;
"""
WRITES = (
    "insert into parts select 10000 + (random() * 1e6)::int, (random() * 2)::int, 'new' on conflict do nothing",
    "update parts set k = (k + 1) % 3 where id = (random() * 3000)::int",
    "update parts set note = note || '.' where id % 100 = (random() * 99)::int",
    "delete from parts where id % 500 = (random() * 499)::int",
    "insert into parent values (10000 + (random() * 1e6)::int, 'new') on conflict do nothing",
    "update parent set v = v || '.' where id % 50 = (random() * 49)::int",
    "delete from child where id = (random() * 300)::int",
    "update wide set c1598 = c1598 + 1 where id = (random() * 40)::int",
    "insert into lines select from generate_series(1, 3)",
    "insert into empty values (10000 + (random() * 1e6)::int, 'e') on conflict do nothing",
    "update dropped set e = e + 1 where id % 20 = (random() * 19)::int",
    'update "Tábla ""x"" 表" set "a.b" = "a.b" || 1 where " Ключ" % 30 = (random() * 29)::int',
    "update typed set m = 'sad', f = f || 1, n = n + 1 where id % 30 = (random() * 29)::int",
    "update same set v = v || '.'; update one.same set v = v || ','; update \"Two\".same set v = v || ';'",
    "update moved set v = v + 1, pad = md5(pad) where id % 40 = (random() * 39)::int",
    "update moved set id = id + 10000 where id = (random() * 3000)::int",
    "delete from moved where id % 300 = (random() * 299)::int",
    "insert into moved select generate_series(20000, 20050) on conflict do nothing",
    "delete from whole_row where a = (random() * 500)::int; insert into whole_row values (1000, 'twice')",
)


class Watched(MemoryDestination):
    """Runs something when a table's rows are about to be read: its snapshot is taken, and its ranges are planned."""

    def __init__(self, before_rows: Callable[[TableSchema], object] = lambda _: None) -> None:
        super().__init__()
        self.copies = 0
        self._before_rows = before_rows

    def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
        self.copies += 1
        self._before_rows(table)
        super().write_table_rows(table, rows)


@pytest.fixture
def any_pipelines(any_database: Database, tmp_path: Path) -> Iterator[Pipelines]:
    made = Pipelines(any_database, tmp_path / "state")
    yield made
    made.close()


@contextmanager
def writing(database: Database, *statements: str) -> Iterator[None]:
    """Run statements, one after the other, over and over, each a transaction; once around at least."""
    stop, around = threading.Event(), threading.Event()

    def run() -> None:
        with database.connect() as connection:
            while not stop.is_set():
                for statement in statements:
                    connection.execute(statement)
                    stop.wait(_PAUSE_S)
                around.set()

    writer = threading.Thread(target=run)
    writer.start()
    try:
        yield
        assert around.wait(60), "the writer did not get around"
    finally:
        stop.set()
        writer.join()


def publish(database: Database, script: str, what: str = "for all tables", **options: str) -> None:
    settings = ", ".join(f"{name} = {value}" for name, value in options.items())
    database.execute(f"{script}; create publication {PUBLICATION} {what} {f'with ({settings})' if settings else ''}")


def published(database: Database) -> list[tuple[TableName, list[str], str | None]]:
    """Return the published tables, with their columns and conditions, as the server's own view has them."""
    rows = database.execute("select schemaname, tablename, attnames::text[], rowfilter from pg_publication_tables")
    return [(TableName(schema, name), columns or [], condition) for schema, name, columns, condition in rows]


def source_rows(database: Database, table: TableName, columns: list[str], condition: str | None) -> list[Any]:
    [[is_partitioned]] = database.execute("select relkind = 'p' from pg_class where oid = %s::regclass", table.quoted)
    chosen = ", ".join(map(quote_identifier, columns))
    only = "" if is_partitioned else "only"
    with database.connect() as connection:
        info = psycopg.types.TypeInfo.fetch(connection, "mood")
        if info is not None:
            info.register(connection)
        found = connection.execute(f"select {chosen} from {only} {table.quoted} where {condition or 'true'}".encode())
        return sorted(map(repr, found.fetchall()))


def destination_rows(destination: MemoryDestination, schema: TableSchema, columns: list[str]) -> list[Any]:
    places = [schema.column_names.index(name) for name in columns]
    assert len(places) == len(schema.columns)
    return sorted(repr(tuple(row.values[place] for place in places)) for row in destination.current_rows(schema))


def table_id(database: Database, table: TableName) -> TableId:
    [[oid]] = database.execute("select %s::regclass::oid::bigint", table.quoted)
    return TableId(oid)


def assert_equal(database: Database, pipelines: Pipelines, pipeline: Pipeline, destination: MemoryDestination) -> None:
    """Compare every published table, each with all its published columns."""
    pipelines.catch_up(pipeline, 120)  # with the copy, and then with what was written in its course
    pipelines.catch_up(pipeline, 120)
    assert [table.error for table in pipeline.report.tables if table.error] == []
    tables = published(database)
    assert len(pipeline.report.tables) == len(tables)
    for table, columns, condition in tables:
        found = destination_rows(destination, pipeline._tables.schema(table_id(database, table)), columns)
        assert found == source_rows(database, table, columns, condition), table


@pytest.mark.parametrize("via_root", ["true", pytest.param("false", marks=pytest.mark.long)])
def test_tables_of_every_shape_are_the_sources_after_a_copy_with_writers(
    any_database: Database, any_pipelines: Pipelines, via_root: str
) -> None:
    publish(any_database, PARTITIONED + PLAIN, publish_via_partition_root=via_root)
    destination = Watched()
    with writing(any_database, *WRITES):
        pipeline = any_pipelines.start(destination, initial_copy=SMALL_RANGES)
        any_pipelines.catch_up(pipeline, 120)
    assert_equal(any_database, any_pipelines, pipeline, destination)
    names = {str(table.name) for table in pipeline.report.tables}
    assert ("public.parts" in names, "public.parts é" in names) == (via_root == "true", via_root == "false")


def test_row_filters_and_column_lists_of_the_publication_hold_for_copy_and_stream(
    any_database: Database, any_pipelines: Pipelines
) -> None:
    script = """
        create table listed (id int primary key, secret text, shown text);
        create table filtered (id int primary key, v text);
        create table parts (id int primary key, v text, secret text) partition by range (id);
        create table parts_low partition of parts for values from (minvalue) to (100);
        create table parts_high (secret text, v text, id int not null);
        alter table parts attach partition parts_high for values from (100) to (maxvalue);
    """
    fill = "insert into {} select g, 'secret', 'v' || g from generate_series(1, 300) g;"
    script += fill.format("listed") + fill.format("parts (id, secret, v)")
    script += "insert into filtered select g, 'v' from generate_series(1, 300) g;"
    publish(
        any_database,
        script,
        "for table listed (id, shown), filtered where (id % 2 = 0 or id = 1), parts (id, v) where (id > 50)",
        publish_via_partition_root="true",
    )
    destination = Watched()
    with writing(
        any_database,
        "update listed set shown = shown || '.', secret = 'other' where id % 10 = (random() * 9)::int",
        "update filtered set id = id + 1000 where id = (random() * 300)::int",
        "update filtered set v = v || '.' where id % 10 = (random() * 9)::int",
        "insert into filtered values (10000 + (random() * 1e6)::int, 'new') on conflict do nothing",
        "update parts set v = v || '.', id = id + 100 where id = (random() * 100)::int"
        " and id + 100 not in (select id from parts)",
        "delete from parts where id = (random() * 300)::int",
    ):
        pipeline = any_pipelines.start(destination)
        any_pipelines.catch_up(pipeline, 60)
    assert_equal(any_database, any_pipelines, pipeline, destination)
    schema = pipeline._tables.schema(table_id(any_database, TableName("public", "listed")))
    assert schema.column_names == ("id", "shown")


@pytest.mark.parametrize("generated", ["none", "stored"])
def test_generated_columns_are_copied_as_the_publication_says(
    database: Database, pipelines: Pipelines, generated: str
) -> None:
    if database.version_major < 18:
        pytest.skip("servers before 18 publish no generated columns")
    publish(
        database,
        "create table t (id int primary key, doubled int generated always as (id * 2) stored, v text);"
        "insert into t (id, v) select g, 'v' from generate_series(1, 300) g",
        publish_generated_columns=generated,
    )
    destination = Watched()
    with writing(database, "update t set v = v || '.', id = id + 1000 where id = (random() * 300)::int"):
        pipeline = pipelines.start(destination)
        pipelines.catch_up(pipeline)
    assert_equal(database, pipelines, pipeline, destination)
    schema = pipeline._tables.schema(table_id(database, TableName("public", "t")))
    assert ("doubled" in schema.column_names) == (generated == "stored")


def test_a_generated_column_that_is_listed_is_copied(any_database: Database, any_pipelines: Pipelines) -> None:
    if any_database.version_major < 18:
        pytest.skip("servers before 18 publish no generated columns")
    publish(
        any_database,
        "create table t (id int primary key, doubled int generated always as (id * 2) stored, v text);"
        "insert into t (id, v) select g, 'v' from generate_series(1, 300) g",
        "for table t (doubled, id)",
    )
    destination = Watched()
    pipeline = any_pipelines.start(destination)
    any_database.execute("update t set id = id + 1000 where id < 100")
    assert_equal(any_database, any_pipelines, pipeline, destination)


def test_rows_that_are_added_and_moved_after_the_plan_are_neither_lost_nor_repeated(
    any_database: Database, any_pipelines: Pipelines
) -> None:
    publish(
        any_database,
        "create table t (id int primary key, v text) with (fillfactor = 100);"
        "insert into t select g, repeat('v', 200) from generate_series(1, 1000) g",
    )

    def change(_: TableSchema) -> None:
        any_database.execute("insert into t select g, repeat('w', 200) from generate_series(5000, 7000) g")
        any_database.execute("update t set v = repeat('u', 300) where id <= 500")
        any_database.execute("delete from t where id between 400 and 600")
        any_database.execute("vacuum t")
        any_database.execute("insert into t select g, 'into freed places' from generate_series(400, 500) g")

    destination = Watched(change)
    pipeline = any_pipelines.start(destination, initial_copy=SMALL_RANGES)
    assert_equal(any_database, any_pipelines, pipeline, destination)
    assert destination.copies == 1


@pytest.mark.parametrize("others", [0, 20])
def test_a_key_whose_order_is_not_that_of_its_columns_finds_its_rows(
    database: Database, pipelines: Pipelines, others: int
) -> None:
    # Where many tables change a little in one segment, they share a file of the log.
    neighbours = "".join(f"create table n{number} (id int primary key);" for number in range(others))
    publish(
        database,
        f"{neighbours} create table t (a int, b int, v text, primary key (b, a));"
        "insert into t values (1, 2, 'x'), (2, 1, 'other')",
    )
    destination = Watched()
    pipeline = pipelines.start(destination)
    pipelines.catch_up(pipeline)
    inserts = "".join(f"insert into n{number} values (1);" for number in range(others))
    database.execute(f"begin; {inserts} update t set a = 5 where a = 1; delete from t where a = 2; commit")
    assert_equal(database, pipelines, pipeline, destination)


@pytest.mark.parametrize("change", ["truncate t", "truncate t; insert into t values (-1, 'new')", "vacuum full t"])
def test_a_table_that_is_truncated_or_rewritten_during_its_copy_is_copied_again(
    database: Database, pipelines: Pipelines, change: str
) -> None:
    publish(
        database,
        "create table t (id int primary key, v text);"
        "insert into t select g, repeat('v', 200) from generate_series(1, 1000) g",
    )
    changes = iter([change])

    def run(_: TableSchema) -> None:
        for statement in next(changes, "").split(";"):
            if statement:
                database.execute(statement)

    destination = Watched(run)
    pipeline = pipelines.start(destination, initial_copy=SMALL_RANGES)
    wait_until(lambda: destination.copies > 1, "the table to be copied again")
    assert_equal(database, pipelines, pipeline, destination)
    assert destination.copies == 2


def test_rows_of_a_partition_that_is_made_during_the_copy_arrive(database: Database, pipelines: Pipelines) -> None:
    publish(
        database,
        "create table parts (id int, k int, primary key (id, k)) partition by list (k);"
        "create table parts_1 partition of parts for values in (1);"
        "create table parts_2 partition of parts for values in (2);"
        "insert into parts select g, 1 + g % 2 from generate_series(1, 1000) g",
        publish_via_partition_root="true",
    )
    changes = iter(["create table parts_3 partition of parts for values in (3); insert into parts values (1, 3)"])
    destination = Watched(lambda _: database.execute(next(changes, "select")))
    pipeline = pipelines.start(destination, initial_copy=SMALL_RANGES)
    assert_equal(database, pipelines, pipeline, destination)


@pytest.mark.slow
@pytest.mark.long
def test_a_row_of_200_megabytes_is_copied_whole(database: Database, pipelines: Pipelines) -> None:
    publish(
        database,
        "create table t (id int primary key, big bytea, last text); alter table t alter big set storage external;"
        "insert into t select 1, decode(repeat('00ff', 100000000), 'hex'), 'last';"
        "insert into t values (2, '', 'small')",
    )
    destination = Watched()
    pipeline = pipelines.start(destination)
    database.execute("update t set last = 'changed' where id = 2")
    pipelines.catch_up(pipeline, 120)
    schema = pipeline._tables.schema(table_id(database, TableName("public", "t")))
    large, small = sorted((row.values for row in destination.current_rows(schema)), key=lambda row: str(row[0]))
    assert large[1] == b"\x00\xff" * 100_000_000
    assert (large[2], small) == ("last", (2, b"", "changed"))


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("via_root", ["true", "false"])
def test_tables_of_every_shape_are_the_sources_in_a_lake_written_by_spark_tasks(
    spark: SparkSession, database: Database, tmp_path: Path, via_root: str
) -> None:
    # Delta tables have columns; what it does about keyless tables is told elsewhere.
    without = "drop table nothing, lines, whole_row;"
    publish(database, PARTITIONED + PLAIN + without, publish_via_partition_root=via_root)
    store = MemoryStore()
    destination = DeltaDestination(
        str(tmp_path / "lake"),
        pipeline=pipeline_config(database).id,
        spark=lambda: spark,
        tables=store,
        cdc_columns=False,
    )
    pipeline = Pipeline(
        pipeline_config(database, initial_copy={"commit_bytes": 64 * 8192}),
        store=store,
        destination=destination,
        state_dir=tmp_path / "state",
        spark=lambda: spark,
    )
    pipeline.start()
    try:
        # Merging rows of 1,600 columns takes minutes; copying them does not.
        left_out = ("lines", "whole_row", "wide")
        with writing(database, *[each for each in WRITES if not any(name in each for name in left_out)]):
            assert pipeline.wait_until_ready(pipeline.source_position(), 300), pipeline.report
        assert pipeline.wait_until_ready(pipeline.source_position(), 300), pipeline.report
    finally:
        pipeline.shutdown_and_wait()
    assert [table.error for table in pipeline.report.tables if table.error] == []
    for table, columns, condition in published(database):
        folder = store.get_table_mapping(table_id(database, table))
        rows = spark.read.format("delta").load(f"{tmp_path}/lake/{folder}").toArrow().select(columns).to_pylist()
        found = sorted(repr(tuple(row.values())) for row in rows)
        assert found == source_rows(database, table, columns, condition), table
