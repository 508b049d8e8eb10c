"""Nothing relies on executors being in the driver's process: what tasks need is sent to them, and they may be lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from plugins.iceberg import MakeCatalog
from plugins.pipeline import PUBLICATION, Pipelines
from pyspark.sql import SparkSession

import penstock
from penstock.contract import CopiedFile, Destination
from penstock.destinations.delta import DeltaDestination
from penstock.destinations.iceberg import IcebergDestination
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.table import PipelineId, TableId
from penstock.postgres.catalog import describe_table
from penstock.postgres.connection import connect
from penstock.postgres.ranges import plan_ranges
from penstock.postgres.snapshot import ExportedSnapshot
from penstock.spark.copy_plan import CopyPlan
from penstock.spark.rows import CopyRows
from penstock.store import MemoryStore
from penstock.testing.postgres import Database, wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.cluster, pytest.mark.cluster_only]

ROWS = 20_000
GATE = 4712
"""An advisory lock that some rows of every range wait for."""
GATED = f"id % 500 <> 0 or pg_advisory_xact_lock_shared({GATE}) is not null"
HELD = (
    "select pid from pg_stat_activity where application_name = 'penstock copy' and datname = current_database()"
    " and wait_event_type = 'Lock'"
)


@pytest.fixture
def source(database: Database) -> Database:
    database.execute("create table public.t (id bigint primary key, pad text)")
    database.execute(f"insert into t select g, repeat(md5(g::text), 30) from generate_series(1, {ROWS}) g")
    return database


def executors(spark: SparkSession) -> list[tuple[int, str]]:
    """Return every executor's process, and where its workers have this package from."""

    def tell(_: Any) -> tuple[int, str]:
        # A worker is forked by a daemon that the executor started.
        executor = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
        return int(executor), penstock.__file__

    return sorted(set(spark.sparkContext.parallelize(range(8), 8).map(tell).collect()))


def copy_plan(source: Database, snapshot: str, row_filter: str | None = None) -> CopyPlan:
    with connect(source.address, application_name="test") as connection:
        row = connection.execute("select 'public.t'::regclass::oid::bigint").fetchone()
        assert row is not None
        schema = describe_table(connection, TableId(row[0]))
        ranges = plan_ranges(connection, schema)
    return CopyPlan(source.address, snapshot, schema, ranges, row_filter, ValuePolicies(), max_connections=4)


def copied_ids(files: Sequence[CopiedFile]) -> list[int]:
    return sorted(int(id_) for file in files for id_ in pq.read_table(file.path).column("id").to_numpy())


def test_tasks_run_elsewhere_and_have_this_very_package(spark: SparkSession) -> None:
    found = executors(spark)
    jvm = spark._jvm
    assert jvm is not None
    assert jvm.ProcessHandle.current().pid() not in {executor for executor, _ in found}
    assert {place for _, place in found} == {penstock.__file__}


def test_a_lost_executor_costs_the_ranges_it_was_reading(spark: SparkSession, source: Database, tmp_path: Path) -> None:
    with (
        ThreadPoolExecutor(1) as pool,
        source.connect() as gate,
        ExportedSnapshot(source.address, application_name="test") as snapshot,
    ):
        lost = executors(spark)[0][0]
        gate.execute(f"select pg_advisory_lock({GATE})")
        rows = CopyRows(copy_plan(source, snapshot.name, GATED), Lsn(1), lambda: spark)
        copying = pool.submit(rows.write_files, str(tmp_path))
        wait_until(lambda: len(source.execute(HELD)) >= 2, "two ranges to be read", 60)
        held = {pid for (pid,) in source.execute(HELD)}
        os.kill(lost, signal.SIGKILL)
        wait_until(lambda: {pid for (pid,) in source.execute(HELD)} - held, "a range to be read again", 120)
        gate.execute(f"select pg_advisory_unlock({GATE})")
        files = copying.result()
    assert copied_ids(files) == list(range(1, ROWS + 1))
    assert rows.copied.rows == ROWS


def test_a_frame_is_read_by_executors(spark: SparkSession, source: Database) -> None:
    penstock.register(spark)
    options = {"host": source.host, "port": str(source.port), "dbname": source.name, "user": source.username}
    secret = {} if source.password is None else {"password": source.password}
    frame = spark.read.format("penstock").options(**options, **secret, table="public.t").load()
    [row] = frame.selectExpr("count(*) as n", "sum(id) as s").collect()
    assert (row.n, row.s) == (ROWS, ROWS * (ROWS + 1) // 2)


Lake = Callable[[MemoryStore], tuple[Destination, Callable[[], pa.Table]]]


@pytest.fixture(params=["delta", "iceberg"])
def lake(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, make_catalog: MakeCatalog
) -> Iterator[Lake]:
    with contextlib.ExitStack() as stack:

        def delta(store: MemoryStore) -> tuple[Destination, Callable[[], pa.Table]]:
            place = tmp_path / "lake"
            made = DeltaDestination(str(place), pipeline=PipelineId("p"), spark=lambda: spark, tables=store)

            def read() -> pa.Table:
                queried = QueryBuilder().register("t", DeltaTable(place / "public" / "t"))
                return pa.table(queried.execute("select id, pad from t").read_all())

            return made, read

        def iceberg(store: MemoryStore) -> tuple[Destination, Callable[[], pa.Table]]:
            catalog = make_catalog(tmp_path / "lake", None)
            made = IcebergDestination(catalog, pipeline=PipelineId("p"), spark=lambda: spark, tables=store)
            stack.callback(made.shutdown)
            return made, lambda: spark.read.table(f"{catalog.name}.public.t").select("id", "pad").toArrow()

        yield delta if request.param == "delta" else iceberg


def test_a_pipeline_copies_and_follows(spark: SparkSession, source: Database, lake: Lake, pipelines: Pipelines) -> None:
    store = MemoryStore()
    destination, read = lake(store)
    source.execute(f"create publication {PUBLICATION} for all tables")
    pipeline = pipelines.start(destination, store, spark=lambda: spark)
    pipelines.catch_up(pipeline, 120)
    source.execute("update t set pad = 'new' where id % 7 = 0")
    source.execute("delete from t where id % 11 = 0")
    source.execute(f"insert into t values ({ROWS + 1}, null)")
    pipelines.catch_up(pipeline)
    pipelines.stop(pipeline)
    wanted = sorted(source.execute("select id, pad from t"))
    assert sorted(zip(*(column.to_pylist() for column in read().columns), strict=True)) == wanted
