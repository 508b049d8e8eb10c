"""Options of a table are read as they were meant, or refused by name; what may be secret is repeated nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from penstock.errors import ConfigError, PenstockError
from penstock.model.copying import CopyRange
from penstock.model.special import SpecialValues
from penstock.model.table import TableName, quote_identifier
from penstock.spark.source import PenstockSource
from penstock.spark.table_options import reads_table, source_address, table_options
from penstock.spark.table_source import _share

ADDRESS = {"host": "db", "dbname": "shop", "user": "reader"}
RIGHT = {**ADDRESS, "table": "public.orders"}
URL = "postgresql://reader:hunter2@db:6000/shop?sslmode=require"

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)


def test_a_url_and_single_options_name_the_same_server() -> None:
    single = {**ADDRESS, "port": "6000", "password": "hunter2", "sslmode": "require"}
    assert source_address({"url": URL}) == source_address({"url": f"jdbc:{URL}"}) == source_address(single)
    assert source_address({"url": URL, "user": "other", "port": "1"}).user == "other"
    assert (source_address(ADDRESS).port, source_address(ADDRESS).sslmode) == (5432, "prefer")


def test_where_names_are_checked_the_system_is_trusted_unless_told_otherwise() -> None:
    assert source_address({**ADDRESS, "sslmode": "verify-full"}).sslrootcert == "system"
    assert source_address({**ADDRESS, "sslmode": "verify-full", "sslrootcert": "/ca"}).sslrootcert == "/ca"
    assert source_address({**ADDRESS, "sslmode": "require"}).sslrootcert is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tabel": "t"}, r"unknown option tabel.*The options of a table of Postgres are here: url, host"),
        ({"table": ""}, r"option table is missing"),
        ({"host": ""}, r"option host is missing"),
        ({"host": "a,b"}, r"several hosts"),
        ({"port": "hunter2"}, r"option port is no port"),
        ({"port": "65536"}, r"option port is no port"),
        ({"sslmode": "hunter2"}, r"option sslmode is unknown.*verify-full"),
        ({"url": "postgresql://[hunter2"}, r"option url cannot be read"),
        ({"url": "postgresql://db/shop?hunter2"}, r"option url cannot be read"),
        ({"url": "postgresql://db/shop?options=hunter2"}, r"option url has the parameter options"),
        ({"partitions": "0"}, r"option partitions is '0'"),
        ({"partitions": "2", "blocksPerPartition": "9"}, r"partitions and blocksPerPartition.*Give one of them"),
        ({"specialValues": "nill"}, r"option specialValues cannot be read.*error, null, clamp, string"),
        ({"specialValues": '{"polcy": "null"}'}, r"option specialValues cannot be read"),
        ({"specialValues": "{"}, r"option specialValues cannot be read"),
        ({"columns": "a,"}, r"option columns is no list of names"),
        ({"columns": ""}, r"option columns is no list of names"),
        ({"columns": 'a "b"'}, r"option columns is no list of names"),
        ({"columns": 'a, "a"'}, r"option columns has a twice"),
    ],
)
def test_wrong_options_are_refused_by_name_and_without_their_secrets(options: dict[str, str], message: str) -> None:
    with pytest.raises(PenstockError, match=message) as caught:
        PenstockSource({**RIGHT, **options}).schema()
    assert "hunter2" not in str(caught.value)


@given(st.lists(NAMES, min_size=1, max_size=5, unique=True), st.sampled_from([",", ", ", " ,\n"]))
def test_quoted_names_are_read_as_they_are(names: list[str], comma: str) -> None:
    text = comma.join(map(quote_identifier, names))
    assert table_options({**RIGHT, "columns": text}).columns == tuple(names)


def test_bare_names_keep_their_case_and_what_is_inside_them() -> None:
    assert table_options({**RIGHT, "columns": " Id , due on,é"}).columns == ("Id", "due on", "é")


def test_special_values_are_a_policy_or_what_the_configuration_says() -> None:
    assert table_options({**RIGHT, "specialValues": "NULL"}).policies.default is SpecialValues.NULL
    given_json = '{"policy": "clamp", "columns": {"public.orders.due": "string"}}'
    policies = table_options({**RIGHT, "specialValues": given_json}).policies
    assert policies.of(TableName("public", "orders"), "due") is SpecialValues.STRING
    assert policies.of(TableName("public", "orders"), "id") is SpecialValues.CLAMP


def test_a_log_a_table_and_neither_are_told_apart() -> None:
    assert not reads_table({"log": "/log", "table": "t"})
    assert reads_table({"URL": URL})
    with pytest.raises(PenstockError, match=r"neither a change log nor a server.*option log.*option url"):
        PenstockSource({"table": "public.t"}).schema()
    with pytest.raises(PenstockError, match=r"unknown option host"):
        PenstockSource({"log": "/log", "host": "db", "table": "t"}).schema()


def test_a_table_is_no_stream() -> None:
    with pytest.raises(PenstockError, match=r"can be read with spark\.read only"):
        PenstockSource(dict(RIGHT)).streamReader(StructType([]))


def test_a_comment_in_a_filter_ends_with_it() -> None:
    assert table_options({**RIGHT, "filter": "a > 1 -- new"}).row_filter == "a > 1 -- new\n"
    assert table_options({**RIGHT, "filter": " "}).row_filter is None


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 20))
def test_tasks_share_all_ranges_in_order_evenly_and_are_not_more_than_asked_for(sizes: list[int], tasks: int) -> None:
    ranges = [CopyRange(TableName("s", str(number)), 1, blocks=size) for number, size in enumerate(sizes)]
    shares = _share(ranges, tasks)
    assert [part for share in shares for part in share] == ranges
    assert len(shares) <= tasks
    even = -(-sum(sizes) // tasks)
    assert all(sum(part.blocks for part in share[:-1]) <= even for share in shares)


def test_options_keep_their_secrets_to_themselves() -> None:
    options: Any = table_options({**RIGHT, "password": "hunter2"})
    assert "hunter2" not in repr(options)
    assert options.address.password == "hunter2"


def test_connection_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown option table"):
        source_address(RIGHT)
