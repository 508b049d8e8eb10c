"""The reference for the receiver's decoder: the same segments from the same frames, one message at a time.

Slow and plain, so that it can be checked by reading. Properties prove the compiled decoder equal to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from penstock.changelog.rows import log_schema
from penstock.changelog.segment import TRANSACTIONS_SCHEMA, Segment
from penstock.contract import columns as log
from penstock.errors import WireError
from penstock.model.cell import UNCHANGED, OldRowKind, Unchanged
from penstock.model.event import Truncate
from penstock.model.lsn import NOWHERE, Lsn, Position
from penstock.model.table import Column, TableId, TableSchema
from penstock.receiver.decoder import LoggedRelation
from penstock.wire.pgoutput import (
    BeginMessage,
    CommitMessage,
    DeleteMessage,
    InsertMessage,
    Message,
    RelationMessage,
    StreamAbortMessage,
    StreamCommitMessage,
    StreamStartMessage,
    StreamStopMessage,
    TruncateMessage,
    TupleData,
    UpdateMessage,
    decode_message,
    decode_streamed_message,
)
from penstock.wire.scan import MAX_LSN
from penstock.wire.stream import POSTGRES_EPOCH_US, XLogData, datetime_from_pg_us, decode_envelope

Text: TypeAlias = bytes | None
"""A value as the server printed it."""


@dataclass(slots=True)
class Transaction:
    """A transaction of the stream, growing until its commit."""

    commit_lsn: Lsn
    commit_time_us: int
    """Microseconds since 1970, UTC."""
    xid: int
    end_lsn: Lsn = NOWHERE
    changes: int = 0


class Change(NamedTuple):
    """One row's change."""

    op: str
    values: Sequence[Text]
    """The new row; of a delete the old key's values, with None elsewhere."""
    transaction: Transaction
    ordinal: int
    old_key: Sequence[Text] | None = None
    """In the key's order, where an update changed it."""
    before: Sequence[Text] | None = None
    unchanged: list[str] | None = None


class _Described(NamedTuple):
    """A relation's description, and when it arrived."""

    arrival: int
    relation: LoggedRelation


@dataclass(slots=True)
class _Streamed:
    """A transaction that is still in progress at the source."""

    messages: list[tuple[int, int, Message]] = field(default_factory=list)
    """Each with its arrival and the part of the transaction that it belongs to."""
    aborted: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Assembler:
    """Collects a stream's changes. Transactions that committed before `end_lsn` are passed over."""

    describe: Callable[[RelationMessage], LoggedRelation]
    end_lsn: Lsn
    changes: dict[tuple[TableId, int], list[Change]] = field(default_factory=lambda: defaultdict(list))
    transactions: list[Transaction] = field(default_factory=list)
    truncates: list[Truncate] = field(default_factory=list)
    _schemas: dict[tuple[TableId, int], TableSchema] = field(default_factory=dict)
    _relations: dict[int, _Described] = field(default_factory=dict)
    _open: Transaction | None = None
    _is_skipping: bool = False
    _streaming: int | None = None
    _streamed: dict[int, _Streamed] = field(default_factory=lambda: defaultdict(_Streamed))
    _arrivals: int = 0

    def feed_frames(self, data: bytes) -> None:
        """Take whole frames, as on the wire."""
        for payload in split_frames(data):
            envelope = decode_envelope(payload)
            if isinstance(envelope, XLogData):
                self.feed_payload(envelope.payload)

    def feed_payload(self, payload: bytes) -> None:
        """Take one message of the plugin."""
        self._arrivals += 1
        if self._streaming is None:
            self.feed(decode_message(payload))
        elif payload[:1] == b"E":
            decode_message(payload)
            self._streaming = None
        else:
            part, message = decode_streamed_message(payload)
            self._streamed[self._streaming].messages.append((self._arrivals, part, message))

    def feed(self, message: Message) -> None:  # noqa: C901  # one case per message
        """Take one message that stands outside of streamed blocks, or one that stood in a block which has committed."""
        match message:
            case InsertMessage():
                self._insert(message)
            case UpdateMessage():
                self._update(message)
            case DeleteMessage():
                self._delete(message)
            case BeginMessage():
                self._begin(message)
            case CommitMessage():
                self._commit(message)
            case RelationMessage():
                self._describe(message, self._arrivals)
            case TruncateMessage():
                self._truncate(message)
            case StreamStartMessage():
                self._start_block(message)
            case StreamStopMessage():
                raise WireError("the end of a streamed block that did not begin")
            case StreamAbortMessage():
                self._abort(message)
            case StreamCommitMessage():
                self._commit_streamed(message)
            case _:
                pass  # origins, types and logical messages carry no row

    def segment(self) -> Segment:
        """Return everything collected."""
        segment = Segment()
        for key, changes in self.changes.items():
            segment.add_rows(self._schemas[key], key[1], text_batch(self._schemas[key], changes))
        if self.transactions:
            segment.add_transactions(transactions_batch(self.transactions))
        segment.truncates = list(self.truncates)
        return segment

    def _begin(self, message: BeginMessage) -> None:
        self._expect_no_transaction()
        datetime_from_pg_us(message.commit_time_us)
        _expect_loggable(message.final_lsn)
        self._is_skipping = message.final_lsn < self.end_lsn
        self._open = Transaction(message.final_lsn, message.commit_time_us + POSTGRES_EPOCH_US, message.xid)

    def _commit(self, message: CommitMessage) -> None:
        transaction = self._transaction()
        if message.commit_lsn != transaction.commit_lsn:
            raise WireError(f"a transaction that began for {transaction.commit_lsn} commits at {message.commit_lsn}")
        _expect_loggable(message.end_lsn)
        self._open = None
        if self._is_skipping:
            return
        transaction.end_lsn = self.end_lsn = message.end_lsn
        self.transactions.append(transaction)

    def _start_block(self, message: StreamStartMessage) -> None:
        self._expect_no_transaction()
        if message.is_first:
            self._streamed.pop(message.xid, None)
        self._streaming = message.xid

    def _abort(self, message: StreamAbortMessage) -> None:
        if message.subxid == message.xid:
            self._streamed.pop(message.xid, None)
        else:
            self._streamed[message.xid].aborted.add(message.subxid)

    def _commit_streamed(self, message: StreamCommitMessage) -> None:
        streamed = self._streamed.pop(message.xid, _Streamed())
        self._begin(BeginMessage(message.commit_lsn, message.commit_time_us, message.xid))
        # The server describes tables anew in every streamed transaction, whatever it sent outside of it.
        outside, self._relations = self._relations, {}
        for arrival, part, each in streamed.messages:
            if part not in streamed.aborted:
                self._feed_streamed(each, arrival)
        self._relations = _newest(outside, self._relations)
        self._commit(CommitMessage(message.commit_lsn, message.end_lsn, message.commit_time_us))

    def _feed_streamed(self, message: Message, arrival: int) -> None:
        if isinstance(message, RelationMessage):
            self._describe(message, arrival)
        else:
            self.feed(message)

    def _describe(self, message: RelationMessage, arrival: int) -> None:
        self._relations[message.relation_id] = _Described(arrival, self.describe(message))

    def _insert(self, message: InsertMessage) -> None:
        relation = self._changed(message.relation_id, message.new)
        if relation is not None:
            self._add(relation, "I", _without_unchanged(message.new))

    def _update(self, message: UpdateMessage) -> None:
        relation = self._changed(message.relation_id, message.new, message.old)
        if relation is None:
            return
        new, before, old_key = message.new, None, None
        if message.old is not None:
            old = _without_unchanged(message.old)
            new = _fill(new, old, range(len(new)) if message.old_kind is OldRowKind.FULL else relation.key_indexes)
            before = old if message.old_kind is OldRowKind.FULL else None
            old_key = _changed_key(relation, old, new)
        unchanged = _unchanged_names(relation, new) if UNCHANGED in new else None
        self._add(relation, "U", _without_unchanged(new), old_key, before, unchanged)

    def _delete(self, message: DeleteMessage) -> None:
        relation = self._changed(message.relation_id, message.old)
        if relation is None:
            return
        old = _without_unchanged(message.old)
        values: list[Text] = [None] * len(old)
        for index in relation.key_indexes:
            values[index] = old[index]
        self._add(relation, "D", values, before=old if message.old_kind is OldRowKind.FULL else None)

    def _changed(self, relation_id: int, *rows: TupleData | None) -> LoggedRelation | None:
        """Count a change, and return its table unless the change is to be passed over."""
        self._transaction().changes += 1
        described = self._relations.get(relation_id)
        if described is None:
            raise WireError(f"a change of table {relation_id}, which the stream has not described")
        if self._is_skipping:
            return None
        schema = described.relation.schema
        for row in rows:
            if row is not None and len(row) != len(schema.columns):
                raise WireError(f"a row of {schema.name} has {len(row)} values")
        return described.relation

    def _truncate(self, message: TruncateMessage) -> None:
        transaction = self._transaction()
        transaction.changes += 1
        if self._is_skipping:
            return
        position = Position(transaction.commit_lsn, transaction.changes)
        tables = tuple(TableId(relation) for relation in message.relation_ids)
        self.truncates.append(Truncate(position, tables, message.cascade, message.restart_identity))

    def _add(
        self,
        relation: LoggedRelation,
        op: str,
        values: Sequence[Text],
        old_key: Sequence[Text] | None = None,
        before: Sequence[Text] | None = None,
        unchanged: list[str] | None = None,
    ) -> None:
        transaction = self._transaction()
        key = (relation.schema.id, relation.version)
        self._schemas[key] = relation.schema
        self.changes[key].append(Change(op, values, transaction, transaction.changes, old_key, before, unchanged))

    def _transaction(self) -> Transaction:
        if self._open is None:
            raise WireError("a change outside a transaction")
        return self._open

    def _expect_no_transaction(self) -> None:
        if self._open is not None:
            raise WireError("a transaction begins inside another")


def split_frames(data: bytes) -> Iterator[bytes]:
    """Yield the payloads of whole frames."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 1 : at + 5], "big") + 1
        yield data[at + 5 : at + size]
        at += size


def text_batch(schema: TableSchema, changes: Sequence[Change]) -> pa.RecordBatch:
    """Return a table's changes as columns of text."""
    arrays: list[Any] = _columns(len(schema.columns), [change.values for change in changes])
    arrays.append(pa.array([change.op for change in changes], pa.string()))
    arrays.append(pa.array([int(change.transaction.commit_lsn) for change in changes], pa.int64()))
    arrays.append(pa.array([change.ordinal for change in changes], pa.int64()))
    times = pa.array([change.transaction.commit_time_us for change in changes], pa.int64())
    arrays.append(times.cast(pa.timestamp("us", "UTC")))
    arrays.append(pa.array([change.transaction.xid for change in changes], pa.int64()))
    if schema.key:
        arrays.append(_struct(schema.key, [change.old_key for change in changes]))
    if schema.logs_old_rows:
        arrays.append(_struct(schema.columns, [change.before for change in changes]))
    arrays.append(pa.array([change.unchanged for change in changes], pa.list_(pa.string())))
    return pa.RecordBatch.from_arrays(arrays, schema=log_schema(schema, as_text=True))


def transactions_batch(transactions: Sequence[Transaction]) -> pa.RecordBatch:
    """Return transactions as columns."""
    rows = [
        (int(each.commit_lsn), int(each.end_lsn), each.commit_time_us, each.xid, each.changes) for each in transactions
    ]
    arrays = [
        pa.array(column, pa.int64()).cast(field.type)
        for column, field in zip(zip(*rows, strict=True), TRANSACTIONS_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=TRANSACTIONS_SCHEMA)


def _columns(width: int, rows: Sequence[Sequence[Text]]) -> list[Any]:
    columns = [[row[index] for row in rows] for index in range(width)]
    try:
        return [pa.array(column, pa.binary()).cast(pa.string()) for column in columns]
    except pa.ArrowInvalid:
        raise WireError("the server sent text that is not UTF-8") from None


def _newest(*known: dict[int, _Described]) -> dict[int, _Described]:
    """Return of every relation the description that arrived last."""
    arrived = sorted((each for some in known for each in some.items()), key=lambda item: item[1].arrival)
    return dict(arrived)


def _expect_loggable(lsn: Lsn) -> None:
    if lsn > MAX_LSN:
        raise WireError(f"malformed message: the log cannot hold position {lsn}")


def _struct(columns: Sequence[Column], rows: Sequence[Sequence[Text] | None]) -> Any:
    nothing: Sequence[Text] = (None,) * len(columns)
    arrays = _columns(len(columns), [nothing if row is None else row for row in rows])
    fields = [pa.field(log.stored_name(column.name), pa.string()) for column in columns]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array([row is None for row in rows]))


def _fill(new: Sequence[Text | Unchanged], old: Sequence[Text], indexes: Sequence[int]) -> tuple[Text | Unchanged, ...]:
    """Take values that the new row leaves out from the old row, where that one has them."""
    filled = list(new)
    for index in indexes:
        if filled[index] is UNCHANGED:
            filled[index] = old[index]
    return tuple(filled)


def _changed_key(
    relation: LoggedRelation, old: Sequence[Text], new: Sequence[Text | Unchanged]
) -> tuple[Text, ...] | None:
    """Return the old key if it differs; the source also sends it when a key's own value is TOASTed."""
    key = tuple(old[index] for index in relation.key_indexes)
    return None if key == tuple(new[index] for index in relation.key_indexes) else key


def _unchanged_names(relation: LoggedRelation, values: Sequence[Text | Unchanged]) -> list[str]:
    columns = zip(relation.schema.columns, values, strict=True)
    return [column.name for column, value in columns if value is UNCHANGED]


def _without_unchanged(values: Sequence[Text | Unchanged]) -> tuple[Text, ...]:
    return tuple(None if value is UNCHANGED else value for value in values)
