"""`penstock tables` between two runs: the next run does what was asked, and nothing else."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest
from plugins.cli import Cli

from penstock.runtime.lock import lock_state_dir
from penstock.testing.postgres import Database

pytestmark = pytest.mark.postgres

MEMORY: dict[str, object] = {"memory": {}}


@pytest.fixture
def two_tables(cli: Cli, database: Database) -> Database:
    database.execute(
        "create table a (id int primary key, d date); create table b (id int primary key);"
        "insert into a values (1, '2024-01-01'); insert into b values (1), (2); create publication pub for table a, b"
    )
    cli.write_config(database, MEMORY)
    assert cli("run", "--once").code == 0
    return database


def run_once(cli: Cli) -> dict[str, dict[str, Any]]:
    done = cli("run", "--once", "--output", "json")
    return {table["name"]: table for table in json.loads(done.stdout)["tables"]}


def test_list_tells_every_tables_phase(cli: Cli, two_tables: Database) -> None:
    listed = json.loads(cli("tables", "list", "--output", "json").stdout)
    assert [(table["name"], table["type"]) for table in listed] == [("public.a", "ready"), ("public.b", "ready")]
    assert "public.a" in cli("tables", "list").stdout


def test_resync_copies_that_table_anew_and_no_other(cli: Cli, two_tables: Database) -> None:
    done = cli("tables", "resync", "public.b")
    assert (done.code, done.stderr) == (0, "")
    tables = run_once(cli)
    assert (tables["public.a"]["copied_rows"], tables["public.b"]["copied_rows"]) == (0, 2)


def test_rollback_lets_a_stopped_table_go_on_where_it_failed(cli: Cli, two_tables: Database) -> None:
    two_tables.execute("insert into a values (2, 'infinity')")
    stopped = run_once(cli)["public.a"]
    assert stopped["phase"] == "errored"
    assert "column d" in stopped["error"]
    cli.write_config(two_tables, MEMORY, special_values="clamp")
    assert cli("tables", "rollback", "a").code == 0
    tables = run_once(cli)
    assert (tables["public.a"]["phase"], tables["public.a"]["applied_events"]) == ("ready", 1)
    assert tables["public.a"]["copied_rows"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rollback", "public.a"), "not stopped"),
        (("resync", "public.c"), "there is no table public.c; known are: public.a, public.b"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    cli: Cli, two_tables: Database, arguments: tuple[str, ...], said: str
) -> None:
    done = cli("tables", *arguments)
    assert done.code == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_running_replicator_is_left_alone(cli: Cli, two_tables: Database) -> None:
    with closing(lock_state_dir(cli.folder / ".penstock")):
        done = cli("tables", "resync", "a")
    assert done.code == 1
    assert "another replicator" in done.stderr
