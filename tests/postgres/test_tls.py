"""Under TLS a server has to prove who it is, as strictly as it was asked to, and the bytes stay the same."""

from __future__ import annotations

import datetime as dt
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from plugins.certificate import Authority, Certificate
from plugins.secured import PASSWORD
from plugins.stream_bytes import collect, frames_of, make_slots, stream_all
from pydantic import SecretStr

from penstock.config.connection import PgConnectionConfig, TlsConfig
from penstock.errors import ErrorKind, SourceError
from penstock.model.lsn import NOWHERE
from penstock.postgres.connection import SourceAddress, connect
from penstock.postgres.raw import RawConnection
from penstock.postgres.replication import LibpqStream, open_replication_stream
from penstock.runtime.source import source_address
from penstock.testing.postgres import Cluster, Database

pytestmark = pytest.mark.postgres

YESTERDAY = dt.timedelta(days=-1)
IS_ENCRYPTED = "select ssl::text from pg_stat_ssl where pid = pg_backend_pid()"


def ask_raw(address: SourceAddress, statement: str) -> object:
    with RawConnection.open(address, application_name="tls test") as connection:
        return connection.execute(statement)[0][0]


def ask_libpq(address: SourceAddress, statement: str) -> object:
    with closing(connect(address, application_name="tls test")) as connection:
        row = connection.execute(statement).fetchone()
        return row and row[0]


Ask = Callable[[SourceAddress, str], object]


@pytest.fixture(params=[ask_raw, ask_libpq], ids=["raw", "libpq"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Both ways to connect: libpq's judgement is the oracle for ours."""
    way: Ask = request.param
    return way


@pytest.fixture
def address(tls_cluster: Cluster, authority: Authority) -> SourceAddress:
    """A role that is trusted, at a server that has to prove that it is localhost."""
    database = tls_cluster.handle("postgres")
    return replace(
        database.address,
        host="localhost",
        user="trusted",
        password=None,
        sslmode="verify-full",
        sslrootcert=str(authority.certificate),
        connect_timeout_s=30,
    )


def failure(ask: Ask, address: SourceAddress) -> SourceError:
    with pytest.raises(SourceError) as caught:
        ask(address, IS_ENCRYPTED)
    assert "\n" not in caught.value.message
    assert PASSWORD not in f"{caught.value!r} {caught.value.message}"
    return caught.value


@pytest.mark.parametrize("role", ["trusted", "cleartext", "md5er", "scrammer", "encrypted"])
def test_every_method_of_authentication_works_under_tls(address: SourceAddress, ask: Ask, role: str) -> None:
    assert ask(replace(address, user=role, password=PASSWORD), IS_ENCRYPTED) == "true"


@pytest.mark.parametrize(
    ("sslmode", "is_encrypted"),
    [("disable", "false"), ("allow", "false"), ("prefer", "true"), ("require", "true"), ("verify-ca", "true")],
)
def test_a_mode_decides_whether_tls_is_used(address: SourceAddress, ask: Ask, sslmode: str, is_encrypted: str) -> None:
    assert ask(replace(address, sslmode=sslmode), IS_ENCRYPTED) == is_encrypted


@pytest.mark.parametrize(
    ("role", "sslmode", "is_encrypted"),
    [("encrypted", "allow", "true"), ("unencrypted", "prefer", "false"), ("encrypted", "prefer", "true")],
)
def test_a_server_that_insists_gets_its_way_where_the_mode_allows_both(
    address: SourceAddress, ask: Ask, role: str, sslmode: str, is_encrypted: str
) -> None:
    assert ask(replace(address, user=role, sslmode=sslmode), IS_ENCRYPTED) == is_encrypted


@pytest.mark.parametrize(("role", "sslmode"), [("encrypted", "disable"), ("unencrypted", "require")])
def test_a_server_that_insists_on_what_the_mode_rules_out_is_an_authentication_error(
    address: SourceAddress, ask: Ask, role: str, sslmode: str
) -> None:
    error = failure(ask, replace(address, user=role, sslmode=sslmode))
    assert error.kind is ErrorKind.SOURCE_AUTHENTICATION
    assert "no pg_hba.conf entry" in error.message


def test_both_refusals_are_told_where_both_ways_were_tried(address: SourceAddress) -> None:
    error = failure(ask_raw, replace(address, user="stranger", sslmode="prefer"))
    assert error.kind is ErrorKind.SOURCE_AUTHENTICATION
    assert "SSL encryption" in error.message
    assert "no encryption" in error.message


@pytest.mark.parametrize("sslmode", ["require", "verify-ca", "verify-full"])
def test_a_server_that_the_given_authority_does_not_know_is_refused(
    address: SourceAddress, ask: Ask, other_authority: Authority, sslmode: str
) -> None:
    error = failure(ask, replace(address, sslmode=sslmode, sslrootcert=str(other_authority.certificate)))
    assert error.kind is ErrorKind.SOURCE_CONNECTION_FAILED
    assert "certificate verify failed" in error.message
    assert "tls.trusted_root_certs" in error.remedy


def test_any_server_will_do_where_only_encryption_is_required(address: SourceAddress, ask: Ask) -> None:
    assert ask(replace(address, sslmode="require", sslrootcert=None), IS_ENCRYPTED) == "true"


def test_another_name_than_the_certificates_is_refused_only_where_names_are_checked(
    address: SourceAddress, ask: Ask
) -> None:
    elsewhere = replace(address, host="db.example.com", hostaddr="127.0.0.1")
    for wrong in (elsewhere, replace(address, host="127.0.0.1")):
        error = failure(ask, wrong)
        assert error.kind is ErrorKind.SOURCE_CONNECTION_FAILED
        assert "tls.trusted_root_certs" in error.remedy
        assert ask(replace(wrong, sslmode="verify-ca"), IS_ENCRYPTED) == "true"


def test_the_systems_certificates_are_those_of_the_system(
    address: SourceAddress, authority: Authority, other_authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = replace(address, sslrootcert="system")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    assert ask_raw(system, IS_ENCRYPTED) == "true"
    monkeypatch.setenv("SSL_CERT_FILE", str(other_authority.certificate))
    assert "certificate verify failed" in failure(ask_raw, system).message


def test_the_systems_certificates_do_not_go_without_the_name(address: SourceAddress, ask: Ask) -> None:
    error = failure(ask, replace(address, sslmode="verify-ca", sslrootcert="system"))
    assert "verify-full" in error.message


def test_verifying_against_nothing_is_refused(address: SourceAddress) -> None:
    for certificates in (None, "/no/such/file.pem", __file__):
        error = failure(ask_raw, replace(address, sslrootcert=certificates))
        assert error.kind is ErrorKind.CONFIG
        assert certificates is None or certificates in error.message


def test_a_server_without_tls_is_refused_where_tls_is_required(database: Database, ask: Ask) -> None:
    error = failure(ask, replace(database.address, sslmode="require"))
    assert error.kind is ErrorKind.SOURCE_CONNECTION_FAILED
    assert "tls.enabled" in error.remedy


@pytest.mark.parametrize("sslmode", ["disable", "allow", "prefer"])
def test_a_server_without_tls_will_do_where_tls_is_preferred(database: Database, ask: Ask, sslmode: str) -> None:
    assert ask(replace(database.address, sslmode=sslmode), IS_ENCRYPTED) == "false"


def showing(address: SourceAddress, shown: Certificate, role: str = "certified") -> SourceAddress:
    return replace(address, user=role, sslcert=str(shown.certificate), sslkey=str(shown.key))


def test_a_client_certificate_opens_the_session_of_whom_it_names(
    address: SourceAddress, ask: Ask, authority: Authority
) -> None:
    assert ask(showing(address, authority.issue("certified")), "select current_user::text") == "certified"


@pytest.mark.parametrize(
    ("name", "valid_for", "is_known"),
    [
        ("certified", YESTERDAY, True),
        ("certified", dt.timedelta(days=1), False),
        ("someone_else", dt.timedelta(days=1), True),
    ],
    ids=["expired", "of another authority", "of another role"],
)
def test_a_wrong_client_certificate_is_an_authentication_error(
    address: SourceAddress,
    ask: Ask,
    authority: Authority,
    other_authority: Authority,
    name: str,
    valid_for: dt.timedelta,
    *,
    is_known: bool,
) -> None:
    issuer = authority if is_known else other_authority
    error = failure(ask, showing(address, issuer.issue(name, valid_for=valid_for)))
    assert error.kind is ErrorKind.SOURCE_AUTHENTICATION


def test_a_missing_client_certificate_is_an_authentication_error(address: SourceAddress, ask: Ask) -> None:
    error = failure(ask, replace(address, user="certified"))
    assert error.kind is ErrorKind.SOURCE_AUTHENTICATION
    assert "tls.client_cert" in error.remedy


def test_a_client_certificate_that_cannot_be_read_is_a_matter_of_configuration(
    address: SourceAddress, authority: Authority
) -> None:
    sound, other = authority.issue("certified"), authority.issue("certified")
    missing = Path("/no/such/file.pem")
    for broken in (replace(sound, certificate=missing), replace(sound, key=missing), replace(sound, key=other.key)):
        error = failure(ask_raw, showing(address, broken))
        assert error.kind is ErrorKind.CONFIG
        assert str(broken.certificate) in error.message


def test_certificates_and_keys_given_as_text_open_a_session(
    tls_cluster: Cluster, ask: Ask, authority: Authority, tmp_path: Path
) -> None:
    shown = authority.issue("certified")
    config = PgConnectionConfig(
        host="localhost",
        port=tls_cluster.server.port,
        name="postgres",
        username="certified",
        tls=TlsConfig(
            enabled=True,
            trusted_root_certs=authority.certificate.read_text(),
            client_cert=shown.certificate.read_text(),
            client_key=SecretStr(shown.key.read_text()),
        ),
    )
    address = source_address(config, tmp_path / "state")
    assert ask(address, "select current_user::text") == "certified"
    key = tmp_path / "state" / "client_key.pem"
    assert address.sslkey == str(key)
    assert key.stat().st_mode & 0o777 == 0o600


def test_required_encryption_needs_no_certificates(tls_cluster: Cluster, ask: Ask, tmp_path: Path) -> None:
    config = PgConnectionConfig(
        host="localhost",
        port=tls_cluster.server.port,
        name="postgres",
        username="trusted",
        tls=TlsConfig(enabled=True, mode="require"),
    )
    assert ask(source_address(config, tmp_path), IS_ENCRYPTED) == "true"


class Impostor:
    """Someone in the middle with a certificate that we trust, who passes everything on."""

    def __init__(self, server: SourceAddress, shown: Certificate) -> None:
        self._server = server
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(shown.certificate, shown.key)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]

    def serve(self) -> None:
        with suppress(OSError), ExitStack() as stack:
            client = stack.enter_context(self._listening.accept()[0])
            server = stack.enter_context(socket.create_connection(("127.0.0.1", self._server.port)))
            server.sendall(client.recv(8))
            client.sendall(server.recv(1))
            inside = stack.enter_context(self._context.wrap_socket(client, server_side=True))
            trusting = ssl.create_default_context(cafile=self._server.sslrootcert)
            outside = stack.enter_context(trusting.wrap_socket(server, server_hostname="localhost"))
            while all(_pass_on(*pair) for pair in ((inside, outside), (outside, inside))):
                select.select([inside, outside], [], [], 30)


def _pass_on(source: ssl.SSLSocket, target: ssl.SSLSocket) -> bool:
    """Pass on what is there; say whether more may come."""
    source.setblocking(False)
    try:
        data = source.recv(65536)
    except ssl.SSLWantReadError:
        return True
    finally:
        source.setblocking(True)
    target.sendall(data)
    return bool(data)


@contextmanager
def impostor(server: SourceAddress, shown: Certificate) -> Iterator[SourceAddress]:
    serving = Impostor(server, shown)
    thread = threading.Thread(target=serving.serve)
    thread.start()
    with serving._listening:
        yield replace(server, port=serving.port)
        thread.join()


def test_scram_is_bound_to_the_servers_own_certificate(
    address: SourceAddress, authority: Authority, server_certificate: Certificate
) -> None:
    """Someone in between who holds another valid certificate learns nothing, and is refused; with the true one not."""
    server = replace(address, user="scrammer", password=PASSWORD)
    with impostor(server, server_certificate) as through:
        assert ask_raw(through, IS_ENCRYPTED) == "true"
    with impostor(server, authority.issue("impostor", hosts=["localhost"])) as through:
        error = failure(ask_raw, through)
    assert error.kind is ErrorKind.SOURCE_AUTHENTICATION
    assert "channel binding" in error.message


@pytest.mark.parametrize("room", [13, 70000])
def test_the_stream_is_the_same_plain_under_tls_and_through_libpq(
    tls_database: Database, address: SourceAddress, room: int
) -> None:
    make_slots(tls_database, "plain", "tls", "libpq")
    tls_database.execute("insert into t select n, repeat('x', n) from generate_series(1, 300) n")
    tls_database.execute("update t set v = 'é' where id < 5; insert into t values (0, 'last')")
    secure = replace(address, dbname=tls_database.name)
    with (
        closing(open_replication_stream(replace(secure, sslmode="disable"), application_name="plain")) as plain,
        closing(open_replication_stream(secure, application_name="tls")) as tls,
        closing(LibpqStream(connect(secure, application_name="libpq", replication=True), fallback_reason="t")) as libpq,
    ):
        expected = stream_all(plain, "plain", room)
        assert len(expected) > 300
        assert stream_all(tls, "tls", room) == expected
        assert stream_all(libpq, "libpq", room) == expected


@pytest.mark.parametrize("sslmode", ["disable", "verify-full"])
def test_a_row_of_fifty_megabytes_passes(tls_database: Database, address: SourceAddress, sslmode: str) -> None:
    make_slots(tls_database, "s")
    tls_database.execute("insert into t values (1, repeat('0123456789', 5000000)); insert into t values (2, 'last')")
    target = replace(address, dbname=tls_database.name, sslmode=sslmode)
    with closing(open_replication_stream(target, application_name="large")) as stream:
        stream.start("s", "p", NOWHERE, proto_version=1, streaming=False)
        received = collect(stream, lambda so_far: b"last" in so_far[-4096:])
    row = max((body for tag, body in frames_of(received) if tag == b"d"), key=len)
    assert row.endswith(b"t" + (50_000_000).to_bytes(4) + b"0123456789" * 5_000_000)


def test_a_stream_that_ends_under_tls_says_so_in_the_servers_words(
    tls_database: Database, address: SourceAddress
) -> None:
    make_slots(tls_database, "s")
    with closing(open_replication_stream(replace(address, dbname=tls_database.name), application_name="end")) as stream:
        stream.start("s", "p", NOWHERE, proto_version=1, streaming=False)
        tls_database.execute("select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = 's'")
        received = collect(stream, lambda so_far: b"57P01" in so_far)
        assert b"terminating connection" in received
        with pytest.raises(SourceError) as caught:
            collect(stream, lambda _: False)
    assert caught.value.kind is ErrorKind.SOURCE_CONNECTION_FAILED
