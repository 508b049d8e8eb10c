"""Spark's side of a stream, played by hand: what it may ask, in which order, and what it must be told."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from plugins.handmade_log import HandmadeLog, Row

from penstock.errors import ErrorKind, PenstockError
from penstock.model.lsn import Lsn
from penstock.model.table import Column, Kind, PgType, TableId, TableName, TableSchema
from penstock.spark.log_options import stream_options
from penstock.spark.log_source import LogStreamReader
from penstock.spark.source import PenstockSource

COLUMNS = (
    Column("id", PgType("bigint", Kind.INT8), nullable=False, key_ordinal=0),
    Column("v", PgType("text", Kind.TEXT)),
)
TABLE = TableSchema(TableId(1), TableName("public", "t1"), COLUMNS)
OTHER = TableSchema(TableId(2), TableName("public", "t2"), COLUMNS)


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def open_stream(log: HandmadeLog, clock: Clock | None = None, **options: str) -> LogStreamReader:
    given = {"log": str(log.root), "table": "public.t1", **options}
    source = PenstockSource(given)
    return LogStreamReader(stream_options(given), source.schema(), source._inferred_version, clock or Clock())


def resume(stream: LogStreamReader, offset: Mapping[str, Any]) -> LogStreamReader:
    """Say where the checkpoint is, as Spark does before anything else."""
    assert stream.partitions(offset, offset) == []
    return stream


def read(stream: LogStreamReader, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[int | None]:
    batches = [batch for partition in stream.partitions(start, end) for batch in stream.read(partition)]
    return [value for batch in batches for value in batch.column("id").to_pylist()]


def fill(log: HandmadeLog, *schemas: TableSchema, entries: int = 4) -> None:
    for schema in schemas:
        log.define(schema)
    for number in range(1, entries + 1):
        for schema in schemas:
            log.append(schema, [Row(log.end_lsn + 0x10, 1, [str(number), "x"])])


def refused(stream: LogStreamReader, start: Mapping[str, Any], end: Mapping[str, Any]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        read(stream, start, end)
    return caught.value


def test_batches_meet_and_a_batch_read_again_is_the_same(handmade_log: HandmadeLog) -> None:
    fill(handmade_log, TABLE, OTHER)
    stream = open_stream(handmade_log, maxEntriesPerTrigger="3")
    start, middle = stream.initialOffset(), stream.latestOffset()
    first = read(stream, start, middle)
    end = stream.latestOffset()
    assert (first, read(stream, middle, end)) == ([1, 2, 3], [4])
    again = resume(open_stream(handmade_log), start)
    assert read(again, start, middle) == first


@pytest.mark.parametrize("option", ["maxEntriesPerTrigger", "maxBytesPerTrigger"])
def test_a_limit_holds_at_the_start_at_a_restart_and_between(handmade_log: HandmadeLog, option: str) -> None:
    fill(handmade_log, TABLE, OTHER)
    limit: dict[str, Any] = {option: "1"}
    stream = open_stream(handmade_log, **limit)
    # A new query asks for the end of its first batch before it asks for the start.
    ends = [stream.latestOffset()]
    read(stream, stream.initialOffset(), ends[0])
    ends.append(stream.latestOffset())
    restarted = resume(open_stream(handmade_log, **limit), ends[-1])
    ends.append(restarted.latestOffset())
    assert [read(restarted, *pair) for pair in itertools.pairwise(ends)] == [[2], [3]]


def test_a_limit_never_cuts_a_transaction(handmade_log: HandmadeLog) -> None:
    handmade_log.define(TABLE)
    for number in range(1, 4):
        handmade_log.append(TABLE, [Row(0x200, number, [str(number), "x"])], is_complete=number == 3)
    handmade_log.append(TABLE, [Row(0x300, 1, ["4", "x"])])
    handmade_log.append(TABLE, [Row(0x400, 1, ["5", "x"])], is_complete=False)
    stream = open_stream(handmade_log, maxEntriesPerTrigger="1")
    start, middle = stream.initialOffset(), stream.latestOffset()
    assert read(stream, start, middle) == [1, 2, 3]
    end = stream.latestOffset()
    assert read(stream, middle, end) == [4]
    assert stream.latestOffset() == end, "what is not committed is not there"


def test_without_changes_a_stream_rests_but_does_not_stay_behind(handmade_log: HandmadeLog) -> None:
    fill(handmade_log, TABLE, OTHER, entries=1)
    clock = Clock()
    stream = open_stream(handmade_log, clock)
    first = stream.latestOffset()
    read(stream, stream.initialOffset(), first)
    fill(handmade_log, OTHER)
    clock.now_s = 59
    assert stream.latestOffset() == first
    clock.now_s = 61
    moved = stream.latestOffset()
    assert moved["lsn"] != first["lsn"]
    assert read(stream, first, moved) == []
    handmade_log.append(TABLE, [Row(handmade_log.end_lsn + 1, 1, ["9", "x"])])
    assert read(stream, moved, stream.latestOffset()) == [9]


def test_a_new_query_starts_where_it_is_told(handmade_log: HandmadeLog) -> None:
    fill(handmade_log, TABLE, entries=2)
    latest = open_stream(handmade_log, startingPosition="latest")
    handmade_log.append(TABLE, [Row(handmade_log.end_lsn + 1, 1, ["3", "x"])])
    assert latest.initialOffset()["lsn"] == str(Lsn(handmade_log.end_lsn))
    handmade_log.append(TABLE, [Row(handmade_log.end_lsn + 1, 1, ["4", "x"])])
    assert read(latest, latest.initialOffset(), latest.latestOffset()) == [4]
    given = open_stream(handmade_log, startingPosition="0/111")
    assert read(given, given.initialOffset(), given.latestOffset()) == [2, 3, 4]


def test_what_was_trimmed_behind_a_stream_stops_it_and_the_message_says_what_to_do(handmade_log: HandmadeLog) -> None:
    fill(handmade_log, TABLE)
    stream = open_stream(handmade_log, maxEntriesPerTrigger="1")
    start, end = stream.initialOffset(), stream.latestOffset()
    [partition] = stream.partitions(start, end)
    handmade_log.trim(2, 0x122)
    with pytest.raises(PenstockError, match=r"the log now starts at 0/122.*keep_ms") as in_task:
        list(stream.read(partition))
    with pytest.raises(PenstockError, match="changes from 0/111 on are needed") as in_driver:
        stream.latestOffset()
    error = refused(resume(open_stream(handmade_log), start), start, end)
    assert {in_task.value.kind, in_driver.value.kind, error.kind} == {ErrorKind.LOG_GAP}


def test_what_a_query_has_committed_may_be_trimmed(handmade_log: HandmadeLog) -> None:
    fill(handmade_log, TABLE)
    stream = open_stream(handmade_log, maxEntriesPerTrigger="2")
    middle = stream.latestOffset()
    read(stream, stream.initialOffset(), middle)
    end = stream.latestOffset()
    read(stream, middle, end)
    stream.commit(middle)
    handmade_log.trim(2, 0x122)
    assert read(stream, middle, end) == [3, 4]


def test_a_checkpoint_of_another_server_is_refused(handmade_log: HandmadeLog, tmp_path: Path) -> None:
    fill(handmade_log, TABLE)
    other = HandmadeLog(tmp_path / "other", system_identifier="2")
    fill(other, TABLE)
    offset = open_stream(other).initialOffset()
    assert "another Postgres server" in refused(open_stream(handmade_log), offset, offset).message


def test_a_batch_that_the_log_does_not_hold_or_that_runs_backwards_is_refused(handmade_log: HandmadeLog) -> None:
    fill(handmade_log, TABLE)
    stream = open_stream(handmade_log)
    start, end = stream.initialOffset(), stream.latestOffset()
    assert "the log ends at" in refused(stream, start, {**end, "lsn": "F/0"}).message
    assert "back to" in refused(stream, end, start).message


def test_a_log_that_is_being_received_again_makes_a_stream_wait(handmade_log: HandmadeLog) -> None:
    fill(handmade_log, TABLE)
    ahead = {**open_stream(handmade_log).initialOffset(), "lsn": "0/FFF"}
    assert resume(open_stream(handmade_log), ahead).latestOffset() == ahead


def test_columns_that_change_stop_a_stream_until_it_is_started_again(handmade_log: HandmadeLog) -> None:
    fill(handmade_log, TABLE, entries=1)
    stream = open_stream(handmade_log)
    chosen = LogStreamReader(stream._options, stream._schema, None)
    wider = replace(TABLE, columns=(*TABLE.columns, replace(TABLE.columns[1], name="added")))
    handmade_log.define(wider)
    handmade_log.append(wider, [Row(handmade_log.end_lsn + 1, 1, ["2", "x", "y"])])
    start, end = stream.initialOffset(), stream.latestOffset()
    assert "Start the query again" in refused(stream, start, end).message
    restarted = open_stream(handmade_log)
    assert "added" in restarted._schema.names
    assert read(restarted, start, end) == [1, 2]
    assert read(chosen, start, end) == [1, 2], "a query that names its columns goes on"


def test_a_version_that_changes_no_column_does_not_stop_a_stream(handmade_log: HandmadeLog) -> None:
    fill(handmade_log, TABLE, entries=1)
    stream = open_stream(handmade_log)
    start = stream.initialOffset()
    renamed = replace(TABLE, name=replace(TABLE.name, name="renamed"))
    handmade_log.define(renamed)
    handmade_log.append(renamed, [Row(handmade_log.end_lsn + 1, 1, ["2", "x"])])
    assert read(stream, start, stream.latestOffset()) == [1, 2]


def test_mistakes_are_named_with_their_remedy(handmade_log: HandmadeLog, tmp_path: Path) -> None:
    fill(handmade_log, TABLE, OTHER, entries=1)
    right = {"log": str(handmade_log.root), "table": "public.t1"}
    wrong: list[tuple[dict[str, str], str]] = [
        ({"log": ""}, "option log is missing. Set it to the folder of a change log."),
        ({"table": ""}, "option table is missing"),
        ({"log": str(tmp_path)}, f"{tmp_path} is not a change log"),
        ({"log": "gs://bucket/log"}, "is a URL (gs://…)"),
        ({"log": "s3://bucket"}, "a change log cannot be at s3://bucket. Name a folder"),
        ({"table": "public.none"}, "has no table public.none. It has public.t1, public.t2;"),
        ({"table": "17"}, "has no table 17"),
        ({"startingPosition": "yesterday"}, "'yesterday', which is no position. Give a position as Postgres prints it"),
        ({"specialValues": "string"}, "Choose one of error, null, clamp"),
        ({"maxBytesPerTrigger": "0"}, "option maxBytesPerTrigger is '0'. Give a whole number"),
        ({"maxEntriesPerTrigger": "²"}, "option maxEntriesPerTrigger is '²'"),
        ({"tabel": "x", "path": "y"}, "unknown option path, tabel. The options of a change log are here: log, table"),
    ]
    for options, message in wrong:
        with pytest.raises(PenstockError) as caught:
            PenstockSource({**right, **options}).schema()
        assert message in str(caught.value)


def test_options_of_a_batch_and_of_a_stream_are_told_apart(handmade_log: HandmadeLog) -> None:
    fill(handmade_log, TABLE)
    right = {"log": str(handmade_log.root), "table": "public.t1"}
    schema = PenstockSource(right).schema()
    with pytest.raises(PenstockError, match="unknown option endingposition"):
        PenstockSource({**right, "endingPosition": "latest"}).streamReader(schema)
    with pytest.raises(PenstockError, match="unknown option maxbytespertrigger"):
        PenstockSource({**right, "maxBytesPerTrigger": "1"}).reader(schema)


def test_a_table_is_found_by_its_name_quoted_or_not_and_by_its_oid(handmade_log: HandmadeLog) -> None:
    odd = replace(TABLE, name=replace(TABLE.name, schema="a.b", name='c"d'))
    handmade_log.define(odd)
    for name in ('a.b.c"d', '"a.b"."c""d"', "1"):
        assert PenstockSource({"log": f"file://{handmade_log.root}", "table": name}).schema().names[:2] == ["id", "v"]


def test_a_name_that_two_tables_have_is_not_guessed(handmade_log: HandmadeLog) -> None:
    handmade_log.define(TABLE)
    handmade_log.define(replace(OTHER, name=TABLE.name))
    with pytest.raises(PenstockError, match=r"2 tables of the log have the name public\.t1\. Give an oid: 1, 2"):
        PenstockSource({"log": str(handmade_log.root), "table": "public.t1"}).schema()
