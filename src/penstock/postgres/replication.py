"""A logical replication stream as one stream of bytes: the server's frames, exactly as they are on the wire.

Where the server wants an authentication that only libpq can give, libpq reads, and what it read is framed
again: slower, and to the caller the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import psycopg
from psycopg import pq

from penstock.errors import SourceError, WireError
from penstock.model.lsn import Lsn
from penstock.model.table import quote_identifier
from penstock.postgres.connection import Connection, SourceAddress, connect, connection_error, source_errors
from penstock.postgres.frame import FrameBuffer, encode_frame
from penstock.postgres.raw import RawConnection
from penstock.postgres.startup import UnspokenMethodError

STREAMING_SINCE = 140000
"""From this server version on, protocol 2 with `streaming` is possible: open transactions are sent as they grow."""

LIBPQ_READ_BYTES = 1 << 20
"""What is taken through libpq at a time: some 30 ms of work, so that timers get their turn under a flood."""

_IDENTIFY = "IDENTIFY_SYSTEM"
_ERROR_FIELDS = b"SVCMDHWstcdnPpqFLR"  # in the order in which servers send them


class Identity(NamedTuple):
    """Which server this is, and how far it has come."""

    system_identifier: str
    timeline: int
    lsn: Lsn


class ReplicationStream(Protocol):
    """One slot's changes. Driven by one thread, which selects on it; nothing but `identify` and `start` waits."""

    @property
    def fallback_reason(self) -> str | None:
        """Why libpq reads this stream; None where we do ourselves."""

    @property
    def server_version(self) -> int:
        """The server's version as it counts: 180004 is 18.4."""

    @property
    def has_pending(self) -> bool:
        """Whether bytes are here that `select` on the socket cannot see."""

    @property
    def wants_write(self) -> bool:
        """Whether `flush` should be called once the socket can be written to."""

    def identify(self) -> Identity:
        """Ask which server this is; only before `start`."""

    def forks(self, timeline: int) -> dict[int, Lsn]:
        """Return the timelines that a timeline comes from, and where each was left; only before `start`."""

    def start(self, slot: str, publication: str, start_lsn: Lsn, *, proto_version: int, streaming: bool) -> None:
        """Start streaming the transactions that end after `start_lsn` and after what the server knows to be flushed."""

    def fileno(self) -> int:
        """Return the socket, for `select`."""

    def receive_into(self, view: memoryview) -> int:
        """Take the bytes that have arrived, as many as fit, without waiting; 0 when there are none.

        They are frames: `d` for a message, `E` for an error, for `error_from_response`. Once the
        connection has ended, that is a `SourceError`.
        """

    def send(self, payload: bytes) -> None:
        """Send a status update: now what the socket takes, the rest with `flush`. Never waits."""

    def flush(self) -> None:
        """Send what the socket takes now of what `send` has left."""

    def close(self) -> None:
        """End the stream and its connection."""


def open_replication_stream(address: SourceAddress, *, application_name: str) -> ReplicationStream:
    """Connect for replication: by ourselves, or with libpq where the authentication asks for it."""
    try:
        return RawStream(RawConnection.open(address, application_name=application_name, replication=True))
    except UnspokenMethodError as error:
        connection = connect(address, application_name=application_name, replication=True)
        return LibpqStream(connection, fallback_reason=error.message)


def start_command(slot: str, publication: str, start_lsn: Lsn, *, proto_version: int, streaming: bool) -> str:
    """Return the statement that starts a stream of pgoutput's."""
    names = quote_identifier(publication).replace("'", "''")
    options = [f"proto_version '{proto_version}'", f"publication_names '{names}'"]
    if streaming:
        options.append("streaming 'on'")
    return f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {start_lsn} ({', '.join(options)})"


class RawStream:
    """The stream as we read it ourselves."""

    fallback_reason: str | None = None

    def __init__(self, connection: RawConnection) -> None:
        self._connection = connection
        self.server_version = connection.server_version
        self.fileno = connection.fileno
        self.receive_into = connection.receive_into
        self.flush = connection.flush
        self.close = connection.close

    @property
    def has_pending(self) -> bool:
        """Whether bytes are here that `select` on the socket cannot see."""
        return self._connection.has_pending

    @property
    def wants_write(self) -> bool:
        """Whether `flush` should be called once the socket can be written to."""
        return self._connection.wants_write

    def identify(self) -> Identity:
        """Ask which server this is; only before `start`."""
        return _identity(self._connection.execute(_IDENTIFY, doing="identifying the source"))

    def forks(self, timeline: int) -> dict[int, Lsn]:
        """Return the timelines that a timeline comes from, and where each was left; only before `start`."""
        return _forks(self._connection.execute(_history_of(timeline), doing="reading the source's history"))

    def start(self, slot: str, publication: str, start_lsn: Lsn, *, proto_version: int, streaming: bool) -> None:
        """Start streaming."""
        command = start_command(slot, publication, start_lsn, proto_version=proto_version, streaming=streaming)
        self._connection.start_copy(command, doing=_starting(slot))

    def send(self, payload: bytes) -> None:
        """Send a status update."""
        self._connection.send(encode_frame(b"d", payload))


class LibpqStream:
    """The stream as libpq reads it: one call per message."""

    def __init__(self, connection: Connection, *, fallback_reason: str) -> None:
        self.fallback_reason: str | None = fallback_reason
        self._connection = connection
        self._pg = connection.pgconn
        self._framed = FrameBuffer()
        self._is_drained = False
        self._is_over = False
        self.server_version = self._pg.server_version
        self.wants_write = False
        self.close = connection.close
        connection.add_notice_handler(self._frame_notice)

    @property
    def has_pending(self) -> bool:
        """Whether bytes may be here that `select` on the socket cannot see: framed by us, or still libpq's."""
        return bool(self._framed) or not self._is_drained

    def identify(self) -> Identity:
        """Ask which server this is; only before `start`."""
        with source_errors("identifying the source"):
            return _identity(self._connection.execute(_IDENTIFY).fetchall())

    def forks(self, timeline: int) -> dict[int, Lsn]:
        """Return the timelines that a timeline comes from, and where each was left; only before `start`."""
        with source_errors("reading the source's history"):
            return _forks(self._connection.execute(_history_of(timeline).encode()).fetchall())

    def start(self, slot: str, publication: str, start_lsn: Lsn, *, proto_version: int, streaming: bool) -> None:
        """Start streaming."""
        command = start_command(slot, publication, start_lsn, proto_version=proto_version, streaming=streaming)
        with source_errors(_starting(slot)):
            result = self._pg.exec_(command.encode())
            if result.status != pq.ExecStatus.COPY_BOTH:
                raise psycopg.errors.error_from_result(result)
        self._pg.nonblocking = 1

    def fileno(self) -> int:
        """Return the socket, for `select`."""
        return self._pg.socket

    def receive_into(self, view: memoryview) -> int:
        """Take the messages that have arrived, framed as they were on the wire."""
        filled = self._framed.take_into(view)
        room = min(len(view), LIBPQ_READ_BYTES)
        try:
            while filled < room and self._load(room - filled):
                filled += self._framed.take_into(view[filled:])
        except SourceError:
            # What came before the end is the caller's first; the end is met again at the next call.
            if not filled:
                raise
        return filled

    def send(self, payload: bytes) -> None:
        """Send a status update; a connection that cannot be written to any more says so when it is read."""
        with contextlib.suppress(psycopg.Error):
            self._pg.put_copy_data(payload)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes now of what `send` has left."""
        self.wants_write = False
        with contextlib.suppress(psycopg.Error):
            self.wants_write = bool(self._pg.flush())

    def _load(self, wanted: int) -> bool:
        """Frame messages until so many bytes are there, or no more have arrived; say whether any are there."""
        self._drain(wanted)
        if not self._framed:
            if self._is_over:
                raise connection_error("the server closed the connection")
            with source_errors():
                self._pg.consume_input()
            self._drain(wanted)
        return bool(self._framed)

    def _drain(self, wanted: int) -> None:
        get, feed = self._pg.get_copy_data, self._framed.feed
        self._is_drained = False
        with source_errors():
            while len(self._framed) < wanted and not self._is_over:
                size, message = get(1)
                if not size:
                    self._is_drained = True
                    return
                if size > 0:
                    feed(encode_frame(b"d", bytes(message)))
                else:
                    self._end()

    def _frame_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        """Frame a notice, with no more than the place in the server where it comes from."""
        self._framed.feed(encode_frame(b"N", b"R" + (notice.source_function or "").encode() + b"\0\0"))

    def _end(self) -> None:
        """Frame what ended the stream: an error with the server's words, or the end of the copy."""
        self._is_over = True
        result = self._pg.get_result()
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            self._framed.feed(encode_frame(b"c", b""))
        else:
            self._framed.feed(encode_frame(b"E", error_body(result)))


def _starting(slot: str) -> str:
    return f"starting to stream from replication slot {slot}"


def _identity(rows: Sequence[Sequence[object]]) -> Identity:
    try:
        system_identifier, timeline, position, *_ = rows[0]
        return Identity(str(system_identifier), int(str(timeline)), Lsn.parse(str(position)))
    except (IndexError, ValueError):
        raise WireError(f"malformed answer to {_IDENTIFY}") from None


def _history_of(timeline: int) -> str:
    return f"TIMELINE_HISTORY {timeline:d}"


def _forks(rows: Sequence[Sequence[object]]) -> dict[int, Lsn]:
    """Read a timeline's history file: a line for each timeline before it, with the position where that was left."""
    try:
        content = rows[0][1]
        text = content.decode() if isinstance(content, bytes) else str(content)
        fields = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        return {int(timeline): Lsn.parse(position) for timeline, position, *_ in fields}
    except (IndexError, ValueError):
        raise WireError("malformed history of the source's timelines") from None


def error_body(result: pq.abc.PGresult) -> bytes:
    """Return the body of the ErrorResponse that libpq took apart. Without an SQLSTATE, libpq itself failed."""
    if result.error_field(pq.DiagnosticField.SQLSTATE) is None:
        raise psycopg.errors.error_from_result(result)
    fields = ((name, result.error_field(pq.DiagnosticField(name))) for name in _ERROR_FIELDS)
    return b"".join(bytes([name]) + value + b"\0" for name, value in fields if value is not None) + b"\0"
