"""What a test does with segments: make them with the decoder or with its reference, and compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from penstock.changelog.segment import Segment
from penstock.model.lsn import NOWHERE, Lsn
from penstock.receiver.decoder import Decoder, LoggedRelation
from penstock.receiver.intake import Intake
from penstock.testing.assembly import Assembler
from penstock.wire.pgoutput import RelationMessage
from penstock.wire.scan import Bytes

Describe = Callable[[RelationMessage], LoggedRelation]


def decode(decoder: Decoder, blocks: Iterable[Bytes]) -> Segment:
    """Decode blocks, taking each block's segment at once, as its owner may, and using its memory again."""
    taken = []
    for block in blocks:
        decoder.feed(block)
        taken.append(decoder.take())
        block[:] = 0xAA
    decoder._rows[:] = -1
    decoder._transactions[:] = -1
    return joined(taken)


def assemble(describe: Describe, frames: bytes, end_lsn: Lsn) -> tuple[Segment, Lsn]:
    """Return what the reference makes of the same, and how far it came."""
    assembler = Assembler(describe, end_lsn)
    assembler.feed_frames(frames)
    return assembler.segment(), assembler.end_lsn


def received(data: bytes | bytearray, block_bytes: int) -> Iterator[Bytes]:
    """Yield the frames of a stream as an intake of a size hands them over."""
    intake, at = Intake(NOWHERE, lambda *_: None, block_bytes), 0
    while at < len(data):
        if intake.wanted_bytes:
            intake.grow()
        elif intake.is_full:
            yield intake.cut_whole() if intake.whole_bytes else intake.cut_all()
        else:
            count = min(len(intake.room), len(data) - at)
            intake.room[:count] = data[at : at + count]
            intake.advance(count)
            at += count
    yield intake.cut_all()


def joined(segments: Sequence[Segment]) -> Segment:
    """Put segments behind each other."""
    result = Segment()
    for segment in segments:
        for table in segment.tables.values():
            for batch in table.batches:
                result.add_rows(table.schema, table.version, batch)
        for batch in segment.transactions:
            result.add_transactions(batch)
        result.truncates += segment.truncates
    return result


def whole(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches).combine_chunks()
    table.validate(full=True)
    return table


def assert_same(actual: Segment, expected: Segment) -> None:
    """Compare everything that reaches the log."""
    assert actual.tables.keys() == expected.tables.keys()
    for key, table in actual.tables.items():
        assert table.schema == expected.tables[key].schema
        assert whole(table.batches).equals(whole(expected.tables[key].batches), check_metadata=True)
        assert table.rows == expected.tables[key].rows
    assert bool(actual.transactions) == bool(expected.transactions)
    if actual.transactions:
        assert whole(actual.transactions).equals(whole(expected.transactions))
    assert actual.truncates == expected.truncates
