"""What real servers send decodes as the reference decodes it, and to the same rows whichever way it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from plugins.segments import Describe, assemble, assert_same, decode, received, whole
from plugins.stream_bytes import collect, frames_of

from penstock.changelog.segment import Segment
from penstock.model.lsn import NOWHERE
from penstock.model.policy import DEFAULT_POLICIES
from penstock.model.table import TableSchema
from penstock.postgres.replication import ReplicationStream, open_replication_stream
from penstock.receiver.decoder import Decoder
from penstock.receiver.relation import RelationDescriber
from penstock.receiver.spool import Spools
from penstock.testing.postgres import Database

pytestmark = pytest.mark.postgres

SETUP = """
create table keyed (id int primary key, note text, big text);
alter table keyed alter column big set storage external;
create table pair (v text, b int, a int, primary key (a, b));
create table entire (id int primary key, v text, big text);
alter table entire replica identity full;
alter table entire alter column big set storage external;
create table keyless (v text);
create table indexed (v text, code text not null, primary key (v));
create unique index indexed_code on indexed (code);
alter table indexed replica identity using index indexed_code;
create table "Odd ""Name"" é" ("Key Col" text primary key, "_op" text, "ü" text[]);
create table child (id int primary key, keyed int references keyed on delete cascade);
create table nothing ();
create publication captured for all tables;
"""

PLAIN = """
insert into keyed select n, 'note ' || n, repeat(md5(n::text), 200) from generate_series(1, 30) n;
insert into keyed values (100, null, ''), (101, '', null), (102, E'a\\tb\\\\ "{},é\U0001f600', 'x');
update keyed set note = note || '!' where id <= 30;
update keyed set id = id + 1000 where id <= 5;
update keyed set id = 2000, big = 'small now' where id = 6;
delete from keyed where id between 7 and 9;
begin; insert into pair values ('x', 1, 2), (null, 2, 3); update pair set v = 'y'; update pair set b = 9 where a = 2;
  delete from pair where a = 3; commit;
begin; insert into entire select n, 'v', repeat(md5(n::text), 200) from generate_series(1, 9) n;
  update entire set v = null; update entire set id = id + 50 where id < 4; delete from entire where id > 52; commit;
insert into keyless values (''), (null), ('same'), ('same');
insert into indexed values ('a', 'c1'), ('b', 'c2');
update indexed set v = 'other' where code = 'c1';
update indexed set code = 'c3' where code = 'c2';
delete from indexed;
insert into "Odd ""Name"" é" values ('k', 'op', '{a,NULL,"b c"}'), ('', null, '{}');
update "Odd ""Name"" é" set "Key Col" = 'l' where "Key Col" = 'k';
delete from "Odd ""Name"" é" where "Key Col" = '';
insert into nothing default values;
alter table keyed add column later numeric default 1.50;
insert into keyed (id, later) values (3000, 2), (3001, 'nan');
alter table keyed drop column note;
begin; insert into keyed (id, big) values (3002, 'in'); alter table keyed add column inside int[];
  insert into keyed (id, inside) values (3003, '{1,NULL}'); rollback;
begin; insert into keyed (id, big) values (3004, 'in'); alter table keyed add column inside int[];
  insert into keyed (id, inside) values (3005, '{1,NULL}'); commit;
alter table keyed replica identity full;
update keyed set later = 3 where id = 3000;
insert into child values (1, 3000), (2, 3001);
begin; truncate pair, keyless restart identity; insert into pair values ('after', 1, 1); commit;
truncate keyed cascade;
select pg_logical_emit_message(true, 'prefix', 'content');
select pg_logical_emit_message(false, 'prefix', 'content');
begin; savepoint a; insert into keyed (id) values (1); rollback to a; insert into keyed (id) values (2); savepoint b;
  insert into keyed (id) values (3); savepoint c; insert into keyed (id) values (4); release c; rollback to b;
  insert into keyed (id) values (5); commit;
"""


class Captured(NamedTuple):
    """The same workload, as the server sends it whole and as it sends it while it happens."""

    whole: bytearray
    streamed: bytearray


def execute_each(connection: psycopg.Connection[Any], statements: str) -> None:
    for statement in statements.split(";\n"):
        for each in statement.split("; "):
            if each.strip():
                connection.execute(each)


def prepare(database: Database) -> None:
    database.execute(SETUP)
    name = database.name
    # Without keepalives in between, what is waited for is the changes.
    database.execute(f"alter database {name} set wal_sender_timeout = 0")
    database.execute(f"alter database {name} set logical_decoding_work_mem = '64kB'")
    if database.version_major >= 16:
        database.execute(f"alter database {name} set debug_logical_replication_streaming = 'immediate'")
    for slot in ("captured_whole", "captured_streamed"):
        database.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", slot)


class Live:
    """A stream that is read while the workload runs."""

    def __init__(self, database: Database, stream: ReplicationStream) -> None:
        self._database = database
        self._stream = stream
        self.received = bytearray()

    def await_(self, marker: str) -> None:
        """Wait until a text that a transaction has written arrives, committed or not."""
        # What is not flushed is not sent, and nothing flushes an open transaction's changes but another's commit.
        self._database.execute("insert into keyless values ('flush')")
        if marker.encode() not in self.received:
            self.received += collect(self._stream, lambda received: marker.encode() in received)

    def await_end(self, marker: str) -> None:
        """Wait for the commit behind a text too."""
        self.received += collect(self._stream, lambda received: is_over(self.received + received, marker))


def is_over(received_: bytearray, marker: str) -> bool:
    if marker.encode() not in received_:
        return False
    kinds = kinds_of(received_)
    return bool(kinds) and kinds[-1] in (b"C", b"c")


def kinds_of(data: bytes | bytearray) -> list[bytes]:
    return [body[25:26] for tag, body in frames_of(data) if tag == b"d" and body[:1] == b"w"]


LARGE = "insert into {} select %s || n || repeat('.', 100) from generate_series(1, 1500) n"


def run_overlapping(database: Database, live: Live) -> None:
    """Transactions large enough to be sent before they end, of which parts and wholes are rolled back."""
    large = LARGE.format("keyless")
    with database.connect() as first, database.connect() as second, database.connect() as third:
        first.execute("begin")
        first.execute(large, ["first "])
        live.await_("first 1.")
        second.execute("begin")
        second.execute("savepoint kept")
        second.execute(large, ["second "])
        live.await_("second 1.")
        second.execute("release kept")
        second.execute("savepoint undone")
        second.execute(large, ["undone "])
        live.await_("undone 1.")
        second.execute("rollback to undone")
        second.execute("insert into keyless values ('between')")
        third.execute("begin")
        third.execute(large, ["vanished "])
        third.execute("truncate pair")
        live.await_("vanished 1.")
        first.execute("insert into entire values (77, 'v', 'streamed'); truncate indexed")
        first.execute(large, ["more "])
        second.execute(large, ["rest "])
        live.await_("rest 1.")
        second.execute("commit")
        third.execute("rollback")
        first.execute("commit")


def capture(database: Database) -> Captured:
    prepare(database)
    with closing(open_replication_stream(database.address, application_name="captured")) as stream:
        stream.start("captured_streamed", "captured", NOWHERE, proto_version=2, streaming=True)
        live = Live(database, stream)
        with database.connect() as connection:
            execute_each(connection, PLAIN)
        run_overlapping(database, live)
        database.execute("insert into keyless values ('the last row')")
        live.await_end("the last row")
    with closing(open_replication_stream(database.address, application_name="captured")) as stream:
        stream.start("captured_whole", "captured", NOWHERE, proto_version=1, streaming=False)
        complete = collect(stream, lambda received: is_over(received, "the last row"))
    return Captured(complete, live.received)


@pytest.fixture
def captured(any_database: Database) -> Captured:
    return capture(any_database)


@pytest.fixture
def describe(any_database: Database) -> Iterator[Describe]:
    versions: dict[TableSchema, int] = {}
    describer = RelationDescriber(
        any_database.address, DEFAULT_POLICIES, lambda schema: versions.setdefault(schema, len(versions) + 1)
    )
    yield describer.describe
    describer._open().close()


Decode = Callable[[bytes | bytearray, int], Segment]


@pytest.fixture
def decode_stream(describe: Describe, tmp_path: Path) -> Decode:
    def run(data: bytes | bytearray, block_bytes: int) -> Segment:
        decoder = Decoder(describe, NOWHERE, Spools(tmp_path / "spool"))
        try:
            return decode(decoder, received(data, block_bytes))
        finally:
            assert decoder.spools.size_bytes == 0
            decoder.spools.close()

    return run


def texts_of(segment: Segment, table: str) -> list[str | None]:
    return [
        value
        for rows in segment.tables.values()
        if rows.schema.name.name == table
        for value in whole(rows.batches).column("v").to_pylist()
    ]


def test_decoder_and_reference_agree_on_what_a_server_sends_and_both_ways_of_sending_bring_the_same(
    captured: Captured, describe: Describe, decode_stream: Decode
) -> None:
    assert {b"S", b"E", b"c", b"A"} <= set(kinds_of(captured.streamed))
    assert not {b"S", b"E", b"c", b"A"} & set(kinds_of(captured.whole))
    whole_, end_lsn = assemble(describe, bytes(captured.whole), NOWHERE)
    streamed, streamed_end_lsn = assemble(describe, bytes(captured.streamed), NOWHERE)
    for block_bytes in (1 << 12, 1 << 16, 1 << 22):
        assert_same(decode_stream(captured.whole, block_bytes), whole_)
        assert_same(decode_stream(captured.streamed, block_bytes), streamed)
    assert_same(without_empty(streamed), without_empty(whole_))
    assert streamed_end_lsn == end_lsn


def without_empty(segment: Segment) -> Segment:
    """Leave out transactions without a change: a server passes over them, unless it began to stream them."""
    is_empty = pc.equal(whole(segment.transactions).column("changes"), pa.scalar(0))
    kept = whole(segment.transactions).filter(pc.invert(is_empty)).to_batches()
    return Segment(segment.tables, kept, segment.truncates)


def test_what_was_rolled_back_was_sent_and_leaves_nothing(captured: Captured, decode_stream: Decode) -> None:
    assert b"undone 1." in captured.streamed
    assert b"vanished 1." in captured.streamed
    texts = texts_of(decode_stream(captured.streamed, 1 << 16), "keyless")
    counts = {word: sum((text or "").startswith(f"{word} ") for text in texts) for word in WORDS}
    assert counts == {"first": 1500, "second": 1500, "more": 1500, "rest": 1500, "undone": 0, "vanished": 0}


WORDS = ("first", "second", "more", "rest", "undone", "vanished")
