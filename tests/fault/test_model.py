"""A source changed at random, while drivers and receivers are killed, paused and made to fail: the lake equals it.

Tables get their upkeep all the time, too.

`make test` runs a few examples, always the same; `make test-model SECONDS=1800` as many as there is time for, each from
a seed that it prints. `SEED=… LAKE=…` runs one that failed, again and again until it fails: what is done is the same
each time, but what meets in a batch, and where a crash finds it, is a matter of time.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar, TypeAlias, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, assume, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption
from hypothesis.reporting import with_reporter
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from plugins.driver import Driver, DriverDiedError, DriverSettings, Jvm, MakeDriver
from plugins.fault_matrix import steps
from plugins.iceberg import MakeCatalog
from plugins.kept import ReadTable, Row, read_delta, read_iceberg
from plugins.model_source import TABLES, TRANSACTIONS, Transaction, create_source, modes
from pyspark.sql import SparkSession

from penstock.lake.upkeep import UpkeepPolicy
from penstock.testing.postgres import Cluster, Database

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

T = TypeVar("T")
Make: TypeAlias = Callable[[Database], tuple[Driver, ReadTable]]
"""Makes a driver for a database, and what reads its lake."""

_SETTINGS = settings(
    max_examples=1,  # of each seed, so that to repeat one takes seconds
    stateful_step_count=40,
    deadline=None,
    database=None,
    # A failure depends on when things happen: fewer steps that fail too would be luck, after minutes.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.debug,  # steps are told when they are taken, for a failure to be shown with them
)
# So often that it meets everything else; what is compared is read sooner than it is removed.
_UPKEEP = UpkeepPolicy(
    every_s=1.0, brief_after=2, keep_s=15, rest_s=0.5, pause_s=0.2, most_superfluous=4, all_versions_s=1, orphan_s=30
)
_UPKEEP_STEPS = {"delta.upkeep_written", "iceberg.upkeep_written"}
_DRIVER_STEPS = sorted({*steps("delta", "merge"), *steps("iceberg", "merge"), *_UPKEEP_STEPS})
_COPY_STEPS = ["table_sync.before_copy", "table_sync.after_copy", "table_sync.before_catchup", "table_sync.part_copied"]
_RECEIVER_STEPS = [
    "changelog.after_file",
    "changelog.after_data",
    "changelog.before_entry",
    "storage.before_put",
    "changelog.after_entry",
    "changelog.after_trim_header",
    "changelog.after_trim_entry",
    "changelog.after_schema",
    "receiver.before_status",
    "receiver.after_status",
]


class FailedError(BaseException):
    """Goes past hypothesis, which would run a failure again, and show what it finds then: another one, or only that."""


@contextmanager
def _past_hypothesis() -> Iterator[None]:
    try:
        yield
    except UnsatisfiedAssumption:
        raise
    except Exception as error:
        raise FailedError from error


class ReplicationMachine(RuleBasedStateMachine):
    """Random histories of a source, and of what replicates it."""

    cluster: ClassVar[Cluster]
    make: ClassVar[Make]

    def __init__(self) -> None:
        super().__init__()
        self.resources = ExitStack()

    @initialize(dice=st.integers(0, 999), transactions=st.lists(TRANSACTIONS, max_size=4))
    def begin(self, dice: int, transactions: list[Transaction]) -> None:
        assume(dice)  # hypothesis tries the simplest first: whatever the seed, only comparisons of empty tables
        self.database = self.resources.enter_context(self.cluster.database())
        create_source(self.database)
        for transaction in transactions:
            transaction.run(self.database)
        self.copied: dict[str, Counter[Row]] = {}
        self.driver, self.read = type(self).make(self.database)
        self.resources.callback(self.driver.kill)
        self._start()

    @rule(transactions=st.lists(TRANSACTIONS, min_size=1, max_size=5))
    def write(self, transactions: list[Transaction]) -> None:
        for transaction in transactions:
            transaction.run(self.database)

    @rule()
    def compare(self) -> None:
        """Every table has what the source has at this moment, and has kept what its triggers saw, once."""
        if self.is_receiver_mortal:  # it may never get to where we want to see it
            self.driver.kill()
        outcomes = self._order(Driver.catch_up)
        assert {each.phase for each in outcomes.values()} == {"ready"}, outcomes
        for table in TABLES:
            rows, seen = self.read(table.name), table.seen_by_triggers(self.database)
            if table.name not in self.copied:
                # What was changed before the copy is in it, and where that was is known only now.
                self.copied[table.name] = seen - table.kept_changes(rows)
            table.check(rows, table.source_rows(self.database), seen - self.copied[table.name])

    @precondition(lambda self: self.driver.is_running)
    @rule(pause_s=st.sampled_from([0, 0.05, 0.2, 0.6]))
    def kill(self, pause_s: float) -> None:
        """At a moment that nobody chose."""
        time.sleep(pause_s)
        self.driver.kill()

    @precondition(lambda self: self.driver.is_running)
    @rule()
    def pause(self) -> None:
        self._order(Driver.stop)

    @precondition(lambda self: not self.driver.is_running)
    @rule(point=st.sampled_from(["", *_RECEIVER_STEPS]), start=st.integers(1, 6))
    def resume(self, point: str, start: int) -> None:
        """With a receiver that dies at a step of its own, in each of its lives, or with one that does not."""
        self._start(f"{point}=kill@{start}" if point else "")

    @precondition(lambda self: self.driver.is_running)
    @rule(
        point=st.sampled_from([*_DRIVER_STEPS, *_DRIVER_STEPS, *_COPY_STEPS]),
        action=st.sampled_from(["raise*1", "raise*2", "kill"]),
        start=st.integers(1, 4),
    )
    def arm(self, point: str, action: str, start: int) -> None:
        """Let the driver fail when it comes to a step again, or some times later."""
        self._order(lambda driver: driver.arm(f"{point}={action}@{start}"))

    @precondition(lambda self: self.driver.is_running)
    @rule()
    def kill_receiver(self) -> None:
        self._order(Driver.kill_receiver)

    def _start(self, receiver_failpoints: str = "") -> None:
        self.is_receiver_mortal = bool(receiver_failpoints)
        self.driver.start(receiver_failpoints)

    def _order(self, order: Callable[[Driver], T]) -> T:
        """Give an order to a driver that lives; one that a failpoint killed is replaced."""
        while True:
            if not self.driver.is_running:
                self._start()
            try:
                return order(self.driver)
            except DriverDiedError as error:
                if not error.is_killed:
                    raise

    def teardown(self) -> None:
        with _past_hypothesis(), self.resources:
            if error := sys.exc_info()[1]:
                raise error
            self.compare()


@pytest.fixture
def make_delta(make_driver: MakeDriver, tmp_path: Path) -> Make:
    def make(database: Database) -> tuple[Driver, ReadTable]:
        driver = make_driver(DriverSettings(database, tmp_path / database.name, modes(), upkeep=_UPKEEP))
        return driver, read_delta(driver.settings.lake)

    return make


@pytest.fixture
def make_iceberg(make_driver: MakeDriver, spark: SparkSession, make_catalog: MakeCatalog, tmp_path: Path) -> Make:
    def make(database: Database) -> tuple[Driver, ReadTable]:
        folder = tmp_path / database.name
        catalog = make_catalog(folder / "lake", None)
        chosen = DriverSettings(database, folder, modes(), (catalog, Jvm.of(spark)), upkeep=_UPKEEP)
        driver = make_driver(chosen)
        return driver, read_iceberg(spark, catalog)

    return make


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.spark)])
def machine(cluster: Cluster, request: pytest.FixtureRequest) -> type[ReplicationMachine]:
    make = request.getfixturevalue(f"make_{request.param}")
    return type(request.param, (ReplicationMachine,), {"cluster": cluster, "make": staticmethod(make)})


def _run(machine: type[ReplicationMachine], chosen: settings) -> None:
    """Run examples, and raise what was found first, with the steps that led to it."""
    told: list[str] = []
    try:
        with with_reporter(lambda line: told.append(str(line))):
            run_state_machine_as_test(machine, settings=chosen)
    except FailedError as failed:
        error = failed.__cause__
    else:
        return
    # Behind the handler, where it keeps what it was raised from, or while what was handled.
    assert error is not None
    begin = max(place for place, line in enumerate(told) if line.startswith("state = "))
    error.add_note("\n".join(told[begin:]))
    raise error


def test_a_lake_equals_its_source_whatever_happens(machine: type[ReplicationMachine]) -> None:
    _run(machine, settings(_SETTINGS, derandomize=True, max_examples=2, stateful_step_count=15))


@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_lake_equals_its_source_for_as_long_as_one_cares_to_look(machine: type[ReplicationMachine]) -> None:
    given = os.environ.get("MODEL_SEED")
    deadline = time.monotonic() + float(os.environ.get("MODEL_SECONDS") or 60)
    number = int(given) if given else secrets.randbelow(1 << 32)
    while True:
        print("SEED", number, flush=True)  # noqa: T201  # so that one sees that it lives
        try:
            _run(seed(number)(machine), _SETTINGS)
        except BaseException as error:
            error.add_note(f"To repeat it: make test-model SEED={number} LAKE={machine.__name__}")
            raise
        if time.monotonic() > deadline:
            return
        number += 0 if given else 1
