"""One exported snapshot gives every reader the same view, and that view has a place in the stream."""

from __future__ import annotations

import pytest

from penstock.errors import ErrorKind, SourceError
from penstock.model.lsn import Lsn
from penstock.postgres.connection import connect
from penstock.postgres.snapshot import ExportedSnapshot, import_snapshot
from penstock.testing.postgres import Database, wait_until

pytestmark = pytest.mark.postgres


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
    with ExportedSnapshot(any_database.address, application_name="exporter") as snapshot:
        pass
    # The server takes a moment to notice that the session has ended.
    exporters = "select 1 from pg_stat_activity where application_name = 'exporter' and datname = current_database()"
    wait_until(lambda: not any_database.execute(exporters), "the exporter's session to end")
    with connect(any_database.address, application_name="test") as connection:
        with pytest.raises(SourceError, match="is gone") as caught:
            import_snapshot(connection, snapshot.name)
        # The session is as good as new afterwards.
        assert connection.execute("select 1").fetchone() == (1,)
    assert caught.value.kind is ErrorKind.SOURCE_SNAPSHOT_LOST
