"""Every step of the protocol interrupted, against a real server: source and destination still agree.

The receiver is killed at a failpoint again and again; the driver's workers fail at theirs and recover.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from plugins.pipeline import Pipelines

from penstock import failpoint
from penstock.destinations.memory.destination import MemoryDestination
from penstock.model.event import Insert
from penstock.model.table import TableId
from penstock.runtime.pipeline import Pipeline
from penstock.testing.postgres import Database, wait_until

pytestmark = pytest.mark.postgres

Publish = Callable[[str], None]
FAILURES = 2


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint.arm("")


def assert_equal(database: Database, destination: MemoryDestination, pipeline: Pipeline) -> None:
    [(oid,)] = database.execute("select 't'::regclass::oid::int")
    rows = destination.current_rows(pipeline._tables.schema(TableId(oid)))
    assert sorted(row.values for row in rows) == sorted(database.execute("select * from t"))


# In every run receivers without a pipeline are killed at each of these, and drivers' at some in the fault matrix.
_SELDOM = (
    "changelog.after_data=kill@4",
    "changelog.before_entry=kill@4",
    "changelog.after_trim_header=kill@2",
    "receiver.before_status=kill@5",
)


@pytest.mark.parametrize(
    "moment",
    ["changelog.after_entry=kill@4", *(pytest.param(moment, marks=pytest.mark.long) for moment in _SELDOM)],
)
def test_a_receiver_killed_at_any_step_loses_and_repeats_nothing(
    database: Database, pipelines: Pipelines, publish: Publish, moment: str
) -> None:
    publish("create table t(id int primary key, v text)")
    destination = MemoryDestination()
    pipeline = pipelines.start(destination, failpoints=moment, batch={"max_fill_ms": 10})
    pipelines.catch_up(pipeline)
    wait_until(lambda: write_and_look(database, pipeline), "the receiver to be killed")
    pipeline._failpoints = ""  # from its next start on, or how long this takes depends on how soon each life ends
    pipelines.catch_up(pipeline)
    assert_equal(database, destination, pipeline)
    seen = Counter(event.position for event in destination.events if isinstance(event, Insert))
    assert set(seen.values()) == {1}


@pytest.mark.parametrize(
    "moment",
    [
        "table_sync.before_copy=raise*2",
        "table_sync.after_copy=raise*2",
        "table_sync.before_catchup=raise*2",
        "apply.before_write=raise*2",
        "apply.after_write=raise*2",
    ],
)
def test_a_worker_that_fails_at_any_step_stops_its_table_and_the_next_run_goes_on(
    database: Database, pipelines: Pipelines, publish: Publish, moment: str
) -> None:
    publish("create table t(id int primary key, v text); insert into t values (-1, 'before')")
    destination = MemoryDestination()
    failpoint.arm(moment)
    pipeline = pipelines.start(destination)
    stops = 0
    for _ in range(10 * FAILURES):
        write_one(database)
        pipelines.catch_up(pipeline)
        stops += roll_back_if_stopped(pipeline)
    assert stops == FAILURES
    pipelines.catch_up(pipeline)
    assert_equal(database, destination, pipeline)


def write_one(database: Database) -> None:
    database.execute("insert into t select coalesce(max(id), 0) + 1, 'x' from t; update t set v = 'y' where id % 3 = 0")


def write_and_look(database: Database, pipeline: Pipeline) -> bool:
    """Write on, until the receiver has been killed often enough."""
    write_one(database)
    return pipeline.report.receiver_restarts >= FAILURES


def roll_back_if_stopped(pipeline: Pipeline) -> bool:
    """Do what an operator would: an error that is not ours to judge waits for a person."""
    [table] = pipeline.report.tables
    if table.phase == "errored":
        pipeline._tables.roll_back(TableId(table.id))
    return table.phase == "errored"
