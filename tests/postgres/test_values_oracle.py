"""The server as oracle: what it prints converts to the value that it sends in binary."""

from __future__ import annotations

import datetime as dt
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.model.cell import Cell
from penstock.model.special import SpecialValues
from penstock.model.table import Kind, PgType
from penstock.testing.postgres import Database
from penstock.testing.strategies import array_type, numeric_type, simple_type
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
