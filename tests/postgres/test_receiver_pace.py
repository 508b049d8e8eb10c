"""When the receiver writes: what follows a pause at once, the rest in company."""

from __future__ import annotations

import pytest
from plugins.receiver import Capture

from penstock.changelog.visitor import open_log
from penstock.model.lsn import Lsn
from penstock.postgres.slot import source_position
from penstock.testing.postgres import wait_until

pytestmark = pytest.mark.postgres


def received(capture: Capture) -> Lsn:
    """How far the receiver says that it has read."""
    [(position,)] = capture.database.execute("select write_lsn::text from pg_stat_replication")
    return Lsn.parse(position)


def test_a_change_after_a_pause_waits_for_nobody_and_those_behind_it_for_company(capture: Capture) -> None:
    capture.publish("create table t(id int primary key)")
    receiver = capture.start(max_fill_ms=600_000)
    receiver.wait_for("started")
    capture.database.execute("insert into t values (1)")
    capture.wait_until_captured()
    for number in (2, 3):
        capture.database.execute(f"insert into t values ({number})")
    position = source_position(capture.database.address)
    wait_until(lambda: received(capture) >= position, "both to be received")
    receiver.stop()
    assert [sum(file.rows for file in entry.files) for entry in open_log(capture.folder).entries if entry.files] == [
        1,
        2,
    ]
