"""The checks before the start find what is wrong, and say the statement that mends it: which then does."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.config.table_sync_copy import TableSyncCopy
from penstock.errors import ErrorKind, SourceError
from penstock.model.mode import TableMode, TableModes
from penstock.postgres.connection import SourceAddress
from penstock.postgres.embedded import EmbeddedServer, newest_server
from penstock.postgres.preflight import Finding, Level, check_source, require_source
from penstock.testing.postgres import Cluster, Database

pytestmark = pytest.mark.postgres


@pytest.fixture
def role(any_database: Database) -> Iterator[str]:
    """A role with the right to replicate and no other."""
    name = f"Role of {any_database.name}"
    any_database.execute(f'create role "{name}" login replication')
    yield name
    any_database.execute(f'drop owned by "{name}"; drop role "{name}"')


def failing(
    address: SourceAddress,
    publication: str = "p",
    slots_needed: int = 1,
    copies: TableSyncCopy | None = None,
    modes: TableModes | None = None,
) -> list[Finding]:
    findings = check_source(address, publication, slots_needed, copies or TableSyncCopy(), modes or TableModes())
    return [finding for finding in findings if not finding.ok]


def test_a_sound_source_passes_every_check(any_database: Database, role: str) -> None:
    any_database.execute("create table t (id int primary key)")
    any_database.execute("create publication p for table t")
    any_database.execute(f'grant select on t to "{role}"')
    address = replace(any_database.address, user=role)
    findings = check_source(address, "p", 2)
    assert all(finding.ok and not finding.remedy for finding in findings)
    assert [finding.name for finding in findings] == [
        "connection", "version", "wal_level", "encoding", "max_replication_slots", "max_wal_senders", "replication",
        "publication", "select", "row_security", "replica_identity",
    ]  # fmt: skip
    require_source(address, "p", 2)


def test_no_connection_ends_the_checks(database: Database) -> None:
    (finding,) = check_source(replace(database.address, dbname="nowhere"), "p", 1)
    assert (finding.name, finding.ok) == ("connection", False)
    with pytest.raises(SourceError, match="nowhere"):
        require_source(replace(database.address, dbname="nowhere"), "p", 1)


def test_a_role_that_may_not_replicate_is_told_how(any_database: Database, role: str) -> None:
    any_database.execute("create table t (id int primary key)")
    any_database.execute("create publication p for table t")
    any_database.execute(f'grant select on t to "{role}"; alter role "{role}" noreplication')
    address = replace(any_database.address, user=role)
    (finding,) = failing(address)
    assert (finding.name, finding.kind) == ("replication", ErrorKind.SOURCE_PERMISSION_DENIED)
    any_database.execute(finding.remedy)
    assert failing(address) == []


def test_missing_rights_are_named_for_every_leaf_and_mended_by_the_remedies(any_database: Database, role: str) -> None:
    """The partitioned table itself is not read, so no right to it is asked for."""
    any_database.execute('create schema "S s"')
    any_database.execute('create table "S s".root (id int primary key) partition by range (id)')
    any_database.execute('create table "S s"."le af" partition of "S s".root default')
    any_database.execute('create table "S s".other partition of "S s".root for values from (0) to (9)')
    any_database.execute('create publication p for table "S s".root with (publish_via_partition_root)')
    address = replace(any_database.address, user=role)
    findings = failing(address)
    assert [finding.name for finding in findings] == ["select", "select"]
    assert "S s.le af, a partition of S s.root" in findings[0].message
    assert all(finding.level is Level.TABLE for finding in findings)
    require_source(address, "p", 1)
    for finding in findings:
        any_database.execute(finding.remedy)
    assert failing(address) == []


def test_row_level_security_is_an_error_until_the_role_bypasses_it(any_database: Database, role: str) -> None:
    any_database.execute("create table t (id int primary key)")
    any_database.execute("alter table t enable row level security")
    any_database.execute(f'create publication p for table t; grant select on t to "{role}"')
    address = replace(any_database.address, user=role)
    (finding,) = failing(address)
    assert (finding.name, finding.level) == ("row_security", Level.TABLE)
    any_database.execute(finding.remedy)
    assert failing(address) == []


def test_tables_that_are_not_copied_need_no_right_and_unknown_ones_are_warned_of(
    any_database: Database, role: str
) -> None:
    any_database.execute("create table a (id int primary key); create table b (id int primary key)")
    any_database.execute("create publication p for table a, b")
    any_database.execute(f'grant select on b to "{role}"')
    address = replace(any_database.address, user=role)
    ((oid,),) = any_database.execute("select 'a'::regclass::oid::bigint")
    assert failing(address, copies=TableSyncCopy("except", ("public.a",))) == []
    assert failing(address, copies=TableSyncCopy("except", (oid,))) == []
    findings = failing(address, copies=TableSyncCopy("only", ("public.c", "public.b", 1)))
    assert [(finding.name, finding.level) for finding in findings] == [("table_sync_copy", Level.WARNING)] * 2
    assert ["public.c" in findings[0].message, " 1," in findings[1].message] == [True, True]
    with capture_logs() as logged:
        require_source(address, "p", 1, TableSyncCopy("only", ("public.c",)))
    assert [(line["log_level"], line["check"]) for line in logged] == [("warning", "table_sync_copy")]
    assert "public.c" in logged[0]["reason"]


def test_keyless_tables_and_identity_nothing_are_warnings_only(any_database: Database) -> None:
    any_database.execute("create table keyless (id int)")
    any_database.execute("create table mute (id int primary key); alter table mute replica identity nothing")
    any_database.execute("create publication p for table keyless, mute")
    findings = failing(any_database.address)
    assert [finding.level for finding in findings] == [Level.WARNING, Level.WARNING]
    assert [finding.message.split()[1] for finding in findings] == ["public.keyless", "public.mute"]
    require_source(any_database.address, "p", 1)
    any_database.execute("alter publication p set (publish = 'insert')")
    assert failing(any_database.address) == []


def test_a_missing_or_empty_publication_has_its_own_kind(database: Database) -> None:
    (missing,) = failing(database.address)
    assert missing.kind is ErrorKind.PUBLICATION_MISSING
    database.execute("create publication p")
    (empty,) = failing(database.address)
    assert empty.kind is ErrorKind.PUBLICATION_EMPTY
    with pytest.raises(SourceError) as caught:
        require_source(database.address, "p", 1)
    assert caught.value.kind is ErrorKind.PUBLICATION_EMPTY


def test_exhausted_limits_name_the_setting(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("create publication p for table t")
    findings = failing(database.address, slots_needed=1000)
    assert [finding.name for finding in findings] == ["max_replication_slots", "max_wal_senders"]
    assert all(f"alter system set {finding.name} = " in finding.remedy for finding in findings)


def test_a_server_without_logical_wal_is_found_out() -> None:
    with _server({"wal_level": "replica"}) as server:
        database = Cluster(server).handle("postgres")
        database.execute("create table t (id int primary key)")
        database.execute("set client_min_messages = error; create publication p for table t")
        findings = failing(database.address)
    assert [finding.kind for finding in findings] == [ErrorKind.SOURCE_WAL_LEVEL]


@contextlib.contextmanager
def _server(settings: dict[str, str]) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(newest_server(), Path(tempfile.mkdtemp()), settings, durable=False)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_modes_of_unknown_tables_are_warned_of_and_a_history_needs_old_rows_but_no_key(any_database: Database) -> None:
    any_database.execute("create table keyless (id int); alter table keyless replica identity full")
    any_database.execute("create publication p for table keyless")
    recorded = TableModes(TableMode.CURRENT, {"public.keyless": TableMode.HISTORY})
    assert failing(any_database.address, modes=recorded) == []
    versioned = TableModes(TableMode.SCD2, {"public.other": TableMode.HISTORY})
    findings = failing(any_database.address, modes=versioned)
    assert [finding.name for finding in findings] == ["modes", "replica_identity"]
    assert "public.other" in findings[0].message
