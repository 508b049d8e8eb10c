"""Bytes come out as they went in, however they are cut, and whatever the socket takes at a time."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.certificate import Authority

from penstock.errors import ErrorKind, SourceError
from penstock.postgres.dial import Deadline
from penstock.postgres.frame import FrameBuffer, encode_frame
from penstock.postgres.tls import CHUNK_BYTES, TlsTransport
from penstock.postgres.transport import PlainTransport

LARGE = bytes(range(256)) * 40_000


@pytest.fixture
def pair() -> Iterator[tuple[PlainTransport, socket.socket]]:
    ours, theirs = socket.socketpair()
    with theirs, closing(PlainTransport(ours)) as transport:
        yield transport, theirs


class TlsServer:
    """The other end of a session, in memory: each `write` is a record of its own, as a walsender's are."""

    def __init__(self, context: ssl.SSLContext, peer: socket.socket) -> None:
        self._peer = peer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def shake_hands(self) -> None:
        self._incoming.write(self._peer.recv(1 << 16))
        with suppress(ssl.SSLWantReadError):
            self.session.do_handshake()
        self.deliver()

    def read(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            self._incoming.write(self._peer.recv(1 << 16))
            while self._incoming.pending:
                try:
                    received += self.session.read(1 << 16)
                except ssl.SSLWantReadError:
                    break
        return received

    def deliver(self) -> None:
        self._peer.sendall(self._outgoing.read())


class Contexts:
    """What both ends of a session know."""

    def __init__(self, authority: Authority) -> None:
        shown = authority.issue("server", hosts=["localhost"])
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(shown.certificate, shown.key)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client.load_verify_locations(authority.certificate)

    def connect(self) -> tuple[TlsTransport, TlsServer]:
        ours, theirs = socket.socketpair()
        transport = TlsTransport(PlainTransport(ours), self.client, "localhost")
        server = TlsServer(self.server, theirs)
        while not transport.shake_hands():
            server.shake_hands()
        server.shake_hands()  # takes the client's last word, and gives session tickets
        return transport, server


@pytest.fixture(scope="module")
def contexts(authority: Authority) -> Contexts:
    return Contexts(authority)


def drain(transport: PlainTransport | TlsTransport, room: int) -> bytes:
    """Receive until nothing is there, as an event loop would: told by `poll` and `has_pending` only."""
    view, received = memoryview(bytearray(room)), b""
    while transport.has_pending or select.select([transport], [], [], 0)[0]:
        received += bytes(view[: transport.receive_into(view)])
    return received


@given(pieces=st.lists(st.binary(max_size=400), max_size=20), room=st.integers(1, 3000))
def test_records_come_out_as_one_stream_whatever_the_room(contexts: Contexts, pieces: list[bytes], room: int) -> None:
    transport, server = contexts.connect()
    with closing(transport), server._peer:
        for piece in pieces:
            if piece:
                server.session.write(piece)
        server.deliver()
        assert drain(transport, room) == b"".join(pieces)


def test_a_flood_of_records_is_held_in_one_chunk_at_a_time(contexts: Contexts) -> None:
    transport, server = contexts.connect()
    view = memoryview(bytearray(100))
    with closing(transport), server._peer:
        for _ in range(500):
            server.session.write(b"x" * 200)
        server.deliver()
        received = 0
        while transport.has_pending or select.select([transport], [], [], 0)[0]:
            received += transport.receive_into(view)
            assert transport._incoming.pending <= CHUNK_BYTES
    assert received == 500 * 200


def test_what_the_socket_does_not_take_waits_for_its_turn(pair: tuple[PlainTransport, socket.socket]) -> None:
    transport, peer = pair
    transport.send(LARGE)
    transport.send(b"end")
    received = b""
    while not received.endswith(b"end"):
        assert transport.wants_write or select.select([peer], [], [], 10)[0]
        received += peer.recv(1 << 20)
        transport.flush()
    assert received == LARGE + b"end"
    assert not transport.wants_write


def test_what_is_sent_under_tls_arrives(contexts: Contexts) -> None:
    transport, server = contexts.connect()
    with closing(transport), server._peer:
        transport.send(b"x" * 100_000)
        transport.flush()
        assert server.read(100_000) == b"x" * 100_000


def test_nothing_there_is_no_bytes_and_no_error(contexts: Contexts, pair: tuple[PlainTransport, socket.socket]) -> None:
    transport, server = contexts.connect()
    with closing(transport), server._peer:
        drain(transport, 10)
        assert transport.receive_into(memoryview(bytearray(10))) == 0
    assert pair[0].receive_into(memoryview(bytearray(10))) == 0


def ended(transport: PlainTransport | TlsTransport) -> SourceError:
    with pytest.raises(SourceError) as caught:
        transport.receive_into(memoryview(bytearray(100)))
    assert caught.value.kind is ErrorKind.SOURCE_CONNECTION_FAILED
    return caught.value


def test_last_words_are_heard_before_the_end(pair: tuple[PlainTransport, socket.socket]) -> None:
    transport, peer = pair
    peer.sendall(b"last words")
    peer.close()
    transport.send(b"nobody is there")
    assert not transport.wants_write
    view = memoryview(bytearray(100))
    assert bytes(view[: transport.receive_into(view)]) == b"last words"
    for _ in range(2):
        ended(transport)


@pytest.mark.parametrize("is_announced", [False, True])
def test_last_words_are_heard_before_the_end_under_tls(contexts: Contexts, *, is_announced: bool) -> None:
    transport, server = contexts.connect()
    with closing(transport):
        server.session.write(b"last words")
        if is_announced:
            with pytest.raises(ssl.SSLWantReadError):
                server.session.unwrap()
        server.deliver()
        server._peer.close()
        view = memoryview(bytearray(100))
        assert bytes(view[: transport.receive_into(view)]) == b"last words"
        for _ in range(2):
            assert "closed the connection" in ended(transport).message


def test_a_record_that_was_tampered_with_is_refused(contexts: Contexts) -> None:
    transport, server = contexts.connect()
    with closing(transport), server._peer:
        drain(transport, 100)
        server.session.write(b"words")
        record = bytearray(server._outgoing.read())
        record[-1] ^= 1
        server._peer.sendall(record)
        assert "TLS failed" in ended(transport).message


@given(frames=st.lists(st.tuples(st.sampled_from([b"d", b"Z"]), st.binary(max_size=20))), cut=st.integers(1, 9))
def test_frames_do_not_depend_on_how_they_are_cut(frames: list[tuple[bytes, bytes]], cut: int) -> None:
    data = b"".join(encode_frame(tag, body) for tag, body in frames)
    buffer, found = FrameBuffer(), []
    for at in range(0, len(data), cut):
        buffer.feed(data[at : at + cut])
        while (frame := buffer.next_frame()) is not None:
            found.append(tuple(frame))
    assert found == frames
    assert not buffer


def test_a_deadline_runs_out() -> None:
    now = [100.0]
    deadline = Deadline.within(2, lambda: now[0])
    assert deadline.left_s == 2
    now[0] = 103.0
    assert deadline.left_s == 0
