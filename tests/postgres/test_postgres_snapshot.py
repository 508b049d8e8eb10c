"""One exported snapshot gives every reader the same view, and that view has a place in the stream."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from penstock.errors import ErrorKind, SourceError
from penstock.model.lsn import Lsn
from penstock.model.table import TableName
from penstock.postgres.connection import Connection, connect
from penstock.postgres.snapshot import ExportedSnapshot, import_snapshot
from penstock.testing.postgres import Database, wait_until

pytestmark = pytest.mark.postgres

TABLE = TableName("public", "t")


def count(database: Database, snapshot: ExportedSnapshot) -> int:
    with connect(database.address, application_name="test") as connection:
        import_snapshot(connection, snapshot.name)
        row = connection.execute("select count(*) from public.t").fetchone()
        connection.execute("rollback")
    assert row is not None
    return int(row[0])


def test_every_reader_sees_what_was_there_at_the_export(any_database: Database) -> None:
    any_database.execute("create table t (id int)")
    any_database.execute("insert into t values (1), (2)")
    with ExportedSnapshot(any_database.address, application_name="test") as snapshot:
        any_database.execute("insert into t values (3)")
        assert count(any_database, snapshot) == 2
        any_database.execute("delete from t")
        assert count(any_database, snapshot) == 2


def test_the_consistent_point_divides_what_is_in_the_snapshot_from_what_is_not(any_database: Database) -> None:
    any_database.execute("create table t (id int)")
    before = commit_and_return_position(any_database)
    with ExportedSnapshot(any_database.address, application_name="test") as snapshot:
        after = commit_and_return_position(any_database)
        assert before <= snapshot.consistent_point < after
        assert count(any_database, snapshot) == 1


def commit_and_return_position(database: Database) -> Lsn:
    database.execute("insert into t values (1)")
    ((position,),) = database.execute("select pg_current_wal_insert_lsn()::text")
    return Lsn.parse(position)


def test_a_transaction_open_at_the_export_is_waited_for(database: Database) -> None:
    database.execute("create table t (id int)")
    with database.connect() as writer:
        writer.execute("begin")
        writer.execute("insert into t values (1)")
        # The server ends the wait by the writer's own timeout: with it gone, the export goes on.
        writer.execute("set idle_in_transaction_session_timeout = '500ms'")
        with ExportedSnapshot(database.address, application_name="test") as snapshot:
            assert count(database, snapshot) == 0
        writer.close()


def test_a_snapshot_ends_with_its_exporter_and_leaves_no_slot(any_database: Database) -> None:
    any_database.execute("create table t (id int)")
    with ExportedSnapshot(any_database.address, application_name="test") as snapshot:
        pass
    with connect(any_database.address, application_name="test") as connection:
        with pytest.raises(SourceError, match="is gone") as caught:
            import_snapshot(connection, snapshot.name)
        # The session is as good as new afterwards.
        assert connection.execute("select 1").fetchone() == (1,)
    assert caught.value.kind is ErrorKind.SOURCE_SNAPSHOT_LOST


def test_a_locked_table_cannot_be_rewritten_while_the_snapshot_lives(any_database: Database) -> None:
    any_database.execute('create table t (id int); create table "O""dd" (id int) partition by list (id)')
    any_database.execute('create table leaf partition of "O""dd" default')
    tables = [TABLE, TableName("public", 'O"dd')]
    with ExportedSnapshot(any_database.address, tables, application_name="test"):
        for rewrite in ("vacuum full t", "alter table t alter id type bigint", "truncate leaf"):
            with contextlib.closing(any_database.connect()) as other:
                other.execute("set lock_timeout = '50ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    other.execute(rewrite)
        any_database.execute("insert into t values (1)")
    any_database.execute("vacuum full t")


def test_a_missing_table_is_a_schema_error_and_leaves_nothing_behind(database: Database) -> None:
    with pytest.raises(SourceError, match=r"public\.t") as caught:
        ExportedSnapshot(database.address, [TABLE], application_name="left behind").__enter__()
    assert caught.value.kind is ErrorKind.SOURCE_SCHEMA
    assert database.execute("select 1 from pg_stat_activity where application_name = 'left behind'") == []


def test_a_writer_that_needs_an_exclusive_lock_does_not_hang_the_snapshot(database: Database) -> None:
    """The writer's transaction is open, so the snapshot waits for it; it must then be free to get its lock."""
    database.execute("create table t (id int)")
    with database.connect() as writer, ThreadPoolExecutor(1) as pool:
        writer.execute("begin")
        writer.execute("insert into t values (1)")
        taking = pool.submit(take_and_count, database)
        wait_until(lambda: database.execute(WAITING_EXPORTERS), "the export to wait for the writer")
        writer.execute("truncate t")
        writer.execute("insert into t values (2), (3)")
        writer.execute("commit")
        assert taking.result(timeout=30) == 2


WAITING_EXPORTERS = "select 1 from pg_stat_activity where backend_type = 'walsender' and wait_event_type = 'Lock'"


def take_and_count(database: Database) -> int:
    with ExportedSnapshot(database.address, [TABLE], application_name="test") as snapshot:
        return count(database, snapshot)


def test_a_table_rewritten_between_snapshot_and_lock_is_noticed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table t (id int)")
    lock = ExportedSnapshot._lock_tables

    def rewrite_then_lock(self: ExportedSnapshot, connection: Connection) -> None:
        database.execute("alter table t alter id type bigint")
        lock(self, connection)

    monkeypatch.setattr(ExportedSnapshot, "_lock_tables", rewrite_then_lock)
    with (
        pytest.raises(SourceError, match=r"\bt: rewritten") as raised,
        ExportedSnapshot(database.address, [TABLE], application_name="test"),
    ):
        pass
    assert raised.value.kind is ErrorKind.SOURCE_SNAPSHOT_LOST
