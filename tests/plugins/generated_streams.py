"""Streams that a server might send, generated: transactions plain and streamed, of tables that change their columns.

The rules are the server's own. Commits come in the order of their positions; a table is described before
its first change, in every streamed transaction anew, and again where a rollback may take that back.
Streams are made from a seed: hypothesis, choosing every value itself, would take a hundred times as long.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from penstock.model.cell import UNCHANGED, OldRowKind
from penstock.model.lsn import Lsn
from penstock.model.table import Column, Kind, PgType, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.receiver.decoder import LoggedRelation
from penstock.testing.pgoutput import encode, frame, keepalive, xlog_data
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
from penstock.wire.scan import Bytes

_TEXT = PgType("text", Kind.TEXT)
_NAMES = ("id", "v", "_op", "_key_", 'Two "Words"', "größe")
_VALUES = (None, b"", b"a", b"b", "é\U0001f600".encode(), b"x" * 300)


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction of the stream, by the frame that makes it whole."""

    frame: int
    commit_lsn: Lsn
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Stream:
    """Frames as they are on the wire."""

    frames: tuple[bytes, ...]
    commits: tuple[Commit, ...]
    end_lsn: Lsn
    """Transactions before this position are in the log already."""
    rng: random.Random
    """For more choices, of the same seed."""

    @property
    def data(self) -> bytes:
        return b"".join(self.frames)


def describe(message: RelationMessage) -> LoggedRelation:
    """Read a description as the generator wrote it: a column's modifier is its place in the key."""
    columns = tuple(
        Column(column.name, _TEXT, key_ordinal=column.type_modifier if column.type_modifier >= 0 else None)
        for column in message.columns
    )
    schema = TableSchema(
        TableId(message.relation_id), TableName(message.namespace, message.name), columns, message.replica_identity
    )
    indexes = tuple(schema.column_names.index(column.name) for column in schema.key)
    # Another description is another version, in whatever order they are met.
    return LoggedRelation(schema, zlib.crc32(encode(message)), indexes)


def writable(data: bytes) -> Bytes:
    """Return bytes as what the compiled scans take: they are compiled for arrays that can be written to."""
    return np.frombuffer(bytearray(data), np.uint8)


def make_relation(rng: random.Random, relation_id: int) -> RelationMessage:
    names = rng.sample(_NAMES, rng.randint(0, len(_NAMES)))
    keys = rng.sample(names, rng.randint(0, len(names)))
    columns = tuple(
        RelationColumn(name, 25, keys.index(name) if name in keys else -1, is_key=name in keys) for name in names
    )
    return RelationMessage(relation_id, "public", f"t{relation_id}", rng.choice(list(ReplicaIdentity)), columns)


def make_row(rng: random.Random, width: int) -> TupleData:
    return tuple(UNCHANGED if rng.random() < 0.2 else rng.choice(_VALUES) for _ in range(width))


def make_change(rng: random.Random, relation: RelationMessage) -> Message:
    relation_id, width = relation.relation_id, len(relation.columns)
    new, old_kind = make_row(rng, width), rng.choice(list(OldRowKind))
    old = tuple(value if rng.random() < 0.5 else rng.choice(_VALUES) for value in new)
    changes: list[Message] = [
        InsertMessage(relation_id, new),
        UpdateMessage(relation_id, None, None, new),
        UpdateMessage(relation_id, old_kind, old, new),
        DeleteMessage(relation_id, old_kind, old),
    ]
    return rng.choice(changes)


class _Described(NamedTuple):
    relation: RelationMessage
    arrival: int
    part: int | None
    """Of a streamed transaction: what rolls it back rolls the description back."""


_Known = dict[int, _Described]


@dataclass(slots=True)
class _Open:
    """A streamed transaction in progress."""

    xid: int
    parts: list[int]
    described: list[_Described] = field(default_factory=list)
    is_first: bool = True

    @property
    def known(self) -> _Known:
        return {each.relation.relation_id: each for each in self.described}


class _Server:
    """Writes a stream, choosing by chance what to write."""

    def __init__(self, rng: random.Random, *, is_streaming: bool) -> None:
        self.rng = rng
        self.is_streaming = is_streaming
        self.tables = rng.randint(1, 3)
        self.lsn = 1000
        self.xid = 700
        self.frames: list[bytes] = []
        self.commits: list[Commit] = []
        self.known: _Known = {}
        self.open: dict[int, _Open] = {}

    def write(self, message: Message, part: int | None = None) -> None:
        self.frames.append(frame(xlog_data(encode(message, part), Lsn(self.lsn))))
        if self.rng.random() < 0.1:
            self.frames.append(frame(keepalive(Lsn(self.lsn), reply_requested=self.rng.random() < 0.5)))

    def step(self) -> None:
        choices: list[Callable[[], None]] = [self.plain, self.plain, self.logical]
        if self.is_streaming:
            choices += [self.block, self.block]
        if self.open:
            choices += [self.block, self.commit_streamed, self.commit_streamed, self.abort]
        self.rng.choice(choices)()

    def next_xid(self) -> int:
        self.xid += 1
        return self.xid

    def next_commit(self) -> tuple[Lsn, Lsn]:
        """Return the next commit's positions: everything written so far lies before them."""
        self.lsn += self.rng.randint(0, 10)
        return Lsn(self.lsn), Lsn(self.lsn + self.rng.randint(1, 10))

    def plain(self) -> None:
        commit_lsn, end_lsn = self.next_commit()
        self.write(BeginMessage(commit_lsn, commit_lsn * 1000, self.next_xid()))
        for _ in range(self.rng.randint(0, 4)):
            self.change(self.known, None, {None}, self.describe)
        self.commit(CommitMessage(commit_lsn, end_lsn, 0), commit_lsn, end_lsn)

    def commit(self, message: Message, commit_lsn: Lsn, end_lsn: Lsn) -> None:
        self.commits.append(Commit(len(self.frames), commit_lsn, end_lsn))
        self.lsn = int(end_lsn)
        self.write(message)

    def describe(self, described: _Described) -> None:
        self.known[described.relation.relation_id] = described

    def change(
        self, known: _Known, part: int | None, lasting: set[int | None], describe: Callable[[_Described], None]
    ) -> None:
        relation_id, kind = 16384 + self.rng.randrange(self.tables), self.rng.randrange(12)
        described = known.get(relation_id)
        if described is None or described.part not in lasting or kind == 0:
            described = _Described(make_relation(self.rng, relation_id), len(self.frames), part)
            describe(described)
            self.write(described.relation, part)
        if kind == 1:
            tables = tuple(self.rng.sample(range(16384, 16387), self.rng.randint(0, 3)))
            self.write(TruncateMessage(tables, self.rng.random() < 0.5, self.rng.random() < 0.5), part)
        elif kind == 2:
            self.write(self.rng.choice(_RARE), part)
        else:
            self.write(make_change(self.rng, described.relation), part)

    def logical(self) -> None:
        self.write(LogicalMessage(transactional=False, lsn=Lsn(self.lsn), prefix="p", content=b"beat"))

    def block(self) -> None:
        if not self.open or self.rng.random() < 0.3:
            xid = self.next_xid()
            self.open[xid] = _Open(xid, [xid])
        opened = self.open[self.rng.choice(sorted(self.open))]
        self.write(StreamStartMessage(opened.xid, opened.is_first))
        opened.is_first = False
        for _ in range(self.rng.randint(0, 5)):
            if self.rng.random() < 0.2:
                opened.parts.append(self.next_xid())
            part = self.rng.choice(opened.parts)
            self.change(opened.known, part, {opened.xid, part}, opened.described.append)
        self.write(StreamStopMessage())

    def abort(self) -> None:
        opened = self.open[self.rng.choice(sorted(self.open))]
        part = self.rng.choice(opened.parts)
        self.write(StreamAbortMessage(opened.xid, part))
        if part == opened.xid:
            del self.open[part]
        else:
            opened.parts.remove(part)
            opened.described = [each for each in opened.described if each.part != part]

    def commit_streamed(self) -> None:
        opened = self.open.pop(self.rng.choice(sorted(self.open)))
        commit_lsn, end_lsn = self.next_commit()
        message = StreamCommitMessage(opened.xid, commit_lsn, end_lsn, commit_lsn * 1000)
        self.commit(message, commit_lsn, end_lsn)
        for relation_id, described in opened.known.items():
            if relation_id not in self.known or described.arrival > self.known[relation_id].arrival:
                self.known[relation_id] = described._replace(part=None)


_RARE: Sequence[Message] = (
    OriginMessage(Lsn(1), "elsewhere"),
    TypeMessage(99, "public", "mood"),
    LogicalMessage(transactional=True, lsn=Lsn(1), prefix="p", content=b"\0x"),
)


def make_stream(seed: int, steps: int, *, is_streaming: bool, has_logged: bool) -> Stream:
    rng = random.Random(seed)
    server = _Server(rng, is_streaming=is_streaming)
    for _ in range(steps):
        server.step()
    logged = [commit.end_lsn for commit in server.commits if has_logged and rng.random() < 0.3]
    return Stream(tuple(server.frames), tuple(server.commits), logged[0] if logged else Lsn(0), rng)


def streams(*, max_steps: int = 20, is_streaming: bool = True, has_logged: bool = True) -> st.SearchStrategy[Stream]:
    """Generate streams; `has_logged` ones may begin with transactions that the log has already."""
    return st.builds(
        make_stream,
        st.integers(0, 1 << 32),
        st.integers(1, max_steps),
        is_streaming=st.just(is_streaming),
        has_logged=st.just(has_logged),
    )


def cut(stream: Stream) -> Iterator[Bytes]:
    """Yield the frames in blocks that end anywhere between two frames."""
    places = stream.rng.choices(range(len(stream.frames) + 1), k=stream.rng.randint(0, 8))
    start = 0
    for place in [*sorted(places), len(stream.frames)]:
        yield writable(b"".join(stream.frames[start:place]))
        start = place
