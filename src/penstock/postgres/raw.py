"""A Postgres connection whose bytes we read ourselves, in pieces as large as the network has them.

One call of libpq per message is what limits other clients; here a copy or a replication stream is one
stream of bytes, whose frames compiled code can find. Commands are simple queries with results as text.
"""

from __future__ import annotations

import select
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from types import TracebackType
from typing import Self

from penstock.errors import ErrorKind, PenstockError, SourceError, WireError
from penstock.postgres.connection import (
    LIFT_TRANSACTION_TIMEOUT,
    TRANSACTION_TIMEOUT_SINCE,
    SourceAddress,
    connection_error,
    error_from_response,
)
from penstock.postgres.dial import Deadline, dial, is_local
from penstock.postgres.frame import Frame, FrameBuffer, encode_frame
from penstock.postgres.startup import Login, Startup, State, UnspokenMethodError, parse_server_version
from penstock.postgres.tls import TlsTransport, client_context
from penstock.postgres.transport import PlainTransport, Transport
from penstock.wire.cursor import Cursor

_TLS_REQUEST = struct.pack("!II", 8, 80877103)
_TERMINATE = encode_frame(b"X", b"")
_SCRATCH_BYTES = 1 << 16
_COUNT, _SIZE = struct.Struct("!H"), struct.Struct("!i")

Row = tuple[str | None, ...]


class Encryption(Enum):
    """What one attempt to connect does about TLS."""

    NONE = auto()
    IF_OFFERED = auto()
    REQUIRED = auto()


_ATTEMPTS: Mapping[str, tuple[Encryption, ...]] = {
    "disable": (Encryption.NONE,),
    "allow": (Encryption.NONE, Encryption.REQUIRED),
    "prefer": (Encryption.IF_OFFERED, Encryption.NONE),
    "require": (Encryption.REQUIRED,),
    "verify-ca": (Encryption.REQUIRED,),
    "verify-full": (Encryption.REQUIRED,),
}
"""By libpq's `sslmode`: what is tried, one after the other, until the server accepts us."""


class RawConnection:
    """A session with the pinned settings. Not for several threads at once."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._frames = FrameBuffer()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.parameters: dict[str, str] = {}
        """What the server reports of its settings, `server_version` among them."""
        self.server_version = 0
        """As Postgres counts: 180004 is 18.4."""

    @classmethod
    def open(cls, address: SourceAddress, *, application_name: str, replication: bool = False) -> RawConnection:
        """Connect, encrypt, authenticate and prepare the session, all within the address's time limit.

        `UnspokenMethodError` says that the server wants an authentication that only libpq can give.
        """
        deadline = Deadline.within(address.connect_timeout_s)
        login = Login(address.user, address.dbname, application_name, address.password, replication)
        with _while(f"connecting to {address}"):
            return _open(address, login, deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the socket, for `poll` or `select`."""
        return self._transport.fileno()

    @property
    def has_pending(self) -> bool:
        """Whether bytes are here that `select` on the socket cannot see."""
        return bool(self._frames) or self._transport.has_pending

    @property
    def wants_write(self) -> bool:
        """Whether `flush` should be called once the socket can be written to."""
        return self._transport.wants_write

    def execute(self, sql: str, *, doing: str = "") -> list[Row]:
        """Run one statement and return its rows, each value as the server prints it."""
        self._query(sql)
        rows: list[Row] = []
        for tag, body in self._answers(doing):
            match tag:
                case b"D":
                    rows.append(_row(body))
                case b"T" | b"C" | b"I":
                    pass
                case _:
                    raise WireError(f"unexpected message {tag!r} in answer to a query")
        return rows

    def start_copy(self, sql: str, *, doing: str = "") -> None:
        """Run a statement that makes the server copy to us; from then on everything is for `receive_into`."""
        self._query(sql)
        for tag, _ in self._answers(doing):
            if tag in {b"H", b"W"}:
                return
            if tag != b"T":
                raise WireError(f"unexpected message {tag!r} in answer to a statement that should start a copy")
        raise WireError("the server ended a statement that should start a copy without starting one")

    def receive_into(self, view: memoryview) -> int:
        """Take the bytes that have arrived, as many as fit, without waiting; 0 when there are none.

        They are the server's frames as on the wire; an error of the server's is a frame like any
        other, for `error_from_response`. Once the connection has ended, that is an error.
        """
        if self._frames:
            return self._frames.take_into(view)
        return self._transport.receive_into(view)

    def send(self, message: bytes) -> None:
        """Send a whole frame: now what the socket takes, the rest with `flush`. Never waits, and never fails.

        A connection that cannot be written to any more says so when it is read.
        """
        self._transport.send(message)

    def flush(self) -> None:
        """Send what the socket takes now of what `send` has left."""
        self._transport.flush()

    def close(self) -> None:
        """Take leave of the server, as far as that is possible without waiting, and close the connection."""
        if self._transport.fileno() >= 0:
            self.send(_TERMINATE)
        self._transport.close()

    def start_up(self, startup: Startup, deadline: Deadline) -> None:
        """Begin the session, and prepare it like all others."""
        self.send(startup.hello())
        while True:
            self.send(startup.advance(self._frames))
            if startup.state is State.READY:
                break
            self._receive(deadline)
        self.parameters = startup.parameters
        self._prepare_session(deadline)

    def _prepare_session(self, deadline: Deadline) -> None:
        self.server_version = parse_server_version(self.parameters.get("server_version", ""))
        if self.server_version >= TRANSACTION_TIMEOUT_SINCE:
            self._query(LIFT_TRANSACTION_TIMEOUT)
            for _ in self._answers("preparing the session", deadline):
                pass

    def _query(self, sql: str) -> None:
        self.send(encode_frame(b"Q", sql.encode() + b"\0"))

    def _answers(self, doing: str, deadline: Deadline | None = None) -> Iterator[Frame]:
        """Yield the answers to a query until the server is ready for the next; then raise its error, if any."""
        error: SourceError | None = None
        try:
            while (frame := self._next_frame(deadline)).tag != b"Z":
                if frame.tag == b"E":
                    error = error_from_response(frame.body, doing)
                elif frame.tag == b"S":
                    self._note_parameter(Cursor(frame.body))
                elif frame.tag not in {b"N", b"A"}:
                    yield frame
        except SourceError as end:
            # After a fatal error the server closes the connection; what it said before is the reason.
            raise (error or end) from None
        if error is not None:
            raise error

    def _note_parameter(self, cursor: Cursor) -> None:
        name = cursor.text()
        self.parameters[name] = cursor.text()

    def _next_frame(self, deadline: Deadline | None) -> Frame:
        while (frame := self._frames.next_frame()) is None:
            self._receive(deadline)
        return frame

    def _receive(self, deadline: Deadline | None) -> None:
        """Wait for bytes, and keep what came."""
        _require_time(deadline)  # a peer that never falls silent never makes us wait
        while not (size := self._transport.receive_into(self._scratch)):
            wait(self._transport, deadline)
        self._frames.feed(self._scratch[:size])


def wait(transport: Transport, deadline: Deadline | None = None) -> None:
    """Wait until the socket can be read, or written to where that is wanted; raise when the time is over."""
    poll = select.poll()
    poll.register(transport, select.POLLIN | (select.POLLOUT if transport.wants_write else 0))
    poll.poll(None if deadline is None else deadline.left_s * 1000)
    _require_time(deadline)
    transport.flush()


def _require_time(deadline: Deadline | None) -> None:
    if deadline is not None and not deadline.left_s:
        raise connection_error(f"the server did not answer within {deadline.limit_s:g} s")


class _Attempt:
    """One try at a session, on a socket of its own."""

    def __init__(
        self,
        address: SourceAddress,
        login: Login,
        encryption: Encryption,
        context: ssl.SSLContext | None,
        deadline: Deadline,
    ) -> None:
        self._address = address
        self._startup = Startup(login)
        self._encryption = encryption
        self._context = context
        self._deadline = deadline
        self._is_final = True

    @property
    def is_final(self) -> bool:
        """Whether its failure had nothing to do with encryption, so that no other attempt could fare better."""
        return self._is_final or self._startup.is_authenticated or not self._deadline.left_s

    def run(self) -> RawConnection:
        """Connect, encrypt and authenticate."""
        plain = PlainTransport(dial(self._address, self._deadline))
        try:
            connection = RawConnection(self._encrypt(plain))
            connection.start_up(self._startup, self._deadline)
        except BaseException:
            plain.close()
            raise
        return connection

    def _encrypt(self, plain: PlainTransport) -> Transport:
        self._is_final = False
        if self._encryption is Encryption.NONE or self._context is None:
            return plain
        plain.send(_TLS_REQUEST)
        match self._read_byte(plain):
            case b"S":
                return self._shake_hands(plain, self._context)
            case b"N" if self._encryption is Encryption.IF_OFFERED:
                self._is_final = True
                return plain
            case b"N":
                raise connection_error("the server does not offer TLS")
            case _:
                # Nothing that came unencrypted is believed when encryption was asked for: not even a message.
                raise connection_error("the server answered the request for TLS with an error; its log has more")

    def _read_byte(self, plain: PlainTransport) -> bytes:
        """Read one byte and no more: what follows it must come encrypted."""
        answer = bytearray(1)
        while not plain.receive_into(memoryview(answer)):
            wait(plain, self._deadline)
        return bytes(answer)

    def _shake_hands(self, plain: PlainTransport, context: ssl.SSLContext) -> TlsTransport:
        transport = TlsTransport(plain, context, self._address.host)
        while not transport.shake_hands():
            wait(transport, self._deadline)
        self._startup.channel = transport.session
        return transport


def _open(address: SourceAddress, login: Login, deadline: Deadline) -> RawConnection:
    """Try what `sslmode` allows, until the server accepts us: it may do so with TLS and not without, or vice versa."""
    attempts = _attempts(address)
    context = client_context(address) if set(attempts) != {Encryption.NONE} else None
    refusals: list[SourceError] = []
    for encryption in attempts:
        attempt = _Attempt(address, login, encryption, context, deadline)
        try:
            return attempt.run()
        except UnspokenMethodError:
            raise
        except SourceError as refusal:
            refusals.append(refusal)
            if attempt.is_final:
                break
    raise _together(refusals)


def _attempts(address: SourceAddress) -> tuple[Encryption, ...]:
    mode = "disable" if is_local(address) else address.sslmode
    if mode not in _ATTEMPTS:
        raise SourceError(f"unknown sslmode {mode}: it is one of {', '.join(_ATTEMPTS)}", kind=ErrorKind.CONFIG)
    return _ATTEMPTS[mode]


def _together(refusals: list[SourceError]) -> SourceError:
    """Return one error for all attempts. What a server said tells more than a connection that failed."""
    telling = next((each for each in refusals if each.kind is not ErrorKind.SOURCE_CONNECTION_FAILED), refusals[0])
    others = {each.message for each in refusals} - {telling.message}
    more = "".join(f"; and with the other choice of encryption: {message}" for message in others)
    return SourceError(telling.message + more, kind=telling.kind, remedy=telling.remedy)


@contextmanager
def _while(doing: str) -> Iterator[None]:
    """Begin the message of whatever is raised inside with what was being done."""
    try:
        yield
    except PenstockError as error:
        raise type(error)(f"{doing}: {error.message}", kind=error.kind, remedy=error.remedy) from None


def _row(body: bytes) -> Row:
    values: list[str | None] = []
    at = _COUNT.size
    try:
        for _ in range(_COUNT.unpack_from(body)[0]):
            (size,) = _SIZE.unpack_from(body, at)
            end = at + _SIZE.size + max(size, 0)
            values.append(None if size < 0 else body[at + _SIZE.size : end].decode())
            at = end
    except (struct.error, UnicodeDecodeError):
        raise WireError("malformed row in answer to a query") from None
    if at != len(body):
        raise WireError("malformed row in answer to a query: its values do not end where it does")
    return tuple(values)
