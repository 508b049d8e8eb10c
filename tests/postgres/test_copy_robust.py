"""What goes wrong inside a copy costs the range that it happened to, and never a row; a task's memory is bounded."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.contract import CopiedFile
from penstock.errors import ErrorKind
from penstock.model.copying import CopyRange
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableId
from penstock.postgres.catalog import describe_table
from penstock.postgres.connection import SourceAddress, connect
from penstock.postgres.ranges import plan_ranges
from penstock.postgres.snapshot import ExportedSnapshot
from penstock.spark.copy_plan import CopyPlan
from penstock.spark.copy_task import PAUSES_S, FileTarget, TaskFailure, write_range
from penstock.spark.rows import CopyRows
from penstock.testing.postgres import Database, wait_until

pytestmark = pytest.mark.postgres

COPYING = "select pid from pg_stat_activity where application_name = 'penstock copy' and datname = current_database()"
HELD = f"{COPYING} and wait_event_type = 'Lock'"
GATE = 4711
"""An advisory lock that rows of `GATED` wait for."""
GATED = f"id % 1000 <> 0 or pg_advisory_xact_lock_shared({GATE}) is not null"


def plan_copy(
    database: Database, snapshot: str, *, address: SourceAddress | None = None, max_connections: int = 4, **other: Any
) -> CopyPlan:
    """Plan a copy of table t."""
    with connect(database.address, application_name="test") as connection:
        row = connection.execute("select 'public.t'::regclass::oid::bigint").fetchone()
        assert row is not None
        schema = describe_table(connection, TableId(row[0]))
        ranges = plan_ranges(connection, schema)
    plan = CopyPlan(
        address or database.address, snapshot, schema, ranges, None, ValuePolicies(), max_connections=max_connections
    )
    return replace(plan, **other)


@contextlib.contextmanager
def exported(database: Database) -> Iterator[str]:
    with ExportedSnapshot(database.address, application_name="test") as snapshot:
        yield snapshot.name


@pytest.fixture
def large_table(database: Database) -> Database:
    """A table of some megabytes: more than a batch and what sockets hold."""
    database.execute("create table t (id bigint primary key, pad text)")
    database.execute("insert into t select g, repeat(md5(g::text), 30) from generate_series(1, 60000) g")
    return database


@dataclass
class Count:
    """What an accumulator of Spark's is to a task."""

    value: int = 0

    def add(self, more: int) -> None:
        self.value += more


@dataclass
class Task:
    """One range, written without Spark; remembers how long it would have paused."""

    plan: CopyPlan
    folder: Path
    rows: Count = field(default_factory=Count)
    pauses: list[float] = field(default_factory=list)

    def run(self) -> CopiedFile | TaskFailure | None:
        whole = replace(self.plan.ranges[0], end_block=None)
        target = FileTarget(str(self.folder), {}, {})
        return write_range(self.plan, target, self.rows, Count(), whole, pause=self.pauses.append)


class BrokenPlan(CopyPlan):
    """A plan whose reads lose their backend after the first batch, so many times."""

    breaks: list[Callable[[], object]] = []  # noqa: RUF012

    def read(self, part: CopyRange) -> Iterator[pa.RecordBatch]:
        batches = super().read(part)
        yield next(iter(batches))
        if self.breaks:
            self.breaks.pop()()
        yield from batches


def broken_plan(plan: CopyPlan, times: int, cause: Callable[[], object]) -> CopyPlan:
    values = {name: getattr(plan, name) for name in CopyPlan.__dataclass_fields__}
    broken = BrokenPlan(**values)
    BrokenPlan.breaks = [cause] * times
    return broken


def terminate_copies(database: Database) -> None:
    assert database.execute(f"select pg_terminate_backend(pid) from ({COPYING}) as copies") != []


def cancel_copies(database: Database) -> None:
    assert database.execute(f"select pg_cancel_backend(pid) from ({COPYING}) as copies") != []


@pytest.mark.parametrize("harm", [terminate_copies, cancel_copies])
def test_a_range_whose_backend_is_killed_is_read_again_and_leaves_one_file(
    large_table: Database, tmp_path: Path, harm: Callable[[Database], None]
) -> None:
    with exported(large_table) as snapshot:
        plan = broken_plan(plan_copy(large_table, snapshot), 2, lambda: harm(large_table))
        task = Task(plan, tmp_path)
        file = task.run()
    assert isinstance(file, CopiedFile)
    assert [Path(file.path)] == list(tmp_path.iterdir())
    assert copied_ids([file]) == list(range(1, 60001))
    assert (file.rows, task.rows.value, task.pauses) == (60000, 60000, [*PAUSES_S[:2]])


def test_a_range_whose_backend_is_killed_every_time_fails_after_all_attempts(
    large_table: Database, tmp_path: Path
) -> None:
    with exported(large_table) as snapshot:
        plan = broken_plan(plan_copy(large_table, snapshot), 99, lambda: terminate_copies(large_table))
        task = Task(plan, tmp_path)
        failure = task.run()
    assert isinstance(failure, TaskFailure)
    assert failure.kind in {ErrorKind.SOURCE_SHUTDOWN, ErrorKind.SOURCE_CONNECTION_FAILED}
    assert (task.pauses, task.rows.value, list(tmp_path.iterdir())) == ([*PAUSES_S], 0, [])


def test_a_snapshot_that_is_gone_is_not_asked_for_again(large_table: Database, tmp_path: Path) -> None:
    with exported(large_table) as snapshot:
        plan = plan_copy(large_table, snapshot)
    task = Task(plan, tmp_path)
    failure = task.run()
    assert isinstance(failure, TaskFailure)
    assert (failure.kind, task.pauses, list(tmp_path.iterdir())) == (ErrorKind.SOURCE_SNAPSHOT_LOST, [], [])


def test_a_source_that_restarts_takes_the_snapshot_with_it_and_the_range_says_so(
    large_table: Database, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        snapshot = stack.enter_context(exported(large_table))
        plan = broken_plan(plan_copy(large_table, snapshot), 1, lambda: end_everything(large_table))
        task = Task(plan, tmp_path)
        failure = task.run()
    assert isinstance(failure, TaskFailure)
    assert (failure.kind, len(task.pauses)) == (ErrorKind.SOURCE_SNAPSHOT_LOST, 1)


def end_everything(database: Database) -> None:
    """Do what a restart of the server does to its sessions."""
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    database.execute(f"select pg_terminate_backend(pid) {others}")
    wait_until(lambda: not database.execute(f"select 1 {others}"), "all sessions to end")


@pytest.fixture
def impatient(any_database: Database) -> Iterator[SourceAddress]:
    """A role whose sessions are ended by every timeout there is, unless they object."""
    role = f"impatient_{any_database.name}"
    any_database.execute(f"create role {role} login superuser replication")
    timeouts = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"]
    if any_database.version_major >= 17:
        timeouts.append("transaction_timeout")
    for name in timeouts:
        any_database.execute(f"alter role {role} set {name} = '20ms'")
    yield replace(any_database.address, user=role)
    any_database.execute(f"drop role {role}")


def test_timeouts_of_the_role_and_a_lock_do_not_end_a_copy(
    any_database: Database, impatient: SourceAddress, tmp_path: Path
) -> None:
    any_database.execute("create table t as select g as id from generate_series(1, 5000) g")
    with (
        any_database.connect() as holder,
        ExportedSnapshot(impatient, application_name="test") as snapshot,
        ThreadPoolExecutor(1) as pool,
    ):
        task = Task(plan_copy(any_database, snapshot.name, address=impatient), tmp_path)
        holder.execute("begin")
        holder.execute("lock table t in access exclusive mode")
        waiting = pool.submit(task.run)
        old = f"{HELD} and clock_timestamp() > query_start + interval '300 ms'"
        wait_until(lambda: any_database.execute(old), "the copy to wait for longer than all timeouts")
        holder.execute("commit")
        file = waiting.result()
    assert isinstance(file, CopiedFile)
    assert (file.rows, task.pauses) == (5000, [])


@dataclass
class Gate:
    """Holds copies in the middle, where their rows are `GATED`, until it is opened."""

    holder: psycopg.Connection[tuple[Any, ...]]

    @classmethod
    @contextlib.contextmanager
    def closed(cls, database: Database) -> Iterator[Gate]:
        with database.connect() as holder:
            holder.execute(f"select pg_advisory_lock({GATE})")
            yield cls(holder)

    def open(self) -> None:
        self.holder.execute(f"select pg_advisory_unlock({GATE})")


def write_until(database: Database, stop: threading.Event) -> None:
    with database.connect() as connection:
        while not stop.is_set():
            connection.execute("update t set pad = md5(pad) where id % 97 = (random() * 96)::int")
            connection.execute("insert into t select max(id) + 1, 'new' from t")
            connection.execute("delete from t where id in (select id from t where random() < 0.001)")


def wait_for_held(database: Database, known: set[int], what: str) -> set[int]:
    """Wait until two backends that were not known before are held by the gate, and return them.

    One whose client was killed does not notice while it waits for a lock.
    """
    held: set[int] = set()

    def are_two() -> bool:
        held.update(pid for (pid,) in database.execute(HELD) if pid not in known)
        return len(held) == 2

    wait_until(are_two, what, 120)
    return held


def worker_pids() -> list[int]:
    """Return Spark's Python workers: children of the process that forks them."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    processes = [line.split(None, 2) for line in listed.splitlines()[1:]]
    daemons = {pid for pid, ppid, args in processes if "pyspark.daemon" in args}
    ours = descendants(str(os.getpid()), processes)
    return [int(pid) for pid, ppid, args in processes if ppid in daemons and "pyspark" in args and pid in ours]


def descendants(pid: str, processes: Sequence[Sequence[str]]) -> set[str]:
    children = {each for each, parent, _ in processes if parent == pid}
    return children.union(*(descendants(child, processes) for child in children))


def copied_ids(files: Sequence[CopiedFile]) -> list[int]:
    columns = (pq.read_table(file.path).column("id") for file in files)
    return sorted(int(id_) for column in columns for id_ in column.to_numpy())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_killed_backends_and_workers_lose_and_repeat_no_row_while_writers_run(
    large_table: Database, spark: SparkSession, tmp_path: Path
) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(2) as pool, Gate.closed(large_table) as gate, large_table.connect() as witness:
        writer = pool.submit(write_until, large_table, stop)
        try:
            with exported(large_table) as snapshot:
                rows = CopyRows(plan_copy(large_table, snapshot, row_filter=GATED), Lsn(1), lambda: spark)
                copying = pool.submit(rows.write_files, str(tmp_path))
                first = wait_for_held(large_table, set(), "two ranges to be read")
                terminate_copies(large_table)
                again = wait_for_held(large_table, first, "both to be read again")
                for pid in worker_pids():
                    os.kill(pid, signal.SIGKILL)
                wait_for_held(large_table, first | again, "their tasks to be tried again")
                gate.open()
                files = copying.result()
                witness.execute("begin isolation level repeatable read")
                witness.execute(f"set transaction snapshot '{snapshot}'")
                expected = [id_ for (id_,) in witness.execute("select id from t order by id").fetchall()]
        finally:
            stop.set()
            writer.result()
    assert copied_ids(files) == expected
    assert rows.copied.rows == len(expected)


@pytest.mark.spark
@pytest.mark.parametrize("bound", [1, 2])
def test_a_copy_never_has_more_connections_than_configured(
    large_table: Database, spark: SparkSession, tmp_path: Path, bound: int
) -> None:
    seen: set[int] = set()
    with ThreadPoolExecutor(1) as pool, exported(large_table) as snapshot, large_table.connect() as watcher:
        plan = plan_copy(large_table, snapshot, max_connections=bound)
        assert len(plan.ranges) > 4
        copying = pool.submit(CopyRows(plan, Lsn(1), lambda: spark).write_files, str(tmp_path))
        while not copying.done():
            seen.add(len(watcher.execute(COPYING).fetchall()))
        files = copying.result()
    assert copied_ids(files) == list(range(1, 60001))
    assert 0 < max(seen) <= bound


# Says how much memory it needed more for a range than to begin with, in MiB.
MEASURED = """
import pickle, sys
from pathlib import Path
from unittest.mock import Mock
from penstock.spark.copy_task import FileTarget, write_range

def peak_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024

small, large, folder = pickle.load(sys.stdin.buffer)
for plan in (small, large):
    before = peak_mib()
    file = write_range(plan, FileTarget(folder, {}, {}), Mock(), Mock(), plan.ranges[0])
print(file.rows, peak_mib() - before)
"""


def measure_task(small: CopyPlan, large: CopyPlan, folder: Path) -> tuple[int, float]:
    """Write a range in a process of its own, after one that brings in all modules; return its rows and its memory."""
    given = pickle.dumps((small, large, str(folder)))
    done = subprocess.run([sys.executable, "-c", MEASURED], input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    rows, mib = done.stdout.split()
    return int(rows), float(mib)


@dataclass(frozen=True)
class Shape:
    create: str
    insert: str
    rows: int
    most_mib: float


SHAPES = {
    # 300 MiB, in rows of 100 kB; 1,600 columns; one row of 200 MiB.
    "wide rows": Shape(
        "create table t (id int, v text)",
        "insert into t select g, string_agg(md5((g * 10000 + n)::text), '')"
        " from generate_series(1, 3000) g, generate_series(1, 3200) n group by g",
        3000,
        300,
    ),
    "1,600 columns": Shape(
        f"create table t ({', '.join(f'c{n} int' for n in range(1600))})",
        f"insert into t select {', '.join(f'g + {n}' for n in range(1600))} from generate_series(1, 12000) g",
        12000,
        300,
    ),
    "a row of 200 MiB": Shape(
        "create table t (id int, v text); alter table t alter v set storage external",
        "insert into t select 1, string_agg(md5(n::text), '') from generate_series(1, 6553600) n",
        1,
        1100,
    ),
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", SHAPES)
def test_a_tasks_memory_is_bounded_however_wide_rows_are(database: Database, tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    database.execute(shape.create)
    database.execute(shape.insert)
    with exported(database) as snapshot:
        plan = plan_copy(database, snapshot)
        whole = replace(plan, ranges=(replace(plan.ranges[0], end_block=None),))
        rows, mib = measure_task(replace(whole, row_filter="false"), whole, tmp_path)
    assert (rows, mib <= shape.most_mib) == (shape.rows, True), mib


def test_a_table_of_some_megabytes_is_divided_and_a_small_one_is_not(large_table: Database) -> None:
    with exported(large_table) as snapshot:
        assert 4 < len(plan_copy(large_table, snapshot).ranges) <= 17
        large_table.execute("truncate t")
        large_table.execute("insert into t select g, 'small' from generate_series(1, 100) g")
        assert len(plan_copy(large_table, snapshot).ranges) == 1
