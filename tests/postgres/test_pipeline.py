"""The pipeline against a real server, into memory: copies, changes, hand-over, acknowledgement, restart."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
from plugins.pipeline import PUBLICATION, Pipelines

from penstock.contract import EventBatch, RowBatch, Upkeep
from penstock.destinations.memory.destination import MemoryDestination
from penstock.errors import DestinationError, ErrorKind, LogDamagedError, PenstockError, StateError
from penstock.model.event import Begin, Commit, Delete, Insert, Relation, Truncate, Update
from penstock.model.lsn import Lsn
from penstock.model.phase import Errored, Ready
from penstock.model.table import PipelineId, TableId, TableSchema
from penstock.runtime.pipeline import Pipeline
from penstock.store import MemoryStore, SQLiteStore
from penstock.testing.postgres import Database, wait_until

pytestmark = pytest.mark.postgres

Publish = Callable[[str], None]


def table_id(database: Database, table: str) -> TableId:
    [(oid,)] = database.execute(f"select '{table}'::regclass::oid::int")
    return TableId(oid)


def rows_of(destination: MemoryDestination, pipeline: Pipeline, table: TableId) -> list[tuple[object, ...]]:
    schema = pipeline._tables.schema(table)
    return sorted(row.values for row in destination.current_rows(schema))


def assert_equal(database: Database, pipelines: Pipelines, pipeline: Pipeline, destination: MemoryDestination) -> None:
    pipelines.catch_up(pipeline)
    for (table,) in database.execute("select tablename from pg_publication_tables order by 1"):
        found = rows_of(destination, pipeline, table_id(database, table))
        assert found == sorted(database.execute(f"select * from {table}")), table


def slot_position(database: Database) -> Lsn:
    [(lsn,)] = database.execute("select confirmed_flush_lsn::text from pg_replication_slots where not temporary")
    return Lsn.parse(lsn)


def wait_until_slot_is_free(database: Database) -> None:
    """The server's end of a closed connection takes a moment to go."""
    wait_until(
        lambda: not database.execute("select 1 from pg_replication_slots where active"), "the walsender to be gone"
    )


def test_rows_from_before_and_changes_from_after_the_start_arrive_once(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    publish("create table t(id int primary key, v text); insert into t select g, 'old' from generate_series(1, 100) g")
    destination = MemoryDestination()
    pipeline = pipelines.start(destination)
    pipelines.catch_up(pipeline)
    database.execute("insert into t values (101, 'new')")
    database.execute("update t set v = 'changed' where id = 1; delete from t where id = 2")
    assert_equal(database, pipelines, pipeline, destination)
    kinds = [type(event) for event in destination.events if not isinstance(event, Relation)]
    assert kinds == [Begin, Insert, Commit, Begin, Update, Delete, Commit]


def test_every_kind_of_change_keeps_source_and_destination_equal(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    publish(
        "create table t(a int, b text, v text, primary key (a, b));"
        "create table full_identity(id int primary key, v text);"
        "alter table full_identity replica identity full; create table other(id int primary key)"
    )
    destination = MemoryDestination()
    pipeline = pipelines.start(destination)
    pipelines.catch_up(pipeline)
    database.execute(
        "insert into t select g, 'k', string_agg(md5(g::text || n), '') from generate_series(1, 5) g, "
        "generate_series(1, 300) n group by g"
    )  # 9,600 characters: TOASTed
    database.execute("update t set b = 'other' where a = 1")  # a new key, the TOASTed value not sent again
    database.execute("update t set a = a + 10 where a > 1; update t set b = b where a = 12")
    database.execute("delete from t where a = 13; insert into t values (13, 'k', null)")
    database.execute("insert into full_identity values (1, repeat('x', 9000)), (2, 'y')")
    database.execute("update full_identity set id = 3 where id = 1; delete from full_identity where id = 2")
    database.execute("insert into other values (1), (2); truncate other; insert into other values (3)")
    with database.connect(autocommit=False) as connection:
        connection.execute("insert into other values (99)")
        connection.rollback()
    assert_equal(database, pipelines, pipeline, destination)
    assert any(isinstance(event, Truncate) for event in destination.events)


def test_a_transaction_larger_than_a_segment_arrives_whole(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    publish("create table t(id int primary key, v text)")
    destination = MemoryDestination()
    pipeline = pipelines.start(destination, batch={"max_fill_ms": 20, "max_bytes": 200_000})
    pipelines.catch_up(pipeline)
    database.execute("insert into t select g, repeat('x', 100) from generate_series(1, 20000) g")
    assert_equal(database, pipelines, pipeline, destination)
    assert Counter(type(event) for event in destination.events)[Insert] == 20000
    assert pipeline._reader.next_sequence > 5, "the transaction was not spread over segments"
    positions = [event.position for event in destination.events if isinstance(event, Insert)]
    assert positions == sorted(set(positions))


def test_a_killed_receiver_is_replaced_and_nothing_is_lost_or_repeated(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    publish("create table t(id int primary key)")
    destination = MemoryDestination()
    pipeline = pipelines.start(destination)
    pipelines.catch_up(pipeline)
    for number in range(3):
        database.execute(f"insert into t select g from generate_series({number * 100}, {number * 100 + 99}) g")
        pid = pipeline.report.receiver_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        database.execute(f"update t set id = -id where id = {number * 100 + 1}")
        wait_until(lambda: pipeline.report.receiver_pid != pid, "a new receiver")  # noqa: B023
    assert_equal(database, pipelines, pipeline, destination)
    assert pipeline.report.receiver_restarts >= 3
    seen = Counter(event.position for event in destination.events if isinstance(event, Insert | Update))
    assert set(seen.values()) == {1}


def test_a_restarted_pipeline_goes_on_where_it_stood(
    database: Database, pipelines: Pipelines, publish: Publish, tmp_path: Path
) -> None:
    publish("create table t(id int primary key); insert into t values (1)")
    first, second = MemoryDestination(), MemoryDestination()
    with closing(SQLiteStore(tmp_path / "s.sqlite", PipelineId("p"))) as store:
        pipeline = pipelines.start(first, store)
        pipelines.catch_up(pipeline)
        pipelines.stop(pipeline)
    database.execute("insert into t values (2)")
    with closing(SQLiteStore(tmp_path / "s.sqlite", PipelineId("p"))) as store:
        pipeline = pipelines.start(second, store)
        pipelines.catch_up(pipeline)
        pipelines.stop(pipeline)
    assert first.table_rows(table_id(database, "t"))
    assert not second.table_rows(table_id(database, "t"))
    assert [event.row.values for event in second.events if isinstance(event, Insert)] == [(2,)]


def test_an_idle_database_lets_the_slot_advance(database: Database, pipelines: Pipelines, publish: Publish) -> None:
    publish("create table t(id int primary key)")
    pipeline = pipelines.start(MemoryDestination())
    pipelines.catch_up(pipeline)
    database.execute("create table unpublished_work as select g from generate_series(1, 1000) g")
    [(lsn,)] = database.execute("select pg_current_wal_insert_lsn()::text")
    wait_until(lambda: slot_position(database) >= Lsn.parse(lsn), "the slot to follow the idle position")


def test_the_slot_waits_for_the_destination(database: Database, pipelines: Pipelines, publish: Publish) -> None:
    class Stuck(MemoryDestination):
        name: ClassVar[str] = "stuck"

        def write_events(self, events: EventBatch) -> None:  # noqa: ARG002
            raise DestinationError("no", kind=ErrorKind.DESTINATION_UNAVAILABLE)

    publish("create table t(id int primary key)")
    pipeline = pipelines.start(Stuck(), table_error_retry_delay_ms=50)
    pipelines.catch_up(pipeline)
    [(before,)] = database.execute("select pg_current_wal_insert_lsn()::text")
    database.execute("insert into t values (1)")
    wait_until(lambda: pipeline.report.tables[0].error, "the table to fail")
    assert pipeline.report.tables[0].watermark is not None
    assert Lsn.parse(pipeline.report.tables[0].watermark) <= Lsn.parse(before)
    assert pipeline._reader.start_lsn <= Lsn.parse(before), "the log has lost what the table needs"


def test_one_broken_table_stops_alone_and_recovers_without_loss(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    broken: list[TableId] = []

    class Picky(MemoryDestination):
        name: ClassVar[str] = "picky"

        def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
            if table.id in broken:
                raise DestinationError("not now", kind=ErrorKind.DESTINATION_UNAVAILABLE)
            super().write_table_rows(table, rows)

    publish("create table good(id int primary key); create table bad(id int primary key); insert into bad values (1)")
    broken.append(table_id(database, "bad"))
    destination, store = Picky(), MemoryStore()
    pipeline = pipelines.start(destination, store, table_error_retry_delay_ms=300, table_error_retry_max_attempts=50)
    good, bad = table_id(database, "good"), table_id(database, "bad")
    wait_until(lambda: isinstance(store.get_table_replication_state(bad), Errored), "the table to stop")
    database.execute("insert into good values (1); insert into bad values (2)")
    wait_until(lambda: isinstance(store.get_table_replication_state(good), Ready), "the other to be ready")
    broken.clear()
    assert_equal(database, pipelines, pipeline, destination)


def test_tables_join_and_leave_while_it_runs(database: Database, pipelines: Pipelines, publish: Publish) -> None:
    database.execute(f"create table a(id int primary key); create publication {PUBLICATION} for table a")
    destination, store = MemoryDestination(), MemoryStore()
    pipeline = pipelines.start(destination, store)
    pipelines.catch_up(pipeline)
    database.execute("create table b(id int primary key); insert into b values (1)")
    database.execute(f"alter publication {PUBLICATION} add table b")
    joined = table_id(database, "b")
    wait_until(lambda: isinstance(store.get_table_replication_state(joined), Ready), "the new table to be ready")
    database.execute("insert into b values (2)")
    database.execute(f"alter publication {PUBLICATION} drop table a")
    left = table_id(database, "a")
    wait_until(lambda: store.get_table_replication_state(left) is None, "the old table to be forgotten")
    assert_equal(database, pipelines, pipeline, destination)


def test_an_empty_table_is_created_and_becomes_ready_without_traffic(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    created: list[str] = []

    class Recording(MemoryDestination):
        def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
            created.append(str(table.name))
            super().write_table_rows(table, rows)

    publish("create table empty(id int primary key)")
    pipeline = pipelines.start(Recording())
    pipelines.catch_up(pipeline)
    assert created == ["public.empty"]


def test_a_pipeline_runs_once(database: Database, pipelines: Pipelines, publish: Publish) -> None:
    publish("create table t(id int primary key)")
    pipeline = pipelines.start(MemoryDestination())
    with pytest.raises(StateError, match="started already"):
        pipeline.start()


def test_a_second_replicator_is_refused(database: Database, pipelines: Pipelines, publish: Publish) -> None:
    publish("create table t(id int primary key)")
    pipelines.start(MemoryDestination())
    with pytest.raises(StateError, match="another replicator"):
        pipelines.start(MemoryDestination())


def test_a_missing_slot_is_never_quietly_replaced(database: Database, pipelines: Pipelines, publish: Publish) -> None:
    publish("create table t(id int primary key)")
    store = MemoryStore()
    pipeline = pipelines.start(MemoryDestination(), store)
    pipelines.catch_up(pipeline)
    pipelines.stop(pipeline)
    wait_until_slot_is_free(database)
    database.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
    with pytest.raises(PenstockError) as raised:
        pipelines.start(MemoryDestination(), store)
    assert raised.value.kind is ErrorKind.SLOT_MISSING
    destination = MemoryDestination()
    database.execute("insert into t values (1)")
    pipeline = pipelines.start(destination, store, invalidated_slot="resync")
    assert_equal(database, pipelines, pipeline, destination)


def test_a_slot_that_moved_past_the_log_is_a_named_loss(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    publish("create table t(id int primary key)")
    store = MemoryStore()
    pipeline = pipelines.start(MemoryDestination(), store)
    pipelines.catch_up(pipeline)
    pipelines.stop(pipeline)
    database.execute("insert into t values (1)")
    wait_until_slot_is_free(database)
    database.execute("select pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) from pg_replication_slots")
    with pytest.raises(LogDamagedError, match="is lost"):
        pipelines.start(MemoryDestination(), store)


def test_a_table_truncated_during_its_copy_begins_with_the_truncate(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    class Truncating(MemoryDestination):
        def truncate_table(self, table: TableId) -> None:
            super().truncate_table(table)
            database.execute("insert into t values (2); truncate t; insert into t values (3)")

    publish("create table t(id int primary key); insert into t values (1)")
    destination = Truncating()
    pipeline = pipelines.start(destination)
    assert_equal(database, pipelines, pipeline, destination)
    assert not destination.table_rows(table_id(database, "t"))


def test_a_table_rewritten_during_its_copy_is_copied_again(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    rewrites: list[int] = []

    class Rewriting(MemoryDestination):
        def truncate_table(self, table: TableId) -> None:
            super().truncate_table(table)
            if len(rewrites) < 2:
                rewrites.append(1)
                database.execute("vacuum full t")

    publish("create table t(id int primary key); insert into t values (1)")
    destination = Rewriting()
    pipeline = pipelines.start(destination)
    assert_equal(database, pipelines, pipeline, destination)
    assert len(destination.table_rows(table_id(database, "t"))) == 1


def test_shutdown_does_not_wait_for_a_copy(database: Database, pipelines: Pipelines, publish: Publish) -> None:
    reading: list[bool] = []

    class Slow(MemoryDestination):
        def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:  # noqa: ARG002
            while True:  # reads for ever, until cancelled
                reading.extend(True for _ in rows)

    publish("create table t(id int primary key); insert into t values (1)")
    pipeline = pipelines.start(Slow())
    wait_until(lambda: reading, "the copy to be under way")
    pipelines.stop(pipeline)


def test_what_came_before_a_change_of_columns_is_applied_and_the_table_says_why_it_stopped(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    publish("create table t(id int primary key); create table other(id int primary key)")
    destination, store = MemoryDestination(), MemoryStore()
    pipeline = pipelines.start(destination, store)
    pipelines.catch_up(pipeline)
    pipelines.stop(pipeline)
    database.execute("insert into t values (1)")
    database.execute("begin; insert into t values (2); alter table t add column v text; insert into t values (3); end")
    database.execute("insert into other values (4)")
    pipeline = pipelines.start(destination, store)
    pipelines.catch_up(pipeline)
    assert rows_of(destination, pipeline, table_id(database, "t")) == [(1,)]
    assert rows_of(destination, pipeline, table_id(database, "other")) == [(4,)]
    phases = {table.name: (table.phase, table.error) for table in pipeline.report.tables}
    assert phases["public.other"] == ("ready", None)
    assert phases["public.t"] == ("errored", "table public.t: its columns changed at the source: gained v")


def test_a_special_value_stops_its_table_and_is_kept_for_another_policy(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    publish("create table t(id int primary key, d date); create table other(id int primary key)")
    store, destination = MemoryStore(), MemoryDestination()
    pipeline = pipelines.start(destination, store)
    pipelines.catch_up(pipeline)
    database.execute("insert into t values (1, 'infinity'), (2, '2024-01-01'); insert into other values (1)")
    stopped = table_id(database, "t")
    wait_until(lambda: isinstance(store.get_table_replication_state(stopped), Errored), "the table to stop")
    phase = store.get_table_replication_state(stopped)
    assert isinstance(phase, Errored)
    assert "public.t" in phase.reason
    assert "column d" in phase.reason
    pipelines.stop(pipeline)
    store.rollback_table_replication_state(stopped)
    pipeline = pipelines.start(destination, store, special_values="clamp")
    pipelines.catch_up(pipeline)
    values = rows_of(destination, pipeline, stopped)
    assert [str(value[1]) for value in values] == ["9999-12-31", "2024-01-01"]


class Lake(MemoryDestination):
    """Commits positions with its rows, as a lake does, and can be out of reach."""

    name: ClassVar[str] = "lake"

    def __init__(self) -> None:
        super().__init__()
        self.watermarks: dict[TableId, Lsn] = {}
        self.parts: dict[TableId, int] = {}
        self.is_away = False

    def watermark(self, table: TableId) -> Lsn | None:
        self._require()
        return self.watermarks.get(table)

    def copied_parts(self, table: TableId) -> int:
        self._require()
        return self.parts.get(table, 0)

    def truncate_table(self, table: TableId) -> None:
        super().truncate_table(table)
        self.parts[table] = 0

    def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
        self._require()
        super().write_table_rows(table, rows)
        self.watermarks[table.id] = rows.watermark
        self.parts[table.id] = rows.part + 1

    def write_events(self, events: EventBatch) -> None:
        self._require()
        super().write_events(events)
        self.watermarks.update(dict.fromkeys(events.tables(), events.end_lsn))

    def _require(self) -> None:
        if self.is_away:
            raise DestinationError("the lake is away", kind=ErrorKind.DESTINATION_UNAVAILABLE)


class KeptLake(Lake):
    """One whose tables need upkeep, and which counts what it got."""

    upkeep_every_s: float | None = None
    brief_upkeep_after = 1

    def __init__(self) -> None:
        super().__init__()
        self.batches: Counter[TableId] = Counter()

    def upkeep(self, table: TableSchema, is_stopping: Callable[[], bool], *, is_brief: bool = False) -> Upkeep:
        raise AssertionError(f"{table.name} has no schedule", is_stopping(), is_brief)

    def write_events(self, events: EventBatch) -> None:
        self.batches.update(events.tables().keys())
        super().write_events(events)


def test_a_lakes_table_takes_updates_no_more_often_than_configured(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    publish(
        "create table t(id int primary key, n int); create table u(id int primary key); insert into t values (1, 0)"
    )
    lake = KeptLake()
    pipeline = pipelines.start(lake, batch={"max_fill_ms": 20, "merge_every_ms": 1000})
    pipelines.catch_up(pipeline)
    t, u = table_id(database, "t"), table_id(database, "u")
    began, number = time.monotonic(), 0
    while lake.batches[u] < 10:
        number += 1
        before = lake.batches[u]
        database.execute(f"update t set n = {number}; insert into u values ({number})")
        wait_until(lambda before=before: lake.batches[u] > before, "an insert to be applied")  # type: ignore[misc]
    pipelines.catch_up(pipeline)
    assert lake.batches[t] <= 1 + time.monotonic() - began
    assert lake.batches[t] < lake.batches[u], "inserts do not wait"
    assert rows_of(lake, pipeline, t) == [(1, number)]


def test_an_outage_of_the_destination_is_outlived(database: Database, pipelines: Pipelines, publish: Publish) -> None:
    publish("create table t(id int primary key); create table u(id int primary key)")
    lake = Lake()
    pipeline = pipelines.start(lake, table_error_retry_delay_ms=50, table_error_retry_max_attempts=100)
    pipelines.catch_up(pipeline)
    lake.is_away = True
    database.execute("insert into t values (1)")
    attempts = pipeline._tables.get(table_id(database, "t"))
    wait_until(lambda: attempts.attempts >= 3, "the table to be tried again and again")
    assert not pipeline.wait(0)
    lake.is_away = False
    assert_equal(database, pipelines, pipeline, lake)
    seen = Counter(event.position for event in lake.events if isinstance(event, Insert))
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("identity", ["default", "full"])
def test_changes_of_a_table_that_is_gone_do_not_stop_the_others(
    database: Database, pipelines: Pipelines, publish: Publish, identity: str
) -> None:
    publish(
        "create table keep(id int primary key); create type mood as enum ('a');"
        f"create table gone(id int primary key, m mood); alter table gone replica identity {identity}"
    )
    destination, store = MemoryDestination(), MemoryStore()
    pipeline = pipelines.start(destination, store)
    pipelines.catch_up(pipeline)
    pipelines.stop(pipeline)
    database.execute("insert into gone values (1, 'a')")
    database.execute("drop table gone; drop type mood; insert into keep values (1)")
    pipeline = pipelines.start(destination, store)
    assert_equal(database, pipelines, pipeline, destination)


@pytest.mark.parametrize("is_running", [True, False])
def test_a_table_that_left_and_came_back_is_copied_anew(
    database: Database, pipelines: Pipelines, is_running: bool
) -> None:
    database.execute(
        f"create table t(id int primary key); create table u(id int primary key);"
        f"create publication {PUBLICATION} for table t, u"
    )
    destination, store = MemoryDestination(), MemoryStore()
    pipeline = pipelines.start(destination, store)
    pipelines.catch_up(pipeline)
    if not is_running:
        pipelines.stop(pipeline)
    database.execute(f"alter publication {PUBLICATION} drop table t")
    database.execute("insert into t values (1)")  # not sent to anyone
    database.execute(f"alter publication {PUBLICATION} add table t")
    database.execute("insert into t values (2)")
    if not is_running:
        pipeline = pipelines.start(destination, store)
    wait_until(lambda: len(destination.table_rows(table_id(database, "t"))) == 2, "the table to be copied anew")
    assert_equal(database, pipelines, pipeline, destination)


def test_a_transaction_larger_than_the_whole_log_gets_through(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    publish("create table t(id int primary key, v text)")
    destination = MemoryDestination()
    batch, log = {"max_fill_ms": 20, "max_bytes": 200_000}, {"max_bytes": 100_000}
    pipeline = pipelines.start(destination, batch=batch, log=log)
    pipelines.catch_up(pipeline)
    database.execute("insert into t select g, md5(g::text) || md5((g + 1)::text) from generate_series(1, 5000) g")
    assert_equal(database, pipelines, pipeline, destination)


def test_shutdown_does_not_wait_for_a_transaction_at_the_source(database: Database, pipelines: Pipelines) -> None:
    database.execute("create table t(id int primary key); create table other(id int)")
    database.execute(f"create publication {PUBLICATION} for table t")
    pipeline = pipelines.start(MemoryDestination())
    pipelines.catch_up(pipeline)
    with database.connect(autocommit=False) as writer:
        writer.execute("insert into other values (1)")
        database.execute(f"alter publication {PUBLICATION} add table other")
        waiting = "select 1 from pg_stat_activity where backend_type = 'walsender' and wait_event_type = 'Lock'"
        wait_until(lambda: database.execute(waiting), "the snapshot to wait for the writer")
        pipelines.stop(pipeline)
        writer.rollback()


def test_a_status_that_cannot_be_written_stops_nothing(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    publish("create table t(id int primary key)")
    (pipelines.state_dir / "status.json").mkdir(parents=True)
    destination = MemoryDestination()
    pipeline = pipelines.start(destination)
    pipelines.catch_up(pipeline)
    assert not pipeline.wait(1.5)
    database.execute("insert into t values (1)")
    assert_equal(database, pipelines, pipeline, destination)
