"""The catalog's word on columns, types, keys and sizes, on every server version at hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.errors import ErrorKind, SourceError
from penstock.model.table import Kind, PgType, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.postgres.catalog import Leaf, blocks, describe_table, describe_types, numeric_precision
from penstock.postgres.connection import Connection, connect
from penstock.testing.postgres import Database

pytestmark = pytest.mark.postgres


@pytest.fixture
def session(any_database: Database) -> Iterator[Connection]:
    with connect(any_database.address, application_name="test") as connection:
        yield connection


def oid_of(connection: Connection, name: str) -> TableId:
    row = connection.execute("select %s::regclass::oid::bigint", [name]).fetchone()
    assert row is not None
    return TableId(row[0])


def described(connection: Connection, name: str, columns: tuple[str, ...] | None = None) -> TableSchema:
    return describe_table(connection, oid_of(connection, name), columns)


def type_of(connection: Connection, declared: str) -> PgType:
    connection.execute("drop table if exists public.typed")
    connection.execute(f"create table public.typed (c {declared})")
    return described(connection, "public.typed").columns[0].type


def test_a_table_is_described_with_names_nullability_and_its_key_in_table_order(session: Connection) -> None:
    session.execute('create schema "S é"')
    session.execute(
        'create table "S é"."T""x" (a int not null, "Б" text not null, gone int, "c,d" date, primary key ("Б", a))'
    )
    session.execute('alter table "S é"."T""x" drop column gone')
    schema = described(session, '"S é"."T""x"')
    assert schema.name == TableName("S é", 'T"x')
    assert schema.column_names == ("a", "Б", "c,d")
    assert [column.attnum for column in schema.columns] == [1, 2, 4]
    assert [column.nullable for column in schema.columns] == [False, False, True]
    assert [column.name for column in schema.key] == ["a", "Б"]
    assert schema.identity is ReplicaIdentity.DEFAULT


def test_the_replica_identity_index_is_the_key_where_one_is_set(session: Connection) -> None:
    session.execute("create table public.t (id int primary key, a int not null, b int not null, c int)")
    session.execute("create unique index i on public.t (b, a) include (c)")
    session.execute("alter table public.t replica identity using index i")
    schema = described(session, "public.t")
    assert [column.name for column in schema.key] == ["a", "b"]
    assert schema.identity is ReplicaIdentity.INDEX


@pytest.mark.parametrize(
    ("key", "identity", "expected"),
    [
        ("", ReplicaIdentity.FULL, ["id"]),
        ("deferrable", ReplicaIdentity.FULL, []),
        ("", ReplicaIdentity.DEFAULT, ["id"]),
        ("deferrable", ReplicaIdentity.DEFAULT, []),
        ("", ReplicaIdentity.NOTHING, []),
    ],
)
def test_the_primary_key_is_the_key_where_the_stream_tells_rows_by_it(
    session: Connection, key: str, identity: ReplicaIdentity, expected: list[str]
) -> None:
    session.execute(f"create table public.t (id int primary key {key})")
    session.execute(f"alter table public.t replica identity {identity.name.lower()}")
    schema = described(session, "public.t")
    assert schema.identity is identity
    assert [column.name for column in schema.key] == expected


def test_a_key_that_is_published_in_part_is_no_key(session: Connection) -> None:
    session.execute("create table public.t (a int, b int, c int, primary key (a, b))")
    assert described(session, "public.t", ("a", "c")).key == ()
    assert [column.name for column in described(session, "public.t", ("b", "a")).key] == ["a", "b"]


def test_published_columns_keep_table_order(session: Connection) -> None:
    session.execute("create table public.t (a int, b int, c int)")
    assert described(session, "public.t", ("c", "a")).column_names == ("a", "c")


def test_generated_columns_are_left_out_unless_published(session: Connection) -> None:
    session.execute("create table public.t (id int, g int generated always as (id + 1) stored)")
    assert described(session, "public.t").column_names == ("id",)
    assert described(session, "public.t", ("id", "g")).column_names == ("id", "g")


def test_a_not_null_that_was_never_validated_promises_nothing(session: Connection) -> None:
    if session.info.server_version < 180000:
        pytest.skip("NOT NULL constraints can be NOT VALID from 18 on")
    session.execute("create table public.t (a int, b int)")
    session.execute("alter table public.t add constraint b_given not null b not valid")
    assert all(column.nullable for column in described(session, "public.t").columns)


def test_tables_of_no_column_and_of_1600_are_described(session: Connection) -> None:
    session.execute("create table public.narrow ()")
    session.execute(f"create table public.wide ({', '.join(f'c{n} int' for n in range(1600))})")
    assert described(session, "public.narrow").columns == ()
    assert len(described(session, "public.wide").columns) == 1600


def test_a_dropped_table_is_a_schema_error(session: Connection) -> None:
    with pytest.raises(SourceError, match="no table with oid 1") as caught:
        describe_table(session, TableId(1))
    assert caught.value.kind is ErrorKind.SOURCE_SCHEMA


def test_a_dropped_type_is_a_schema_error(session: Connection) -> None:
    with pytest.raises(SourceError, match="no type with oid 1"):
        describe_types(session, [(1, -1)])


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("boolean", PgType("boolean", Kind.BOOL)),
        ("smallint", PgType("smallint", Kind.INT2)),
        ("integer", PgType("integer", Kind.INT4)),
        ("bigint", PgType("bigint", Kind.INT8)),
        ("oid", PgType("oid", Kind.OID)),
        ("real", PgType("real", Kind.FLOAT4)),
        ("double precision", PgType("double precision", Kind.FLOAT8)),
        ("bytea", PgType("bytea", Kind.BYTES)),
        ("date", PgType("date", Kind.DATE)),
        ("timestamp(3)", PgType("timestamp(3) without time zone", Kind.TIMESTAMP)),
        ("timestamptz", PgType("timestamp with time zone", Kind.TIMESTAMPTZ)),
        ("numeric", PgType("numeric", Kind.NUMERIC)),
        ("numeric(12,2)", PgType("numeric(12,2)", Kind.NUMERIC, 12, 2)),
        ("numeric(38)", PgType("numeric(38,0)", Kind.NUMERIC, 38, 0)),
        ("numeric(1000,1000)", PgType("numeric(1000,1000)", Kind.NUMERIC, 1000, 1000)),
        ("numeric(3,-5)", PgType("numeric(3,-5)", Kind.NUMERIC, 3, -5)),
        ("numeric(2,5)", PgType("numeric(2,5)", Kind.NUMERIC, 2, 5)),
    ],
)
def test_types_with_a_kind_of_their_own_are_known(session: Connection, declared: str, expected: PgType) -> None:
    assert type_of(session, declared) == expected


@pytest.mark.parametrize(
    "declared",
    [
        "text", "varchar(10)", "char(3)", '"char"', "name", "uuid", "json", "jsonb", "xml", "time", "timetz",
        "interval", "money", "inet", "cidr", "macaddr", "bit(3)", "varbit", "point", "box", "int4range",
        "int4multirange", "tsvector", "tsquery", "pg_lsn", "regclass", "int2vector", "oidvector", "xid",
    ],
)  # fmt: skip
def test_every_other_type_is_text(session: Connection, declared: str) -> None:
    assert type_of(session, declared).kind is Kind.TEXT


def test_user_defined_types_are_text_or_their_base(session: Connection) -> None:
    session.execute("create type public.mood as enum ('sad', 'ok')")
    session.execute("create type public.pair as (a int, b int)")
    session.execute("create domain public.price as numeric(10,3) check (value > 0)")
    session.execute("create domain public.fair_price as public.price")
    session.execute("create domain public.scores as numeric(4,1)[]")
    assert type_of(session, "public.mood") == PgType("public.mood", Kind.TEXT)
    assert type_of(session, "public.pair") == PgType("public.pair", Kind.TEXT)
    assert type_of(session, "public.price") == PgType("public.price", Kind.NUMERIC, 10, 3)
    assert type_of(session, "public.fair_price") == PgType("public.fair_price", Kind.NUMERIC, 10, 3)
    score = PgType("numeric(4,1)", Kind.NUMERIC, 4, 1)
    assert type_of(session, "public.scores") == PgType("public.scores", Kind.ARRAY, element=score)
    prices = PgType("public.price[]", Kind.ARRAY, element=PgType("public.price", Kind.NUMERIC, 10, 3))
    assert type_of(session, "public.price[]") == prices
    moods = PgType("public.mood[]", Kind.ARRAY, element=PgType("public.mood", Kind.TEXT))
    assert type_of(session, "public.mood[]") == moods


def test_an_array_lends_its_modifier_to_its_elements(session: Connection) -> None:
    element = PgType("numeric(6,2)", Kind.NUMERIC, 6, 2)
    assert type_of(session, "numeric(6,2)[]") == PgType("numeric(6,2)[]", Kind.ARRAY, element=element)
    assert type_of(session, "int[][]") == PgType("integer[]", Kind.ARRAY, element=PgType("integer", Kind.INT4))


def test_one_type_with_several_modifiers_is_told_apart(session: Connection) -> None:
    resolved = describe_types(session, [(1700, -1), (1700, (12 << 16 | 2) + 4), (1231, -1)])
    assert {ref: (found.precision, found.kind) for ref, found in resolved.items()} == {
        (1700, -1): (None, Kind.NUMERIC),
        (1700, (12 << 16 | 2) + 4): (12, Kind.NUMERIC),
        (1231, -1): (None, Kind.ARRAY),
    }


@pytest.mark.parametrize(("precision", "scale"), [(1, 0), (38, 10), (1000, 1000), (1000, -1000), (5, -1)])
def test_numeric_modifiers_unpack_to_what_was_packed(precision: int, scale: int) -> None:
    assert numeric_precision((precision << 16 | scale & 0x7FF) + 4) == (precision, scale)


def test_a_tables_blocks_are_counted_and_its_rows_estimated(session: Connection) -> None:
    session.execute("create table public.t as select g from generate_series(1, 10000) g")
    (leaf,) = blocks(session, oid_of(session, "public.t"))
    assert leaf == Leaf(leaf.id, TableName("public", "t"), blocks=leaf.blocks, rows_estimate=None, file=leaf.file)
    assert session.execute("select pg_relation_size('public.t') / 8192").fetchone() == (leaf.blocks,)
    session.execute("analyze public.t")
    assert blocks(session, leaf.id)[0].rows_estimate == 10000


def test_a_partitioned_tables_rows_lie_in_its_leaves(session: Connection) -> None:
    session.execute("create table public.root (a int, b int) partition by list (a)")
    session.execute("create table public.one partition of public.root for values in (1)")
    session.execute("create table public.two partition of public.root for values in (2) partition by list (b)")
    session.execute("create table public.two_x partition of public.two default")
    leaves = blocks(session, oid_of(session, "public.root"))
    assert [leaf.name.name for leaf in leaves] == ["one", "two_x"]


def test_a_parent_by_inheritance_stands_for_itself_only(session: Connection) -> None:
    session.execute("create table public.parent (a int)")
    session.execute("create table public.child () inherits (public.parent)")
    assert [leaf.name.name for leaf in blocks(session, oid_of(session, "public.parent"))] == ["parent"]
