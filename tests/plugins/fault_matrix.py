"""Every step of a batch, interrupted in every way: the cells of the matrix, and the world in which they are tried.

A cell holds if, after it, the source equals the lake and the lake has kept each change once; and it is tried only if
its failpoint has struck.
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from plugins.driver import Driver, TableOutcome
from plugins.kept import AUDIT, Kept, ReadTable, audited

from penstock.model.mode import TableMode, TableModes
from penstock.testing.postgres import Database

PATHS = ("append", "merge", "truncate", "barrier")
ACTIONS = ("raise", "kill", "hang")
CONFLICT = "conflict"
"""Another writer's commit comes between what we read and what we write."""
MODES = tuple(TableMode)
NEIGHBOUR = Kept("neighbour", TableMode.CURRENT)
_PAUSE_S = 0.01
"""Between transactions of the writer that is at work while a failpoint strikes."""

# In the order of a batch, from the range that is chosen to the position that the source hears of.
_STEPS = (
    "apply.range_chosen",
    "apply.before_write",
    "{lake}.position_read",
    "changes.read",
    "search.found",
    "{lake}.rows_written",
    "{lake}.files_written",
    "{lake}.commit",
    "storage.before_put",
    "{lake}.committed",
    "apply.after_write",
    "apply.before_progress",
    "apply.before_acknowledge",
    "apply.acknowledged",
)
_RECEIVER_STEPS = {
    # Enough hits before for the driver to have told how far to acknowledge, and what to trim.
    "receiver.before_status": 3,
    "receiver.after_status": 3,
    "changelog.after_trim_header": 2,
    "changelog.after_trim_entry": 2,
}
_SEARCHED = {"merge", "barrier"}
"""What has to look for rows in the lake; a truncate and inserts do not."""


@dataclass(frozen=True)
class Cell:
    """One step, interrupted in one way, of one kind of batch into one table."""

    point: str
    action: str
    path: str
    mode: TableMode

    @property
    def is_receivers(self) -> bool:
        return self.point in _RECEIVER_STEPS

    def __str__(self) -> str:
        return f"{self.point} {self.action} {self.path} {self.mode}"


def steps(lake: str, path: str) -> list[str]:
    """Return the failpoints that a batch of this kind passes."""
    named = [step.format(lake=lake) for step in _STEPS]
    return [
        step
        for step in named
        if (step != "storage.before_put" or lake == "delta") and (step != "search.found" or path in _SEARCHED)
    ]


def every_cell(lake: str, mode: TableMode) -> list[Cell]:
    """Return the whole matrix of a lake and a mode."""
    # What versions add to the rest is what is written and looked for: interrupted once each is enough.
    actions = ("kill",) if mode is TableMode.SCD2 else ACTIONS
    cells = [Cell(point, action, path, mode) for path in PATHS for point in steps(lake, path) for action in actions]
    cells += [Cell(f"{lake}.commit", CONFLICT, path, mode) for path in PATHS]
    if mode is TableMode.HISTORY:  # the receiver knows nothing of modes
        cells = [*_receiver_cells(mode), *cells]
    return cells


def _receiver_cells(mode: TableMode) -> list[Cell]:
    wanted = itertools.product(_RECEIVER_STEPS, ACTIONS, ("append", "merge"))
    return [Cell(point, action, path, mode) for point, action, path in wanted]


def some_cells(lake: str) -> list[Cell]:
    """Return a few of each: every step, action, path and mode, in changing company."""
    points = steps(lake, "merge")
    turns = zip(
        points, itertools.cycle(ACTIONS), itertools.cycle(("merge", "append", "truncate", "merge")), strict=False
    )
    cells = [
        Cell(point, action, path if point in steps(lake, path) else "merge", MODES[number % 2])
        for number, (point, action, path) in enumerate(turns)
    ]
    return [
        Cell("changelog.after_trim_header", "kill", "append", TableMode.HISTORY),
        Cell("receiver.before_status", "hang", "merge", TableMode.HISTORY),
        *cells,
        Cell(f"{lake}.files_written", "kill", "merge", TableMode.SCD2),
        Cell(f"{lake}.committed", "kill", "truncate", TableMode.HISTORY),
        Cell(f"{lake}.commit", CONFLICT, "merge", TableMode.CURRENT),
        Cell(f"{lake}.commit", CONFLICT, "append", TableMode.HISTORY),
        Cell(f"{lake}.committed", "kill", "barrier", TableMode.HISTORY),
        Cell(f"{lake}.files_written", "raise", "barrier", TableMode.CURRENT),
    ]


# What is written.

_TABLE = """
    create table {0} (id int primary key, v int, big text) with (autovacuum_enabled = off);
    alter table {0} alter column big set storage external;
    insert into {0} select g, 0, repeat(md5(g::text), 3 + 80 * (g % 2)) from generate_series(1, 40) g;
"""


def create_tables(database: Database, tables: Sequence[Kept]) -> None:
    database.execute(
        f"{AUDIT} create sequence ids start 100000; create publication test_pub for tables in schema public"
    )
    for table in tables:
        database.execute(_TABLE.format(table.name) + ("" if table.mode is TableMode.CURRENT else audited(table.name)))


def append(_: random.Random, name: str) -> str:
    return f"insert into {name} select nextval('ids'), 1, repeat('x', 3000) from generate_series(1, 3)"


def merge(chance: random.Random, name: str) -> str:
    """Return a transaction that changes rows, moves them, adds some or removes some; large values often stay."""
    low, span = chance.randrange(1, 40), chance.randrange(1, 6)
    near, missing = f"id between {low} and {low + span}", f"g not in (select id from {name})"
    bump = f"update {name} set v = v + 1 where {near}"
    return (
        chance.choice(
            [
                bump,
                f"update {name} set v = v + 1, big = repeat(md5(v::text), 90) where {near}",
                f"{bump}; update {name} set v = v * 2 % 1000 where {near}; delete from {name} where id = {low}",
                f"insert into {name} select g, -1, 'new' from generate_series({low}, {low + span}) g where {missing}",
                f"update {name} set id = id + 1000 where {near} and id + 1000 not in (select id from {name})",
                f"update {name} set id = id - 1000 where id > 1000 and id - 1000 not in (select id from {name})",
            ]
        )
        + f"; update {name} set v = v + 1 where id = (select min(id) from {name})"
    )


def truncate(_: random.Random, name: str) -> str:
    return (
        f"update {name} set v = v + 1 where id < 5; delete from {name} where id = 7; truncate {name};"
        f"insert into {name} select g, 0, repeat(md5(g::text), 50) from generate_series(1, 9) g;"
        f"update {name} set v = 3 where id = 2"
    )


_WRITES: dict[str, Callable[[random.Random, str], str]] = {"append": append, "merge": merge, "truncate": truncate}


@contextmanager
def writing(database: Database, path: str, name: str, chance: random.Random) -> Iterator[None]:
    """Write to a table, and beside it to its neighbour, as long as the block takes."""
    done = threading.Event()
    errors: list[Exception] = []

    def work() -> None:
        with database.connect() as connection:
            while not done.wait(_PAUSE_S):
                try:
                    connection.execute(_WRITES[path](chance, name))
                except psycopg.Error as error:
                    errors.append(error)
                    return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert not errors, errors


# What is tried.


class World:
    """A source and its lake, in which one cell after the other is tried."""

    def __init__(
        self,
        database: Database,
        driver: Driver,
        read: ReadTable,
        interfere: Callable[[str], None],
        cells: Sequence[Cell],
    ) -> None:
        self._database = database
        self._driver = driver
        self._read = read
        self._interfere = interfere
        self._chance = random.Random(1)
        self._gone: set[str] = set()
        create_tables(database, [NEIGHBOUR, *tables_of(cells)])

        driver.start()
        driver.catch_up()

    def close(self) -> None:
        self._driver.kill()

    def fault(self, cell: Cell) -> str | None:
        """Try a cell, and say what is wrong with it."""
        try:
            self._try(cell, table_of(cell))
        except Exception as error:  # noqa: BLE001  # told at the end, with those of other cells
            return f"{type(error).__name__}: {error}"
        return None

    def _try(self, cell: Cell, table: Kept) -> None:
        """Interrupt, go on, and compare."""
        if cell.path == "barrier":
            self._try_barrier(cell, table)
            return
        with writing(self._database, cell.path, table.name, self._chance):
            self._strike(cell)
        self._require_ready(self._driver.catch_up())
        self._check(table)

    def _strike(self, cell: Cell) -> None:
        if cell.is_receivers:
            self._strike_receiver(cell)
            return
        before = self._driver.strikes
        self._driver.arm(f"{cell.point}={_armed(cell.action)}*1")
        self._driver.wait_for_strike(cell.point, before)
        self._follow(cell)

    def _follow(self, cell: Cell) -> None:
        """Do to a driver that was struck what its cell says, and begin another life if it has none."""
        if cell.action == "kill":
            assert self._driver.await_death() == -signal.SIGKILL
            self._driver.start()
        elif cell.action == "hang":
            self._driver.kill()
            self._driver.start()
        elif cell.action == CONFLICT:
            self._interfere(table_name(cell))
            self._driver.signal(signal.SIGCONT)

    def _strike_receiver(self, cell: Cell) -> None:
        self._driver.stop()
        before = self._driver.strikes
        self._driver.start(f"{cell.point}={cell.action}*1@{_RECEIVER_STEPS[cell.point]}")
        self._driver.wait_for_strike(cell.point, before)
        if cell.action == "hang":
            self._driver.kill_receiver()
        self._driver.kill()
        self._driver.start()

    def _try_barrier(self, cell: Cell, table: Kept) -> None:
        """Change a table's columns among its changes: those before are kept, it says why it stopped, others go on."""
        before = self._driver.strikes
        self._driver.arm(f"{cell.point}={_armed(cell.action)}*1")
        for _ in range(5):
            self._database.execute(merge(self._chance, table.name))
        source = table.source_rows(self._database)
        seen = table.seen_by_triggers(self._database)
        self._database.execute(f"alter table {table.name} add column later int default 7")
        self._database.execute(merge(self._chance, table.name))
        self._database.execute(merge(self._chance, NEIGHBOUR.name))
        self._driver.wait_for_strike(cell.point, before)
        self._follow(cell)
        outcomes = self._driver.catch_up()
        stopped = outcomes.pop(f"public.{table.name}")
        assert stopped.phase == "errored"
        assert "its columns changed at the source: gained later" in (stopped.error or "")
        self._require_ready(outcomes)
        table.check(self._read(table.name), source, seen)
        self._check(NEIGHBOUR)
        # Or the log would be kept for it.
        self._database.execute(f"drop table {table.name}")
        self._gone.add(f"public.{table.name}")

    def _require_ready(self, outcomes: Mapping[str, TableOutcome]) -> None:
        """Expect that all tables are followed; one that was dropped may not have been missed yet."""
        stopped = {name: each for name, each in outcomes.items() if each.phase != "ready" and name not in self._gone}
        assert not stopped

    def _check(self, table: Kept) -> None:
        table.check(self._read(table.name), table.source_rows(self._database), table.seen_by_triggers(self._database))


def _armed(action: str) -> str:
    """Return what a failpoint does; where somebody interferes, the driver waits for it."""
    return "stop" if action == CONFLICT else action


def table_name(cell: Cell) -> str:
    """Return the table of a cell: one that is stopped for good is of no use to another cell."""
    suffix = "" if cell.path != "barrier" else f"_{cell.action}_{cell.point.replace('.', '_')}"
    return f"{cell.path}_{cell.mode}{suffix}"


def table_of(cell: Cell) -> Kept:
    return Kept(table_name(cell), cell.mode)


def tables_of(cells: Sequence[Cell]) -> list[Kept]:
    return list(dict.fromkeys(map(table_of, cells)))


def modes_of(cells: Sequence[Cell]) -> TableModes:
    return TableModes(tables={f"public.{each.name}": each.mode for each in tables_of(cells)})


# What is told.


@dataclass
class Result:
    """How a cell went."""

    lake: str
    cell: Cell
    fault: str | None = None


@dataclass
class Matrix:
    """All that was tried in a test."""

    lake: str
    results: list[Result] = field(default_factory=list)

    def note(self, cell: Cell, fault: str | None = None) -> None:
        self.results.append(Result(self.lake, cell, fault))

    @property
    def faults(self) -> list[str]:
        return [f"{result.cell}: {result.fault}" for result in self.results if result.fault]

    def told(self) -> list[list[Any]]:
        return [
            [self.lake, each.cell.point, each.cell.action, each.cell.path, str(each.cell.mode), each.fault]
            for each in self.results
        ]


_PROPERTY = "fault_matrix"


@pytest.fixture
def tell_matrix(record_property: Callable[[str, object], None]) -> Callable[[Matrix], None]:
    return lambda matrix: record_property(_PROPERTY, matrix.told())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was tried and what held, as a table: a row for each step and action, a column for each batch.

    Then what did not hold, whole: what is known of a failure that is a matter of time is all that there is.
    """
    reports = [each for some in terminalreporter.stats.values() for each in some if getattr(each, "when", "") == "call"]
    told = [value for report in reports for name, value in report.user_properties if name == _PROPERTY]
    cells = [tuple(cell) for matrix in told for cell in matrix]
    if not cells:
        return
    terminalreporter.section("fault matrix: held / tried")
    for line in _lines(cells):
        terminalreporter.write_line(line)


def _lines(cells: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    columns = list(dict.fromkeys((lake, path) for path in PATHS for lake in ("delta", "iceberg")))
    yield " ".join([f"{'step':<29}{'action':<9}", *(f"{path}/{lake}".rjust(17) for lake, path in columns)])
    rows = dict.fromkeys((cell[1].replace(f"{cell[0]}.", "lake."), cell[2]) for cell in cells)
    for point, action in rows:
        counts = [_count(cells, point, action, *column) for column in columns]
        yield " ".join([f"{point:<29}{action:<9}", *(each.rjust(17) for each in counts)])
    broken = [cell for cell in cells if cell[5] is not None]
    yield f"{len(cells) - len(broken)} of {len(cells)} cells held"
    for lake, point, action, path, mode, fault in broken:
        yield f"{lake} {point} {action} {path} {mode}: {fault}"


def _count(cells: Sequence[tuple[Any, ...]], point: str, action: str, lake: str, path: str) -> str:
    found = [
        cell[5] is None
        for cell in cells
        if (cell[1].replace(f"{cell[0]}.", "lake."), cell[2], cell[0], cell[3]) == (point, action, lake, path)
    ]
    return f"{sum(found)}/{len(found)}" if found else "·"
