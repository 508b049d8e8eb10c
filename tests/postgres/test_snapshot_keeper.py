"""A kept snapshot stays while it is read and for a time after; not longer than the process it is kept for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from penstock.errors import ErrorKind, PenstockError, SourceError
from penstock.postgres.connection import connect
from penstock.postgres.snapshot import SessionSnapshot, import_snapshot
from penstock.spark.snapshot_keeper import MAX_UNREAD, KeptSnapshot, Lifeline, keep_snapshot
from penstock.testing.postgres import Database, wait_until

pytestmark = pytest.mark.postgres

LONG_S = 600.0


@pytest.fixture
def lifeline() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is told to end."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def count(database: Database, snapshot: KeptSnapshot) -> int:
    with closing(connect(database.address, application_name=snapshot.readers)) as connection:
        import_snapshot(connection, snapshot.name)
        [(rows,)] = connection.execute("select count(*) from public.t").fetchall()
    return int(rows)


def is_kept(database: Database, snapshot: KeptSnapshot) -> bool:
    with closing(connect(database.address, application_name="test")) as connection:
        try:
            import_snapshot(connection, snapshot.name)
        except SourceError as error:
            return error.kind is not ErrorKind.SOURCE_SNAPSHOT_LOST
    return True


def test_a_kept_snapshot_shows_one_moment_and_ends_with_its_lifeline(
    any_database: Database, lifeline: subprocess.Popen[bytes]
) -> None:
    any_database.execute("create table t as select 1 as id")
    snapshot = keep_snapshot(any_database.address, LONG_S, lifeline.pid)
    any_database.execute("insert into t values (2)")
    assert count(any_database, snapshot) == 1
    lifeline.kill()
    wait_until(lambda: not is_kept(any_database, snapshot), "the keeper to end")


def test_without_readers_a_snapshot_ends_in_time_and_with_readers_it_does_not(
    database: Database, lifeline: subprocess.Popen[bytes]
) -> None:
    read, unread = (keep_snapshot(database.address, 0.5, lifeline.pid) for _ in range(2))
    with closing(connect(database.address, application_name=read.readers)):
        wait_until(lambda: not is_kept(database, unread), "the snapshot that nobody reads to end")
        assert is_kept(database, read)
    wait_until(lambda: not is_kept(database, read), "the snapshot that nobody reads any more to end")


def test_an_application_keeps_the_newest_of_its_unread_snapshots(
    database: Database, lifeline: subprocess.Popen[bytes]
) -> None:
    kept = [keep_snapshot(database.address, LONG_S, lifeline.pid) for _ in range(MAX_UNREAD + 2)]
    wait_until(
        lambda: [is_kept(database, snapshot) for snapshot in kept] == [False] * 2 + [True] * MAX_UNREAD,
        "the oldest snapshots to end",
    )


def test_an_application_leaves_the_snapshots_of_others_alone(
    database: Database, lifeline: subprocess.Popen[bytes]
) -> None:
    own = keep_snapshot(database.address, LONG_S, os.getpid())
    others = [keep_snapshot(database.address, LONG_S, lifeline.pid) for _ in range(MAX_UNREAD + 1)]
    wait_until(lambda: not is_kept(database, others[0]), "the oldest of the others to end")
    assert is_kept(database, own)


def test_what_keeps_a_snapshot_from_being_taken_is_told(database: Database) -> None:
    with pytest.raises(PenstockError, match="nobody@") as caught:
        keep_snapshot(replace(database.address, user="nobody"), LONG_S, os.getpid())
    assert caught.value.kind is ErrorKind.SOURCE_AUTHENTICATION


def test_a_lifeline_that_has_ended_already_is_noticed() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert Lifeline(process.pid).ends_within(0.0)
    assert not Lifeline(os.getpid()).ends_within(0.0)


def test_an_ordinary_role_can_take_a_snapshot_and_it_ends_with_its_session(database: Database) -> None:
    database.execute("create table t (id int)")
    database.execute("create role snapshot_taker login")
    try:
        address = replace(database.address, user="snapshot_taker")
        with SessionSnapshot(address, application_name="taken") as snapshot:
            kept = KeptSnapshot(snapshot.name, "reading")
            database.execute("insert into t values (1)")
            assert count(database, kept) == 0
            assert snapshot.sessions("reading").named == 0
            with closing(connect(address, application_name="reading")):
                assert snapshot.sessions("reading").named == 1
            with SessionSnapshot(address, application_name="taken") as later:
                assert (snapshot.sessions("reading").newer, later.sessions("reading").newer) == (1, 0)
        wait_until(lambda: not is_kept(database, kept), "the snapshot to end")
    finally:
        database.execute("drop role snapshot_taker")
