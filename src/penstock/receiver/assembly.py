"""From pgoutput messages to a segment's changes: transactions, ordinals, old keys, unchanged values.

Knows neither sockets nor files, so that tests can feed it anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.changelog.segment import Change, Segment, Text, Transaction
from penstock.errors import WireError
from penstock.model.cell import UNCHANGED, OldRowKind, Unchanged
from penstock.model.event import Truncate
from penstock.model.lsn import Lsn, Position
from penstock.model.table import TableId, TableSchema
from penstock.wire.pgoutput import (
    BeginMessage,
    CommitMessage,
    DeleteMessage,
    InsertMessage,
    Message,
    RelationMessage,
    TruncateMessage,
    UpdateMessage,
)

POSTGRES_EPOCH_US = 946_684_800_000_000  # 2000-01-01 in microseconds since 1970


@dataclass(frozen=True, slots=True)
class LoggedRelation:
    """A table as the stream describes it, with its version in the log."""

    schema: TableSchema
    version: int
    key_indexes: tuple[int, ...]


@dataclass(slots=True)
class Assembler:
    """Collects a stream's changes.

    Transactions that committed before `end_lsn` are in the log already and are passed over: the
    server repeats what it does not know to be flushed.
    """

    describe: Callable[[RelationMessage], LoggedRelation]
    end_lsn: Lsn
    """Where the last complete transaction seen ends."""
    segment: Segment = field(default_factory=Segment)
    _relations: dict[int, LoggedRelation] = field(default_factory=dict)
    _open: Transaction | None = None
    _is_skipping: bool = False

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._open is not None

    def feed(self, message: Message) -> None:
        """Take one message."""
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
                self._relations[message.relation_id] = self.describe(message)
            case TruncateMessage():
                self._truncate(message)
            case _:
                pass  # origins, types and logical messages carry no row

    def take(self) -> Segment:
        """Hand over everything collected, the open transaction's part included."""
        taken, self.segment = self.segment, Segment()
        self.segment.begin()
        return taken

    def _begin(self, message: BeginMessage) -> None:
        if self._open is not None:
            raise WireError("a transaction begins inside another")
        self._is_skipping = message.final_lsn < self.end_lsn
        self._open = Transaction(message.final_lsn, message.commit_time_us + POSTGRES_EPOCH_US, message.xid)
        self.segment.begin()

    def _commit(self, message: CommitMessage) -> None:
        transaction = self._transaction()
        if message.commit_lsn != transaction.commit_lsn:
            raise WireError(f"a transaction that began for {transaction.commit_lsn} commits at {message.commit_lsn}")
        self._open = None
        if self._is_skipping:
            return
        transaction.end_lsn = self.end_lsn = message.end_lsn
        self.segment.commit(transaction)

    def _insert(self, message: InsertMessage) -> None:
        relation = self._relation(message.relation_id)
        self._add(relation, "I", _without_unchanged(message.new))

    def _update(self, message: UpdateMessage) -> None:
        relation = self._relation(message.relation_id)
        new, before, old_key = message.new, None, None
        if message.old is not None:
            old = _without_unchanged(message.old)
            new = _fill(new, old, range(len(new)) if message.old_kind is OldRowKind.FULL else relation.key_indexes)
            before = old if message.old_kind is OldRowKind.FULL else None
            old_key = _changed_key(relation, old, new)
        unchanged = _unchanged_names(relation, new) if UNCHANGED in new else None
        self._add(relation, "U", _without_unchanged(new), old_key, before, unchanged)

    def _delete(self, message: DeleteMessage) -> None:
        relation = self._relation(message.relation_id)
        old = _without_unchanged(message.old)
        values: list[Text] = [None] * len(old)
        for index in relation.key_indexes:
            values[index] = old[index]
        self._add(relation, "D", values, before=old if message.old_kind is OldRowKind.FULL else None)

    def _truncate(self, message: TruncateMessage) -> None:
        transaction = self._transaction()
        transaction.changes += 1
        if self._is_skipping:
            return
        position = Position(transaction.commit_lsn, transaction.changes)
        tables = tuple(TableId(relation) for relation in message.relation_ids)
        self.segment.truncates.append(Truncate(position, tables, message.cascade, message.restart_identity))

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
        transaction.changes += 1
        if self._is_skipping:
            return
        if len(values) != len(relation.schema.columns):
            raise WireError(f"a row of {relation.schema.name} has {len(values)} values")
        change = Change(op, values, transaction, transaction.changes, old_key, before, unchanged)
        self.segment.add(relation.schema, relation.version, change)

    def _transaction(self) -> Transaction:
        if self._open is None:
            raise WireError("a change outside a transaction")
        return self._open

    def _relation(self, relation_id: int) -> LoggedRelation:
        relation = self._relations.get(relation_id)
        if relation is None:
            raise WireError(f"a change of table {relation_id}, which the stream has not described")
        return relation


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
