"""A primary fails and its standby takes over: the log goes on where both share their history, and nowhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from plugins.postgres import SERVERS
from plugins.receiver import PATIENCE_S, Capture

from penstock.changelog.visitor import open_log
from penstock.errors import ErrorKind
from penstock.postgres.embedded import EmbeddedServer
from penstock.postgres.slot import source_position
from penstock.testing.postgres import SETTINGS, Cluster, Database, start_cluster, wait_until

FAILOVER_SINCE = 17
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.skipif(SERVERS[-1].version_major < FAILOVER_SINCE, reason="failover slots exist from 17 on"),
]
STANDBY_SLOT = "standby"


@pytest.fixture
def primary() -> Iterator[Cluster]:
    cluster = start_cluster(SERVERS[-1], {"synchronized_standby_slots": STANDBY_SLOT})
    cluster.handle("postgres").execute("select pg_create_physical_replication_slot(%s, true)", STANDBY_SLOT)
    yield cluster
    cluster.server.remove()


@pytest.fixture
def capture(primary: Cluster, tmp_path: Path) -> Iterator[Capture]:
    with primary.database() as database:
        made = Capture(database, tmp_path / "log", tmp_path / "spool")
        yield made
        made.close()


@pytest.fixture
def standby(primary: Cluster) -> Iterator[EmbeddedServer]:
    settings = {
        **SETTINGS,
        "primary_conninfo": primary.server.conninfo(),
        "primary_slot_name": STANDBY_SLOT,
        "hot_standby_feedback": "on",
        "sync_replication_slots": "on",
    }
    server = EmbeddedServer(SERVERS[-1], Path(tempfile.mkdtemp(prefix="penstock-test-")), settings, durable=False)
    copy_cluster(primary.server, server.cluster_dir)
    server.start()
    yield server
    server.remove()


def copy_cluster(source: EmbeddedServer, target: Path) -> None:
    """Copy a running server's data, for a standby to start from."""
    copy = [source.binaries.program("pg_basebackup"), "-D", str(target), "-d", source.conninfo(), "-c", "fast"]
    subprocess.run(copy, check=True, capture_output=True)
    (target / "standby.signal").touch()
    owner = source.cluster_dir.resolve().stat()
    for path in (target, *target.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)


def write(database: Database, rows: int) -> None:
    database.execute("insert into t(v) select 'x' from generate_series(1, %s)", rows)


def has_slot(standby: Database, capture: Capture) -> bool:
    """Whether the standby would keep the slot when promoted; the primary must move for the standby to see it."""
    write(capture.database, 1)
    capture.database.execute("select pg_log_standby_snapshot()")
    return bool(
        standby.execute(
            "select 1 from pg_replication_slots where slot_name = %s and synced and not temporary", capture.slot
        )
    )


def refusal(capture: Capture) -> str:
    receiver = capture.start()
    event = receiver.wait_for("failed")
    assert ErrorKind(event["kind"]) is ErrorKind.LOG_GAP
    return str(event["message"])


def test_a_promoted_standby_is_followed_where_it_shares_the_logs_history_and_refused_where_not(
    primary: Cluster, standby: EmbeddedServer, capture: Capture, tmp_path: Path
) -> None:
    database = capture.database
    promoted = replace(database, port=standby.port)
    other = replace(promoted, name="postgres")  # which the standby has from the beginning
    capture.publish("create table t(id bigserial primary key, v text)")
    receiver = capture.start(acknowledges_staged=True)
    wait_until(lambda: has_slot(other, capture), "the slot to be on the standby", PATIENCE_S)
    capture.wait_until_captured()
    assert receiver.stop() == 0
    shutil.copytree(capture.root, tmp_path / "shared")

    # The standby is cut off, and the primary no longer waits for it: the log gets ahead.
    other.execute("alter system set primary_conninfo = ''")
    other.execute("select pg_reload_conf()")
    wait_until(lambda: not other.execute("select 1 from pg_stat_wal_receiver"), "the standby to be cut off")
    primary.handle("postgres").execute("alter system set synchronized_standby_slots = ''")
    primary.handle("postgres").execute("select pg_reload_conf()")
    receiver = capture.start()
    write(database, 100)
    capture.wait_until_captured()
    primary.server.stop(immediate=True)
    assert receiver.wait_for_end() == 1
    other.execute("select pg_promote()")

    capture.database = promoted
    end_lsn = open_log(capture.folder).end_lsn
    assert f"has changes up to {end_lsn}" in refusal(capture)
    # However far the new primary comes: what it did between the fork and the log's end would be missing.
    while source_position(promoted.address) <= end_lsn:
        write(promoted, 100)
    assert f"has changes up to {end_lsn}" in refusal(capture)

    capture.root = tmp_path / "shared"
    receiver = capture.start()
    capture.wait_until_captured()
    assert receiver.stop() == 0
    capture.consume()
    rows = [str(key) for (key,) in promoted.execute("select id from t order by id")]
    assert [change.key for change in capture.consumed] == rows
