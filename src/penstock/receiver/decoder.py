"""From the stream's bytes to a segment: whole frames in, columns of the server's text out.

No Python object is made for a row or a value; only what is rare (descriptions, truncates, the ends of
streamed transactions) is read by the reference decoder, one message at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import failpoint
from penstock.changelog.rows import log_schema
from penstock.changelog.segment import TRANSACTIONS_SCHEMA, Segment
from penstock.contract import columns as log
from penstock.errors import WireError
from penstock.model.event import Truncate
from penstock.model.lsn import Lsn, Position
from penstock.model.table import Column, TableId, TableSchema
from penstock.receiver.spool import Spools
from penstock.wire.arrow import wrap, wrap_mask
from penstock.wire.pgoutput import (
    Message,
    RelationMessage,
    StreamAbortMessage,
    StreamCommitMessage,
    StreamStartMessage,
    StreamStopMessage,
    TruncateMessage,
    decode_message,
    decode_streamed_message,
)
from penstock.wire.scan import (
    HASH,
    MAX_LSN,
    MAX_TIME_US,
    MESSAGE,
    MIN_TIME_US,
    NULL,
    UNCHANGED,
    Bytes,
    Indexed,
    Numbers,
    Stop,
    frame_end,
    gather,
    index,
    index_streamed,
    locate,
    measure,
    seek_stream_stop,
)
from penstock.wire.stream import POSTGRES_EPOCH_US

_ROWS = 1 << 16  # found before columns are built from them
_CELLS = 1 << 21  # located at a time: 16 bytes each
_FIRST_RELATIONS = 64
_TEXTS = pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class LoggedRelation:
    """A table as the stream describes it, with its version in the log."""

    schema: TableSchema
    version: int
    key_indexes: tuple[int, ...]


class _Relations:
    """What the stream has described: relation ids and the numbers of their descriptions, for `index` to look up."""

    def __init__(self) -> None:
        self.table = _empty_table(_FIRST_RELATIONS)
        self.known: dict[int, tuple[int, int]] = {}
        """By id: the number of the newest description, and when it arrived."""

    def put(self, relation: int, number: int, arrival: int) -> None:
        self.known[relation] = number, arrival
        if 2 * len(self.known) > len(self.table) // 2:
            self.table = _empty_table(len(self.table))
            for each, (its_number, _) in self.known.items():
                _insert(self.table, each, its_number)
        else:
            _insert(self.table, relation, number)

    def put_newer(self, others: _Relations) -> None:
        """Take over what arrived later than what is known here."""
        for relation, (number, arrival) in others.known.items():
            if arrival > self.known.get(relation, (0, -1))[1]:
                self.put(relation, number, arrival)


def _empty_table(places: int) -> Numbers:
    return np.full(2 * places, -1, np.int64)


def _insert(table: Numbers, relation: int, number: int) -> None:
    mask = len(table) // 2 - 1
    place = (relation * HASH) & mask
    while table[2 * place + 1] >= 0 and table[2 * place] != relation:
        place = (place + 1) & mask
    table[2 * place : 2 * place + 2] = relation, number


@dataclass(slots=True)
class Decoder:
    """Decodes one stream. Transactions that committed before `end_lsn` are in the log already and are passed over."""

    describe: Callable[[RelationMessage], LoggedRelation]
    end_lsn: Lsn
    spools: Spools
    segment: Segment = field(default_factory=Segment)
    on_segment: Callable[[], None] = lambda: None
    """Called whenever the segment has grown: its owner may take it, at any time."""
    _descriptions: list[LoggedRelation] = field(default_factory=list)
    _numbers: dict[tuple[TableId, int], int] = field(default_factory=dict)
    _relations: _Relations = field(default_factory=_Relations)
    _arrivals: int = 0
    _streaming: int | None = None
    """The transaction whose block is open."""
    _state: Numbers = field(init=False)
    _rows: NDArray[np.int64] = field(init=False)
    _transactions: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self._state = np.zeros(len(Indexed), np.int64)
        self._state[Indexed.END_LSN] = self.end_lsn
        self._rows = np.empty((_ROWS, 8), np.int64)
        self._transactions = np.empty((_ROWS, 5), np.int64)

    def take(self) -> Segment:
        """Hand over what was collected."""
        taken, self.segment = self.segment, Segment()
        return taken

    def feed(self, data: Bytes) -> None:
        """Decode whole frames of the stream, as `scan.follow` has seen them."""
        at = 0 if self._streaming is None else self._spool(data, 0)
        while at < len(data):
            at, stop = index(data, at, len(data), self._state, self._relations.table, self._rows, self._transactions)
            self._build(data)
            if _is_message(stop):
                at = self._special(data, at)

    def _special(self, data: Bytes, at: int) -> int:
        """Read one message that is not a row's; return where to go on."""
        after = frame_end(data, at)
        match decode_message(data[at + MESSAGE : after].tobytes()):
            case StreamStartMessage() as message:
                return self._start_block(message, data, after)
            case StreamStopMessage():
                raise WireError("the end of a streamed block that did not begin")
            case StreamCommitMessage() as message:
                self._commit_streamed(message)
            case StreamAbortMessage() as message:
                self._abort_streamed(message)
            case message:
                self._plain(message, self._relations, self._arrivals)
                self._arrivals += 1
        return after

    def _plain(self, message: Message, relations: _Relations, arrival: int) -> None:
        match message:
            case RelationMessage():
                relations.put(message.relation_id, self._number(self.describe(message)), arrival)
            case TruncateMessage():
                self._truncate(message)
            case _:
                pass  # origins, types and logical messages carry no row

    def _number(self, relation: LoggedRelation) -> int:
        """Return the number that stands for a description in `rows`."""
        number = self._numbers.setdefault((relation.schema.id, relation.version), len(self._descriptions))
        if number == len(self._descriptions):
            self._descriptions.append(relation)
        return number

    def _truncate(self, message: TruncateMessage) -> None:
        state = self._state
        if not state[Indexed.IN_TRANSACTION]:
            raise WireError(_MALFORMED[Stop.NOT_IN_TRANSACTION])
        state[Indexed.ORDINAL] += 1
        if state[Indexed.SKIPPING]:
            return
        position = Position(Lsn(state[Indexed.COMMIT_LSN]), int(state[Indexed.ORDINAL]))
        tables = tuple(TableId(relation) for relation in message.relation_ids)
        self.segment.truncates.append(Truncate(position, tables, message.cascade, message.restart_identity))

    # Streamed transactions: their blocks wait in a file until they commit, and are decoded then.

    def _start_block(self, message: StreamStartMessage, data: Bytes, at: int) -> int:
        self._expect_no_transaction()
        if message.is_first:
            self.spools.remove(message.xid)
        self._streaming = message.xid
        return self._spool(data, at)

    def _spool(self, data: Bytes, at: int) -> int:
        """Put the open block's frames aside, and return where to go on: behind its end, or at the data's."""
        assert self._streaming is not None
        spool = self.spools.get(self._streaming)
        start, (at, stop) = at, seek_stream_stop(data, at, len(data))
        while _is_message(stop):
            spool.relations.append(self._arrivals)
            self._arrivals += 1
            at, stop = seek_stream_stop(data, frame_end(data, at), len(data))
        spool.append(data[start:at])
        return self._end_block(data, at) if stop == Stop.BLOCK_END else at

    def _end_block(self, data: Bytes, at: int) -> int:
        after = frame_end(data, at)
        decode_message(data[at + MESSAGE : after].tobytes())  # refuses trailing bytes
        self._streaming = None
        return after

    def _abort_streamed(self, message: StreamAbortMessage) -> None:
        if message.xid == message.subxid:
            self.spools.remove(message.xid)
        else:
            self.spools.get(message.xid).aborted.append(message.subxid)

    def _commit_streamed(self, message: StreamCommitMessage) -> None:
        self._expect_no_transaction()
        _expect_loggable(message)
        self._replay(message)
        self.spools.remove(message.xid)

    def _replay(self, message: StreamCommitMessage) -> None:
        """Decode a transaction's blocks, now that its position is known.

        Of one that the log has already, later transactions may still need the descriptions.
        """
        state, spool = self._state, self.spools.get(message.xid)
        state[Indexed.IN_TRANSACTION], state[Indexed.ORDINAL] = 1, 0
        state[Indexed.SKIPPING] = message.commit_lsn < state[Indexed.END_LSN]
        state[Indexed.COMMIT_LSN], state[Indexed.COMMIT_TIME] = message.commit_lsn, message.commit_time_us
        state[Indexed.XID] = message.xid
        relations, arrivals, aborted = _Relations(), iter(spool.relations), spool.aborted_parts()
        for data in spool.read(self._after_replayed):
            self._replay_frames(data, relations, arrivals, aborted)
            del data  # the spool wants its memory back
        self._relations.put_newer(relations)
        state[Indexed.IN_TRANSACTION] = 0
        if not state[Indexed.SKIPPING]:
            self._add_streamed(message, int(state[Indexed.ORDINAL]))

    def _after_replayed(self) -> None:
        self.on_segment()
        failpoint.hit("receiver.after_replayed")

    def _add_streamed(self, message: StreamCommitMessage, changes: int) -> None:
        row = [message.commit_lsn, message.end_lsn, message.commit_time_us, message.xid, changes]
        self._add_transactions(np.array([row], np.int64))
        self._state[Indexed.END_LSN] = message.end_lsn

    def _expect_no_transaction(self) -> None:
        if self._state[Indexed.IN_TRANSACTION]:
            raise WireError(_MALFORMED[Stop.NOT_IN_TRANSACTION])

    def _replay_frames(self, data: Bytes, relations: _Relations, arrivals: Any, aborted: Numbers) -> None:
        at = 0
        while at < len(data):
            at, stop = index_streamed(data, at, len(data), self._state, relations.table, aborted, self._rows)
            self._build(data)
            if _is_message(stop):
                after = frame_end(data, at)
                part, message = decode_streamed_message(data[at + MESSAGE : after].tobytes())
                arrival = next(arrivals) if isinstance(message, RelationMessage) else 0
                if part not in aborted:
                    self._plain(message, relations, arrival)
                at = after

    # Columns.

    def _build(self, data: Bytes) -> None:
        """Turn the rows and transactions found into columns: their places are valid for this data only."""
        state = self._state
        if state[Indexed.TRANSACTIONS]:
            self._add_transactions(self._transactions[: state[Indexed.TRANSACTIONS]])
        rows = self._rows[: state[Indexed.ROWS]]
        state[Indexed.ROWS] = state[Indexed.TRANSACTIONS] = 0
        for group in _by_relation(rows):
            self._build_relation(data, group, self._descriptions[group[0, 3]])

    def _build_relation(self, data: Bytes, rows: NDArray[np.int64], relation: LoggedRelation) -> None:
        step = max(1, _CELLS // max(1, len(relation.schema.columns)))
        for start in range(0, len(rows), step):
            batch = build_rows(data, rows[start : start + step], relation)
            self.segment.add_rows(relation.schema, relation.version, batch)

    def _add_transactions(self, transactions: NDArray[np.int64]) -> None:
        columns = [_int64s(column) for column in transactions.T]
        columns[2] = _times(transactions[:, 2])
        self.segment.add_transactions(pa.RecordBatch.from_arrays(columns, schema=TRANSACTIONS_SCHEMA))


_MALFORMED = {
    Stop.MALFORMED: "a message of the stream is malformed",
    Stop.NOT_IN_TRANSACTION: "a change outside a transaction, or a transaction that begins inside another",
    Stop.WRONG_COMMIT: "a transaction commits at another position than it began for",
    Stop.UNKNOWN_RELATION: "a change of a table which the stream has not described",
}


def _is_message(stop: int) -> bool:
    """Whether a scan stopped at a message to be read singly; where it found something wrong, that is an error."""
    if stop in _MALFORMED:
        raise WireError(_MALFORMED[Stop(stop)])
    return stop == Stop.MESSAGE


def _expect_loggable(message: StreamCommitMessage) -> None:
    """Refuse what `scan.index` refuses of other transactions."""
    is_time = MIN_TIME_US <= message.commit_time_us <= MAX_TIME_US
    if not is_time or max(message.commit_lsn, message.end_lsn) > MAX_LSN:
        raise WireError(_MALFORMED[Stop.MALFORMED])


def _by_relation(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split rows by their relation, keeping their order."""
    numbers = rows[:, 3]
    if not len(rows):
        return []
    if (numbers == numbers[0]).all():
        return [rows]
    order = np.argsort(numbers.astype(np.int32), kind="stable")
    ordered = rows[order]
    return np.split(ordered, np.flatnonzero(np.diff(ordered[:, 3])) + 1)


def build_rows(data: Bytes, rows: NDArray[np.int64], relation: LoggedRelation) -> pa.RecordBatch:
    """Return rows of one relation, as `scan.index` found them in the data, as columns of text."""
    schema, count, width = relation.schema, len(rows), len(relation.schema.columns)
    keys = np.zeros(width, np.bool_)
    keys[list(relation.key_indexes)] = True
    starts, lengths, old_starts, old_lengths = (np.empty((width, count), np.int32) for _ in range(4))
    has_before, has_old_key, has_unchanged = (np.empty(count, np.bool_) for _ in range(3))
    malformed = locate(
        data, rows, keys, starts, lengths, old_starts, old_lengths, has_before, has_old_key, has_unchanged
    )
    if malformed >= 0:
        raise WireError(f"a change of {schema.name} is malformed, or has other columns than its description")
    build = _TextBuilder(data, schema)
    arrays: list[Any] = build.columns(schema.columns, starts, lengths)
    arrays += _metadata(rows)
    if schema.key:
        order = [schema.column_names.index(column.name) for column in schema.key]
        arrays.append(build.struct(schema.key, old_starts[order], old_lengths[order], has_old_key))
    if schema.logs_old_rows:
        arrays.append(build.struct(schema.columns, old_starts, old_lengths, has_before))
    arrays.append(_unchanged_names(schema, lengths, has_unchanged))
    return pa.RecordBatch.from_arrays(arrays, schema=log_schema(schema, as_text=True))


def _metadata(rows: NDArray[np.int64]) -> list[Any]:
    operations = _buffer(rows[:, 2].astype(np.uint8))
    offsets = _buffer(np.arange(len(rows) + 1, dtype=np.int32))
    return [
        pa.Array.from_buffers(pa.string(), len(rows), [None, offsets, operations]),
        _int64s(rows[:, 4]),
        _int64s(rows[:, 5]),
        _times(rows[:, 6]),
        _int64s(rows[:, 7]),
    ]


def _int64s(numbers: NDArray[np.int64]) -> Any:
    # Always a copy: what was found lies in memory that the next scan uses again.
    return wrap(numbers.copy(), pa.int64())


def _times(times_us: NDArray[np.int64]) -> Any:
    return wrap(times_us + POSTGRES_EPOCH_US, pa.timestamp("us", "UTC"))


@dataclass(frozen=True, slots=True)
class _TextBuilder:
    """Makes columns of text from the places of their values."""

    data: Bytes
    schema: TableSchema

    def columns(
        self, columns: Sequence[Column], starts: NDArray[np.int32], lengths: NDArray[np.int32]
    ) -> list[pa.Array[Any]]:
        return [self.column(column, starts[at], lengths[at]) for at, column in enumerate(columns)]

    def struct(
        self,
        columns: Sequence[Column],
        starts: NDArray[np.int32],
        lengths: NDArray[np.int32],
        is_present: NDArray[np.bool_],
    ) -> pa.Array[Any]:
        fields = [pa.field(log.stored_name(column.name), pa.string()) for column in columns]
        if not is_present.any():
            return pa.nulls(len(is_present), pa.struct(fields))
        arrays = self.columns(columns, starts, np.where(is_present, lengths, np.int32(NULL)))
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=wrap_mask(~is_present))

    def column(self, column: Column, starts: NDArray[np.int32], lengths: NDArray[np.int32]) -> pa.Array[Any]:
        count = len(lengths)
        offsets, values = np.empty(count + 1, np.int32), np.empty(measure(lengths), np.uint8)
        validity = np.zeros((count + 7) // 8, np.uint8)
        nulls = gather(self.data, starts, lengths, offsets, values, validity)
        buffers = [_buffer(validity) if nulls else None, _buffer(offsets), _buffer(values)]
        try:
            # The cast checks the encoding; nothing is copied.
            return pa.Array.from_buffers(pa.binary(), count, buffers, nulls).cast(pa.string())
        except pa.ArrowInvalid:
            raise WireError(
                f"table {self.schema.name}, column {column.name}: the server sent text that is not UTF-8"
            ) from None


def _unchanged_names(
    schema: TableSchema, lengths: NDArray[np.int32], has_unchanged: NDArray[np.bool_]
) -> pa.Array[Any]:
    if not has_unchanged.any():
        return pa.nulls(len(has_unchanged), _TEXTS)
    is_unchanged = (lengths == UNCHANGED).T
    offsets = np.zeros(len(is_unchanged) + 1, np.int32)
    np.cumsum(is_unchanged.sum(axis=1), out=offsets[1:])
    names: Any = pa.array(schema.column_names, pa.string())
    found = names.take(wrap(np.nonzero(is_unchanged)[1], pa.int64()))
    lists: Any = pa.ListArray
    result: pa.Array[Any] = lists.from_arrays(
        wrap(offsets, pa.int32()), found, type=_TEXTS, mask=wrap_mask(~has_unchanged)
    )
    return result


def _buffer(array: NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(array.data)
