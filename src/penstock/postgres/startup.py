"""The start of a Postgres session: who we are, how that is proved, and what the server says of itself.

Rule 1: no I/O; bytes of the server go in, bytes for the server come out, and what may follow what is a row of `_NEXT`.
Rule 2: a server that took part in SCRAM must prove that it knows the password too, before it is believed.
Rule 3: a password is in no message, no `repr` and no chained exception.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Any

from scramp import ScramClient, ScramException

from penstock.errors import ErrorKind, SourceError, WireError
from penstock.postgres.connection import SESSION_OPTIONS, connection_error, error_from_response
from penstock.postgres.frame import HEADER, FrameBuffer, encode_frame
from penstock.wire.cursor import Cursor

PROTOCOL_VERSION = 3 << 16  # 3.0, which every server speaks
MAX_STARTUP_BYTES = 1 << 16
"""Nothing that a server says before it is ready comes near; a longer message is from someone else."""

_MD5_SALT_BYTES = 4
_SCRAM, _SCRAM_BOUND = "SCRAM-SHA-256", "SCRAM-SHA-256-PLUS"
_METHODS: Mapping[int, str] = {2: "Kerberos 5", 6: "SCM", 7: "GSSAPI", 9: "SSPI"}
"""Methods that are asked for by number and left to libpq."""


class UnspokenMethodError(SourceError):
    """The server wants an authentication that only libpq can give; the message says which."""

    default_kind = ErrorKind.SOURCE_AUTHENTICATION


@dataclass(frozen=True, slots=True)
class Login:
    """Who wants a session, and what kind of session."""

    user: str
    dbname: str
    application_name: str
    password: str | None = field(default=None, repr=False)
    replication: bool = False


class State(Enum):
    """Where a start-up is."""

    ASKED = auto()
    """The server knows who we claim to be."""
    CHALLENGED = auto()
    """We began SCRAM, and the server's challenge is due."""
    PROVING = auto()
    """We proved that we know the password, and the server's proof is due."""
    ANSWERED = auto()
    """Everything that was asked for is said, and the verdict is due."""
    AUTHENTICATED = auto()
    """The server reports about itself."""
    READY = auto()
    """It waits for commands."""


class _Request(IntEnum):
    """The protocol's numbers for what a server asks for."""

    OK = 0
    PASSWORD = 3
    MD5 = 5
    SASL = 10
    SASL_CONTINUE = 11
    SASL_FINAL = 12


_NEXT: Mapping[tuple[State, int], State] = {
    (State.ASKED, _Request.OK): State.AUTHENTICATED,
    (State.ASKED, _Request.PASSWORD): State.ANSWERED,
    (State.ASKED, _Request.MD5): State.ANSWERED,
    (State.ASKED, _Request.SASL): State.CHALLENGED,
    (State.CHALLENGED, _Request.SASL_CONTINUE): State.PROVING,
    (State.PROVING, _Request.SASL_FINAL): State.ANSWERED,
    (State.ANSWERED, _Request.OK): State.AUTHENTICATED,
}
"""Where a server's authentication request leads; one that is not here ends the start-up."""


class Startup:
    """One session's start, from the first packet to the server's readiness."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._scram: Any = None
        self.state = State.ASKED
        self.channel: ssl.SSLObject | bytes | None = None
        """What SCRAM is bound to: the TLS session, for the certificate that was shown in it, or that one's hash."""
        self.parameters: dict[str, str] = {}

    @property
    def is_authenticated(self) -> bool:
        """Whether the server has accepted who we are."""
        return self.state in {State.AUTHENTICATED, State.READY}

    def hello(self) -> bytes:
        """Return the packet that opens the session."""
        login = self._login
        settings = {"user": login.user, "database": login.dbname, "application_name": login.application_name}
        if login.replication:
            settings["replication"] = "database"
        settings["options"] = SESSION_OPTIONS
        pairs = b"".join(_text(name) + _text(value) for name, value in settings.items())
        return struct.pack("!II", len(pairs) + 9, PROTOCOL_VERSION) + pairs + b"\0"

    def advance(self, frames: FrameBuffer) -> bytes:
        """Go on as far as what has arrived allows, and return what the server is to be told."""
        self._refuse_bare_error(frames)
        answer = b""
        while self.state is not State.READY and (frame := frames.next_frame(MAX_STARTUP_BYTES)) is not None:
            answer += self._receive(frame.tag, frame.body)
        return answer

    def _refuse_bare_error(self, frames: FrameBuffer) -> None:
        """Recognise what a server says that cannot even start a process for us: words without a length."""
        start = frames.peek(HEADER.size)
        if self.state is State.ASKED and len(start) == HEADER.size and start.startswith(b"E"):
            _, length = HEADER.unpack(start)
            if length > MAX_STARTUP_BYTES:
                raise connection_error("the server has no process to spare for the connection")

    def _receive(self, tag: bytes, body: bytes) -> bytes:
        match tag:
            case b"R":
                return self._authenticate(Cursor(body))
            case b"E":
                raise error_from_response(body)
            case b"S" if self.is_authenticated:
                self._note_parameter(Cursor(body))
            case b"Z" if self.is_authenticated:
                self.state = State.READY
            case b"N" | b"K":
                pass  # a notice, or the key with which another connection could cancel a query
            case _:
                raise WireError(f"unexpected message {tag!r} while a connection was being opened")
        return b""

    def _note_parameter(self, cursor: Cursor) -> None:
        name = cursor.text()
        self.parameters[name] = cursor.text()

    def _authenticate(self, cursor: Cursor) -> bytes:
        code = cursor.u32()
        state = _NEXT.get((self.state, code))
        if state is None:
            raise self._unexpected(code)
        self.state = state
        return self._answer(code, cursor)

    def _answer(self, code: int, cursor: Cursor) -> bytes:
        match code:
            case _Request.PASSWORD:
                return encode_frame(b"p", _text(self._password()))
            case _Request.MD5:
                return self._salted(cursor.rest())
            case _Request.SASL:
                return self._begin_scram(cursor)
            case _Request.SASL_CONTINUE:
                return self._prove(cursor)
            case _Request.SASL_FINAL:
                self._verify(cursor)
        return b""

    def _unexpected(self, code: int) -> Exception:
        if self.state is State.ASKED:
            method = _METHODS.get(code, f"number {code}")
            return UnspokenMethodError(f"the server asks for authentication by {method}")
        if code == _Request.OK and self.state in {State.CHALLENGED, State.PROVING}:
            return _unproven()
        return WireError(f"unexpected authentication request {code} from the server")

    def _salted(self, salt: bytes) -> bytes:
        if len(salt) != _MD5_SALT_BYTES:
            raise WireError("malformed message: the salt of an MD5 authentication has another length than 4")
        inner = _md5((self._password() + self._login.user).encode())
        return encode_frame(b"p", b"md5" + _md5(inner + salt) + b"\0")

    def _begin_scram(self, cursor: Cursor) -> bytes:
        offered = _mechanisms(cursor)
        spoken = [each for each in offered if each in {_SCRAM, _SCRAM_BOUND}]
        if not spoken:
            raise UnspokenMethodError(f"the server asks for authentication by {', '.join(offered) or 'nothing'}")
        self._scram = self._scram_client(spoken)
        first = self._scram.get_client_first().encode()
        mechanism = _text(self._scram.mechanism_name)
        return encode_frame(b"p", mechanism + struct.pack("!I", len(first)) + first)

    def _scram_client(self, mechanisms: list[str]) -> Any:
        password = self._password()
        binding = None if self.channel is None else ("tls-server-end-point", self.channel)
        try:
            # The server goes by the packet's user name, and ignores the one in here.
            return ScramClient(mechanisms, "*", password, channel_binding=binding)
        except ScramException:
            raise UnspokenMethodError("SCRAM with this password or certificate is beyond the built-in client") from None

    def _prove(self, cursor: Cursor) -> bytes:
        challenge = _ascii(cursor)
        try:
            self._scram.set_server_first(challenge)
            proof = self._scram.get_client_final()
        except (ScramException, ValueError):
            # Such as fewer iterations than the standard asks for, which a server may be set to.
            raise UnspokenMethodError("SCRAM with the server's parameters is beyond the built-in client") from None
        return encode_frame(b"p", proof.encode())

    def _verify(self, cursor: Cursor) -> None:
        proof = _ascii(cursor)
        try:
            self._scram.set_server_final(proof)
        except (ScramException, ValueError):
            raise _unproven() from None

    def _password(self) -> str:
        if not self._login.password:
            raise SourceError(
                "the server asks for a password, and none is given",
                kind=ErrorKind.SOURCE_AUTHENTICATION,
                remedy="Set pipeline.pg_connection.password.",
            )
        _encoded(self._login.password)
        return self._login.password


def parse_server_version(text: str) -> int:
    """Return the number that Postgres calls `server_version_num`: 180004 for `18.4`, 180000 for `18beta1`."""
    match = re.match(r"(\d{1,4})(?:\.(\d{1,4}))?", text)
    if match is None:
        raise WireError("the server's version does not begin with a number")
    return int(match[1]) * 10000 + int(match[2] or 0)


def _unproven() -> SourceError:
    return SourceError(
        "the server did not prove that it knows the password: it may be an impostor",
        kind=ErrorKind.SOURCE_AUTHENTICATION,
        remedy="Check that pipeline.pg_connection leads to the right server, and that nobody stands in between.",
    )


def _mechanisms(cursor: Cursor) -> list[str]:
    names: list[str] = []
    while name := cursor.text():
        names.append(" ".join(name.split()))
    return names


def _ascii(cursor: Cursor) -> str:
    try:
        return cursor.rest().decode("ascii")
    except UnicodeDecodeError:
        raise WireError("malformed message: a SCRAM message is not ASCII") from None


def _text(value: str) -> bytes:
    encoded = _encoded(value)
    if b"\0" in encoded:
        raise _unspeakable("a zero byte")
    return encoded + b"\0"


def _encoded(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise _unspeakable("something that is not text") from None


def _unspeakable(what: str) -> SourceError:
    return SourceError(
        f"the user, password, database or application name holds {what}, which Postgres cannot be sent",
        kind=ErrorKind.CONFIG,
        remedy="Correct pipeline.pg_connection.",
    )


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).hexdigest().encode()
