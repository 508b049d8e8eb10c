"""The envelopes of a replication stream: what the server wraps messages in, and what it is told in return.

Times on the wire are microseconds since 2000-01-01 00:00:00 UTC.
"""

from __future__ import annotations

import datetime as dt
import struct
from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import WireError
from penstock.model.lsn import Lsn
from penstock.wire.cursor import Cursor

PG_EPOCH = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970."""
_MICROSECOND = dt.timedelta(microseconds=1)
_STATUS_UPDATE = struct.Struct("!cQQQqB")


@dataclass(frozen=True, slots=True)
class XLogData:
    """A piece of the stream: one message of the output plugin."""

    start_lsn: Lsn
    end_lsn: Lsn
    """The server's end of WAL when it sent this."""
    send_time_us: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class PrimaryKeepalive:
    """The server is alive, has sent everything before `end_lsn`, and may want an answer at once."""

    end_lsn: Lsn
    send_time_us: int
    reply_requested: bool


Envelope: TypeAlias = XLogData | PrimaryKeepalive


def decode_envelope(data: bytes | memoryview) -> Envelope:
    """Decode one CopyData message of a replication stream."""
    cursor = Cursor(data)
    match cursor.u8():
        case 0x77:  # w
            return XLogData(cursor.lsn(), cursor.lsn(), cursor.i64(), cursor.rest())
        case 0x6B:  # k
            keepalive = PrimaryKeepalive(cursor.lsn(), cursor.i64(), cursor.u8() != 0)
            cursor.finish()
            return keepalive
        case tag:
            raise WireError(f"unknown message {chr(tag)!r} in the replication stream")


def encode_status_update(write: Lsn, flush: Lsn, apply: Lsn, now_us: int, reply_requested: bool) -> bytes:
    """Encode what the server is told of our progress; `flush` is what lets it remove WAL. `now_us` counts from 2000."""
    return _STATUS_UPDATE.pack(b"r", write, flush, apply, now_us, reply_requested)


def datetime_from_pg_us(pg_us: int) -> dt.datetime:
    """Return the moment, in UTC, that the wire has as microseconds since 2000."""
    try:
        return PG_EPOCH + dt.timedelta(microseconds=pg_us)
    except OverflowError:
        raise WireError("malformed message: its time is outside the years 1 to 9999") from None


def pg_us_from_datetime(moment: dt.datetime) -> int:
    """Return an aware moment as the wire has it."""
    return (moment - PG_EPOCH) // _MICROSECOND
