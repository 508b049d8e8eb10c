"""The server as oracle: what it prints, and what it streams, converts to the value that it sends in binary."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from plugins.segments import decode, received, whole
from plugins.stream_bytes import collect, frames_of

from penstock.changelog.rows import convert_rows
from penstock.changelog.segment import Segment, TableRows
from penstock.contract import columns as log
from penstock.model.cell import Cell
from penstock.model.lsn import NOWHERE
from penstock.model.policy import DEFAULT_POLICIES, ValuePolicies
from penstock.model.special import SpecialValues
from penstock.model.table import Column, Kind, PgType
from penstock.postgres.connection import connect
from penstock.postgres.replication import open_replication_stream
from penstock.receiver.decoder import Decoder
from penstock.receiver.relation import RelationDescriber
from penstock.receiver.spool import Spools
from penstock.testing.postgres import Database
from penstock.testing.strategies import array_type, numeric_type, simple_type
from penstock.testing.values import LITERALS, OWN_TYPES
from penstock.wire.arrow import is_decimal
from penstock.wire.text import UnconvertibleValueError, cell_values, convert_text

pytestmark = pytest.mark.postgres

TEXT = simple_type(Kind.TEXT)
TIMESTAMPTZ = simple_type(Kind.TIMESTAMPTZ)

VALUES: list[tuple[PgType, list[str]]] = [
    (simple_type(Kind.BOOL), ["true", "false"]),
    (simple_type(Kind.INT2), ["-32768", "32767", "0"]),
    (simple_type(Kind.INT4), ["-2147483648", "2147483647"]),
    (simple_type(Kind.INT8), ["-9223372036854775808", "9223372036854775807"]),
    (simple_type(Kind.OID), ["0", "4294967295"]),
    (simple_type(Kind.FLOAT4), ["0.1", "1e-45", "3.4028235e38", "-0", "nan", "inf", "-inf", "16777217", "1e-5"]),
    (simple_type(Kind.FLOAT8), ["0.1", "5e-324", "1.7976931348623157e308", "-0", "nan", "inf", "-inf", "1e15", "1e16"]),
    (numeric_type(12, 2), ["0", "-1.5", "9999999999.99", "0.005"]),
    (numeric_type(38, 0), ["9" * 38, "-" + "9" * 38]),
    (numeric_type(38, 38), ["0." + "9" * 38, "0." + "0" * 37 + "1"]),
    (TEXT, ["", "NULL", "é\u2003\U0001f600", 'a "b" \\ {c},\td']),
    (simple_type(Kind.BYTES), ["", r"\x00ff5c78", "text"]),
    (simple_type(Kind.DATE), ["0001-01-01", "1582-10-10", "2024-02-29", "9999-12-31"]),
    (simple_type(Kind.TIMESTAMP), ["0001-01-01", "1969-12-31 23:59:59.999999", "2024-02-29 12:00:00.1"]),
    (simple_type(Kind.TIMESTAMP), ["9999-12-31 23:59:59.999999", "2024-02-29 24:00:00"]),
    (array_type(simple_type(Kind.INT4)), ["{}", "{1,NULL,-3}", "[0:1]={1,2}", "[-5:-5]={7}"]),
    (array_type(TEXT), ["{}", '{NULL,"NULL",null,"null","",a}', r'{"a \"b\" \\ {c},","é' + "\u00a0" + r'","\\x"}']),
    (array_type(simple_type(Kind.BYTES)), [r'{"\\x00ff",NULL,""}']),
    (array_type(numeric_type(6, 3)), ["{1.5,NULL,-999.999}"]),
    (array_type(simple_type(Kind.FLOAT8)), ["{nan,inf,-inf,1e300}"]),
]

SPECIAL: list[tuple[PgType, str, Cell]] = [
    (simple_type(Kind.DATE), "infinity", dt.date(9999, 12, 31)),
    (simple_type(Kind.DATE), "4713-01-01 BC", dt.date(1, 1, 1)),
    (simple_type(Kind.DATE), "5874897-12-31", dt.date(9999, 12, 31)),
    (simple_type(Kind.TIMESTAMP), "-infinity", dt.datetime(1, 1, 1)),  # noqa: DTZ001
    (simple_type(Kind.TIMESTAMP), "4713-01-01 BC", dt.datetime(1, 1, 1)),  # noqa: DTZ001
    (TIMESTAMPTZ, "294276-12-31 12:00+00", dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)),
    (numeric_type(5, 2), "nan", None),
    (array_type(simple_type(Kind.INT4)), "{{1,2},{3,4}}", None),
    (array_type(simple_type(Kind.INT4)), "[1:1][0:1]={{1,2}}", None),
]

FIRST_MOMENT, LAST_MOMENT = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001

SPECIAL_ELEMENTS: list[tuple[PgType, str, list[Cell]]] = [
    (
        simple_type(Kind.DATE),
        '{infinity,2024-02-29,NULL,-infinity,"4713-01-01 BC",10000-01-01}',
        [dt.date.max, dt.date(2024, 2, 29), None, dt.date.min, dt.date.min, dt.date.max],
    ),
    (simple_type(Kind.TIMESTAMP), '{NULL,infinity,"0001-12-31 23:59:59 BC"}', [None, LAST_MOMENT, FIRST_MOMENT]),
    (
        TIMESTAMPTZ,
        '{-infinity,"10000-01-01 00:00+00"}',
        [FIRST_MOMENT.replace(tzinfo=dt.UTC), LAST_MOMENT.replace(tzinfo=dt.UTC)],
    ),
    (numeric_type(5, 2), "{nan,1.5,NULL}", [None, Decimal("1.50"), None]),
]
"""Arrays of special values among others, with the nearest value to each."""

# Whole hours, half hours, and local mean times with seconds before the zones were introduced.
ZONES = ["UTC", "Asia/Kolkata", "America/New_York", "Africa/Monrovia", "Pacific/Kiritimati"]
MOMENTS = ["0001-01-02 00:00+00", "1880-01-01 00:00:00.5+00", "1969-12-31 23:59:59.999999+00", "2024-07-01 12:00+00"]
EDGES = ["0001-01-01 00:00+00", "9999-12-31 23:59:59.999999+00"]


def _printed(connection: psycopg.Connection[Any], source: PgType, literal: str) -> str:
    """Return what the type's output function prints, which is what pgoutput sends; a cast to text can differ."""
    result = connection.execute(f"select %s::{source.name}", [literal]).pgresult
    assert result is not None
    value = result.get_value(0, 0)
    assert value is not None
    return value.decode()


def _sent(connection: psycopg.Connection[Any], source: PgType, literal: str) -> Any:
    """Return the value as the client library reads it from its binary form."""
    row = connection.execute(f"select %s::{source.name}", [literal], binary=True).fetchone()
    assert row is not None
    return row[0]


def _converted(text: str, source: PgType, policy: SpecialValues = SpecialValues.ERROR) -> Cell:
    return cell_values(convert_text(pa.array([text]), source, policy), source)[0]


@pytest.mark.parametrize(("source", "literals"), VALUES, ids=lambda value: getattr(value, "name", ""))
def test_printed_values_convert_to_what_the_server_sends_in_binary(
    any_database: Database, source: PgType, literals: list[str]
) -> None:
    with any_database.connect() as connection:
        for literal in literals:
            value = _converted(_printed(connection, source, literal), source)
            assert repr(value) == repr(_sent(connection, source, literal))


@pytest.mark.parametrize("zone", ZONES)
def test_moments_convert_alike_from_every_time_zone(any_database: Database, zone: str) -> None:
    with any_database.connect() as connection:
        connection.execute("select set_config('TimeZone', %s, false)", [zone])
        for literal in MOMENTS + EDGES:
            value = _converted(_printed(connection, TIMESTAMPTZ, literal), TIMESTAMPTZ)
            assert isinstance(value, dt.datetime)
            epoch = connection.execute("select extract(epoch from %s::timestamptz) * 1000000", [literal]).fetchone()
            assert epoch is not None
            assert (value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1) == int(epoch[0])


@pytest.mark.parametrize(("source", "literal", "nearest"), SPECIAL)
def test_special_values_of_the_server_follow_the_policy(
    any_database: Database, source: PgType, literal: str, nearest: Cell
) -> None:
    with any_database.connect() as connection:
        text = _printed(connection, source, literal)
    with pytest.raises(UnconvertibleValueError):
        _converted(text, source)
    assert _converted(text, source, SpecialValues.NULL) is None
    assert _converted(text, source, SpecialValues.CLAMP) == nearest
    assert _converted(text, source, SpecialValues.STRING) == text


# The stream, end to end: a row written at the source, decoded, and converted as for the log.


def _table(name: str) -> str:
    return "t_" + "".join(letter if letter.isalnum() else "_" for letter in name)


Stream = Callable[[str], bytearray]


@pytest.fixture
def stream_all(any_database: Database) -> Stream:
    """Run statements, and return what the server sends of them."""
    database = any_database

    def run(statements: str) -> bytearray:
        database.execute("create table the_end (id int); create publication streamed for all tables")
        database.execute(f"alter database {database.name} set wal_sender_timeout = 0")
        database.execute("select pg_create_logical_replication_slot('streamed', 'pgoutput')")
        database.execute(statements)
        database.execute("insert into the_end values (1)")
        with closing(open_replication_stream(database.address, application_name="values")) as stream:
            stream.start("streamed", "streamed", NOWHERE, proto_version=1, streaming=False)
            return collect(stream, _is_over)

    return run


def _is_over(data: bytearray) -> bool:
    bodies = [body for tag, body in frames_of(data) if tag == b"d" and body[:1] == b"w"]
    return b"the_end\0" in data and bodies[-1][25:26] == b"C"


Decode = Callable[[bytearray, ValuePolicies], Segment]


@pytest.fixture
def decode_stream(any_database: Database, tmp_path: Path) -> Iterator[Decode]:
    opened: list[RelationDescriber] = []

    def run(data: bytearray, policies: ValuePolicies) -> Segment:
        opened.append(RelationDescriber(any_database.address, policies, lambda _: 1))
        return decode(Decoder(opened[-1].describe, NOWHERE, Spools(tmp_path / "spool")), received(data, 1 << 16))

    yield run
    for describer in opened:
        describer._open().close()


def _typed(rows: TableRows, policies: ValuePolicies) -> pa.RecordBatch:
    [batch] = whole(rows.batches).to_batches()
    return convert_rows(batch, rows.schema, policies)


def _is_printed(source: PgType) -> bool:
    """Whether a type's values are what the server prints."""
    return source.kind is Kind.TEXT or (source.kind is Kind.NUMERIC and not is_decimal(source))


def _expected(connection: psycopg.Connection[Any], table: str, column: Column) -> list[Any]:
    """Return a column of the source: read in binary where that has a meaning of ours, as printed otherwise."""
    source, select = column.type, f"select {column.name} from {table} order by id"
    if _is_printed(source):
        return _all_printed(connection, select)
    if source.element is not None and (_is_printed(source.element) or source.element.kind is Kind.ARRAY):
        ids = [row[0] for row in connection.execute(f"select id from {table} order by id").fetchall()]
        return [_elements(connection, table, column, id_) for id_ in ids]
    # The client library does not know domains: the cast gives it their base types.
    select = f"select {column.name}::{_base(source)} from {table} order by id"
    return [row[0] for row in connection.execute(select, binary=True).fetchall()]


def _base(source: PgType) -> str:
    if source.element is not None:
        return f"{_base(source.element)}[]"
    if source.kind is Kind.NUMERIC:
        return f"numeric({source.precision},{source.scale})"
    return simple_type(source.kind).name


def _all_printed(connection: psycopg.Connection[Any], select: str) -> list[str | None]:
    result = connection.execute(select).pgresult
    assert result is not None
    values = [result.get_value(row, 0) for row in range(result.ntuples)]
    return [None if value is None else value.decode() for value in values]


def _elements(connection: psycopg.Connection[Any], table: str, column: Column, id_: int) -> list[Any] | None:
    """Return an array's elements, each as if it were a column."""
    name, element = column.name, column.type.element
    assert element is not None
    [[is_null]] = connection.execute(f"select {name} is null from {table} where id = {id_}").fetchall()
    if is_null:
        return None
    # By subscript: `unnest` would take composites apart, and arrays in domains too.
    chosen = f"({name})[place]" if _is_printed(element) else f"({name})[place]::{_base(element)}"
    select = f"select {chosen} from {table}, generate_subscripts({name}, 1) place where id = {id_} order by place"
    if _is_printed(element):
        return _all_printed(connection, select)
    return [row[0] for row in connection.execute(select, binary=True).fetchall()]


def _statements(name: str, literals: list[str]) -> str:
    table, quoted = _table(name), ["'" + literal.replace("'", "''") + "'" for literal in literals]
    rows = [f"({literal}::{name}, array[{literal}]::{name}[])" for literal in quoted]
    rows += [f"(null, array[{','.join(quoted)},null]::{name}[])", "(null, '{}')", "(null, null)"]
    return (
        f"create table {table} (id int generated always as identity primary key, v {name}, many {name}[]);"
        f"alter table {table} replica identity full;"
        f"insert into {table} (v, many) values {','.join(rows)};"
        f"update {table} set v = v;"
    )


def test_every_streamed_value_is_what_the_server_sends_in_binary_or_prints(
    any_database: Database, stream_all: Stream, decode_stream: Decode
) -> None:
    statements = OWN_TYPES + "".join(_statements(name, literals) for name, literals in LITERALS.items())
    segment = decode_stream(stream_all(statements), DEFAULT_POLICIES)
    tables = {rows.schema.name.name: rows for rows in segment.tables.values()}
    with closing(connect(any_database.address, application_name="oracle")) as connection:
        for name in LITERALS:
            _check_table(connection, tables[_table(name)])


def _check_table(connection: psycopg.Connection[Any], rows: TableRows) -> None:
    batch = _typed(rows, DEFAULT_POLICIES)
    before: Any = batch.column(log.BEFORE)
    half = batch.num_rows // 2
    assert set(batch.column(log.OP).to_pylist()[:half]) == {"I"}
    for index, column in enumerate(rows.schema.columns):
        expected = repr(_expected(connection, rows.schema.name.quoted, column))
        values = batch.column(index)
        assert repr(cell_values(values.slice(0, half), column.type)) == expected
        assert repr(cell_values(values.slice(half), column.type)) == expected
        assert repr(cell_values(before.slice(half).flatten()[index], column.type)) == expected


@pytest.mark.parametrize("policy", SpecialValues)
def test_special_values_in_the_stream_follow_the_policy(
    stream_all: Stream, decode_stream: Decode, policy: SpecialValues
) -> None:
    statements = ""
    for number, (source, literal, _) in enumerate(SPECIAL):
        statements += f"create table special_{number} (id int primary key, v {source.name});"
        statements += f"insert into special_{number} values (1, '{literal}');"
    policies = ValuePolicies(policy)
    segment = decode_stream(stream_all(statements), policies)
    tables = {rows.schema.name.name: rows for rows in segment.tables.values()}
    for number, (_, _, nearest) in enumerate(SPECIAL):
        rows = tables[f"special_{number}"]
        [text] = whole(rows.batches).column("v").to_pylist()
        if policy is SpecialValues.ERROR:
            with pytest.raises(UnconvertibleValueError, match=f"public.special_{number}, column v"):
                _typed(rows, policies)
        else:
            expected = {SpecialValues.NULL: None, SpecialValues.CLAMP: nearest, SpecialValues.STRING: text}[policy]
            assert cell_values(_typed(rows, policies).column(1), rows.schema.column("v").type) == [expected]


@pytest.mark.parametrize("policy", SpecialValues)
def test_special_elements_in_the_stream_follow_the_policy_one_by_one(
    stream_all: Stream, decode_stream: Decode, policy: SpecialValues
) -> None:
    statements = ""
    for number, (source, literal, _) in enumerate(SPECIAL_ELEMENTS):
        statements += f"create domain domain_{number} as {source.name}[];"
        statements += f"create table special_{number} (id int primary key, v {source.name}[], d domain_{number});"
        statements += f"insert into special_{number} values (1, '{literal}', '{literal}');"
    policies = ValuePolicies(policy)
    segment = decode_stream(stream_all(statements), policies)
    tables = {rows.schema.name.name: rows for rows in segment.tables.values()}
    for number, (_, _, nearest) in enumerate(SPECIAL_ELEMENTS):
        rows = tables[f"special_{number}"]
        for name in ("v", "d"):
            [text] = whole(rows.batches).column(name).to_pylist()
            if policy is SpecialValues.ERROR:
                with pytest.raises(UnconvertibleValueError, match=f"public.special_{number}, column v: .*in an array"):
                    _typed(rows, policies)
            else:
                typed = _typed(rows, policies).column(rows.schema.column_names.index(name))
                expected = _by_policy(policy, text, nearest)
                assert cell_values(typed, rows.schema.column(name).type) == [expected]


def _by_policy(policy: SpecialValues, text: str | None, nearest: list[Cell]) -> Any:
    """Return what becomes of an array: of its ordinary elements nothing."""
    if policy is SpecialValues.STRING:
        return text
    if policy is SpecialValues.CLAMP:
        return nearest
    ordinary = {dt.date(2024, 2, 29), Decimal("1.50")}
    return [value if value in ordinary else None for value in nearest]
