"""When tables get their upkeep, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from penstock.contract import Maintained, Upkeep
from penstock.errors import DestinationError
from penstock.model.lsn import Lsn
from penstock.model.phase import DataSync, Phase, Ready
from penstock.model.table import TableId, TableName, TableSchema
from penstock.runtime.report import table_report
from penstock.runtime.tables import Tables
from penstock.runtime.upkeep import UpkeepWorker
from penstock.store.memory import MemoryStore
from penstock.testing.destination_suite import ITEMS

ORDERS = replace(ITEMS, id=TableId(2), name=TableName("public", "orders"))


@dataclass
class Lake:
    """A destination that takes two seconds for each upkeep."""

    looked_after: list[TableId] = field(default_factory=list)
    briefly: list[float] = field(default_factory=list)
    """When there was a brief one."""
    fails: bool = False
    now: float = 0.0
    meanwhile: Callable[[], None] = lambda: None
    """What happens while a table is looked after."""
    upkeep_every_s: float | None = 60.0
    brief_upkeep_after: int = 8

    def upkeep(self, table: TableSchema, is_stopping: Callable[[], bool], *, is_brief: bool = False) -> Upkeep:
        assert not is_stopping()
        self.looked_after.append(table.id)
        self.briefly += [self.now] if is_brief else []
        self.meanwhile()
        self.now += 2
        if self.fails:
            raise DestinationError("the lake is away")
        return Upkeep(files=3, rewritten_files=9, rewritten_bytes=900, written_files=1, written_bytes=500)


@pytest.fixture
def lake() -> Lake:
    return Lake()


@pytest.fixture
def tables() -> Tables:
    store = MemoryStore()
    tables = Tables(store)
    phases: dict[TableSchema, Phase] = {ITEMS: Ready(), ORDERS: DataSync()}
    for schema, phase in phases.items():
        store.store_table_schema(schema)
        tables.add(schema.id, schema.name, phase, Lsn(1))
    return tables


@pytest.fixture
def worker(lake: Lake, tables: Tables) -> UpkeepWorker:
    assert isinstance(lake, Maintained)
    return UpkeepWorker(lake, tables, 60.0, lambda: lake.now)


def test_a_followed_table_gets_its_upkeep_a_while_after_it_is_met_and_then_again(
    lake: Lake, worker: UpkeepWorker
) -> None:
    for lake.now, times in ((0, 0), (59, 0), (60, 1), (121, 1), (122, 2), (183, 2), (184, 3)):
        worker.step()
        assert lake.looked_after == [ITEMS.id] * times


def test_a_table_gets_a_brief_one_after_some_batches_however_short_the_time_is(
    lake: Lake, tables: Tables, worker: UpkeepWorker
) -> None:
    state = tables.get(ITEMS.id)
    for second in range(60):
        lake.now = second
        tables.advance(ITEMS.id, Lsn(10 + second), events=second % 2)
        tables.advance(ORDERS.id, Lsn(10 + second), events=1)
        worker.step()
    assert state.batches == 30
    assert lake.briefly == [15, 31, 47], "every eight batches that had changes"
    assert set(lake.looked_after) == {ITEMS.id}, "and none while a table is copied"


def test_brief_ones_keep_a_distance(lake: Lake, tables: Tables, worker: UpkeepWorker) -> None:
    lake.brief_upkeep_after = 1
    for second in range(20):
        lake.now = max(lake.now, second)
        tables.advance(ITEMS.id, Lsn(10 + second), events=1)
        worker.step()
    assert lake.briefly == [8, 18], "each took two seconds, and an eighth of a minute passed"


def test_what_an_upkeep_by_the_clock_has_seen_to_needs_no_brief_one(
    lake: Lake, tables: Tables, worker: UpkeepWorker
) -> None:
    worker.step()
    for number in range(8):
        tables.advance(ITEMS.id, Lsn(10 + number), events=1)
    for lake.now in (60, 63, 66, 70):
        worker.step()
        tables.advance(ITEMS.id, Lsn(100 + int(lake.now)), events=1)
    assert (len(lake.looked_after), lake.briefly) == (1, [])


def test_a_pause_is_used_once_between_two_by_the_clock(lake: Lake, tables: Tables, worker: UpkeepWorker) -> None:
    begun: list[float] = []
    lake.meanwhile = lambda: begun.append(lake.now)
    changes_at = {*range(6), *range(20, 24), *range(140, 146)}
    for second in range(170):
        lake.now = max(lake.now, second)
        if second in changes_at:
            tables.advance(ITEMS.id, Lsn(10 + second), events=1)
        worker.step()
    # The first pause; a minute after it, since there was a second one; by the clock; the third pause.
    assert begun == [10, 70, 132, 150]
    assert lake.briefly == []


def test_a_pause_behind_which_nothing_is_left_to_do_is_no_reason(
    lake: Lake, tables: Tables, worker: UpkeepWorker
) -> None:
    for lake.now in range(55):
        worker.step()
    tables.advance(ITEMS.id, Lsn(10), events=1)
    for lake.now in (54, 60, 70, 80):
        worker.step()
    assert len(lake.looked_after) == 1, "by the clock, in the pause"


def test_one_by_the_clock_right_behind_a_batch_leaves_the_pause_to_the_next(
    lake: Lake, tables: Tables, worker: UpkeepWorker
) -> None:
    begun: list[float] = []
    lake.meanwhile = lambda: begun.append(lake.now)
    for lake.now in range(58):
        worker.step()
    tables.advance(ITEMS.id, Lsn(10), events=1)
    for lake.now in (58, 60, 62, 63, 70, 80):
        worker.step()
    assert begun == [60, 63]


def test_a_table_that_joins_the_publication_again_is_a_new_one(
    lake: Lake, tables: Tables, worker: UpkeepWorker
) -> None:
    for number in range(20):
        tables.advance(ITEMS.id, Lsn(10 + number), events=1)
    for lake.now in (0, 60):
        worker.step()
    assert lake.looked_after == [ITEMS.id]
    tables.remove(ITEMS.id)
    tables.store.store_table_schema(ITEMS)
    tables.add(ITEMS.id, ITEMS.name, Ready(), Lsn(100))
    lake.now = 63
    worker.step()
    for number in range(8):
        tables.advance(ITEMS.id, Lsn(200 + number), events=1)
    lake.now = 71
    worker.step()
    assert lake.briefly == [71], "behind its first eight batches"


def test_what_was_done_is_told(lake: Lake, tables: Tables, worker: UpkeepWorker) -> None:
    with capture_logs() as lines:
        for lake.now in (0, 60, 200):
            worker.step()
    assert [(line["event"], line["log_level"]) for line in lines] == [("table was kept up", "info")] * 2
    wanted = {"table": "public.items", "seconds": 2, "rewritten_files": 9, "files": 3}
    assert {name: lines[0][name] for name in wanted} == wanted
    told = table_report(tables.get(ITEMS.id))
    assert (told.files, told.upkeep_runs, told.upkeep_seconds) == (3, 2, 4.0)
    assert (told.upkeep_rewritten_files, told.upkeep_rewritten_bytes, told.upkeep_failures) == (18, 1800, 0)
    assert told.upkeep_at is not None


def test_brief_ones_are_counted_and_told_to_who_looks_closely(lake: Lake, tables: Tables, worker: UpkeepWorker) -> None:
    lake.brief_upkeep_after = 1
    with capture_logs() as lines:
        for lake.now in (0, 8):
            tables.advance(ITEMS.id, Lsn(10 + int(lake.now)), events=1)
            worker.step()
    assert [(line["event"], line["log_level"]) for line in lines] == [("table was kept up", "debug")]
    told = table_report(tables.get(ITEMS.id))
    assert (told.upkeep_runs, told.upkeep_at) == (1, None), "which is when there was another"


def test_an_upkeep_that_fails_stops_nothing_and_is_tried_again(
    lake: Lake, tables: Tables, worker: UpkeepWorker
) -> None:
    lake.fails = True
    with capture_logs() as lines:
        for lake.now in (0, 60, 200):
            worker.step()
    warnings = [line for line in lines if line["log_level"] == "warning"]
    assert [line["reason"] for line in warnings] == ["the lake is away"] * 2
    state = tables.get(ITEMS.id)
    assert isinstance(state.phase, Ready)
    assert (state.upkeep.runs, state.upkeep.failures) == (0, 2)


def test_after_a_failure_the_next_by_the_clock_comes_before_brief_ones(
    lake: Lake, tables: Tables, worker: UpkeepWorker
) -> None:
    lake.brief_upkeep_after = 1
    lake.fails = True
    for second in range(59):
        lake.now = max(lake.now, second)
        tables.advance(ITEMS.id, Lsn(10 + second), events=1)
        worker.step()
    assert (lake.briefly, tables.get(ITEMS.id).upkeep.failures) == ([8], 1)
    lake.fails = False
    for lake.now in (60, 70):
        tables.advance(ITEMS.id, Lsn(int(lake.now) + 100), events=1)
        worker.step()
    assert (len(lake.looked_after), lake.briefly) == (3, [8, 70])


def test_a_table_that_leaves_while_another_is_looked_after_is_passed_over(
    lake: Lake, tables: Tables, worker: UpkeepWorker
) -> None:
    tables.add(ORDERS.id, ORDERS.name, Ready(), Lsn(1))
    lake.meanwhile = lambda: tables.remove(ORDERS.id)
    with capture_logs() as lines:
        for lake.now in (0, 60):
            worker.step()
    assert lake.looked_after == [ITEMS.id]
    assert [line["log_level"] for line in lines] == ["info"]


def test_a_worker_that_is_stopped_begins_nothing(lake: Lake, worker: UpkeepWorker) -> None:
    worker.step()
    worker.stop()
    lake.now = 100
    worker.step()
    worker.run()
    assert lake.looked_after == []
