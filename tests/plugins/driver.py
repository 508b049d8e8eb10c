"""A driver that can be killed cheaply: the pipeline as it runs, in a process forked from one that has its modules.

Delta needs no JVM for what is done here. Iceberg's commits are made in a JVM that the test shares with all drivers, so
a driver that dies takes none with it: what dies is everything that Penstock itself knows.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from plugins.local_lake import LocalDelta, LocalIceberg
from plugins.nursery import TELL, Nursery
from plugins.pipeline import pipeline_config

from penstock import failpoint
from penstock.contract import Destination, Store
from penstock.destinations.iceberg import CatalogSettings
from penstock.failpoint import FailpointError
from penstock.lake.upkeep import UpkeepPolicy
from penstock.model.lsn import Lsn
from penstock.model.mode import TableModes
from penstock.model.table import TableId
from penstock.runtime.pipeline import Pipeline
from penstock.store.sqlite import SQLiteStore
from penstock.testing.batch import no_spark
from penstock.testing.postgres import Database, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE_S = 60.0
_STRIKE = re.compile(r"^failpoint (\S+) strikes: (\S+)$", re.MULTILINE)
_TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Jvm:
    """A JVM that runs already, and how to be let in."""

    port: int
    secret: str

    @classmethod
    def of(cls, spark: SparkSession) -> Jvm:
        parameters = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
        return cls(parameters.port, parameters.auth_token)

    @cached_property
    def session(self) -> SparkSession:
        """The session that is open there."""
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        os.environ.update({"PYSPARK_GATEWAY_PORT": str(self.port), "PYSPARK_GATEWAY_SECRET": self.secret})
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
        found = gateway.jvm.org.apache.spark.sql.SparkSession.getDefaultSession().get()
        java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(found.sparkContext())
        context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))
        return SparkSession(context, found)


@dataclass(frozen=True)
class DriverSettings:
    """What one driver after the other is started with."""

    database: Database
    folder: Path
    modes: TableModes = field(default_factory=TableModes)
    iceberg: tuple[CatalogSettings, Jvm] | None = None
    """None for a Delta lake."""
    pipeline: Mapping[str, Any] = field(default_factory=dict)
    upkeep: UpkeepPolicy = field(default_factory=lambda: UpkeepPolicy(every_s=None))

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def log(self) -> Path:
        return self.folder / "driver.log"

    def destination(self, store: Store) -> Destination:
        pipeline = pipeline_config(self.database).id
        shared: Any = {"pipeline": pipeline, "tables": store, "modes": self.modes, "upkeep": self.upkeep}
        if self.iceberg is None:
            return LocalDelta(str(self.lake), spark=no_spark, **shared)
        catalog, jvm = self.iceberg
        return LocalIceberg(catalog, spark=lambda: jvm.session, **shared)


class DriverDiedError(Exception):
    """The driver ended before it answered."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.is_killed = code == -signal.SIGKILL


class TableOutcome(NamedTuple):
    """Where a table stands."""

    phase: str
    error: str | None


class _Life:
    """What a driver does, in its own process; each public method is an order."""

    def __init__(self, settings: DriverSettings, failpoints: str) -> None:
        self._settings = settings
        self._failpoints = failpoints
        self._start()

    def _start(self) -> None:
        settings = self._settings
        config = pipeline_config(settings.database, **settings.pipeline)
        store = SQLiteStore(settings.folder / "store.sqlite", config.id)
        self._pipeline = Pipeline(
            config,
            store=store,
            destination=settings.destination(store),
            state_dir=settings.folder / "state",
            failpoints=self._failpoints,
        )
        self._pipeline.start()

    def arm(self, spec: str) -> None:
        failpoint.arm(spec)

    def catch_up(self) -> dict[str, TableOutcome]:
        """Get every table to where the source is now, doing what an operator would do about failpoints."""
        target, deadline = self._pipeline.source_position(), time.monotonic() + _PATIENCE_S
        while not self._pipeline.wait_until_ready(target, 0.5) or self._roll_back():
            if time.monotonic() > deadline:
                self._give_up(target)
            self._start_again_if_ended()
        found = self._pipeline.report.tables
        return {table.name: TableOutcome(table.phase, table.error) for table in found}

    def _give_up(self, target: Lsn) -> None:
        """Fail, and tell all that may say why: what every thread waits for, and which tables are behind."""
        faulthandler.dump_traceback()
        report = self._pipeline.report
        if report.receiver_pid is not None:
            os.kill(report.receiver_pid, TELL)
            time.sleep(1)  # for it to have done so
        behind = [each for each in report.tables if each.watermark is None or Lsn.parse(each.watermark) < target]
        raise AssertionError(f"not at {target}: {replace(report, tables=behind)}")

    def _start_again_if_ended(self) -> None:
        try:
            self._pipeline.wait(0)
        except FailpointError:
            self._start()

    def _roll_back(self) -> int:
        failed = [each for each in self._pipeline.report.tables if "FailpointError" in (each.error or "")]
        for table in failed:
            self._pipeline._tables.roll_back(TableId(table.id))
        return len(failed)

    def receiver_pid(self) -> int | None:
        return self._pipeline.report.receiver_pid

    def stop(self) -> None:
        with contextlib.suppress(FailpointError):
            self._pipeline.shutdown_and_wait()


def live(settings: DriverSettings, failpoints: str, orders: Connection) -> None:
    """Follow orders until there are no more."""
    output = os.open(settings.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    Nursery().install()
    life = _Life(settings, failpoints)
    orders.send(None)
    with contextlib.suppress(EOFError):
        while True:
            name, arguments = orders.recv()
            orders.send(getattr(life, name)(*arguments))
    os._exit(0)


class Driver:
    """One life after the other, seen from outside."""

    def __init__(self, forks: ForkServerContext, settings: DriverSettings) -> None:
        self.settings = settings
        self._forks = forks
        self._process: ForkServerProcess | None = None
        self._orders: Connection | None = None
        self.lives = 0
        settings.folder.mkdir(parents=True, exist_ok=True)
        settings.log.touch()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def log(self) -> str:
        return self.settings.log.read_text(errors="replace")

    @property
    def strikes(self) -> Counter[str]:
        """How often each failpoint has struck, in whatever process."""
        return Counter(name for name, _ in _STRIKE.findall(self.log))

    def start(self, failpoints: str = "") -> None:
        """Begin a life; `failpoints` are its receiver's."""
        assert self._process is None
        self._orders, theirs = self._forks.Pipe()
        self._process = self._forks.Process(target=live, args=(self.settings, failpoints, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.lives += 1
        self._hear()

    def ask(self, name: str, *arguments: Any) -> Any:
        assert self._orders is not None
        with self._noting_death():
            self._orders.send((name, arguments))
        return self._hear()

    def _hear(self) -> Any:
        assert self._orders is not None
        with self._noting_death():
            assert self._orders.poll(2 * _PATIENCE_S), f"the driver does not answer\n{self._tail}"
            return self._orders.recv()

    @contextlib.contextmanager
    def _noting_death(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError) as error:
            code = self.await_death()
            raise DriverDiedError(f"the driver ended with {code}\n{self._tail}", code) from error

    @property
    def _tail(self) -> str:
        return self.log[-20_000:]

    def arm(self, spec: str) -> None:
        self.ask("arm", spec)

    def catch_up(self) -> dict[str, TableOutcome]:
        """Bring the lake to where the source is now, which is further than it was at the last strike."""
        self.settings.database.execute("select pg_logical_emit_message(true, 'test', '')")
        found: dict[str, TableOutcome] = self.ask("catch_up")
        return found

    def wait_for_strike(self, name: str, before: Counter[str], timeout_s: float = 30) -> None:
        """Wait until a failpoint has struck once more: one that never does proves nothing."""
        wait_until(lambda: self.strikes[name] > before[name], f"{name} to strike", timeout_s)

    def await_death(self) -> int | None:
        """Wait until the driver has killed itself."""
        assert self._process is not None
        self._process.join(_PATIENCE_S)
        code = self._process.exitcode
        self.kill()
        return code

    def kill(self) -> None:
        """Kill the driver, wherever it is; its receiver must notice by itself."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def stop(self) -> None:
        """End a life in order."""
        self.ask("stop")
        self.kill()

    def kill_receiver(self) -> None:
        pid = self.ask("receiver_pid")
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def _forget(self) -> None:
        assert self._process is not None
        assert self._orders is not None
        self._process.join()
        self._process.close()
        self._orders.close()
        self._process = self._orders = None


MakeDriver = Callable[[DriverSettings], Driver]


@pytest.fixture(scope="session")
def driver_forks() -> ForkServerContext:
    """A process that has imported what drivers need, and does nothing but fork."""
    context = multiprocessing.get_context("forkserver")
    spark = ["pyspark.sql.classic.dataframe", "pyspark.java_gateway", "pandas"]
    context.set_forkserver_preload([__name__, "warm_receiver", *spark])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(_TESTS), str(_TESTS / "fault"), *filter(None, sys.path)]))
        forkserver.ensure_running()
    return context


@pytest.fixture
def make_driver(driver_forks: ForkServerContext) -> Iterator[MakeDriver]:
    made: list[Driver] = []

    def make(settings: DriverSettings) -> Driver:
        made.append(Driver(driver_forks, settings))
        return made[-1]

    yield make
    for driver in made:
        driver.kill()
