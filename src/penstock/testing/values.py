"""Values of every type, as literals: what a copy and a stream must bring alike."""

from __future__ import annotations

OWN_TYPES = """
create type mood as enum ('sad', 'so "so"', 'ok');
create domain positive as int check (value > 0);
create domain word as text;
create type pair as (a int, b text);
create domain few as int[];
create domain fewer as few;
create domain days as date[];
create domain price as numeric(9,2);
"""
"""Types that some of the values are of."""

LITERALS: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["0", "4294967295"],
    "real": ["0.1", "1e-45", "3.4028235e38", "-0", "nan", "inf", "-inf", "16777217"],
    "double precision": ["0.1", "5e-324", "1.7976931348623157e308", "-0", "nan", "inf", "-inf", "1e15", "1e16"],
    "text": ["", "NULL", "é\u2003\U0001f600", 'a "b" \\ {c},\td', "x" * 5000, "null"],
    "varchar(7)": ["", "abc", "1234567"],
    "char(5)": ["", "ab"],
    "bpchar": ["", "ab  "],
    "name": ["", "a name"],
    '"char"': ["", "a", "\\351"],
    "bytea": ["", r"\x00ff5c78", "text"],
    "date": ["0001-01-01", "1582-10-10", "2024-02-29", "9999-12-31"],
    "timestamp": ["0001-01-01", "1969-12-31 23:59:59.999999", "9999-12-31 23:59:59.999999", "2024-02-29 24:00:00"],
    "timestamp(3)": ["2024-02-29 12:00:00.1234"],
    "timestamptz": ["0001-01-01 00:00+00", "1880-01-01 00:00:00.5+00", "2024-07-01 12:00+05:30"],
    "numeric(12,2)": ["0", "-1.5", "9999999999.99", "0.005"],
    "numeric(38,0)": ["9" * 38, "-" + "9" * 38, "1" + "0" * 37],
    "numeric(38,38)": ["0." + "9" * 38, "-0." + "0" * 37 + "1", "0.00000000000000000000000000000000000001"],
    "numeric(20,6)": ["12345678901234.000001", "-0.000001", "10000", "0.0001"],
    "numeric": ["0", "1e-20", "-1.50", "nan", "infinity", "-infinity", "9" * 60, "1e-16383", "9e131071"],
    "numeric(50,3)": ["9" * 47 + ".999", "nan"],
    "numeric(38)": ["-" + "9" * 38, "0.4"],
    "numeric(1)": ["-9", "0"],
    # A scale outside 0 to the precision: no decimal of a lake has one.
    "numeric(5,-2)": ["12345", "-100"],
    "numeric(3,5)": ["0.00123", "-0.00999"],
    "time": ["00:00", "24:00:00", "12:34:56.789"],
    "timetz": ["00:00+00", "24:00:00-15:59", "12:34:56.789+05:30"],
    "time(2)": ["23:59:59.995"],
    "timestamptz(0)": ["2024-12-31 23:59:59.5+00"],
    "interval second(1)": ["1.25"],
    "interval": ["0", "1 year 2 mons -3 days 04:05:06.7", "-178000000 years"],
    "money": ["0", "-92233720368547758.08"],
    "inet": ["192.168.0.1/24", "192.168.0.1", "::1"],
    "cidr": ["10.0.0.0/8", "2001:db8::/32"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "bit(3)": ["101"],
    "varbit": ["", "10101"],
    "point": ["(1,2)", "(nan,-inf)"],
    "box": ["(2,2),(1,1)"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "line": ["{1,-1,0}"],
    "lseg": ["[(0,0),(1,1)]"],
    "path": ["[(0,0),(1,1)]", "((0,0),(1,1))"],
    "circle": ["<(0,0),1.5>"],
    "int4range": ["empty", "[1,5)", "(,)"],
    "tstzrange": ["[2024-01-01 00:00+00,infinity)"],
    "numrange": ["[1.50,2.5]", "(-infinity,infinity)"],
    "daterange": ["[2024-01-01,infinity)", "(,2024-01-01)"],
    "tsrange": ['["4713-01-01 00:00:00 BC",)'],
    "int4multirange": ["{}", "{[1,3),[7,9)}"],
    "tsvector": ["", "a:1A fat:2 'cat''s':3"],
    "tsquery": ["fat & (rat | !cat)"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "json": ["null", '{"a" : [1,  2.50], "a": "\\u00e9"}', '""'],
    "jsonb": ["null", '{"b": 1e3, "a": [1, "x y"]}'],
    "jsonpath": ['$."a b"[*] ? (@ > 1)'],
    "xid": ["0", "4294967295"],
    "xid8": ["18446744073709551615"],
    "tid": ["(0,1)"],
    "int2vector": ["", "1 2"],
    "pg_lsn": ["0/0", "16/B374D848"],
    "regclass": ["pg_class"],
    "mood": ["sad", 'so "so"', "ok"],
    "positive": ["1", "2147483647"],
    "word": ["", "of a domain"],
    "few": ["{}", "{1,NULL,-3}", "[0:1]={1,2}"],
    "fewer": ["{2147483647}"],
    "days": ["{2024-02-29,NULL}"],
    "price": ["1.5", "-9999999.99"],
    "pair": ["(1,)", '(,"a b, ""c""")', "(,)"],
}
"""By type, values that need no policy."""
