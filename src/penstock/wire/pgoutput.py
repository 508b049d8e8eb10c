"""pgoutput, protocol version 2, with values as text: the plain reference decoder, one message at a time.

Rule 1: what is not exactly the protocol raises `WireError`, trailing bytes and unknown flags included.
Rule 2: a decoded message depends on its bytes alone; who knows the relations, and whether a message
stands inside a streamed block, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import WireError
from penstock.model.cell import UNCHANGED, OldRowKind, Unchanged
from penstock.model.lsn import Lsn
from penstock.model.table import ReplicaIdentity
from penstock.wire.cursor import Cursor

TupleData: TypeAlias = tuple[bytes | Unchanged | None, ...]
"""A row's values as Postgres prints them; None is NULL."""


@dataclass(frozen=True, slots=True)
class BeginMessage:
    """Opens a transaction; `final_lsn` is the position of its commit record."""

    final_lsn: Lsn
    commit_time_us: int
    """Microseconds since 2000-01-01 UTC, as everywhere on the wire."""
    xid: int


@dataclass(frozen=True, slots=True)
class CommitMessage:
    """Closes a transaction."""

    commit_lsn: Lsn
    end_lsn: Lsn
    """First byte after the commit record: the position to acknowledge."""
    commit_time_us: int


@dataclass(frozen=True, slots=True)
class OriginMessage:
    """Says that the transaction was itself replicated, from `name`."""

    commit_lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class TypeMessage:
    """Names a type that is not built in, before a relation uses it."""

    oid: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """One published column."""

    name: str
    type_oid: int
    type_modifier: int
    is_key: bool
    """Part of the replica identity; true of every column under REPLICA IDENTITY FULL."""


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """Describes a table, before its first change and whenever it may have changed."""

    relation_id: int
    namespace: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class InsertMessage:
    """A new row."""

    relation_id: int
    new: TupleData


@dataclass(frozen=True, slots=True)
class UpdateMessage:
    """A changed row; the old one is present when its key changed, or under REPLICA IDENTITY FULL."""

    relation_id: int
    old_kind: OldRowKind | None
    old: TupleData | None
    """One value per column of the relation; under KEY those outside the key are None."""
    new: TupleData


@dataclass(frozen=True, slots=True)
class DeleteMessage:
    """A removed row."""

    relation_id: int
    old_kind: OldRowKind
    old: TupleData
    """One value per column of the relation; under KEY those outside the key are None."""


@dataclass(frozen=True, slots=True)
class TruncateMessage:
    """Tables emptied by one statement."""

    relation_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """What someone gave to `pg_logical_emit_message`."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class StreamStartMessage:
    """Opens a block of changes of a transaction that is still in progress."""

    xid: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class StreamStopMessage:
    """Closes the block."""


@dataclass(frozen=True, slots=True)
class StreamCommitMessage:
    """Says that a transaction whose changes came in blocks has committed."""

    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time_us: int


@dataclass(frozen=True, slots=True)
class StreamAbortMessage:
    """Says that a transaction, or the part of it that is `subxid`, was rolled back."""

    xid: int
    subxid: int


Message: TypeAlias = (
    BeginMessage
    | CommitMessage
    | OriginMessage
    | TypeMessage
    | RelationMessage
    | InsertMessage
    | UpdateMessage
    | DeleteMessage
    | TruncateMessage
    | LogicalMessage
    | StreamStartMessage
    | StreamStopMessage
    | StreamCommitMessage
    | StreamAbortMessage
)

_TEXT = ord("t")
_BARE: dict[int, Unchanged | None] = {ord("n"): None, ord("u"): UNCHANGED}
_REFUSED = {ord("b"): "a value in binary format: start the stream without the option binary"}
_NEW = ord("N")
_OLD_KINDS = {ord("K"): OldRowKind.KEY, ord("O"): OldRowKind.FULL}
_IDENTITIES = {ord(identity.value): identity for identity in ReplicaIdentity}

_KEY_FLAG = 1
_TRANSACTIONAL_FLAG = 1
_CASCADE_FLAG = 1
_RESTART_FLAG = 2
_FIRST_FLAG = 1


def decode_message(payload: bytes | memoryview) -> Message:
    """Decode one message, the payload of an XLogData."""
    cursor = Cursor(payload)
    tag = cursor.u8()
    decode = _DECODERS.get(tag)
    if decode is None:
        raise WireError(f"unknown pgoutput message {chr(tag)!r}: version 2 of the protocol has none such")
    message = decode(cursor)
    cursor.finish()
    return message


def decode_streamed_message(payload: bytes | memoryview) -> tuple[int, Message]:
    """Decode one message of a streamed block, and return the id of the part of the transaction it belongs to first."""
    cursor = Cursor(payload)
    tag = cursor.u8()
    decode = _STREAMED_DECODERS.get(tag)
    if decode is None:
        raise WireError(f"pgoutput message {chr(tag)!r} inside a streamed block")
    xid = 0 if tag == _ORIGIN else cursor.u32()
    message = decode(cursor)
    cursor.finish()
    return xid, message


def _begin(cursor: Cursor) -> BeginMessage:
    return BeginMessage(cursor.lsn(), cursor.i64(), cursor.u32())


def _commit(cursor: Cursor) -> CommitMessage:
    _flags(cursor, known=0)
    return CommitMessage(cursor.lsn(), cursor.lsn(), cursor.i64())


def _origin(cursor: Cursor) -> OriginMessage:
    return OriginMessage(cursor.lsn(), cursor.text())


def _type(cursor: Cursor) -> TypeMessage:
    return TypeMessage(cursor.u32(), _namespace(cursor), cursor.text())


def _relation(cursor: Cursor) -> RelationMessage:
    relation_id, namespace, name = cursor.u32(), _namespace(cursor), cursor.text()
    identity = _IDENTITIES.get(cursor.u8())
    if identity is None:
        raise WireError(f"unknown replica identity in the description of {namespace}.{name}")
    columns = tuple(_column(cursor) for _ in range(cursor.count()))
    return RelationMessage(relation_id, namespace, name, identity, columns)


def _column(cursor: Cursor) -> RelationColumn:
    flags = _flags(cursor, known=_KEY_FLAG)
    return RelationColumn(cursor.text(), cursor.u32(), cursor.i32(), is_key=flags != 0)


def _insert(cursor: Cursor) -> InsertMessage:
    relation_id = cursor.u32()
    _expect_new(cursor.u8(), relation_id)
    return InsertMessage(relation_id, _tuple(cursor))


def _update(cursor: Cursor) -> UpdateMessage:
    relation_id, tag = cursor.u32(), cursor.u8()
    old_kind = _OLD_KINDS.get(tag)
    old = None
    if old_kind is not None:
        old, tag = _tuple(cursor), cursor.u8()
    _expect_new(tag, relation_id)
    return UpdateMessage(relation_id, old_kind, old, _tuple(cursor))


def _delete(cursor: Cursor) -> DeleteMessage:
    relation_id = cursor.u32()
    old_kind = _OLD_KINDS.get(cursor.u8())
    if old_kind is None:
        raise WireError(f"malformed message: a delete in relation {relation_id} has no old row")
    return DeleteMessage(relation_id, old_kind, _tuple(cursor))


def _truncate(cursor: Cursor) -> TruncateMessage:
    count = cursor.u32()
    flags = _flags(cursor, known=_CASCADE_FLAG | _RESTART_FLAG)
    relation_ids = tuple(cursor.u32() for _ in range(count))
    return TruncateMessage(relation_ids, flags & _CASCADE_FLAG != 0, flags & _RESTART_FLAG != 0)


def _logical(cursor: Cursor) -> LogicalMessage:
    flags = _flags(cursor, known=_TRANSACTIONAL_FLAG)
    return LogicalMessage(flags != 0, cursor.lsn(), cursor.text(), cursor.block())


def _stream_start(cursor: Cursor) -> StreamStartMessage:
    xid = cursor.u32()
    return StreamStartMessage(xid, _flags(cursor, known=_FIRST_FLAG) != 0)


def _stream_stop(_: Cursor) -> StreamStopMessage:
    return StreamStopMessage()


def _stream_commit(cursor: Cursor) -> StreamCommitMessage:
    xid = cursor.u32()
    _flags(cursor, known=0)
    return StreamCommitMessage(xid, cursor.lsn(), cursor.lsn(), cursor.i64())


def _stream_abort(cursor: Cursor) -> StreamAbortMessage:
    return StreamAbortMessage(cursor.u32(), cursor.u32())


def _namespace(cursor: Cursor) -> str:
    # The server saves the most frequent name: an empty one stands for pg_catalog.
    return cursor.text() or "pg_catalog"


def _flags(cursor: Cursor, known: int) -> int:
    flags = cursor.u8()
    if flags & ~known:
        raise WireError(f"malformed message: unknown flags {flags:#04x}")
    return flags


def _expect_new(tag: int, relation_id: int) -> None:
    if tag != _NEW:
        raise WireError(f"malformed message: a change in relation {relation_id} has no new row")


def _tuple(cursor: Cursor) -> TupleData:
    return cursor.tagged(cursor.count(), _TEXT, _BARE, _REFUSED)


_DECODERS: dict[int, Callable[[Cursor], Message]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("O"): _origin,
    ord("Y"): _type,
    ord("R"): _relation,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
    ord("M"): _logical,
    ord("S"): _stream_start,
    ord("E"): _stream_stop,
    ord("c"): _stream_commit,
    ord("A"): _stream_abort,
}
_ORIGIN = ord("O")
_STREAMED_DECODERS = {ord(tag): _DECODERS[ord(tag)] for tag in "OYRIUDTM"}
