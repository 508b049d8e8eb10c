"""Every way in which a source or a lake can be wrong is one error that names the object and the remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from plugins.cli import Cli, Finished

from penstock.postgres.embedded import find_servers
from penstock.testing.postgres import Cluster, Database, start_cluster

pytestmark = pytest.mark.postgres

MEMORY: dict[str, object] = {"memory": {}}


@pytest.fixture(scope="module")
def physical() -> Iterator[Cluster]:
    """A server whose WAL is not logical."""
    cluster = start_cluster(find_servers()[-1], {"wal_level": "replica"})
    yield cluster
    cluster.server.remove()


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute("create table items (id int primary key); create publication pub for table items")
    return database


def error_of(done: Finished, code: int = 1) -> str:
    """Return the one error that a command ended with, log lines left out."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert done.code == code, done.stderr
    assert "Traceback" not in done.stderr
    assert [line.startswith("error: ") for line in lines].count(True) == 1, done.stderr
    assert re.match(r"    \S", lines[-1])
    return "\n".join(lines)


def failed(done: Finished) -> dict[str, dict[str, str]]:
    """Return what `check --output json` found failing, by name."""
    assert done.code == 1, done.stderr
    found = json.loads(done.stdout)["findings"]
    return {each["name"]: each for each in found if each["result"] == "failed"}


def test_an_unreachable_source_is_named(cli: Cli, database: Database) -> None:
    nowhere = Database("127.0.0.1", 1, database.name, "penstock", None, database.version_major)
    cli.write_config(nowhere, MEMORY)
    error = error_of(cli("run"))
    assert "penstock@127.0.0.1:1" in error
    assert "host, port" in error
    assert "connection" in failed(cli("check", "--output", "json"))


def test_a_missing_publication_is_named_with_the_statement_that_makes_it(cli: Cli, database: Database) -> None:
    database.execute("create table items (id int primary key)")
    cli.write_config(database, MEMORY)
    error = error_of(cli("run"))
    assert "publication pub does not exist" in error
    assert 'create publication "pub"' in error
    assert "publication" in failed(cli("check", "--output", "json"))


def test_an_empty_publication_is_named(cli: Cli, database: Database) -> None:
    database.execute("create publication pub")
    cli.write_config(database, MEMORY)
    assert "publication pub has no tables" in error_of(cli("run"))


def test_a_source_without_logical_wal_is_named_with_the_setting(cli: Cli, physical: Cluster) -> None:
    with physical.database() as database:
        database.execute("create table items (id int primary key); create publication pub for table items")
        cli.write_config(database, MEMORY)
        error = error_of(cli("run"))
        assert "wal_level is replica" in error
        assert "wal_level = 'logical'" in error
        assert "wal_level" in failed(cli("check", "--output", "json"))


@pytest.fixture
def limited(shop: Database) -> Iterator[Database]:
    """The shop, as seen by a role that may do nothing."""
    role = f"limited_{shop.name}"
    shop.execute(f"create role {role} login")
    yield Database(shop.host, shop.port, shop.name, role, None, shop.version_major)
    shop.execute(f"drop owned by {role}; drop role {role}")


def test_a_role_that_may_not_replicate_is_named_with_the_statement(cli: Cli, limited: Database) -> None:
    cli.write_config(limited, MEMORY)
    error = error_of(cli("run"))
    assert f"role {limited.username} may not open replication connections" in error
    assert f'alter role "{limited.username}" with replication' in error


def test_a_table_that_may_not_be_read_is_named_with_the_grant(cli: Cli, shop: Database, limited: Database) -> None:
    shop.execute(f"alter role {limited.username} with replication")
    cli.write_config(limited, MEMORY)
    error = error_of(cli("run", "--once"))
    assert "may not read table public.items" in error
    assert f'grant select on "public"."items" to "{limited.username}"' in error
    assert "select" in failed(cli("check", "--output", "json"))


def test_a_lake_that_cannot_be_written_is_named(cli: Cli, shop: Database) -> None:
    (cli.folder / "file").write_text("")
    cli.write_config(shop, {"delta": {"path": "./file/lake"}})
    error = error_of(cli("run"))
    assert str(cli.folder / "file" / "lake") in error
    assert "destination.delta.path" in error
    assert "destination" in failed(cli("check", "--output", "json"))


def test_a_state_folder_that_cannot_be_written_is_named(cli: Cli, shop: Database) -> None:
    (cli.folder / "file").write_text("")
    cli.write_config(shop, MEMORY)
    env = {"PENSTOCK_STATE_DIR": str(cli.folder / "file" / "state")}
    assert str(cli.folder / "file" / "state") in error_of(cli("run", env=env))
    assert "state_dir" in failed(cli("check", "--output", "json", env=env))


def test_a_source_that_is_ready_passes_and_is_left_as_it_was(cli: Cli, shop: Database) -> None:
    cli.write_config(shop, MEMORY)
    done = cli("check")
    assert done.code == 0, done.stdout + done.stderr
    assert "✓ publication: publication pub has 1 tables" in done.stdout
    assert "will be created at the first start" in done.stdout
    assert shop.execute("select 1 from pg_replication_slots where database = %s", shop.name) == []
    assert not (cli.folder / ".penstock").exists()


def test_a_table_without_a_key_is_a_warning_and_no_failure(cli: Cli, shop: Database) -> None:
    shop.execute("create table notes (text text); alter publication pub add table notes")
    cli.write_config(shop, MEMORY)
    done = cli("check", "--output", "json")
    assert done.code == 0, done.stdout
    warnings = [each for each in json.loads(done.stdout)["findings"] if each["result"] == "warning"]
    assert ["public.notes" in each["message"] for each in warnings] == [True]


def test_a_slot_that_someone_else_reads_is_named(cli: Cli, shop: Database) -> None:
    cli.write_config(shop, MEMORY)
    shop.execute("select pg_create_logical_replication_slot('penstock_cli', 'pgoutput')")
    with closing(shop.connect(replication="database")) as reader:
        reader.pgconn.send_query(
            b"START_REPLICATION SLOT penstock_cli LOGICAL 0/0 (proto_version '1', publication_names 'pub')"
        )
        reader.pgconn.get_result()
        found = failed(cli("check", "--output", "json"))
    assert "penstock_cli is in use" in found["slot"]["message"]
    assert found["slot"]["remedy"]


def test_status_of_what_never_ran_says_so(cli: Cli, shop: Database) -> None:
    cli.write_config(shop, MEMORY)
    done = cli("status")
    assert done.code == 0
    assert "not running, and never was" in done.stdout
    assert "the slot does not exist" in done.stdout


def test_status_without_a_source_says_why_the_lag_is_unknown(cli: Cli, database: Database) -> None:
    cli.write_config(Database("127.0.0.1", 1, "x", "penstock", None, database.version_major), MEMORY)
    done = cli("status", "--output", "json")
    assert done.code == 0
    status = json.loads(done.stdout)
    assert status["is_running"] is False
    assert "127.0.0.1:1" in status["source"]["problem"]
