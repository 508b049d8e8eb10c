"""`penstock run` and `penstock status`, as two processes that know of each other only through files and the source."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from typing import Any

import pytest
from plugins.cli import Cli

from penstock.testing.postgres import Database, wait_until

pytestmark = pytest.mark.postgres

MEMORY: dict[str, object] = {"memory": {}}


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(
        "create table items (id int primary key, name text);"
        "create table empty (id int primary key);"
        "insert into items select n, 'item ' || n from generate_series(1, 1000) as n;"
        "create publication pub for table items, empty"
    )
    return database


def status_of(cli: Cli) -> dict[str, Any]:
    done = cli("status", "--output", "json")
    assert done.code == 0, done.stderr
    status: dict[str, Any] = json.loads(done.stdout)
    return status


def phases(status: dict[str, Any]) -> dict[str, str]:
    return {table["name"]: table["phase"] for table in status["tables"]}


READY = {"public.items": "ready", "public.empty": "ready"}


def test_once_copies_everything_says_so_and_ends(cli: Cli, shop: Database) -> None:
    cli.write_config(shop, MEMORY)
    done = cli("run", "--once", "--output", "json")
    assert done.code == 0, done.stderr
    tables = {table["name"]: table for table in json.loads(done.stdout)["tables"]}
    assert tables["public.items"]["copied_rows"] == 1000
    assert {name: table["phase"] for name, table in tables.items()} == READY


def test_status_tells_the_same_after_the_end(cli: Cli, shop: Database) -> None:
    cli.write_config(shop, MEMORY)
    assert cli("run", "--once").code == 0
    status = status_of(cli)
    assert status["is_running"] is False
    assert phases(status) == READY
    assert status["source"]["slot"] == "penstock_cli"
    assert "public.items" in cli("status").stdout


def test_once_with_a_stopped_table_ends_with_1_and_names_it(cli: Cli, shop: Database) -> None:
    """A value that no column of the replica could hold stops its table, and no other."""
    shop.execute("create table days (id int primary key, day date); insert into days values (1, 'infinity')")
    shop.execute("alter publication pub add table days")
    cli.write_config(shop, MEMORY)
    done = cli("run", "--once")
    assert done.code == 1, done.stderr
    assert "error: table public.days: " in done.stderr
    assert "special-value policy" in done.stderr
    assert phases(status_of(cli)) == {**READY, "public.days": "errored"}
    assert "special-value policy" in cli("status").stdout


def test_a_signal_drains_and_a_second_replicator_is_refused_meanwhile(cli: Cli, shop: Database) -> None:
    cli.write_config(shop, MEMORY)
    with cli.start("run") as running:
        try:
            wait_until(lambda: phases(status_of(cli)) == READY, "both tables to be ready", timeout_s=90)
            status = status_of(cli)
            assert (status["is_running"], status["pid"]) == (True, running.pid)
            refused = cli("run")
            assert refused.code == 1
            assert f"another replicator (process {running.pid})" in refused.stderr
            running.send_signal(signal.SIGTERM)
            _, stderr = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 0, stderr
    assert "what is under way is finished first" in stderr
    assert status_of(cli)["is_running"] is False
    with closing(shop.connect()) as connection:
        active = connection.execute("select active from pg_replication_slots where slot_name = 'penstock_cli'")
        assert active.fetchone() == (False,)
