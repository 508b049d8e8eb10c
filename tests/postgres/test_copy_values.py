"""A copied value is what the server prints, converted: of every type, alone and in arrays, whatever the policy."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plugins.table_copy import describe, exported, read_all, whole

from penstock.errors import ConversionError, SourceError
from penstock.model.copying import CopyRange
from penstock.model.policy import DEFAULT_POLICIES, ValuePolicies
from penstock.model.special import SpecialValues
from penstock.model.table import Column, TableSchema
from penstock.postgres.connection import Connection, connect
from penstock.postgres.copy import read_range
from penstock.testing.postgres import Cluster, Database
from penstock.testing.values import LITERALS, OWN_TYPES
from penstock.wire.column import convert_column
from penstock.wire.text import UnconvertibleValueError

pytestmark = pytest.mark.postgres


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


def test_a_special_value_is_refused_by_column_or_replaced_as_told(database: Database) -> None:
    database.execute("create table t as select 1 as id, 'infinity'::date as \"Due on\"")
    with connect(database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
    with pytest.raises(ConversionError, match=r"public\.t, column Due on: "):
        read_all(database, schema)
    copied = read_all(database, schema, policies=ValuePolicies(SpecialValues.NULL))
    assert copied.to_pylist() == [{"id": 1, "Due on": None}]


def test_nulls_everywhere_stay_null_and_are_told_from_what_is_empty(any_database: Database) -> None:
    any_database.execute("create type pair as (a int, b text)")
    any_database.execute("create table t (id int, i int8, b bool, n numeric(9,2), u uuid, x text, y bytea, d date)")
    any_database.execute("alter table t add p pair, add a int[], add r int4range, add s interval")
    any_database.execute("insert into t (id) select generate_series(1, 9)")
    any_database.execute("insert into t (id, x, y, p, a, r) values (0, '', '', '(,)', '{}', 'empty')")
    with connect(any_database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
    first, *others = read_all(any_database, schema).sort_by("id").to_pylist()
    assert (first["x"], first["y"], first["p"], first["a"], first["r"]) == ("", b"", "(,)", [], "empty")
    assert all(set(row.values()) == {row["id"], None} for row in others)


def test_printed_values_are_the_output_functions_whatever_casts_to_text_say(any_database: Database) -> None:
    """Of inet and char(n) the built-in casts print something else; of an enum, one that somebody made."""
    any_database.execute("create type mood as enum ('sad', 'ok')")
    any_database.execute("create function loud(mood) returns text language sql as $$ select 'LOUD' $$")
    any_database.execute("create cast (mood as text) with function loud(mood)")
    any_database.execute("create domain code as char(4)")
    any_database.execute("create table t as select '10.0.0.1'::inet i, 'ok'::mood m, 'ab'::code c, 'ab'::char(4) p")
    with connect(any_database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
    assert read_all(any_database, schema).to_pylist() == [{"i": "10.0.0.1", "m": "ok", "c": "ab  ", "p": "ab  "}]


def test_domains_are_read_like_their_base_types(any_database: Database) -> None:
    any_database.execute("create domain positive as int; create domain price as numeric(9,2)")
    any_database.execute("create domain due as date; create domain dearest as price; create domain word as text")
    any_database.execute("create table t (i positive, p price, d due, e dearest, w word)")
    any_database.execute("insert into t values (7, 1.5, '2024-02-29', -2.25, 'é')")
    with connect(any_database.address, application_name="test") as connection:
        schema = describe(connection, "public.t")
    [row] = read_all(any_database, schema).to_pylist()
    assert list(row.values()) == [7, Decimal("1.50"), dt.date(2024, 2, 29), Decimal("-2.25"), "é"]


def test_text_that_is_not_utf8_stops_a_copy_in_the_servers_words(cluster: Cluster, database: Database) -> None:
    database.execute("create database ascii template template0 encoding 'SQL_ASCII' locale 'C'")
    other = cluster.handle("ascii")
    try:
        other.execute("create table t as select 1 as id, convert_from('\\xc3a9'::bytea, 'SQL_ASCII') as v")
        with connect(other.address, application_name="test") as connection:
            schema = describe(connection, "public.t")
        assert read_all(other, schema).column("v").to_pylist() == ["é"]
        other.execute("insert into t values (2, convert_from('\\xe9'::bytea, 'SQL_ASCII'))")
        with pytest.raises(SourceError, match=r"copying public\.t: CharacterNotInRepertoire"):
            read_all(other, schema)
    finally:
        cluster.drop("ascii")


SPECIAL: dict[str, list[str]] = {
    "date": ["2024-02-29", "infinity", "-infinity", "4713-01-01 BC", "0001-12-31 BC", "10000-01-01", "5874897-12-31"],
    "timestamp": [
        "2024-02-29",
        "infinity",
        "-infinity",
        "4713-01-01 BC",
        "10000-01-01",
        "294276-12-31 23:59:59.999999",
    ],
    "timestamptz": ["2024-02-29 00:00+00", "infinity", "-infinity", "0001-12-31 23:59+00 BC", "10000-01-01 00:00+00"],
    "numeric(5,2)": ["1.25", "nan"],
    "int[]": ["{1}", "{{1,2},{3,4}}", "[1:1][0:1]={{1,2}}"],
    "text[]": ["{1}", '{{a,NULL},{"b,",""}}'],
    "date[]": ["{2024-02-29,NULL}", "{infinity,2024-02-29}", "{{2024-02-29}}", "[0:0]={-infinity}"],
    "numeric(5,2)[]": ["{1.5}", "{1.5,nan}", "{{nan}}"],
    "timestamptz[]": ["{2024-02-29 00:00+00}", "{infinity}"],
    "few": ["{1}", "{{1,2},{3,4}}"],
    "days": ["{2024-02-29}", "{-infinity}"],
}


def copied_and_printed(
    database: Database, name: str, literals: list[str], policies: ValuePolicies
) -> tuple[list[Any], list[Any]]:
    """Put values in a table; return what comes of its columns: copied, and converted from what the server prints."""
    quoted = ["'" + literal.replace("'", "''") + "'" for literal in literals]
    rows = [f"({number}, {literal}::{name}, array[{literal}::{name}])" for number, literal in enumerate(quoted)]
    many = "null" if name.endswith("[]") else f"array[{','.join(quoted)}, null]::{name}[]"
    with connect(database.address, application_name="test") as connection:
        # Where own types are found; what is copied must not depend on it.
        connection.execute("set search_path to pg_catalog, public")
        connection.execute(f"create table public.v (id int, v {name}, many {name.removesuffix('[]')}[])")
        connection.execute(f"insert into public.v values {', '.join(rows)}, (-1, null, {many}), (-2, null, '{{}}')")
        connection.execute("reset search_path")
        schema = policies.resolve(describe(connection, "public.v"))
        printed = {column.name: print_column(connection, column) for column in schema.columns}
        part = whole(connection, schema)
    with exported(database) as snapshot:
        read = partial(copy_column, database, snapshot, schema, part, policies)
        copied = [outcome(partial(read, column)) for column in schema.columns]
    converted = [
        outcome(partial(convert_column, schema, column, printed[column.name], policies)) for column in schema.columns
    ]
    database.execute("drop table v")
    return copied, converted


def copy_column(
    database: Database,
    snapshot: str,
    schema: TableSchema,
    part: CopyRange,
    policies: ValuePolicies,
    column: Column,
) -> Any:
    """Copy one column alone, so that the error of one does not hide another's."""
    [batch] = read_range(database.address, snapshot, replace(schema, columns=(column,)), part, None, policies)
    return batch.column(0)


def print_column(connection: Connection, column: Column) -> pa.StringArray:
    result = connection.execute(f'select "{column.name}" from public.v').pgresult
    assert result is not None
    values = [result.get_value(row, 0) for row in range(result.ntuples)]
    return pa.array([None if value is None else value.decode() for value in values], pa.string())


def outcome(convert: Callable[[], Any]) -> Any:
    """Return a column's type and values, or the error with the row that it names."""
    try:
        array = convert()
    except UnconvertibleValueError as error:
        return error.message, error.remedy, error.row
    return str(array.type), repr(array.to_pylist())


def test_every_value_scalar_and_array_is_what_the_server_prints_converted(any_database: Database) -> None:
    any_database.execute(OWN_TYPES)
    for name, literals in LITERALS.items():
        copied, printed = copied_and_printed(any_database, name, literals, DEFAULT_POLICIES)
        assert copied == printed, name


@pytest.mark.parametrize("policy", SpecialValues)
def test_special_values_and_their_errors_are_those_of_what_the_server_prints(
    any_database: Database, policy: SpecialValues
) -> None:
    any_database.execute(OWN_TYPES)
    for name, literals in SPECIAL.items():
        copied, printed = copied_and_printed(any_database, name, literals, ValuePolicies(policy))
        assert copied == printed, name
        if policy is SpecialValues.ERROR:
            message, _, row = copied[1]
            assert message.startswith("table public.v, column v: ")
            assert row == 1
