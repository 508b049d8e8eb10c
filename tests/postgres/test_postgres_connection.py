"""Sessions behave alike, and every failure has its kind, without secrets or values in its message."""

from __future__ import annotations

import contextlib
import pickle
import re
import socket
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from penstock.errors import ErrorKind, SourceError
from penstock.postgres.connection import SESSION, SourceAddress, as_source_error, connect, source_errors
from penstock.postgres.embedded import newest_server
from penstock.testing.postgres import Cluster, Database, start_cluster

pytestmark = pytest.mark.postgres

SECRET = "the s3cret: do not 'show'"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    """A cluster that asks for a password."""
    cluster = start_cluster(newest_server(), password=SECRET)
    yield cluster
    cluster.server.remove()


def failure(address: SourceAddress, *, replication: bool = False) -> SourceError:
    with pytest.raises(SourceError) as caught:
        connect(address, application_name="test", replication=replication)
    assert "\n" not in caught.value.message
    assert SECRET not in f"{caught.value!r} {caught.value.message} {caught.value.remedy}"
    return caught.value


@pytest.mark.parametrize("replication", [False, True])
def test_every_session_has_the_pinned_settings_whatever_the_role_prefers(
    any_database: Database, *, replication: bool
) -> None:
    any_database.execute("create role odd superuser login")
    for setting in (
        "datestyle = 'SQL, DMY'",
        "timezone = 'Asia/Tokyo'",
        "statement_timeout = '1s'",
        "row_security = on",
    ):
        any_database.execute(f"alter role odd set {setting}")
    try:
        address = replace(any_database.address, user="odd")
        with connect(address, application_name="pinned", replication=replication) as connection:
            shown = {name: connection.execute(f"show {name}").fetchone() for name in SESSION}
            assert connection.execute("show application_name").fetchone() == ("pinned",)
            if any_database.version_major >= 17:
                assert connection.execute("show transaction_timeout").fetchone() == ("0",)
        assert shown == {**{name: (value,) for name, value in SESSION.items()}, "datestyle": ("ISO, MDY",)}
    finally:
        any_database.execute("drop role odd")


def test_an_address_travels_whole_and_shows_no_password() -> None:
    address = SourceAddress("h", 1, "d", "u", SECRET)
    assert pickle.loads(pickle.dumps(address)) == address
    assert SECRET not in repr(address) + str(address)


def test_a_password_opens_a_guarded_cluster(guarded: Cluster) -> None:
    with connect(guarded.handle("postgres").address, application_name="test") as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_wrong_or_absent_password_is_an_authentication_error(guarded: Cluster) -> None:
    address = guarded.handle("postgres").address
    assert failure(replace(address, password="wrong")).kind is ErrorKind.SOURCE_AUTHENTICATION
    assert failure(replace(address, password=None)).kind is ErrorKind.SOURCE_AUTHENTICATION
    assert failure(replace(address, user="nobody_here")).kind is ErrorKind.SOURCE_AUTHENTICATION


def test_an_unreachable_port_is_a_connection_error_that_names_the_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        error = failure(SourceAddress("127.0.0.1", closed.getsockname()[1], "d", "u", SECRET))
    assert error.kind is ErrorKind.SOURCE_CONNECTION_FAILED
    assert "u@127.0.0.1" in error.message


def test_a_server_that_never_answers_is_a_connection_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = SourceAddress("127.0.0.1", silent.getsockname()[1], "d", "u", connect_timeout_s=2)
        assert failure(address).kind is ErrorKind.SOURCE_CONNECTION_FAILED


def test_a_missing_database_is_named_and_waits_for_someone(database: Database) -> None:
    error = failure(replace(database.address, dbname="no_such_database"))
    assert error.kind is ErrorKind.SOURCE_SCHEMA
    assert "no_such_database" in error.message
    assert "pg_connection.name" in error.remedy


def test_a_role_without_replication_is_refused_as_permission(any_database: Database) -> None:
    any_database.execute("create role plain login")
    try:
        error = failure(replace(any_database.address, user="plain"), replication=True)
        assert error.kind is ErrorKind.SOURCE_PERMISSION_DENIED
        assert "with replication" in error.remedy
    finally:
        any_database.execute("drop role plain")


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("select * from missing_table", ErrorKind.SOURCE_SCHEMA),
        ("select nonsense(1)", ErrorKind.SOURCE_SCHEMA),
        ("selec 1", ErrorKind.SOURCE_QUERY_FAILED),
        ("select 'private'::int", ErrorKind.SOURCE_QUERY_FAILED),
        ("set statement_timeout = 1; select pg_sleep(60)", ErrorKind.SOURCE_OPERATION_CANCELED),
        ("select pg_terminate_backend(pg_backend_pid())", ErrorKind.SOURCE_SHUTDOWN),
        ("select pg_drop_replication_slot('missing')", ErrorKind.SLOT_MISSING),
        ("select * from pg_get_publication_tables('missing')", ErrorKind.PUBLICATION_MISSING),
        (
            "begin; set transaction isolation level repeatable read; set transaction snapshot '00000003-0000001B-1'",
            ErrorKind.SOURCE_SNAPSHOT_LOST,
        ),
    ],
)
def test_a_server_error_has_its_kind_and_quotes_no_value(
    any_database: Database, statement: str, kind: ErrorKind
) -> None:
    with (
        contextlib.closing(connect(any_database.address, application_name="test")) as connection,
        pytest.raises(SourceError) as caught,
        source_errors("testing"),
    ):
        connection.execute(statement)
    assert caught.value.kind is kind
    assert re.fullmatch(r"testing: [^\n]+", caught.value.message)
    assert "private" not in caught.value.message
    assert caught.value.__suppress_context__


def test_a_lost_connection_is_a_connection_error(database: Database) -> None:
    connection = connect(database.address, application_name="test")
    connection.close()
    with pytest.raises(SourceError) as caught, source_errors():
        connection.execute("select 1")
    assert caught.value.kind is ErrorKind.SOURCE_CONNECTION_FAILED


def test_a_lock_that_does_not_come_is_a_lock_timeout(database: Database) -> None:
    database.execute("create table t ()")
    with database.connect() as holder, connect(database.address, application_name="test") as waiter:
        holder.execute("begin; lock table t")
        with pytest.raises(psycopg.Error) as caught:
            waiter.execute("set lock_timeout = 1; select from public.t")
    assert as_source_error(caught.value).kind is ErrorKind.SOURCE_LOCK_TIMEOUT
