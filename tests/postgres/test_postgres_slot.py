"""Slots are created, seen and dropped; one that is read by someone is not taken from them unasked."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from penstock.errors import ErrorKind, SourceError
from penstock.model.lsn import Lsn
from penstock.postgres.connection import Connection, as_source_error, connect
from penstock.postgres.embedded import EmbeddedServer, ServerBinaries, find_servers
from penstock.postgres.slot import SlotState, create_slot, drop_slot, read_slot
from penstock.testing.postgres import Cluster, Database, wait_until

pytestmark = pytest.mark.postgres


@pytest.fixture
def session(any_database: Database) -> Iterator[Connection]:
    with connect(any_database.address, application_name="test") as connection:
        yield connection


@pytest.fixture
def walsender(any_database: Database) -> Iterator[Connection]:
    connection = connect(any_database.address, application_name="test", replication=True)
    with contextlib.closing(connection):
        yield connection


def slot_name(database: Database) -> str:
    # Slots belong to the cluster: tests of one cluster must not meet.
    return f"slot_of_{database.name}"


def start_streaming(connection: Connection, name: str) -> None:
    result = connection.pgconn.exec_(
        f"START_REPLICATION SLOT {name} LOGICAL 0/0 (proto_version '1', publication_names 'p')".encode()
    )
    if result.status != ExecStatus.COPY_BOTH:
        raise as_source_error(error_from_result(result))


def test_a_slot_that_does_not_exist_is_seen_as_such(session: Connection) -> None:
    assert read_slot(session, "nowhere") == SlotState("nowhere", exists=False)


def test_a_created_slot_stands_at_its_consistent_point(
    session: Connection, walsender: Connection, any_database: Database
) -> None:
    name = slot_name(any_database)
    point = create_slot(walsender, name)
    state = read_slot(session, name)
    assert state.confirmed_flush_lsn == point > Lsn(0)
    assert state.restart_lsn is not None
    assert state.restart_lsn <= point
    assert (state.exists, state.active, state.plugin, state.database) == (True, False, "pgoutput", any_database.name)
    assert (state.wal_status, state.invalidation) == ("reserved", None)


def test_a_slot_is_not_created_twice(walsender: Connection, any_database: Database) -> None:
    name = slot_name(any_database)
    create_slot(walsender, name)
    with pytest.raises(SourceError, match=f"{name} exists already") as caught:
        create_slot(walsender, name)
    assert caught.value.kind is ErrorKind.STATE


def test_dropping_twice_is_as_good_as_once(session: Connection, walsender: Connection, any_database: Database) -> None:
    name = slot_name(any_database)
    create_slot(walsender, name)
    drop_slot(session, name)
    drop_slot(session, name)
    assert not read_slot(session, name).exists


def test_a_slot_in_use_is_dropped_only_if_its_reader_may_be_ended(
    session: Connection, walsender: Connection, any_database: Database
) -> None:
    name = slot_name(any_database)
    create_slot(walsender, name)
    start_streaming(walsender, name)
    pid = walsender.info.backend_pid
    wait_until(lambda: read_slot(session, name).active_pid == pid, "the slot to be active")
    with pytest.raises(SourceError, match=f"{name} is in use by process {pid}") as caught:
        drop_slot(session, name)
    assert caught.value.kind is ErrorKind.SLOT_IN_USE
    drop_slot(session, name, terminate=True)
    assert not read_slot(session, name).exists


def test_too_many_slots_are_a_limit(cluster: Cluster) -> None:
    with _limited(cluster.server.binaries, {"max_replication_slots": "1"}) as server:
        address = Cluster(server).handle("postgres").address
        with connect(address, application_name="test", replication=True) as walsender:
            create_slot(walsender, "first")
            with pytest.raises(SourceError) as caught:
                create_slot(walsender, "second")
    assert caught.value.kind is ErrorKind.SOURCE_LIMIT_EXCEEDED


def test_a_slot_without_logical_wal_is_refused_by_its_name(cluster: Cluster) -> None:
    with _limited(cluster.server.binaries, {"wal_level": "replica"}) as server:
        address = Cluster(server).handle("postgres").address
        walsender = connect(address, application_name="test", replication=True)
        with contextlib.closing(walsender), pytest.raises(SourceError) as caught:
            create_slot(walsender, "any")
    assert caught.value.kind is ErrorKind.SOURCE_WAL_LEVEL


@pytest.mark.parametrize("binaries", find_servers(), ids=lambda binaries: f"postgres{binaries.version_major}")
def test_a_slot_whose_wal_was_removed_is_invalidated(binaries: ServerBinaries) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with _limited(binaries, settings) as server:
        database = Cluster(server).handle("postgres")
        with connect(database.address, application_name="test", replication=True) as walsender:
            create_slot(walsender, "lost")
        with connect(database.address, application_name="test") as session:
            for _ in range(4):
                session.execute("select pg_switch_wal(), pg_logical_emit_message(false, 'x', 'y')")
            session.execute("checkpoint")
            assert read_slot(session, "lost").invalidation == "wal_removed"
        walsender = connect(database.address, application_name="test", replication=True)
        with contextlib.closing(walsender), pytest.raises(SourceError) as caught:
            start_streaming(walsender, "lost")
    assert caught.value.kind is ErrorKind.SLOT_INVALIDATED


@contextlib.contextmanager
def _limited(binaries: ServerBinaries, settings: dict[str, str]) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(binaries, Path(tempfile.mkdtemp()), settings, durable=False)
    try:
        server.start()
        yield server
    finally:
        server.remove()
