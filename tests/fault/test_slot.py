"""The slot: what is confirmed to the source and when, and what is said when the slot cannot be read."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from plugins.pipeline import Pipelines
from plugins.receiver import PATIENCE_S, PUBLICATION, Capture, ReceiverProcess

from penstock.changelog.folder import Folder
from penstock.changelog.visitor import open_log
from penstock.destinations.memory.destination import MemoryDestination
from penstock.errors import ErrorKind, PenstockError
from penstock.model.event import Insert
from penstock.model.lsn import Lsn
from penstock.postgres.slot import source_position
from penstock.receiver.settings import Command
from penstock.runtime import supervisor
from penstock.runtime.supervisor import ReceiverSupervisor
from penstock.testing.postgres import Cluster, Database, wait_until
from penstock.testing.proxy import Proxy

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TABLE = "create table t(id bigserial primary key, v text)"
BEYOND_EVERYTHING = Lsn(1 << 50)


def write(database: Database) -> Lsn:
    """Write a row, and return a position behind it."""
    database.execute("insert into t(v) values ('x')")
    return source_position(database.address)


def failure(receiver: ReceiverProcess) -> tuple[ErrorKind, str, str]:
    """Wait until the receiver fails, and return why, in its words and with its advice."""
    event = receiver.wait_for("failed")
    assert receiver.wait_for_end() == 1
    return ErrorKind(event["kind"]), event["message"], event["remedy"]


def is_confirmed(capture: Capture, position: Lsn) -> bool:
    """Whether the source believes that we have everything before a position; it never believes more than is true."""
    confirmed = capture.confirmed()
    assert confirmed <= open_log(capture.folder).end_lsn
    return confirmed >= position


def test_an_idle_database_frees_its_wal_while_another_writes_and_nothing_is_confirmed_that_is_not_durable(
    capture: Capture, cluster: Cluster
) -> None:
    capture.publish(TABLE)
    database = capture.database
    receiver = capture.start(acknowledges_staged=True)
    receiver.wait_for("started")
    other = cluster.handle("postgres")
    other.execute("create table noise as select g from generate_series(1, 1000) as g; drop table noise")
    position = source_position(other.address)
    wait_until(lambda: is_confirmed(capture, position), "the idle slot to move")
    for _ in range(20):
        position = write(database)
    wait_until(lambda: is_confirmed(capture, position), "what is staged to be confirmed")
    assert receiver.stop() == 0
    assert capture.confirmed() == open_log(capture.folder).end_lsn


def test_what_is_applied_is_confirmed_and_nothing_beyond_it(capture: Capture) -> None:
    capture.publish(TABLE)
    start = capture.confirmed()
    receiver = capture.start()
    middle = write(capture.database)
    write(capture.database)
    capture.wait_until_captured()
    assert capture.confirmed() == start
    receiver.send(middle, start)
    wait_until(lambda: is_confirmed(capture, middle), "what is applied to be confirmed")
    assert capture.confirmed() == middle
    # A driver that claims more than the log holds is not believed.
    receiver.send(BEYOND_EVERYTHING, start)
    for _ in range(20):
        position = write(capture.database)
    wait_until(lambda: is_confirmed(capture, position), "all to be confirmed")
    assert receiver.stop() == 0
    capture.consume()
    assert capture.consumed == capture.sent()


def test_a_heartbeat_moves_the_slot_and_a_role_that_may_not_make_one_hears_of_it_once(capture: Capture) -> None:
    database = capture.database
    capture.publish(TABLE)
    role = f"reader_{database.name}"
    database.execute(f"create role {role} login replication; grant select on t to {role}")
    [(function,)] = database.execute(
        "select oid::regprocedure::text from pg_proc where prosrc = 'pg_logical_emit_message_text'"
    )
    database.execute(f"revoke execute on function {function} from public")
    address = replace(database.address, user=role)
    receiver = capture.start(address=address, heartbeat_s=0.05, acknowledges_staged=True)
    assert "pg_logical_emit_message" in receiver.wait_for("heartbeat_failed")["message"]
    before = capture.confirmed()
    database.execute(f"grant execute on function {function} to {role}")
    wait_until(lambda: capture.confirmed() > before, "a heartbeat to move the slot")
    assert receiver.stop() == 0
    assert len(receiver.heard("heartbeat_failed")) == 1


def test_a_slot_that_cannot_be_read_is_an_error_of_its_own_kind(capture: Capture, tmp_path: Path) -> None:
    capture.publish(TABLE)
    database = capture.database
    holder = capture.start()
    holder.wait_for("started")
    shutil.copytree(capture.root, tmp_path / "copy")

    kind, message, remedy = failure(capture.start(log=Folder.on_disk(tmp_path / "copy")))
    assert kind is ErrorKind.SLOT_IN_USE
    assert capture.slot in message

    kind, message, remedy = failure(capture.start())
    assert kind is ErrorKind.SLOT_IN_USE
    assert f"another process writes to {capture.root}" in message

    assert end_walsender(database)
    kind, message, _ = failure(holder)
    assert kind is ErrorKind.SOURCE_SHUTDOWN

    role = f"plain_{database.name}"
    database.execute(f"create role {role} login")
    kind, message, remedy = failure(capture.start(address=replace(database.address, user=role)))
    assert kind is ErrorKind.SOURCE_PERMISSION_DENIED
    assert "with replication" in remedy

    # Someone moves the slot past the end of the log: the server would go on from there without a word.
    write(database)
    database.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", capture.slot)
    kind, message, remedy = failure(capture.start())
    assert kind is ErrorKind.LOG_GAP
    assert f"{capture.confirmed()}" in message

    database.execute("select pg_drop_replication_slot(%s)", capture.slot)
    kind, message, remedy = failure(capture.start())
    assert kind is ErrorKind.SLOT_MISSING
    assert capture.slot in message
    assert "Changes may be lost" in remedy


@contextmanager
def setting(cluster: Cluster, name: str, value: str) -> Iterator[None]:
    """Change a setting of the server, for a while."""
    server = cluster.handle("postgres")
    server.execute(f"alter system set {name} = '{value}'")
    server.execute("select pg_reload_conf()")
    try:
        yield
    finally:
        server.execute(f"alter system reset {name}")
        server.execute("select pg_reload_conf()")


def is_invalidated(capture: Capture) -> bool:
    """Fill WAL segments, until the server gives the slot up."""
    database = capture.database
    database.execute("select pg_logical_emit_message(false, 'fill', repeat('x', 100))")
    database.execute("select pg_switch_wal()")
    database.execute("checkpoint")
    [(status,)] = database.execute("select wal_status from pg_replication_slots where slot_name = %s", capture.slot)
    return bool(status == "lost")


def test_a_slot_that_the_source_gave_up_is_an_error_and_so_is_a_publication_that_is_gone(
    capture: Capture, cluster: Cluster
) -> None:
    capture.publish(TABLE)
    database = capture.database
    receiver = capture.start()
    receiver.wait_for("started")
    database.execute(f"drop publication {PUBLICATION}")
    write(database)
    kind, message, remedy = failure(receiver)
    assert kind is ErrorKind.PUBLICATION_MISSING
    assert PUBLICATION in message
    with setting(cluster, "max_slot_wal_keep_size", "1MB"):
        wait_until(lambda: is_invalidated(capture), "the slot to be invalidated")
    kind, message, remedy = failure(capture.start())
    assert kind is ErrorKind.SLOT_INVALIDATED
    assert capture.slot in message
    assert "copied anew" in remedy


def test_a_network_that_breaks_or_falls_silent_is_noticed(capture: Capture) -> None:
    capture.publish(TABLE)
    database = capture.database
    database.execute(f"alter database {database.name} set wal_sender_timeout = '1s'")
    with Proxy(database.host, database.port) as proxy:
        address = replace(database.address, host=proxy.host, port=proxy.port)
        receiver = capture.start(address=address)
        receiver.wait_for("started")
        proxy.reset()
        kind, message, _ = failure(receiver)
        assert kind is ErrorKind.SOURCE_CONNECTION_FAILED
        assert "lost" in message or "closed" in message
        receiver = capture.start(address=address)
        write(database)
        capture.wait_until_captured()
        proxy.fall_silent()
        kind, message, _ = failure(receiver)
        assert kind is ErrorKind.SOURCE_CONNECTION_FAILED
        assert "has not answered for 2 s" in message
    receiver = capture.start()
    capture.wait_until_captured()
    assert receiver.stop() == 0
    capture.consume()
    assert capture.consumed == capture.sent()


def test_a_receiver_that_hangs_blocks_neither_the_driver_nor_its_end(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_STOP_TIMEOUT_S", 0.5)
    capture.publish(TABLE)
    entries: list[int] = []
    failures: list[Exception] = []
    watch = ReceiverSupervisor(
        capture.settings(), on_entry=lambda _, events: entries.append(events), on_failure=failures.append
    )
    watch.start()
    try:
        write(capture.database)
        wait_until(lambda: any(entries), "the receiver to write", PATIENCE_S)
        assert watch.pid is not None
        os.kill(watch.pid, signal.SIGSTOP)
        for position in range(10_000):  # several times what a pipe holds
            watch.send(Command(Lsn(position), Lsn(position)))
        os.kill(watch.pid, signal.SIGCONT)
        # What the pipe did not take is said again as soon as it does.
        last = Command(open_log(capture.folder).end_lsn, Lsn(0))

        def is_understood() -> bool:
            watch.send(last)
            return is_confirmed(capture, last.acknowledge)

        wait_until(is_understood, "the last word to arrive")
        os.kill(watch.pid, signal.SIGSTOP)
    finally:
        watch.stop()
    assert not failures


def test_a_pipeline_survives_lost_connections_and_restarts_and_ends_when_its_slot_is_gone(
    pipelines: Pipelines, cluster: Cluster, database: Database, publish: Callable[[str], None]
) -> None:
    publish(TABLE)
    destination = MemoryDestination()
    pipeline = pipelines.start(destination)
    pipelines.catch_up(pipeline)
    wait_until(lambda: end_walsender(database), "the receiver to read the slot", PATIENCE_S)
    write(database)
    pipelines.catch_up(pipeline, PATIENCE_S)
    cluster.server.restart(immediate=True)
    write(database)
    pipelines.catch_up(pipeline, PATIENCE_S)
    assert pipeline.report.receiver_restarts >= 2
    inserted = [event.position for event in destination.events if isinstance(event, Insert)]
    assert len(inserted) == len(set(inserted)) == 2
    wait_until(lambda: is_dropped(database), "the slot to be dropped")
    with pytest.raises(PenstockError, match="does not exist") as caught:
        wait_until(lambda: pipeline.wait(0.1), "the pipeline to end", PATIENCE_S)
    assert caught.value.kind is ErrorKind.SLOT_MISSING
    assert "Changes may be lost" in caught.value.remedy
    with pytest.raises(PenstockError):
        pipelines.stop(pipeline)


def end_walsender(database: Database) -> bool:
    """End who reads a slot of the database, and say whether there was anyone."""
    ended = database.execute(
        "select pg_terminate_backend(active_pid) from pg_replication_slots"
        " where active_pid is not null and database = current_database()"
    )
    return bool(ended)


def is_dropped(database: Database) -> bool:
    """End whoever reads the slot, and drop it before it is read again."""
    end_walsender(database)
    with contextlib.suppress(psycopg.errors.ObjectInUse):
        database.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", database.name
        )
    return not database.execute("select 1 from pg_replication_slots where database = %s", database.name)
