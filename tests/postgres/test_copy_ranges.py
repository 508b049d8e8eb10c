"""A copy in ranges holds every row of its snapshot exactly once, or fails."""

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
from plugins.certificate import Authority
from plugins.secured import UNPREPARED_PASSWORD
from plugins.table_copy import Addressed, describe, exported, read_all, whole

from penstock.errors import ErrorKind, SourceError
from penstock.model.copying import CopyRange
from penstock.model.table import Column, Kind, PgType, TableId, TableName, TableSchema
from penstock.postgres import copy
from penstock.postgres.catalog import describe_table
from penstock.postgres.connection import Connection, SourceAddress, connect
from penstock.postgres.copy import LibpqCopy, copy_statement, open_copy_stream, read_range
from penstock.postgres.publication import published_tables
from penstock.postgres.ranges import plan_ranges
from penstock.postgres.raw import RawConnection
from penstock.postgres.snapshot import ExportedSnapshot, import_snapshot
from penstock.postgres.startup import UnspokenMethodError
from penstock.testing.postgres import Cluster, Database, wait_until

pytestmark = pytest.mark.postgres


@pytest.fixture
def session(any_database: Database) -> Iterator[Connection]:
    with connect(any_database.address, application_name="test") as connection:
        yield connection


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
    # A row has 110 bytes: its frame, the number of its values, a length, and 99.
    assert sum(sizes) == 10000
    assert set(sizes[:-1]) <= set(range(700, 910))


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


def test_the_statement_quotes_names_brackets_the_filter_and_prints_what_is_not_read_in_binary(
    database: Database,
) -> None:
    columns = Column("c", PgType("text", Kind.TEXT)), Column('D"', PgType("inet", Kind.TEXT))
    schema = TableSchema(TableId(1), TableName("s", 'T"x'), columns)
    statement = copy_statement(schema, CopyRange(schema.name, 1, 3, 9), "a or b")
    assert statement == (
        'copy (select "c", case when "D""" is distinct from null then concat("D""") end from only "s"."T""x"'
        " where ctid >= '(3,0)' and ctid < '(9,0)' and (a or b)) to stdout (format binary)"
    )
    with pytest.raises(psycopg.errors.UndefinedTable), database.connect() as connection:
        connection.execute(statement)


def test_a_range_without_rows_gives_no_batches(any_database: Database) -> None:
    any_database.execute("create table t (id int, note text, tags text[])")
    with connect(any_database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
        part = whole(connection, schema)
    with exported(any_database) as snapshot:
        assert list(read_range(any_database.address, snapshot, schema, part)) == []


def test_a_subset_of_columns_in_another_order_is_copied(any_database: Database) -> None:
    any_database.execute('create table t (id int, "Sécret" text, "a ""b""" text)')
    any_database.execute("insert into t values (1, 'hidden', 'seen')")
    with connect(any_database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
    chosen = replace(schema, columns=(schema.columns[2], schema.columns[0]))
    assert read_all(any_database, chosen, "id > 0").to_pylist() == [{'a "b"': "seen", "id": 1}]


def test_a_row_of_fifty_megabytes_is_read_whole(database: Database) -> None:
    database.execute("create table t (id int, big bytea, last text)")
    database.execute("alter table t alter big set storage external")
    database.execute("insert into t select 1, decode(repeat('00ff', 25000000), 'hex'), 'last'")
    database.execute("insert into t values (2, '', 'small')")
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
    large, small = read_all(database, schema, batch_bytes=1 << 16).sort_by("id").to_pylist()
    assert len(large["big"]) == 50_000_000
    assert large["big"][-4:] == b"\x00\xff\x00\xff"
    assert (large["last"], small["big"], small["last"]) == ("last", b"", "small")


def make_rows(database: Database) -> tuple[TableSchema, list[Any]]:
    """Make a table of some types, and return what a copy of it holds."""
    database.execute("create table t (id int, n numeric(12,2), v text, i interval)")
    database.execute(
        "insert into t select g, g / 4.0, repeat('é', g % 50), make_interval(g) from generate_series(1, 3000) g"
    )
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
        rows = connection.execute("select id, n, v, i::text from public.t order by id").fetchall()
    return schema, rows


def in_order(copied: pa.Table) -> list[Any]:
    return [tuple(row.values()) for row in copied.sort_by("id").to_pylist()]


@pytest.mark.parametrize("batch_bytes", [300, 1 << 20])
def test_a_copy_is_the_same_plain_under_tls_and_through_libpq(
    tls_database: Database, authority: Authority, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    schema, rows = make_rows(tls_database)
    plain = replace(tls_database.address, sslmode="disable")
    certificate = str(authority.certificate)
    secure = replace(plain, host="localhost", hostaddr="127.0.0.1", sslmode="verify-full", sslrootcert=certificate)
    for address in (plain, secure):
        assert in_order(read_all(Addressed(tls_database, address), schema, batch_bytes=batch_bytes)) == rows

    def refuse(*_: object, **__: object) -> None:
        raise UnspokenMethodError("the server asks for authentication by kerberos")

    monkeypatch.setattr(RawConnection, "open", refuse)
    for address in (plain, secure):
        assert in_order(read_all(Addressed(tls_database, address), schema, batch_bytes=batch_bytes)) == rows


def test_where_only_libpq_can_authenticate_it_reads_the_copy(guarded_cluster: Cluster) -> None:
    with guarded_cluster.database() as lent:
        schema, rows = make_rows(lent)
        lent.execute("grant select on t to unprepared")
        address = replace(lent.address, user="unprepared", password=UNPREPARED_PASSWORD)
        with contextlib.closing(open_copy_stream(address, application_name="test")) as stream:
            assert isinstance(stream, LibpqCopy)
        assert in_order(read_all(Addressed(lent, address), schema)) == rows
        lent.execute("drop owned by unprepared")


@pytest.mark.parametrize("through_libpq", [False, True])
def test_an_error_in_the_middle_of_a_copy_is_the_servers_own(
    database: Database, monkeypatch: pytest.MonkeyPatch, through_libpq: bool
) -> None:
    database.execute("create table t as select g as id, 'a private note' as v from generate_series(1, 50000) g")
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
        part = whole(connection, schema)
    if through_libpq:
        monkeypatch.setattr(copy, "open_copy_stream", open_with_libpq)
    with exported(database) as snapshot:
        batches = read_range(database.address, snapshot, schema, part, "1 / (id - 40000) < 9", batch_bytes=10_000)
        assert next(batches).num_rows > 0
        with pytest.raises(SourceError, match=r"copying public\.t: DivisionByZero") as caught:
            list(batches)
    assert caught.value.kind is ErrorKind.SOURCE_QUERY_FAILED


def open_with_libpq(address: SourceAddress, *, application_name: str) -> LibpqCopy:
    return LibpqCopy(connect(address, application_name=application_name), fallback_reason="a test")


@pytest.mark.parametrize(
    "change",
    [
        "alter table t alter id type oid",
        "alter table t rename id to x; alter table t rename stamp to id; alter table t rename x to stamp",
        "alter table t drop stamp; alter table t add stamp float8 default 1.5",
        "alter table t alter code type positive",
    ],
)
def test_a_column_whose_type_changed_without_a_rewrite_is_refused(any_database: Database, change: str) -> None:
    any_database.execute("create domain positive as int")
    columns = "id int, stamp timestamptz(3), code int, n numeric(9,2), c char(3), b bpchar, v varchar(9)"
    any_database.execute(f"create table t ({columns})")
    any_database.execute("insert into t values (1, now(), 2, 1, 'a', 'b', 'c')")
    with connect(any_database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
        part = whole(connection, schema)
    with exported(any_database) as snapshot:
        [batch] = read_range(any_database.address, snapshot, schema, part)
        assert batch.num_rows == 1
        any_database.execute(change)
        with pytest.raises(SourceError, match=r"public\.t: the type of column \w+ was changed") as caught:
            list(read_range(any_database.address, snapshot, schema, part))
    assert caught.value.kind is ErrorKind.SOURCE_SNAPSHOT_LOST


def test_names_with_quotes_and_backslashes_are_found_whatever_strings_mean(database: Database) -> None:
    name = "a'b\\\"c"
    quoted = '"' + name.replace('"', '""') + '"'
    database.execute(f"alter database {database.name} set standard_conforming_strings = off")
    with database.connect() as connection:
        connection.execute(f"create table {quoted} as select 1 as id")
        [(oid,)] = connection.execute(f"select tableoid::bigint from {quoted}").fetchall()
    with connect(database.address, application_name="test") as connection:
        schema = describe_table(connection, TableId(oid))
    assert schema.name.name == name
    assert read_all(database, schema).column("id").to_pylist() == [1]


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
