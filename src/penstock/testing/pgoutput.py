"""The replication stream as a server writes it: messages, envelopes and frames, encoded.

The inverse of the decoders, for tests that make streams of their own.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model.cell import OldRowKind
from penstock.model.lsn import NOWHERE, Lsn
from penstock.wire.pgoutput import (
    BeginMessage,
    CommitMessage,
    DeleteMessage,
    InsertMessage,
    LogicalMessage,
    Message,
    OriginMessage,
    RelationColumn,
    RelationMessage,
    StreamAbortMessage,
    StreamCommitMessage,
    StreamStartMessage,
    StreamStopMessage,
    TruncateMessage,
    TupleData,
    TypeMessage,
    UpdateMessage,
)


def encode(message: Message, part: int | None = None) -> bytes:
    """Return one message; `part`, inside of a streamed block, is the (sub)transaction that it belongs to."""
    encoded = _encode(message)
    if part is None or isinstance(message, OriginMessage):
        return encoded
    return encoded[:1] + part.to_bytes(4) + encoded[1:]


def _encode(message: Message) -> bytes:  # noqa: C901, PLR0911, PLR0912  # one case per message
    match message:
        case BeginMessage(lsn, time_us, xid):
            return b"B" + lsn.to_bytes(8) + _time(time_us) + xid.to_bytes(4)
        case CommitMessage(lsn, end_lsn, time_us):
            return b"C\0" + lsn.to_bytes(8) + end_lsn.to_bytes(8) + _time(time_us)
        case OriginMessage(lsn, name):
            return b"O" + lsn.to_bytes(8) + _text(name)
        case TypeMessage(oid, namespace, name):
            return b"Y" + oid.to_bytes(4) + _text(namespace) + _text(name)
        case RelationMessage(oid, namespace, name, identity, columns):
            head = b"R" + oid.to_bytes(4) + _text(namespace) + _text(name) + identity.value.encode()
            return head + len(columns).to_bytes(2) + b"".join(map(_column, columns))
        case InsertMessage(oid, new):
            return b"I" + oid.to_bytes(4) + b"N" + _row(new)
        case UpdateMessage(oid, kind, old, new):
            return b"U" + oid.to_bytes(4) + _old(kind, old) + b"N" + _row(new)
        case DeleteMessage(oid, kind, old):
            return b"D" + oid.to_bytes(4) + _old(kind, old)
        case TruncateMessage(oids, cascade, restart):
            flags = bytes([cascade + 2 * restart])
            return b"T" + len(oids).to_bytes(4) + flags + b"".join(oid.to_bytes(4) for oid in oids)
        case LogicalMessage(transactional, lsn, prefix, content):
            return b"M" + bytes([transactional]) + lsn.to_bytes(8) + _text(prefix) + len(content).to_bytes(4) + content
        case StreamStartMessage(xid, is_first):
            return b"S" + xid.to_bytes(4) + bytes([is_first])
        case StreamStopMessage():
            return b"E"
        case StreamCommitMessage(xid, lsn, end_lsn, time_us):
            return b"c" + xid.to_bytes(4) + b"\0" + lsn.to_bytes(8) + end_lsn.to_bytes(8) + _time(time_us)
        case StreamAbortMessage(xid, subxid):
            return b"A" + xid.to_bytes(4) + subxid.to_bytes(4)


def xlog_data(payload: bytes, end_lsn: Lsn, start_lsn: Lsn = NOWHERE, time_us: int = 0) -> bytes:
    """Return the envelope of one message; `end_lsn` is the server's end of WAL."""
    return b"w" + start_lsn.to_bytes(8) + end_lsn.to_bytes(8) + _time(time_us) + payload


def keepalive(end_lsn: Lsn, *, reply_requested: bool = False, time_us: int = 0) -> bytes:
    """Return a server's sign of life."""
    return b"k" + end_lsn.to_bytes(8) + _time(time_us) + bytes([reply_requested])


def frame(body: bytes, tag: bytes = b"d") -> bytes:
    """Return a body as it is on the wire."""
    return tag + (len(body) + 4).to_bytes(4) + body


def frames(messages: Iterable[Message]) -> bytes:
    """Return plain messages, outside of streamed blocks, as a server would send them."""
    return b"".join(frame(xlog_data(encode(message), NOWHERE)) for message in messages)


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def _time(time_us: int) -> bytes:
    return time_us.to_bytes(8, signed=True)


def _row(values: TupleData) -> bytes:
    return len(values).to_bytes(2) + b"".join(_value(value) for value in values)


def _value(value: object) -> bytes:
    if isinstance(value, bytes):
        return b"t" + len(value).to_bytes(4) + value
    return b"n" if value is None else b"u"


def _old(kind: OldRowKind | None, old: TupleData | None) -> bytes:
    return b"" if old is None else (b"K" if kind is OldRowKind.KEY else b"O") + _row(old)


def _column(column: RelationColumn) -> bytes:
    modifier = column.type_modifier.to_bytes(4, signed=True)
    return bytes([column.is_key]) + _text(column.name) + column.type_oid.to_bytes(4) + modifier
