"""A raw connection opens however the server authenticates, behaves like all sessions, and fails with a reason."""

from __future__ import annotations

import re
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest
from plugins.secured import PASSWORD, UNPREPARED_PASSWORD
from plugins.stream_bytes import changes_of, collect, frames_of, kind_of, make_slots, stream_all

from penstock.errors import ErrorKind, SourceError, WireError
from penstock.model.lsn import NOWHERE, Lsn
from penstock.postgres.connection import SESSION, SourceAddress, connect, error_from_response, source_errors
from penstock.postgres.raw import RawConnection
from penstock.postgres.replication import (
    LibpqStream,
    RawStream,
    ReplicationStream,
    open_replication_stream,
)
from penstock.postgres.startup import UnspokenMethodError
from penstock.testing.postgres import Cluster, Database, wait_until
from penstock.wire.stream import encode_status_update

pytestmark = pytest.mark.postgres

NAME = "raw test"


def raw(address: SourceAddress, *, replication: bool = False) -> RawConnection:
    return RawConnection.open(address, application_name=NAME, replication=replication)


def as_role(cluster: Cluster, role: str, password: str | None = PASSWORD) -> SourceAddress:
    return replace(cluster.handle("postgres").address, user=role, password=password, connect_timeout_s=30)


def failure(address: SourceAddress, *, replication: bool = False) -> SourceError:
    """Return the error of a connection that fails; wherever it is printed, there is no password in it."""
    with pytest.raises(SourceError) as caught:
        raw(address, replication=replication)
    printed = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caught.value.remedy
    assert address.password is None or address.password not in printed
    assert re.fullmatch(r"connecting to [^\n]+", caught.value.message)
    return caught.value


def unread(address: SourceAddress, name: str) -> LibpqStream:
    return LibpqStream(connect(address, application_name=name, replication=True), fallback_reason="a test")


@pytest.mark.parametrize("role", ["trusted", "cleartext", "md5er", "scrammer"])
@pytest.mark.parametrize("replication", [False, True])
def test_every_method_of_authentication_opens_a_session(
    guarded_cluster: Cluster, role: str, *, replication: bool
) -> None:
    with raw(as_role(guarded_cluster, role), replication=replication) as connection:
        assert connection.execute("select current_user::text, 1, null, 'ü'") == [(role, "1", None, "ü")]
        assert connection.server_version // 10000 == guarded_cluster.version_major
        assert connection.parameters["client_encoding"] == "UTF8"


@pytest.mark.parametrize("role", ["cleartext", "md5er", "scrammer"])
def test_a_wrong_or_missing_password_is_an_authentication_error(guarded_cluster: Cluster, role: str) -> None:
    wrong = failure(as_role(guarded_cluster, role, "wr0ng!"))
    missing = failure(as_role(guarded_cluster, role, None))
    assert wrong.kind is missing.kind is ErrorKind.SOURCE_AUTHENTICATION
    assert "password authentication failed" in wrong.message
    assert "none is given" in missing.message


def test_a_role_that_no_rule_admits_is_an_authentication_error(guarded_cluster: Cluster) -> None:
    assert failure(as_role(guarded_cluster, "stranger")).kind is ErrorKind.SOURCE_AUTHENTICATION


def test_a_socket_file_leads_to_the_same_server(guarded_cluster: Cluster) -> None:
    address = replace(as_role(guarded_cluster, "trusted"), host="/tmp", sslmode="verify-full")
    with raw(replace(address, sslrootcert="system")) as connection:
        assert connection.execute("select inet_server_addr()") == [(None,)]


def test_a_name_with_several_addresses_is_tried_at_each(guarded_cluster: Cluster) -> None:
    """`localhost` may be ::1 first, where nobody listens; and an address can replace what the name leads to."""
    for host, hostaddr in (("localhost", None), ("no.such.host.invalid", "127.0.0.1")):
        address = replace(as_role(guarded_cluster, "scrammer"), host=host, hostaddr=hostaddr)
        raw(address).close()


@pytest.mark.parametrize("replication", [False, True])
def test_every_raw_session_has_the_pinned_settings_whatever_the_role_prefers(
    any_database: Database, *, replication: bool
) -> None:
    any_database.execute("create role odd_raw superuser login")
    for setting in ("datestyle = 'SQL, DMY'", "timezone = 'Asia/Tokyo'", "statement_timeout = '1s'"):
        any_database.execute(f"alter role odd_raw set {setting}")
    try:
        with raw(replace(any_database.address, user="odd_raw"), replication=replication) as connection:
            shown = {name: connection.execute(f"show {name}") for name in SESSION}
            assert connection.execute("show application_name") == [(NAME,)]
            if any_database.version_major >= 17:
                assert connection.execute("show transaction_timeout") == [("0",)]
        assert shown == {**{name: [(value,)] for name, value in SESSION.items()}, "datestyle": [("ISO, MDY",)]}
    finally:
        any_database.execute("drop role odd_raw")


def test_a_missing_database_is_named(database: Database) -> None:
    error = failure(replace(database.address, dbname="no_such_database"))
    assert error.kind is ErrorKind.SOURCE_SCHEMA
    assert "no_such_database" in error.message
    assert "pg_connection.name" in error.remedy


def test_a_role_without_replication_gets_no_replication(any_database: Database) -> None:
    any_database.execute("create role plain_raw login")
    try:
        error = failure(replace(any_database.address, user="plain_raw"), replication=True)
        assert error.kind is ErrorKind.SOURCE_PERMISSION_DENIED
        assert "with replication" in error.remedy
    finally:
        any_database.execute("drop role plain_raw")


def test_a_port_where_nobody_listens_is_a_connection_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        error = failure(SourceAddress("127.0.0.1", closed.getsockname()[1], "d", "u", "s3cret"))
    assert error.kind is ErrorKind.SOURCE_CONNECTION_FAILED
    assert "u@127.0.0.1" in error.message


def test_a_name_without_an_address_is_a_connection_error() -> None:
    for host in ("no.such.host.invalid", "a" * 64 + ".invalid"):
        assert failure(SourceAddress(host, 5432, "d", "u")).kind is ErrorKind.SOURCE_CONNECTION_FAILED


@contextmanager
def listener(answer: bytes) -> Iterator[SourceAddress]:
    """A server that says the same to everyone, and then listens."""

    def serve() -> None:
        with closing(listening):
            peer, _ = listening.accept()
            with peer, suppress(OSError):
                peer.sendall(answer)
                while peer.recv(4096):
                    pass

    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    yield SourceAddress("127.0.0.1", listening.getsockname()[1], "d", "u", "s3cret", connect_timeout_s=1)
    thread.join()


@pytest.mark.parametrize(
    ("sslmode", "answer"),
    [
        ("disable", b""),
        ("disable", b"R\0\0\0\x08\0\0\0\0"),
        ("disable", b"R\0\0\0\x08\0\0\0\0S"),
        ("prefer", b""),
        ("prefer", b"N"),
        ("require", b""),
        ("require", b"S"),
        ("require", b"S\x16\x03"),
    ],
)
def test_a_server_that_falls_silent_is_given_up_in_time(sslmode: str, answer: bytes) -> None:
    with listener(answer) as address:
        error = failure(replace(address, sslmode=sslmode))
    assert error.kind is ErrorKind.SOURCE_CONNECTION_FAILED
    assert "did not answer within 1 s" in error.message


def test_plain_bytes_behind_the_consent_to_tls_are_not_believed() -> None:
    with listener(b"SR\0\0\0\x08\0\0\0\0Z\0\0\0\x05I") as address:
        assert "TLS failed" in failure(replace(address, sslmode="require")).message


def test_a_server_that_asks_for_kerberos_is_left_to_libpq() -> None:
    with listener(b"R\0\0\0\x08\0\0\0\x07") as address, pytest.raises(UnspokenMethodError, match="GSSAPI"):
        raw(replace(address, sslmode="disable"))


STATEMENTS = [
    "select * from missing_table",
    "selec 1",
    "select 'private'::int",
    "select 1/0",
    "do $$ begin raise exception 'private' using errcode = '22ZZZ'; end $$",
    "do $$ begin raise exception 'said' using errcode = 'ZZ999'; end $$",
    "set statement_timeout = 1; select pg_sleep(60)",
    "select pg_terminate_backend(pg_backend_pid())",
    "select pg_drop_replication_slot('missing')",
    "select * from pg_get_publication_tables('missing')",
    "begin; set transaction isolation level repeatable read; set transaction snapshot '00000003-0000001B-1'",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_an_error_of_the_server_is_the_same_as_through_libpq(any_database: Database, statement: str) -> None:
    with (
        closing(connect(any_database.address, application_name=NAME)) as libpq,
        pytest.raises(SourceError) as expected,
        source_errors("testing"),
    ):
        libpq.execute(statement)
    with raw(any_database.address) as connection, pytest.raises(SourceError) as caught:
        connection.execute(statement, doing="testing")
    error, other = caught.value, expected.value
    assert (error.message, error.kind, error.remedy) == (other.message, other.kind, other.remedy)
    assert "private" not in error.message


def test_a_session_goes_on_after_an_error(database: Database) -> None:
    with raw(database.address) as connection:
        for statement in ("select 1/0", "copy missing_table to stdout"):
            with pytest.raises(SourceError):
                connection.start_copy(statement)
        assert connection.execute("select generate_series(1, 3)") == [("1",), ("2",), ("3",)]
        assert connection.execute("") == []


def test_a_statement_that_copies_nothing_is_no_copy(database: Database) -> None:
    with raw(database.address) as connection, pytest.raises(WireError):
        connection.start_copy("select 1")


@pytest.mark.parametrize("room", [7, 1 << 20])
def test_a_copy_arrives_as_libpq_has_it_and_the_session_goes_on(any_database: Database, room: int) -> None:
    statement = "copy (select n, repeat('x', n) from generate_series(1, 300) n) to stdout (format binary)"
    with any_database.connect() as connection, connection.cursor().copy(statement) as copy:
        expected = b"".join(copy)
    with raw(any_database.address) as other:
        other.start_copy(statement)
        received = collect(other, lambda so_far: so_far.endswith(b"Z\0\0\0\x05I"), room)
        assert other.execute("select 1") == [("1",)]
    frames = list(frames_of(received))
    assert b"".join(body for tag, body in frames if tag == b"d") == expected
    assert [tag for tag, _ in frames if tag != b"d"] == [b"c", b"C", b"Z"]


@pytest.mark.parametrize("room", [13, 1 << 20])
def test_the_stream_is_the_same_read_by_us_and_through_libpq(any_database: Database, room: int) -> None:
    make_slots(any_database, "raw", "libpq")
    any_database.execute("insert into t select n, repeat('x', n) from generate_series(1, 200) n")
    any_database.execute("update t set v = 'é' where id < 5; insert into t values (0, 'last')")
    with (
        closing(open_replication_stream(any_database.address, application_name=NAME)) as ours,
        closing(unread(any_database.address, NAME)) as libpq,
    ):
        assert isinstance(ours, RawStream)
        assert ours.fallback_reason is None
        assert ours.server_version == libpq.server_version
        assert ours.identify()[:2] == libpq.identify()[:2]
        assert stream_all(ours, "raw", room) == stream_all(libpq, "libpq", room)


def test_a_password_beyond_our_scram_is_left_to_libpq_with_the_reason(guarded_cluster: Cluster) -> None:
    address = as_role(guarded_cluster, "unprepared", UNPREPARED_PASSWORD)
    with closing(open_replication_stream(address, application_name=NAME)) as stream:
        assert isinstance(stream, LibpqStream)
        assert "SCRAM" in (stream.fallback_reason or "")
        assert UNPREPARED_PASSWORD not in (stream.fallback_reason or "")
        assert stream.identify().timeline == 1


OPENERS: dict[str, Callable[[SourceAddress, str], ReplicationStream]] = {
    "raw": lambda address, name: open_replication_stream(address, application_name=name),
    "libpq": unread,
}


@pytest.fixture(params=OPENERS)
def opener(request: pytest.FixtureRequest) -> Callable[[SourceAddress, str], ReplicationStream]:
    return OPENERS[request.param]


def test_open_transactions_are_streamed_from_protocol_2_on(
    any_database: Database, opener: Callable[[SourceAddress, str], ReplicationStream]
) -> None:
    make_slots(any_database, "s")
    with closing(opener(any_database.address, NAME)) as stream, any_database.connect(autocommit=False) as open_ended:
        stream.start("s", "p", NOWHERE, proto_version=2, streaming=True)
        open_ended.execute("set local logical_decoding_work_mem = '64kB'")
        open_ended.execute("insert into t select n, repeat('x', 1000) from generate_series(1, 80000) n")
        collect(stream, lambda received: any(kind_of(change) == b"S" for change in changes_of(received)))


def test_a_status_update_is_understood(
    any_database: Database, opener: Callable[[SourceAddress, str], ReplicationStream]
) -> None:
    make_slots(any_database, "s")
    any_database.execute("insert into t values (1, 'last')")
    with closing(opener(any_database.address, NAME)) as stream:
        stream_all(stream, "s")
        position = Lsn.parse(any_database.execute("select pg_current_wal_lsn()::text")[0][0])
        stream.send(encode_status_update(position, position, position, 0, reply_requested=True))
        stream.flush()
        assert not stream.wants_write
        collect(stream, lambda received: any(body[:1] == b"k" for _, body in frames_of(received)))
        confirmed = "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = 's'"
        wait_until(lambda: any_database.execute(confirmed) == [(str(position),)], "the position to be confirmed")


def test_a_stream_that_the_server_ends_says_so_in_its_words(
    any_database: Database, opener: Callable[[SourceAddress, str], ReplicationStream]
) -> None:
    make_slots(any_database, "s")
    name = f"ended {any_database.name}"
    with closing(opener(any_database.address, name)) as stream:
        stream.start("s", "p", NOWHERE, proto_version=1, streaming=False)
        any_database.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s", name)
        received = collect(stream, lambda so_far: any(tag == b"E" for tag, _ in frames_of(so_far)))
        error = error_from_response(next(body for tag, body in frames_of(received) if tag == b"E"), "streaming")
        assert error.kind is ErrorKind.SOURCE_SHUTDOWN
        assert "terminating connection due to administrator command (SQLSTATE 57P01)" in error.message
        stream.send(b"r" + bytes(33))  # nobody is there to take it: that is no news
        with pytest.raises(SourceError) as caught:
            collect(stream, lambda _: False)
        assert caught.value.kind is ErrorKind.SOURCE_CONNECTION_FAILED


@pytest.mark.parametrize(
    ("slot", "publication", "kind"),
    [("missing", "p", ErrorKind.SLOT_MISSING), ("s", "p", ErrorKind.SLOT_IN_USE)],
)
def test_a_slot_that_cannot_be_streamed_is_an_error_that_names_it(
    any_database: Database,
    opener: Callable[[SourceAddress, str], ReplicationStream],
    slot: str,
    publication: str,
    kind: ErrorKind,
) -> None:
    make_slots(any_database, "s")
    with closing(opener(any_database.address, NAME)) as holder, closing(opener(any_database.address, NAME)) as stream:
        holder.start("s", "p", NOWHERE, proto_version=1, streaming=False)
        with pytest.raises(SourceError) as caught:
            stream.start(slot, publication, NOWHERE, proto_version=1, streaming=False)
        assert caught.value.kind is kind
        assert f"replication slot {slot}" in caught.value.message
