"""The server hears from the receiver in time, whatever holds the receiver up; so the slot stays alive."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from plugins.receiver import PATIENCE_S, Capture

from penstock.changelog.visitor import open_log
from penstock.model.policy import ValuePolicies
from penstock.model.special import SpecialValues
from penstock.postgres.slot import source_position
from penstock.testing.capture import leftovers
from penstock.testing.postgres import Database, wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TIMEOUT_S = 2.0
"""The server's wal_sender_timeout."""
LONGEST_GAP_S = 0.6 * TIMEOUT_S
SAMPLE_S = 0.02


class Replies:
    """Watches what the server knows of its walsender: when it heard from the client, and that it is still the same."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.times: list[dt.datetime] = []
        self.walsenders: set[int] = set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def longest_gap_s(self) -> float:
        return max((later - earlier).total_seconds() for earlier, later in pairwise(self.times))

    def _run(self) -> None:
        with self._database.connect() as connection:
            while not self._stopping.wait(SAMPLE_S):
                query = (
                    "select pid, reply_time from pg_stat_replication where application_name like 'penstock receiver %'"
                )
                for pid, reply_time in connection.execute(query).fetchall():
                    self.walsenders.add(pid)
                    if reply_time is not None and reply_time not in self.times[-1:]:
                        self.times.append(reply_time)


@contextmanager
def heard_in_time(database: Database) -> Iterator[None]:
    """Whatever happens inside: the server hears from the one client that it has, often enough."""
    replies = Replies(database)
    wait_until(lambda: is_streaming(database), "the stream to run")
    replies.start()
    try:
        yield
    finally:
        replies.stop()
    assert len(replies.walsenders) == 1
    assert replies.longest_gap_s <= LONGEST_GAP_S


def is_streaming(database: Database) -> bool:
    return bool(database.execute("select 1 from pg_stat_replication where reply_time is not null"))


def set_up(capture: Capture) -> None:
    name = capture.database.name
    capture.database.execute(f"alter database {name} set wal_sender_timeout = '{TIMEOUT_S:g}s'")
    capture.database.execute(f"alter database {name} set logical_decoding_work_mem = '4MB'")
    capture.publish("create table t(id bigserial primary key, v text, at timestamptz, words text[])")


def write_until(database: Database, condition: Callable[[], object], what: str) -> None:
    """Write one row after the other until something has happened."""

    def step() -> object:
        database.execute("insert into t(v) values ('x')")
        return condition()

    wait_until(step, what, PATIENCE_S)


IRREGULAR_ROWS = """
insert into t(v, at, words)
select 'row ' || g, '0044-03-15 12:00 BC'::timestamptz + g * interval '1 s', array['a "quoted" one', g::text, null]
from generate_series(1, {rows}) as g
"""
"""Values that no conversion of a whole column takes: each is read singly."""


def write_many(database: Database, rows: int, transactions: int) -> None:
    with database.connect() as connection:
        for _ in range(transactions):
            connection.execute(IRREGULAR_ROWS.format(rows=rows))


def long_pauses(capture: Capture) -> int:
    """How often the log stood still for longer than the server is patient."""
    entries = open_log(capture.folder).entries
    return sum(later.written_us - earlier.written_us > TIMEOUT_S * 1e6 for earlier, later in pairwise(entries))


def test_the_server_hears_from_us_while_driver_disk_and_decoding_hold_us_up(capture: Capture) -> None:
    set_up(capture)
    database = capture.database
    hangs = "changelog.before_entry=slow:2800*1@3,changelog.after_file=slow:2800*1@9"
    receiver = capture.start(
        is_heard=False,
        failpoints=hangs,
        max_fill_ms=1,
        status_interval_s=0.5,
        policies=ValuePolicies(SpecialValues.CLAMP),
    )
    with heard_in_time(database):
        # The driver stands still: nobody reads what the receiver says. Twice on the way the disk hangs.
        write_until(database, lambda: receiver.is_unheard, "the pipe to be full")
        assert long_pauses(capture) == 2
        write_many(database, rows=10_000, transactions=10)
        capture.wait_until_captured()
        write_many(database, rows=150_000, transactions=1)
        capture.wait_until_captured()
    receiver.listen()
    assert receiver.stop() == 0
    reader = open_log(capture.folder)
    capture.consume()
    assert capture.consumed == capture.sent()
    assert any(entry.transactions > 1 for entry in reader.entries)
    assert leftovers(capture.root) == set()


def test_a_full_log_pauses_reading_and_a_trim_lets_it_go_on(capture: Capture) -> None:
    set_up(capture)
    database = capture.database
    receiver = capture.start(max_log_bytes=100_000, max_bytes=1 << 16, status_interval_s=0.5)
    with heard_in_time(database):
        write_until(database, lambda: receiver.heard("log_full"), "the log to be full")
        read_up_to = source_position(database.address)
        end = time.monotonic() + 2 * TIMEOUT_S
        write_until(database, lambda: time.monotonic() > end, "the time to pass that a server is patient")
        assert open_log(capture.folder).end_lsn <= read_up_to
        receiver.send(capture.consume(), capture.watermark)
        receiver.wait_for("log_has_room")
        capture.wait_until_captured()
    assert receiver.stop() == 0
    capture.consume()
    assert capture.consumed == capture.sent()


def test_a_transaction_larger_than_the_whole_log_may_be_does_not_stop_it_for_ever(capture: Capture) -> None:
    capture.publish("create table t(id bigserial primary key, v text)")
    database = capture.database
    receiver = capture.start(max_log_bytes=50_000)
    database.execute("insert into t(v) select md5(g::text) from generate_series(1, 10000) as g")
    receiver.wait_for("log_full")
    database.execute("insert into t(v) values ('x')")
    receiver.send(capture.consume(), capture.watermark)
    receiver.wait_for("log_has_room")
    capture.wait_until_captured()
    assert receiver.stop() == 0
    capture.consume()
    assert capture.consumed == capture.sent()
