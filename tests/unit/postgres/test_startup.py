"""The start of a session believes no server too early, tells no secret, and survives any bytes."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ErrorKind, SourceError, WireError
from penstock.postgres.connection import SESSION, error_from_response
from penstock.postgres.frame import FrameBuffer, encode_frame
from penstock.postgres.startup import Login, Startup, State, UnspokenMethodError, parse_server_version

SECRET = "the s3cret"
BINDING = b"a certificate's hash, 32 bytes.."


def startup(password: str | None = SECRET, *, channel: bytes | None = None, replication: bool = False) -> Startup:
    started = Startup(Login("ann", "shop", "test", password, replication))
    started.channel = channel
    return started


def request(code: int, body: bytes = b"") -> bytes:
    return encode_frame(b"R", struct.pack("!I", code) + body)


def offer(*mechanisms: str) -> bytes:
    return request(10, b"".join(name.encode() + b"\0" for name in mechanisms) + b"\0")


def tell(started: Startup, data: bytes) -> bytes:
    frames = FrameBuffer()
    frames.feed(data)
    return started.advance(frames)


OK, READY = request(0), encode_frame(b"Z", b"I")
VERSION = encode_frame(b"S", b"server_version\0" + b"18.4 (Debian)\0")


def server(channel: bytes | None = None) -> Any:
    """A SCRAM server that knows the password."""
    mechanism = scramp.ScramMechanism("SCRAM-SHA-256-PLUS" if channel else "SCRAM-SHA-256")
    binding = None if channel is None else ("tls-server-end-point", channel)
    return mechanism.make_server(lambda _: mechanism.make_auth_info(SECRET), channel_binding=binding)


def begin_scram(started: Startup, *mechanisms: str) -> tuple[str, str]:
    """Return the mechanism that was chosen, and the client's first message."""
    answer = tell(started, offer(*mechanisms))
    chosen, _, rest = answer[5:].partition(b"\0")
    return chosen.decode(), rest[4:].decode()


def exchange(started: Startup, peer: Any, *mechanisms: str) -> bytes:
    """Run SCRAM up to the server's proof, which is returned as its request."""
    _, first = begin_scram(started, *mechanisms)
    peer.set_client_first(first)
    proof = tell(started, request(11, peer.get_server_first().encode()))
    peer.set_client_final(proof[5:].decode())
    return request(12, peer.get_server_final().encode())


@pytest.mark.parametrize("replication", [False, True])
def test_the_first_packet_names_us_and_pins_every_setting(*, replication: bool) -> None:
    packet = startup(replication=replication).hello()
    assert struct.unpack("!II", packet[:8]) == (len(packet), 196608)
    words = packet[8:].split(b"\0")
    told = dict(zip(words[::2], words[1::2], strict=False))
    assert told.get(b"replication") == (b"database" if replication else None)
    assert (told[b"user"], told[b"database"], told[b"application_name"]) == (b"ann", b"shop", b"test")
    assert all(f"-c {name}={value}".encode() in told[b"options"] for name, value in SESSION.items())


def test_a_server_that_trusts_us_is_taken_at_its_word() -> None:
    started = startup(None)
    assert tell(started, OK + VERSION) == b""
    assert started.is_authenticated
    tell(started, READY)
    assert started.state is State.READY
    assert parse_server_version(started.parameters["server_version"]) == 180004


@pytest.mark.parametrize(("text", "number"), [("15.18", 150018), ("18beta1", 180000), ("14.2 (Pool 1)", 140002)])
def test_a_version_is_the_number_that_postgres_makes_of_it(text: str, number: int) -> None:
    assert parse_server_version(text) == number


def test_a_version_without_a_number_is_refused() -> None:
    with pytest.raises(WireError):
        parse_server_version("devel")


def test_a_password_is_sent_as_it_is_asked_for() -> None:
    assert tell(startup(), request(3)) == encode_frame(b"p", SECRET.encode() + b"\0")
    inner = hashlib.md5(f"{SECRET}ann".encode()).hexdigest()
    outer = hashlib.md5(inner.encode() + b"salt").hexdigest()
    assert tell(startup(), request(5, b"salt")) == encode_frame(b"p", f"md5{outer}\0".encode())


@pytest.mark.parametrize("ask", [request(3), request(5, b"salt"), offer("SCRAM-SHA-256")])
def test_a_password_that_is_asked_for_and_not_given_is_an_authentication_error(ask: bytes) -> None:
    with pytest.raises(SourceError, match="none is given") as caught:
        tell(startup(None), ask)
    assert caught.value.kind is ErrorKind.SOURCE_AUTHENTICATION
    assert "pg_connection.password" in caught.value.remedy


def test_scram_ends_with_both_sides_proved() -> None:
    started = startup()
    tell(started, exchange(started, server(), "SCRAM-SHA-256"))
    assert not started.is_authenticated
    tell(started, OK)
    assert started.is_authenticated


def test_scram_is_bound_to_the_channel_where_the_server_can() -> None:
    started = startup(channel=BINDING)
    tell(started, exchange(started, server(BINDING), "SCRAM-SHA-256-PLUS", "SCRAM-SHA-256") + OK)
    assert started.is_authenticated


def test_a_server_that_hides_its_channel_binding_is_told_that_we_could() -> None:
    assert begin_scram(startup(channel=BINDING), "SCRAM-SHA-256")[1].startswith("y,,")
    assert begin_scram(startup(), "SCRAM-SHA-256")[1].startswith("n,,")


def test_another_channel_than_the_servers_is_refused_by_the_server() -> None:
    started = startup(channel=BINDING)
    with pytest.raises(scramp.ScramException, match="channel bindings don't match"):
        exchange(started, server(BINDING[::-1]), "SCRAM-SHA-256-PLUS")


@pytest.mark.parametrize("steps", [1, 2])
def test_a_server_that_stops_before_its_proof_is_refused(steps: int) -> None:
    started, peer = startup(), server()
    _, first = begin_scram(started, "SCRAM-SHA-256")
    peer.set_client_first(first)
    if steps == 2:
        tell(started, request(11, peer.get_server_first().encode()))
    with pytest.raises(SourceError, match="did not prove") as caught:
        tell(started, OK)
    assert caught.value.kind is ErrorKind.SOURCE_AUTHENTICATION


def test_a_server_with_a_wrong_proof_is_refused() -> None:
    started = startup()
    exchange(started, server(), "SCRAM-SHA-256")
    with pytest.raises(SourceError, match="did not prove"):
        tell(started, request(12, b"v=" + b"A" * 43 + b"="))


def test_no_password_is_given_after_scram_has_begun() -> None:
    started = startup()
    begin_scram(started, "SCRAM-SHA-256")
    with pytest.raises(WireError):
        tell(started, request(3))


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (request(7), "GSSAPI"),
        (request(9), "SSPI"),
        (request(99), "number 99"),
        (offer("OAUTHBEARER"), "OAUTHBEARER"),
        (offer("SCRAM-SHA-256-PLUS"), "certificate"),
    ],
)
def test_a_method_that_only_libpq_speaks_is_left_to_it_by_name(ask: bytes, named: str) -> None:
    with pytest.raises(UnspokenMethodError, match=named):
        tell(startup(), ask)


def test_parameters_of_scram_that_the_client_refuses_are_left_to_libpq() -> None:
    started = startup()
    _, first = begin_scram(started, "SCRAM-SHA-256")
    nonce = first.rpartition("r=")[2]
    with pytest.raises(UnspokenMethodError):
        tell(started, request(11, f"r={nonce}more,s=c2FsdA==,i=1".encode()))


def test_a_refusal_has_the_servers_words_and_code() -> None:
    body = b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication\nfailed\0Dsecret detail\0\0"
    with pytest.raises(SourceError) as caught:
        tell(startup(), encode_frame(b"E", body))
    assert caught.value.kind is ErrorKind.SOURCE_AUTHENTICATION
    assert caught.value.message == "password authentication failed (SQLSTATE 28P01)"


def test_words_in_another_encoding_are_shown_as_far_as_they_go() -> None:
    assert "r\ufffdle" in error_from_response(b"C28000\0Mr\xf4le\0\0").message


def test_words_without_a_frame_mean_that_the_server_has_no_process_for_us() -> None:
    with pytest.raises(SourceError, match="no process to spare") as caught:
        tell(startup(), b"Ecould not fork new process for connection: out of memory\n\0")
    assert caught.value.kind is ErrorKind.SOURCE_CONNECTION_FAILED


def test_another_protocol_is_recognised_at_once() -> None:
    with pytest.raises(WireError, match="not the Postgres protocol"):
        tell(startup(), b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("field", ["user", "dbname", "application_name"])
def test_a_name_cannot_smuggle_settings_into_the_packet(field: str) -> None:
    names = {"user": "u", "dbname": "d", "application_name": "a", field: "x\0options\0-c fsync=off"}
    login = Login(names["user"], names["dbname"], names["application_name"])
    with pytest.raises(SourceError, match="zero byte"):
        Startup(login).hello()


@pytest.mark.parametrize("ask", [request(3), request(5, b"salt"), offer("SCRAM-SHA-256")])
def test_a_password_that_is_no_text_is_a_matter_of_configuration(ask: bytes) -> None:
    """Such as one from an environment in another encoding."""
    with pytest.raises(SourceError, match="not text") as caught:
        tell(startup(f"{SECRET}\udcff"), ask)
    assert caught.value.kind is ErrorKind.CONFIG
    assert caught.value.__suppress_context__


def test_a_password_is_not_shown() -> None:
    assert SECRET not in repr(Login("ann", "shop", "test", SECRET))


def survives(started: Startup, pieces: Iterable[bytes]) -> None:
    frames = FrameBuffer()
    with contextlib.suppress(SourceError, WireError):
        for piece in pieces:
            frames.feed(piece)
            started.advance(frames)


BODIES = st.one_of(
    st.binary(max_size=64),
    st.builds(lambda code, rest: struct.pack("!I", code) + rest, st.integers(0, 13), st.binary(max_size=64)),
    st.builds(
        lambda rest: struct.pack("!I", 10) + b"SCRAM-SHA-256\0SCRAM-SHA-256-PLUS\0" + rest, st.binary(max_size=8)
    ),
    st.builds(lambda text: struct.pack("!I", 11) + text.encode(), st.text("rsinve=,+/0123456789AB", max_size=64)),
)
FRAMES = st.builds(encode_frame, st.sampled_from([b"R", b"S", b"K", b"Z", b"E", b"N", b"v", b"?"]), BODIES)


@pytest.mark.parametrize("channel", [None, BINDING])
@given(pieces=st.lists(st.one_of(st.binary(max_size=40), FRAMES), max_size=8))
def test_whatever_a_server_says_is_an_answer_or_an_error_of_ours(channel: bytes | None, pieces: list[bytes]) -> None:
    survives(startup(channel=channel), pieces)


@given(challenge=st.text("rsie=,+/0123456789ABz", max_size=64), proof=st.binary(max_size=64))
def test_whatever_a_server_says_in_scram_never_passes_for_its_proof(challenge: str, proof: bytes) -> None:
    started = startup()
    _, first = begin_scram(started, "SCRAM-SHA-256")
    nonce = first.rpartition("r=")[2]
    survives(started, [request(11, f"r={nonce}{challenge}".encode()), request(12, proof), OK])
    assert not started.is_authenticated


@pytest.mark.parametrize("cut", [lambda data: [data], lambda data: [bytes([byte]) for byte in data]])
def test_a_conversation_does_not_depend_on_how_it_is_cut(cut: Callable[[bytes], list[bytes]]) -> None:
    started, frames = startup(), FrameBuffer()
    for piece in cut(request(3) + OK + VERSION + READY + b"more"):
        frames.feed(piece)
        started.advance(frames)
    assert started.state is State.READY
    assert frames.peek(10) == b"more"
