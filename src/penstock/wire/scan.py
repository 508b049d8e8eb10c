"""The replication stream as bytes: compiled scans that find messages, rows and values without touching them.

Three scans, from coarse to fine: `follow` sees where transactions begin and end, for the thread that
reads; `index` finds the row changes, for the thread that decodes; `locate` finds the values of one
table's rows. The reference is `pgoutput`: whatever is not exactly the protocol is reported, never guessed.
"""

from __future__ import annotations

import datetime as dt
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.wire.big_endian import i64, u16, u32
from penstock.wire.compiled import compiled, copy_bytes
from penstock.wire.stream import pg_us_from_datetime

Bytes: TypeAlias = NDArray[np.uint8]
Numbers: TypeAlias = NDArray[np.int64]
Places: TypeAlias = NDArray[np.int32]

FRAME_BYTES = 5  # a tag and a length
_XLOG_BYTES = 25  # w, two positions, a time
MESSAGE = FRAME_BYTES + _XLOG_BYTES
"""Where the plugin's message begins in the frame of an XLogData."""

_MAX_FRAME_BYTES = (1 << 30) + FRAME_BYTES  # no server can build a longer message; places in a block fit 32 bits

MAX_LSN = (1 << 63) - 1
"""The last position that the log can hold: no server ever comes near it."""
MIN_TIME_US = pg_us_from_datetime(dt.datetime.min.replace(tzinfo=dt.UTC))
MAX_TIME_US = pg_us_from_datetime(dt.datetime.max.replace(tzinfo=dt.UTC))
"""The years 1 to 9999, which readers of the log can hold."""

NULL = -1
UNCHANGED = -2
"""Lengths that stand for no value."""

_DATA, _KEEPALIVE, _XLOG = 0x64, 0x6B, 0x77  # d, k, w
_BEGIN, _COMMIT, _INSERT, _UPDATE, _DELETE = 0x42, 0x43, 0x49, 0x55, 0x44  # B, C, I, U, D
_STREAM_START, _STREAM_STOP, _STREAM_COMMIT = 0x53, 0x45, 0x63  # S, E, c
_RELATION, _ORIGIN, _TYPE, _TRUNCATE, _LOGICAL = 0x52, 0x4F, 0x59, 0x54, 0x4D  # R, O, Y, T, M
_BEGIN_BYTES, _COMMIT_BYTES, _CHANGE_BYTES = 20, 25, 5  # behind the tag
_KEEPALIVE_BYTES = 18
HASH = 2654435761
"""Spreads relation ids over a table: consecutive ones are far apart."""
_NEW, _OLD_KEY, _OLD_ROW = 0x4E, 0x4B, 0x4F  # N, K, O
_TEXT, _NULL, _UNCHANGED = 0x74, 0x6E, 0x75  # t, n, u


class Stop(IntEnum):
    """Why a scan stopped."""

    END = 0
    """At the end of what is there: the next frame is not complete."""
    OTHER = 1
    """At a frame that is not the stream's data: an error, a notice, the end of the copy."""
    MESSAGE = 2
    """At a message that is not a row's change."""
    FULL = 3
    """Its results have no more room."""
    MALFORMED = 4
    """At a frame that is not the protocol."""
    NOT_IN_TRANSACTION = 5
    """At a change or a commit outside of a transaction, or a begin inside of one."""
    WRONG_COMMIT = 6
    """At a commit of another transaction than the one that began."""
    UNKNOWN_RELATION = 7
    """At a change of a table that was not described."""
    BLOCK_END = 8
    """At the end of a streamed block."""


class Followed(IntEnum):
    """The places of what `follow` keeps in its state."""

    IN_TRANSACTION = 0
    IN_STREAM = 1
    """Between the start and the stop of a block of a transaction still in progress at the source."""
    RECEIVED = 2
    """The server's end of WAL when it sent the last message."""
    END_LSN = 3
    """Every transaction that committed before this position has been received whole."""
    REPLY_REQUESTED = 4
    BOUNDARY = 5
    """Where the last whole transaction ends in the buffer."""
    COMMITS = 6


class Indexed(IntEnum):
    """The places of what `index` keeps in its state."""

    IN_TRANSACTION = 0
    SKIPPING = 1
    """Whether the log has the open transaction already."""
    COMMIT_LSN = 2
    COMMIT_TIME = 3
    XID = 4
    ORDINAL = 5
    END_LSN = 6
    ROWS = 7
    """How many rows have been found."""
    TRANSACTIONS = 8
    """How many transactions have committed."""


@compiled
def follow(data: Bytes, at: int, end: int, state: Numbers) -> tuple[int, int, int]:
    """Go over the frames in `data[at:end]`, keeping the state that `Followed` describes.

    Returns where it stopped, why, and how many bytes the frame there has if that is known.
    """
    while True:
        if end - at < FRAME_BYTES:
            return at, Stop.END.value, 0
        size = u32(data, at + 1) + 1
        if size < FRAME_BYTES or size > _MAX_FRAME_BYTES:
            return at, Stop.MALFORMED.value, 0
        if end - at < size:
            return at, Stop.END.value, size
        if data[at] != _DATA:
            return at, Stop.OTHER.value, size
        after = at + size
        kind = data[at + FRAME_BYTES] if size > FRAME_BYTES else 0
        if kind == _XLOG and size > MESSAGE:
            state[Followed.RECEIVED] = max(state[Followed.RECEIVED], i64(data, at + FRAME_BYTES + 9))
            tag = data[at + MESSAGE]
            length = size - MESSAGE
            if tag == _BEGIN:
                state[Followed.IN_TRANSACTION] = 1
            elif tag == _COMMIT and length == 1 + _COMMIT_BYTES:
                state[Followed.IN_TRANSACTION] = 0
                state[Followed.END_LSN] = max(state[Followed.END_LSN], i64(data, at + MESSAGE + 10))
                state[Followed.BOUNDARY] = after
                state[Followed.COMMITS] += 1
            elif tag == _STREAM_START:
                state[Followed.IN_STREAM] = 1
            elif tag == _STREAM_STOP:
                state[Followed.IN_STREAM] = 0
                state[Followed.BOUNDARY] = after
            elif tag == _STREAM_COMMIT and length == 5 + _COMMIT_BYTES:
                state[Followed.END_LSN] = max(state[Followed.END_LSN], i64(data, at + MESSAGE + 14))
                state[Followed.BOUNDARY] = after
                state[Followed.COMMITS] += 1
        elif kind == _KEEPALIVE and size == FRAME_BYTES + _KEEPALIVE_BYTES:
            position = i64(data, at + FRAME_BYTES + 1)
            state[Followed.RECEIVED] = max(state[Followed.RECEIVED], position)
            if data[at + FRAME_BYTES + 17] != 0:
                state[Followed.REPLY_REQUESTED] = 1
            # Between transactions it says that nothing of ours is before its position.
            if state[Followed.IN_TRANSACTION] == 0 and state[Followed.IN_STREAM] == 0:
                state[Followed.END_LSN] = max(state[Followed.END_LSN], position)
                state[Followed.BOUNDARY] = after
        else:
            return at, Stop.MALFORMED.value, size
        at = after


@compiled
def frame_end(data: Bytes, at: int) -> int:
    """Return where the frame ends that begins at a place."""
    end: int = at + u32(data, at + 1) + 1
    return end


@compiled
def _find_relation(relations: Numbers, relation: int) -> int:
    """Return the number of a relation's description, or -1."""
    mask = relations.shape[0] // 2 - 1
    place = (relation * HASH) & mask
    while relations[2 * place + 1] >= 0:
        if relations[2 * place] == relation:
            return relations[2 * place + 1]  # type: ignore[no-any-return]
        place = (place + 1) & mask
    return -1


@compiled
def _is_listed(numbers: Numbers, number: int) -> bool:
    place = np.searchsorted(numbers, number)
    return bool(place < numbers.shape[0] and numbers[place] == number)


@compiled
def _begin(data: Bytes, body: int, after: int, state: Numbers) -> int:
    if state[Indexed.IN_TRANSACTION] == 1:
        return Stop.NOT_IN_TRANSACTION.value
    if after - body != _BEGIN_BYTES or i64(data, body) < 0:
        return Stop.MALFORMED.value
    if not MIN_TIME_US <= i64(data, body + 8) <= MAX_TIME_US:
        return Stop.MALFORMED.value
    state[Indexed.IN_TRANSACTION] = 1
    state[Indexed.COMMIT_LSN] = i64(data, body)
    state[Indexed.COMMIT_TIME] = i64(data, body + 8)
    state[Indexed.XID] = u32(data, body + 16)
    state[Indexed.ORDINAL] = 0
    state[Indexed.SKIPPING] = 1 if state[Indexed.COMMIT_LSN] < state[Indexed.END_LSN] else 0
    return Stop.END.value


@compiled
def _commit(data: Bytes, body: int, after: int, state: Numbers, transactions: NDArray[np.int64]) -> int:
    if state[Indexed.IN_TRANSACTION] == 0:
        return Stop.NOT_IN_TRANSACTION.value
    if after - body != _COMMIT_BYTES or data[body] != 0 or i64(data, body + 9) < 0:
        return Stop.MALFORMED.value
    if i64(data, body + 1) != state[Indexed.COMMIT_LSN]:
        return Stop.WRONG_COMMIT.value
    if state[Indexed.SKIPPING] == 0:
        count = state[Indexed.TRANSACTIONS]
        if count == transactions.shape[0]:
            return Stop.FULL.value
        transactions[count, 0] = state[Indexed.COMMIT_LSN]
        transactions[count, 1] = i64(data, body + 9)
        transactions[count, 2] = state[Indexed.COMMIT_TIME]
        transactions[count, 3] = state[Indexed.XID]
        transactions[count, 4] = state[Indexed.ORDINAL]
        state[Indexed.TRANSACTIONS] = count + 1
        state[Indexed.END_LSN] = transactions[count, 1]
    state[Indexed.IN_TRANSACTION] = 0
    return Stop.END.value


@compiled
def _change(data: Bytes, body: int, after: int, state: Numbers, relations: Numbers, rows: NDArray[np.int64]) -> int:
    if state[Indexed.IN_TRANSACTION] == 0:
        return Stop.NOT_IN_TRANSACTION.value
    if after - body < _CHANGE_BYTES:
        return Stop.MALFORMED.value
    number = _find_relation(relations, u32(data, body))
    if number < 0:
        return Stop.UNKNOWN_RELATION.value
    if state[Indexed.SKIPPING] == 0:
        count = state[Indexed.ROWS]
        if count == rows.shape[0]:
            return Stop.FULL.value
        rows[count, 0] = body + 4
        rows[count, 1] = after
        rows[count, 3] = number
        rows[count, 4] = state[Indexed.COMMIT_LSN]
        rows[count, 5] = state[Indexed.ORDINAL] + 1
        rows[count, 6] = state[Indexed.COMMIT_TIME]
        rows[count, 7] = state[Indexed.XID]
        state[Indexed.ROWS] = count + 1
    state[Indexed.ORDINAL] += 1
    return Stop.END.value


@compiled
def index(
    data: Bytes,
    at: int,
    end: int,
    state: Numbers,
    relations: Numbers,
    rows: NDArray[np.int64],
    transactions: NDArray[np.int64],
) -> tuple[int, int]:
    """Find the row changes in `data[at:end]`, which are whole frames, and the transactions around them.

    `relations` is a table of (id, number) pairs with open addressing, its size a power of two; a number
    below 0 is an empty place. A row is (place of the message behind its relation, end of the message,
    operation, relation's number, commit_lsn, ordinal, commit time, xid); a transaction (commit_lsn,
    end_lsn, commit time, xid, changes). Returns where it stopped and why.
    """
    stop = Stop.END.value
    while at < end:
        after = at + u32(data, at + 1) + 1
        if data[at + FRAME_BYTES] == _XLOG:
            tag = data[at + MESSAGE]
            body = at + MESSAGE + 1
            row = state[Indexed.ROWS]
            if tag in (_INSERT, _UPDATE, _DELETE):
                stop = _change(data, body, after, state, relations, rows)
                if state[Indexed.ROWS] > row:
                    rows[row, 2] = tag
            elif tag == _BEGIN:
                stop = _begin(data, body, after, state)
            elif tag == _COMMIT:
                stop = _commit(data, body, after, state, transactions)
            else:
                stop = Stop.MESSAGE.value
            if stop != Stop.END.value:
                return at, stop
        at = after
    return at, stop


@compiled
def index_streamed(
    data: Bytes,
    at: int,
    end: int,
    state: Numbers,
    relations: Numbers,
    aborted: Numbers,
    rows: NDArray[np.int64],
) -> tuple[int, int]:
    """Find the row changes of one streamed transaction's blocks, like `index`.

    Each message begins with the id of the part of the transaction that it belongs to; `aborted` lists
    the parts, in order, whose changes do not count.
    """
    stop = Stop.END.value
    while at < end:
        after = at + u32(data, at + 1) + 1
        if data[at + FRAME_BYTES] == _XLOG:
            tag = data[at + MESSAGE]
            body = at + MESSAGE + 1
            if tag not in (_INSERT, _UPDATE, _DELETE):
                return at, Stop.MESSAGE.value
            if after - body < 4:
                return at, Stop.MALFORMED.value
            if aborted.shape[0] == 0 or not _is_listed(aborted, u32(data, body)):
                row = state[Indexed.ROWS]
                stop = _change(data, body + 4, after, state, relations, rows)
                if stop != Stop.END.value:
                    return at, stop
                if state[Indexed.ROWS] > row:
                    rows[row, 2] = tag
        at = after
    return at, stop


@compiled
def seek_stream_stop(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Find the next description of a relation or the end of a streamed block in `data[at:end]`.

    Returns where it stopped and why: a message that no block can hold is malformed.
    """
    while at < end:
        size = u32(data, at + 1) + 1
        if data[at + FRAME_BYTES] == _XLOG:
            tag = data[at + MESSAGE]
            if tag == _RELATION:
                return at, Stop.MESSAGE.value
            if tag == _STREAM_STOP:
                return at, Stop.BLOCK_END.value
            if tag not in (_INSERT, _UPDATE, _DELETE, _TRUNCATE, _LOGICAL, _TYPE, _ORIGIN):
                return at, Stop.MALFORMED.value
        at += size
    return at, Stop.END.value


@compiled
def _locate_tuple(
    data: Bytes, at: int, end: int, row: int, starts: NDArray[np.int32], lengths: NDArray[np.int32]
) -> int:
    """Note where the values of one tuple lie; return where it ends, or -1 if it is malformed."""
    width = starts.shape[0]
    if end - at < 2 or u16(data, at) != width:
        return -1
    at += 2
    for column in range(width):
        if at >= end:
            return -1
        kind = data[at]
        at += 1
        if kind == _TEXT:
            if end - at < 4:
                return -1
            length = u32(data, at)
            at += 4
            if length > end - at:
                return -1
            starts[column, row] = at
            lengths[column, row] = length
            at += length
        elif kind == _NULL:
            lengths[column, row] = NULL
        elif kind == _UNCHANGED:
            lengths[column, row] = UNCHANGED
        else:
            return -1
    return at


@compiled
def _is_same(data: Bytes, at: int, other: int, length: int) -> bool:
    offset = 0
    while offset < length and data[at + offset] == data[other + offset]:
        offset += 1
    return offset == length


@compiled
def _locate_old(
    data: Bytes,
    at: int,
    end: int,
    row: int,
    starts: NDArray[np.int32],
    lengths: NDArray[np.int32],
) -> int:
    """Note the values of an old row; of one that is unchanged and not sent, there is none."""
    at = _locate_tuple(data, at, end, row, starts, lengths)
    if at >= 0:
        for column in range(lengths.shape[0]):
            if lengths[column, row] == UNCHANGED:
                lengths[column, row] = NULL
    return at


@compiled
def locate(
    data: Bytes,
    rows: NDArray[np.int64],
    keys: NDArray[np.bool_],
    starts: NDArray[np.int32],
    lengths: NDArray[np.int32],
    old_starts: NDArray[np.int32],
    old_lengths: NDArray[np.int32],
    has_before: NDArray[np.bool_],
    has_old_key: NDArray[np.bool_],
    has_unchanged: NDArray[np.bool_],
) -> int:
    """Find the values of rows that `index` found, all of one relation; columns first, then rows.

    Fills in what an update left unchanged and the old row has. `has_before` is set where there is a whole
    old row, `has_old_key` where an update changed the key, `has_unchanged` where values remain unknown.
    A deleted row has its key's values. Returns the first row that is malformed, or -1.
    """
    for row in range(rows.shape[0]):
        at, end, operation = rows[row, 0], rows[row, 1], rows[row, 2]
        has_before[row] = has_old_key[row] = has_unchanged[row] = False
        old = data[at]
        if old in (_OLD_KEY, _OLD_ROW) and operation != _INSERT:
            has_before[row] = old == _OLD_ROW
            at = _locate_old(data, at + 1, end, row, old_starts, old_lengths)
            if at < 0:
                return row
        else:
            old = np.uint8(0)
        if operation == _DELETE:
            if old == 0 or at != end:
                return row
            _keep_key(row, keys, starts, lengths, old_starts, old_lengths)
            continue
        if at >= end or data[at] != _NEW or _locate_tuple(data, at + 1, end, row, starts, lengths) != end:
            return row
        if old != 0:
            _fill_in(row, old, keys, starts, lengths, old_starts, old_lengths)
            has_old_key[row] = _is_key_changed(data, row, keys, starts, lengths, old_starts, old_lengths)
        has_unchanged[row] = _settle_unchanged(row, operation, lengths)
    return -1


@compiled
def _keep_key(
    row: int,
    keys: NDArray[np.bool_],
    starts: NDArray[np.int32],
    lengths: NDArray[np.int32],
    old_starts: NDArray[np.int32],
    old_lengths: NDArray[np.int32],
) -> None:
    for column in range(keys.shape[0]):
        starts[column, row] = old_starts[column, row]
        lengths[column, row] = old_lengths[column, row] if keys[column] else NULL


@compiled
def _fill_in(
    row: int,
    old: int,
    keys: NDArray[np.bool_],
    starts: NDArray[np.int32],
    lengths: NDArray[np.int32],
    old_starts: NDArray[np.int32],
    old_lengths: NDArray[np.int32],
) -> None:
    for column in range(keys.shape[0]):
        if lengths[column, row] == UNCHANGED and (old == _OLD_ROW or keys[column]):
            starts[column, row] = old_starts[column, row]
            lengths[column, row] = old_lengths[column, row]


@compiled
def _is_key_changed(
    data: Bytes,
    row: int,
    keys: NDArray[np.bool_],
    starts: NDArray[np.int32],
    lengths: NDArray[np.int32],
    old_starts: NDArray[np.int32],
    old_lengths: NDArray[np.int32],
) -> bool:
    for column in range(keys.shape[0]):
        if not keys[column]:
            continue
        length = lengths[column, row]
        if length != old_lengths[column, row]:
            return True
        if length > 0 and not _is_same(data, starts[column, row], old_starts[column, row], length):
            return True
    return False


@compiled
def _settle_unchanged(row: int, operation: int, lengths: NDArray[np.int32]) -> bool:
    """Say whether values remain unknown; only an update can leave any."""
    found = False
    for column in range(lengths.shape[0]):
        if lengths[column, row] == UNCHANGED:
            found = True
            if operation != _UPDATE:
                lengths[column, row] = NULL
    return found and operation == _UPDATE


@compiled
def measure(lengths: NDArray[np.int32]) -> int:
    """Return how many bytes the values of one column have together."""
    total = np.int64(0)
    for row in range(lengths.shape[0]):
        if lengths[row] > 0:
            total += lengths[row]
    return int(total)


@compiled
def gather(
    data: Bytes,
    starts: NDArray[np.int32],
    lengths: NDArray[np.int32],
    offsets: NDArray[np.int32],
    values: Bytes,
    validity: Bytes,
) -> int:
    """Copy one column's values behind each other, as Arrow wants them; return how many are NULL.

    `validity` is a bitmap, all zero before.
    """
    at = np.int32(0)
    nulls = 0
    for row in range(lengths.shape[0]):
        offsets[row] = at
        length = lengths[row]
        if length < 0:
            nulls += 1
            continue
        validity[row >> 3] |= np.uint8(1 << (row & 7))
        copy_bytes(values, at, data, starts[row], length)
        at += length
    offsets[lengths.shape[0]] = at
    return nulls


def warm_up() -> None:
    """Compile everything, or load it: a stream that waits for a compiler would miss the server's deadlines."""
    data, state, rows = np.zeros(64, np.uint8), np.zeros(16, np.int64), np.zeros((1, 8), np.int64)
    places, flags = np.zeros((1, 1), np.int32), np.zeros(1, np.bool_)
    follow(data, 0, 0, state)
    frame_end(data, 0)
    seek_stream_stop(data, 0, 0)
    index(data, 0, 0, state, state, rows, np.zeros((1, 5), np.int64))
    index_streamed(data, 0, 0, state, state, state, rows)
    locate(data, rows[:0], flags, places, places, places, places, flags, flags, flags)
    measure(places[0])
    gather(data, places[0], places[0], np.zeros(2, np.int32), data, data)
