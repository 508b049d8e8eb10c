"""The reference decoder: golden bytes of every message, every truncation, and messages of an encoder."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from penstock.errors import WireError
from penstock.model.cell import UNCHANGED, OldRowKind
from penstock.model.lsn import Lsn
from penstock.model.table import ReplicaIdentity
from penstock.testing.pgoutput import encode
from penstock.testing.strategies import lsns
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
    decode_message,
    decode_streamed_message,
)


def _hex(text: str) -> bytes:
    return bytes.fromhex(text)


ROW = _hex("0003 74 00000001") + b"1" + b"n" + b"u"
KEY = _hex("0003 74 00000001") + b"1" + b"nn"

GOLDEN: dict[str, tuple[bytes, Message]] = {
    "begin": (
        b"B" + _hex("00000000016b3748 0002b1d2e5f3a0c4 000002f1"),
        BeginMessage(Lsn(0x16B3748), 0x2B1D2E5F3A0C4, 753),
    ),
    "commit": (
        b"C" + _hex("00 00000000016b3748 00000000016b3778 0002b1d2e5f3a0c4"),
        CommitMessage(Lsn(0x16B3748), Lsn(0x16B3778), 0x2B1D2E5F3A0C4),
    ),
    "origin": (b"O" + _hex("00000000016b3748") + b"node_a\0", OriginMessage(Lsn(0x16B3748), "node_a")),
    "type": (b"Y" + _hex("00004001") + b"public\0mood\0", TypeMessage(16385, "public", "mood")),
    "relation": (
        b"R" + _hex("00004002") + b"public\0users\0d" + _hex("0002")
        + _hex("01") + b"id\0" + _hex("00000014 ffffffff")
        + _hex("00") + b"name\0" + _hex("00000413 00000024"),
        RelationMessage(
            16386,
            "public",
            "users",
            ReplicaIdentity.DEFAULT,
            (RelationColumn("id", 20, -1, is_key=True), RelationColumn("name", 1043, 36, is_key=False)),
        ),
    ),
    "relation in pg_catalog": (
        b"R" + _hex("000004e9") + b"\0pg_thing\0f" + _hex("0000"),
        RelationMessage(1257, "pg_catalog", "pg_thing", ReplicaIdentity.FULL, ()),
    ),
    "insert": (b"I" + _hex("00004002") + b"N" + ROW, InsertMessage(16386, (b"1", None, UNCHANGED))),
    "update": (b"U" + _hex("00004002") + b"N" + ROW, UpdateMessage(16386, None, None, (b"1", None, UNCHANGED))),
    "update of the key": (
        b"U" + _hex("00004002") + b"K" + KEY + b"N" + ROW,
        UpdateMessage(16386, OldRowKind.KEY, (b"1", None, None), (b"1", None, UNCHANGED)),
    ),
    "update under full identity": (
        b"U" + _hex("00004002") + b"O" + KEY + b"N" + ROW,
        UpdateMessage(16386, OldRowKind.FULL, (b"1", None, None), (b"1", None, UNCHANGED)),
    ),
    "delete": (b"D" + _hex("00004002") + b"K" + KEY, DeleteMessage(16386, OldRowKind.KEY, (b"1", None, None))),
    "delete under full identity": (
        b"D" + _hex("00004002") + b"O" + KEY,
        DeleteMessage(16386, OldRowKind.FULL, (b"1", None, None)),
    ),
    "truncate": (
        b"T" + _hex("00000002 03 00004002 00004003"),
        TruncateMessage((16386, 16387), cascade=True, restart_identity=True),
    ),
    "logical message": (
        b"M" + _hex("01 00000000016b3748") + b"penstock_ddl\0" + _hex("00000003") + b"a\0b",
        LogicalMessage(transactional=True, lsn=Lsn(0x16B3748), prefix="penstock_ddl", content=b"a\0b"),
    ),
    "stream start": (b"S" + _hex("000002f1 01"), StreamStartMessage(753, is_first=True)),
    "stream stop": (b"E", StreamStopMessage()),
    "stream commit": (
        b"c" + _hex("000002f1 00 00000000016b3748 00000000016b3778 0002b1d2e5f3a0c4"),
        StreamCommitMessage(753, Lsn(0x16B3748), Lsn(0x16B3778), 0x2B1D2E5F3A0C4),
    ),
    "stream abort": (b"A" + _hex("000002f1 000002f2"), StreamAbortMessage(753, 754)),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes_decode_to_their_message(name: str) -> None:
    data, message = GOLDEN[name]
    assert decode_message(data) == message
    assert decode_message(memoryview(data)) == message


@pytest.mark.parametrize("name", GOLDEN)
def test_every_truncation_is_refused(name: str) -> None:
    data, _ = GOLDEN[name]
    for size in range(len(data)):
        with pytest.raises(WireError):
            decode_message(data[:size])


@pytest.mark.parametrize("name", GOLDEN)
def test_trailing_bytes_are_refused(name: str) -> None:
    with pytest.raises(WireError, match="follow its end"):
        decode_message(GOLDEN[name][0] + b"\0")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"P" + bytes(5), "unknown pgoutput message 'P'"),
        (b"S" + bytes(4) + b"\2", "unknown flags 0x02"),
        (b"c" + bytes(4) + b"\1" + bytes(24), "unknown flags 0x01"),
        (b"I" + bytes(4) + b"N" + _hex("0001") + b"b" + _hex("00000001") + b"\1", "binary"),
        (b"I" + bytes(4) + b"N" + _hex("0001") + b"x", "unknown tag 'x'"),
        (b"I" + bytes(4) + b"K" + KEY, "no new row"),
        (b"U" + bytes(4) + b"K" + KEY + b"K" + KEY, "no new row"),
        (b"D" + bytes(4) + b"N" + ROW, "no old row"),
        (b"R" + bytes(4) + b"a\0b\0x" + bytes(2), "replica identity"),
        (b"R" + bytes(4) + b"a\0b\0d" + _hex("0001 02") + b"c\0" + bytes(8), "unknown flags 0x02"),
        (b"C\1" + bytes(24), "unknown flags 0x01"),
        (b"T" + _hex("00000000 04"), "unknown flags 0x04"),
        (b"M\2" + bytes(8) + b"\0" + bytes(4), "unknown flags 0x02"),
    ],
)
def test_what_the_protocol_does_not_have_is_refused_by_name(data: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        decode_message(data)


OIDS = st.integers(0, (1 << 32) - 1)
TIMES = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
ROWS: SearchStrategy[TupleData] = st.lists(st.none() | st.just(UNCHANGED) | st.binary(max_size=20), max_size=6).map(
    tuple
)
KINDS = st.sampled_from(OldRowKind)
COLUMNS = st.builds(RelationColumn, NAMES, OIDS, st.integers(-(1 << 31), (1 << 31) - 1), st.booleans())

IN_BLOCKS: SearchStrategy[Message] = st.one_of(
    st.builds(OriginMessage, lsns(), NAMES),
    st.builds(TypeMessage, OIDS, NAMES, NAMES),
    st.builds(
        RelationMessage,
        OIDS,
        NAMES,
        NAMES,
        st.sampled_from(ReplicaIdentity),
        st.lists(COLUMNS, max_size=4).map(tuple),
    ),
    st.builds(InsertMessage, OIDS, ROWS),
    st.builds(UpdateMessage, OIDS, st.none(), st.none(), ROWS),
    st.builds(UpdateMessage, OIDS, KINDS, ROWS, ROWS),
    st.builds(DeleteMessage, OIDS, KINDS, ROWS),
    st.builds(TruncateMessage, st.lists(OIDS, max_size=4).map(tuple), st.booleans(), st.booleans()),
    st.builds(LogicalMessage, st.booleans(), lsns(), NAMES, st.binary(max_size=20)),
)
OUTSIDE: SearchStrategy[Message] = st.one_of(
    st.builds(BeginMessage, lsns(), TIMES, OIDS),
    st.builds(CommitMessage, lsns(), lsns(), TIMES),
    st.builds(StreamStartMessage, OIDS, st.booleans()),
    st.builds(StreamStopMessage),
    st.builds(StreamCommitMessage, OIDS, lsns(), lsns(), TIMES),
    st.builds(StreamAbortMessage, OIDS, OIDS),
)
MESSAGES = IN_BLOCKS | OUTSIDE


@given(MESSAGES)
def test_every_message_reads_back(message: Message) -> None:
    assert decode_message(encode(message)) == message


@given(IN_BLOCKS, OIDS)
def test_every_message_of_a_block_reads_back_with_the_part_that_it_belongs_to(message: Message, part: int) -> None:
    known = 0 if isinstance(message, OriginMessage) else part
    assert decode_streamed_message(encode(message, part)) == (known, message)


@given(OUTSIDE, OIDS)
def test_no_block_holds_what_opens_or_closes_one_or_a_transaction(message: Message, part: int) -> None:
    with pytest.raises(WireError, match="inside a streamed block"):
        decode_streamed_message(encode(message, part))


@given(MESSAGES, st.data())
def test_no_message_is_a_prefix_of_another(message: Message, data: st.DataObject) -> None:
    encoded = encode(message)
    size = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(WireError):
        decode_message(encoded[:size])


@given(MESSAGES, st.data())
def test_a_damaged_byte_never_escapes_as_another_error(message: Message, data: st.DataObject) -> None:
    damaged = bytearray(encode(message))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        decode_message(bytes(damaged))
