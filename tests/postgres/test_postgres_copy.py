"""A copy in ranges holds every row of its snapshot exactly once, each value as the server prints it."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ConversionError, ErrorKind, SourceError, WireError
from penstock.model.policy import DEFAULT_POLICIES, ValuePolicies
from penstock.model.special import SpecialValues
from penstock.model.table import Column, Kind, PgType, TableId, TableName, TableSchema
from penstock.postgres.catalog import blocks, describe_table
from penstock.postgres.connection import Connection, connect
from penstock.postgres.copy import CopyRange, copy_statement, plan_ranges, read_range, to_batch
from penstock.postgres.publication import published_tables
from penstock.postgres.snapshot import ExportedSnapshot, import_snapshot
from penstock.testing.postgres import Database, wait_until
from penstock.wire.column import arrow_schema

pytestmark = pytest.mark.postgres


@pytest.fixture
def session(any_database: Database) -> Iterator[Connection]:
    with connect(any_database.address, application_name="test") as connection:
        yield connection


def whole(connection: Connection, schema: TableSchema) -> CopyRange:
    """Return a table as one range."""
    [leaf] = blocks(connection, schema.id)
    return CopyRange(schema.name, leaf.file)


def describe(connection: Connection, name: str) -> TableSchema:
    row = connection.execute("select %s::regclass::oid::bigint", [name]).fetchone()
    assert row is not None
    return describe_table(connection, TableId(row[0]))


@contextlib.contextmanager
def exported(database: Database) -> Iterator[str]:
    """Export a snapshot from an ordinary session: cheaper than a slot, and the same to an importer."""
    with database.connect() as holder:
        holder.execute("begin isolation level repeatable read")
        row = holder.execute("select pg_export_snapshot()").fetchone()
        assert row is not None
        yield row[0]


def read_all(
    database: Database,
    schema: TableSchema,
    row_filter: str | None = None,
    policies: ValuePolicies = DEFAULT_POLICIES,
    **options: Any,
) -> pa.Table:
    with connect(database.address, application_name="test") as connection:
        ranges = plan_ranges(connection, schema, blocks_per_range=2)
    with exported(database) as snapshot:
        batches = [
            batch
            for part in ranges
            for batch in read_range(database.address, snapshot, schema, part, row_filter, policies, **options)
        ]
    return pa.Table.from_batches(batches, arrow_schema(schema))


def test_ranges_divide_a_table_without_gap_or_overlap(session: Connection) -> None:
    session.execute("create table public.t as select g from generate_series(1, 10000) g")
    schema = describe(session, "public.t")
    ranges = plan_ranges(session, schema, blocks_per_range=7)
    assert ranges[0].first_block == 0
    assert ranges[-1].end_block is None
    assert [part.end_block for part in ranges[:-1]] == [part.first_block for part in ranges[1:]]
    assert len(plan_ranges(session, schema, blocks_per_range=1, max_ranges=5)) <= 5
    assert plan_ranges(session, schema) == (whole(session, schema),)
    assert pickle.loads(pickle.dumps(ranges)) == ranges


def test_an_empty_table_has_one_open_range(session: Connection) -> None:
    session.execute("create table public.t (id int)")
    schema = describe(session, "public.t")
    assert plan_ranges(session, schema) == (whole(session, schema),)


def test_ranges_hold_each_row_once_while_writers_run(any_database: Database) -> None:
    any_database.execute(
        "create table t (id bigserial primary key, pad text default repeat('x', 200)) with (fillfactor = 60)"
    )
    any_database.execute("insert into t (pad) select repeat('y', 200) from generate_series(1, 5000)")
    stop = threading.Event()
    writer = threading.Thread(target=write_until, args=(any_database, stop))
    writer.start()
    try:
        with connect(any_database.address, application_name="test") as connection:
            schema = describe(connection, "public.t")
            # Planned before the snapshot: the table grows in between, which the open range must hold.
            ranges = plan_ranges(connection, schema, blocks_per_range=10)
            with ExportedSnapshot(any_database.address, application_name="test") as snapshot:
                copied: list[Any] = [
                    row
                    for part in reversed(ranges)
                    for batch in read_range(any_database.address, snapshot.name, schema, part)
                    for row in batch.column("id").to_pylist()
                ]
                import_snapshot(connection, snapshot.name)
                expected = [row[0] for row in connection.execute("select id from public.t order by id").fetchall()]
                connection.execute("rollback")
    finally:
        stop.set()
        writer.join()
    assert len(ranges) > 10
    assert sorted(copied) == expected


def write_until(database: Database, stop: threading.Event) -> None:
    with database.connect() as connection:
        while not stop.is_set():
            connection.execute("insert into t (pad) select repeat('z', 200) from generate_series(1, 50)")
            connection.execute("update t set pad = md5(pad) where id % 97 = (random() * 96)::int")
            connection.execute("delete from t where id in (select id from t order by random() limit 10)")
            connection.execute("vacuum t")


def test_rows_of_every_type_are_what_the_server_prints(any_database: Database) -> None:
    any_database.execute("create type mood as enum ('sad', 'so, so')")
    any_database.execute(
        """create table t (
            id int, b bool, n numeric(12,2), big numeric, f float8, d date, ts timestamptz,
            y bytea, j jsonb, a int[], texts text[], m mood, i interval, r int4range, o oid, z timetz
        )"""
    )
    any_database.execute(
        """insert into t values (
            1, true, 1.50, 1e50, 'NaN', '2024-02-29', '2024-01-01 12:00:00.123456+02', '\\x00ff', '{"a": "\\"x"}',
            '{1,null}', '{"a,b","",null}', 'so, so', '1 day', '[1,5)', 4294967295, '10:00+02'
        )"""
    )
    any_database.execute("insert into t (id) values (2)")
    with connect(any_database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
    first, second = read_all(any_database, schema).sort_by("id").to_pylist()
    assert set(second.values()) == {2, None}
    assert (first["n"], first["big"], first["o"]) == (pytest.approx(1.5), "1" + "0" * 50, 4294967295)
    assert (first["y"], first["a"], first["texts"]) == (b"\x00\xff", [1, None], ["a,b", "", None])
    assert (first["m"], first["i"], first["r"], first["z"]) == ("so, so", "1 day", "[1,5)", "10:00:00+02")
    assert first["ts"].isoformat() == "2024-01-01T10:00:00.123456+00:00"


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from('",\r\n\\.\ufeff '))


@pytest.mark.parametrize("columns", [1, 3])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_text_and_null_survive_the_copy(database: Database, columns: int, data: st.DataObject) -> None:
    row = st.tuples(*[st.none() | TEXT] * columns)
    rows = data.draw(st.lists(row, min_size=1, max_size=10))
    names = [f"c{index}" for index in range(columns)]
    database.execute("drop table if exists t")
    database.execute(f"create table t ({', '.join(f'{name} text' for name in names)})")
    with database.connect() as connection:
        statement = f"insert into t values ({', '.join(['%s'] * columns)})"
        connection.cursor().executemany(statement, rows)
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
    batch_bytes = data.draw(st.sampled_from([1, 20, 1 << 20]))
    copied = read_all(database, schema, batch_bytes=batch_bytes)
    assert [tuple(found.values()) for found in copied.to_pylist()] == rows


def test_a_value_larger_than_a_batch_is_read_whole(database: Database) -> None:
    database.execute(
        "create table t as select g id, repeat(chr(64 + g) || e'\\n', 3000000) big from generate_series(1, 3) g"
    )
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
    copied = read_all(database, schema, batch_bytes=1000).sort_by("id")
    assert [(len(row["big"]), row["big"][0]) for row in copied.to_pylist()] == [
        (6000000, "A"), (6000000, "B"), (6000000, "C")
    ]  # fmt: skip


def test_batches_stay_near_the_size_asked_for(database: Database) -> None:
    database.execute("create table t as select repeat('x', 99) from generate_series(1, 10000)")
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
        part = whole(connection, schema)
    with exported(database) as snapshot:
        sizes = [batch.num_rows for batch in read_range(database.address, snapshot, schema, part, batch_bytes=100_000)]
    assert sizes == [1000] * 10


def test_tables_without_columns_keep_their_row_count(database: Database) -> None:
    database.execute("create table t ()")
    database.execute("insert into t select from generate_series(1, 1234)")
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
        part = whole(connection, schema)
    with exported(database) as snapshot:
        (batch,) = read_range(database.address, snapshot, schema, part)
    assert (batch.num_rows, batch.num_columns) == (1234, 0)


def test_tables_of_1600_columns_are_copied(database: Database) -> None:
    database.execute(f"create table t ({', '.join(f'c{n} int' for n in range(1600))})")
    database.execute(f"insert into t values ({', '.join(str(n) for n in range(1600))})")
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
    assert list(read_all(database, schema).to_pylist()[0].values()) == list(range(1600))


def test_a_partitioned_table_is_copied_leaf_by_leaf_with_its_filter(any_database: Database) -> None:
    any_database.execute('create table "Root" (id int, "K k" int, primary key (id, "K k")) partition by list ("K k")')
    any_database.execute('create table "Lé af" partition of "Root" for values in (1)')
    any_database.execute('create table sub partition of "Root" for values in (2) partition by range (id)')
    any_database.execute("create table sub_a partition of sub for values from (0) to (100)")
    any_database.execute('create table sub_b ("K k" int not null, extra int, id int not null)')
    any_database.execute("alter table sub_b drop column extra")
    any_database.execute("alter table sub attach partition sub_b for values from (100) to (1000)")
    any_database.execute('insert into "Root" select g, 1 + g % 2 from generate_series(0, 199) g')
    any_database.execute('create publication p for table "Root" where (id > 50) with (publish_via_partition_root)')
    with connect(any_database.address, application_name="test") as connection:
        (table,) = published_tables(connection, "p")
        schema = describe_table(connection, table.id, table.columns)
        assert {part.relation.name for part in plan_ranges(connection, table)} == {"Lé af", "sub_a", "sub_b"}
    copied = read_all(any_database, schema, table.row_filter).to_pylist()
    assert sorted((row["id"], row["K k"]) for row in copied) == [(g, 1 + g % 2) for g in range(51, 200)]


def test_rows_of_inheriting_tables_are_not_the_parents(database: Database) -> None:
    database.execute("create table parent (id int)")
    database.execute("create table child () inherits (parent)")
    database.execute("insert into parent values (1)")
    database.execute("insert into child values (2)")
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.parent")
    assert read_all(database, schema).column("id").to_pylist() == [1]


def test_a_copy_that_is_cut_short_never_looks_complete(database: Database) -> None:
    database.execute("create table t as select g, repeat('x', 1000) from generate_series(1, 50000) g")
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
        part = whole(connection, schema)
    with exported(database) as snapshot:
        batches = read_range(database.address, snapshot, schema, part, batch_bytes=1000, application_name="cut short")
        next(batches)
        database.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'cut short'")
        with pytest.raises(SourceError, match=r"copying public\.t") as caught:
            list(batches)
    assert caught.value.kind in {ErrorKind.SOURCE_SHUTDOWN, ErrorKind.SOURCE_CONNECTION_FAILED}


def test_an_abandoned_copy_closes_its_connection(database: Database) -> None:
    database.execute("create table t as select g, repeat('x', 1000) from generate_series(1, 50000) g")
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
        part = whole(connection, schema)
    with exported(database) as snapshot:
        batches = read_range(database.address, snapshot, schema, part, batch_bytes=1000, application_name="abandoned")
        next(batches)
        assert isinstance(batches, Iterator)
        batches.close()  # type: ignore[attr-defined]
    query = "select 1 from pg_stat_activity where application_name = 'abandoned'"
    wait_until(lambda: database.execute(query) == [], "the connection to end")


def test_a_lost_snapshot_is_its_own_error(database: Database) -> None:
    database.execute("create table t (id int)")
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
        part = whole(connection, schema)
    with pytest.raises(SourceError) as caught:
        list(read_range(database.address, "00000003-0000001B-1", schema, part))
    assert caught.value.kind is ErrorKind.SOURCE_SNAPSHOT_LOST


def test_row_level_security_stops_a_copy_instead_of_emptying_it(database: Database) -> None:
    database.execute("create table t (id int); alter table t enable row level security; insert into t values (1)")
    database.execute("create role limited_reader login; grant select on t to limited_reader")
    try:
        with connect(database.address, application_name="test") as connection:
            schema = describe(connection, "public.t")
            part = whole(connection, schema)
        address = replace(database.address, user="limited_reader")
        with exported(database) as snapshot, pytest.raises(SourceError) as caught:
            list(read_range(address, snapshot, schema, part))
        assert caught.value.kind is ErrorKind.SOURCE_PERMISSION_DENIED
    finally:
        database.execute("drop table t; drop role limited_reader")


def test_a_special_value_is_refused_by_column_or_replaced_as_told(database: Database) -> None:
    database.execute("create table t as select 1 as id, 'infinity'::date as \"Due on\"")
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
    with pytest.raises(ConversionError, match=r"public\.t, column Due on: "):
        read_all(database, schema)
    copied = read_all(database, schema, policies=ValuePolicies(SpecialValues.NULL))
    assert copied.to_pylist() == [{"id": 1, "Due on": None}]


def test_bytes_that_are_not_csv_of_the_table_are_refused_without_quoting_them() -> None:
    schema = TableSchema(TableId(1), TableName("public", "t"), ())
    column = describe_text_column()
    with pytest.raises(WireError, match=r"public\.t") as caught:
        to_batch(b"secret,value\n", 1, replace(schema, columns=(column,)), DEFAULT_POLICIES)
    assert "secret" not in caught.value.message
    with pytest.raises(WireError, match="sent 2 rows, but 1"):
        to_batch(b"one\n", 2, replace(schema, columns=(column,)), DEFAULT_POLICIES)


def describe_text_column() -> Column:
    return Column("c", PgType("text", Kind.TEXT))


def test_the_statement_quotes_names_and_brackets_the_filter(database: Database) -> None:
    schema = TableSchema(TableId(1), TableName("s", 'T"x'), (describe_text_column(),))
    statement = copy_statement(schema, CopyRange(schema.name, 1, 3, 9), "a or b")
    assert statement == (
        """copy (select "c" from only "s"."T""x" where ctid >= '(3,0)' and ctid < '(9,0)' and (a or b))"""
        " to stdout (format csv)"
    )
    with pytest.raises(psycopg.errors.UndefinedTable), database.connect() as connection:
        connection.execute(statement)


@pytest.mark.parametrize("rewrite", ["vacuum full t", "truncate t", "alter table t alter id type bigint"])
def test_a_table_rewritten_after_the_snapshot_is_refused(any_database: Database, rewrite: str) -> None:
    any_database.execute("create table t (id int)")
    any_database.execute("insert into t values (1)")
    with connect(any_database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
        part = whole(connection, schema)
    with exported(any_database) as snapshot:
        any_database.execute(rewrite)
        with pytest.raises(SourceError, match=r"public\.t was rewritten") as caught:
            list(read_range(any_database.address, snapshot, schema, part))
    assert caught.value.kind is ErrorKind.SOURCE_SNAPSHOT_LOST


def test_a_table_cannot_be_rewritten_while_a_range_is_read(database: Database) -> None:
    database.execute("create table t as select g as id from generate_series(1, 10000) g")
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
        part = whole(connection, schema)
    with exported(database) as snapshot, contextlib.closing(database.connect()) as other:
        batches = read_range(database.address, snapshot, schema, part, batch_bytes=100)
        next(batches)
        other.execute("set lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("truncate t")
        assert sum(batch.num_rows for batch in batches) > 9000
