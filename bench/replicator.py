"""Pipelines of the apply benchmark, put together as users do: with a state folder, a receiver and a lake of their own.

They share one Spark session, started beforehand. A pipeline can be stopped and run again, as after a restart.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from bench.measure import say
from bench.source import PUBLICATION
from bench.witness import Stopwatch, Witness
from penstock import Destination, Lsn, Pipeline, PipelineConfig, SQLiteStore
from penstock.config.destination import IcebergConfig
from penstock.destinations.delta import DeltaDestination
from penstock.destinations.iceberg import CatalogSettings, IcebergDestination
from penstock.errors import DestinationError
from penstock.lake.upkeep import UpkeepPolicy
from penstock.spark.session import FORMATS, SparkSettings, open_session
from penstock.testing.postgres import Database, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA, ICEBERG = "delta", "iceberg"
LAKES = (DELTA, ICEBERG)
READY_TIMEOUT_S = 1800.0
_KEEP_BYTES = 8 << 30
_NUMBERS = itertools.count()
_UPKEEP = UpkeepPolicy()


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all pipelines of a run share."""

    spark: SparkSession
    directory: Path
    watch: Stopwatch

    @property
    def jobs(self) -> int:
        """How many jobs Spark has run so far."""
        return int(self.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())  # noqa: SLF001  # no other way


@contextlib.contextmanager
def open_workshop(master: str) -> Iterator[Workshop]:
    """Start Spark with both formats of tables, and watch what our functions take."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-lake-") as folder:
        directory = Path(folder)
        conf = {"spark.local.dir": str(directory / "spark")}
        spark = open_session(SparkSettings(master=master, conf=conf, formats=tuple(FORMATS)), "penstock-bench")
        watch = Stopwatch()
        try:
            with watch.watching():
                yield Workshop(spark, directory, watch)
        finally:
            spark.stop()


@dataclass(frozen=True, slots=True)
class Running:
    """A pipeline at work."""

    pipeline: Pipeline
    witness: Witness

    def catch_up(self, target: Lsn | None = None) -> float:
        """Wait until every table has passed a position, by default the source's present one; return when it was."""
        wanted = self.pipeline.source_position() if target is None else target
        is_ready = self.pipeline.wait_until_ready(wanted, READY_TIMEOUT_S)
        passed_at = time.monotonic()
        wrong = [f"{table.name}: {table.phase}" for table in self.pipeline.report.tables if table.phase != "ready"]
        if wrong or not is_ready:
            raise DestinationError(f"the pipeline did not get to {wanted}: {', '.join(wrong) or 'in time'}")
        return passed_at


class Replicator:
    """One pipeline of the published tables into one lake."""

    def __init__(
        self, workshop: Workshop, lake: str, database: Database, *, upkeep: UpkeepPolicy = _UPKEEP, **settings: Any
    ) -> None:
        number = next(_NUMBERS)
        self.lake = lake
        self._upkeep = upkeep
        self._workshop = workshop
        self._id = f"bench_{lake}_{number}"
        self._folder = workshop.directory / self._id
        self._config = _config(self._id, database, settings)
        self._iceberg = IcebergConfig(warehouse=str(self._folder / "lake"), catalog_name=self._id)
        for name, value in self._iceberg.spark_conf.items() if lake == ICEBERG else ():
            workshop.spark.conf.set(name, value)

    @property
    def slot(self) -> str:
        """The pipeline's slot."""
        return self._config.id.slot_name

    @property
    def log(self) -> Path:
        """The pipeline's change log."""
        return self._folder / "state" / "log"

    @contextlib.contextmanager
    def running(self) -> Iterator[Running]:
        """Run the pipeline while the block runs."""
        state = self._folder / "state"
        state.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(SQLiteStore(state / "state.sqlite", self._config.id)) as store:
            witness = Witness(self._destination(store), self._workshop.watch)
            pipeline = Pipeline(
                self._config, store=store, destination=witness, state_dir=state, spark=lambda: self._workshop.spark
            )
            pipeline.start()
            try:
                yield Running(pipeline, witness)
            finally:
                pipeline.shutdown_and_wait()

    def prepare(self) -> None:
        """Copy the tables, and stop: from here on the slot waits with what is written."""
        began = time.monotonic()
        with self.running() as running:
            running.catch_up()
        say(f"  {self.lake}: copied in {time.monotonic() - began:.1f} s")

    def sums(self, table: str) -> tuple[int, ...]:
        """Return a table's `SUMS` as Spark reads it."""
        [row] = self._workshop.spark.sql(f"select {SUMS} from {self.sql_name(table)}").collect()  # noqa: S608  # ours
        return tuple(int(each) for each in row)

    def sql_name(self, table: str) -> str:
        """Return a table's name for Spark."""
        return f"delta.`{self.location(table)}`" if self.lake == DELTA else f"{self._id}.public.{table}"

    def location(self, table: str) -> Path:
        """Return where a table's files are."""
        return self._folder / "lake" / "public" / table

    def count_files(self, table: str) -> tuple[int, int]:
        """Return how many data files a table has, and how many versions it can be read at."""
        if self.lake == DELTA:
            entries = list((self.location(table) / "_delta_log").glob("*.json"))
            return len(DeltaTable(self.location(table)).file_uris()), len(entries)
        name = self.sql_name(table)
        counts = [self._workshop.spark.table(f"{name}.{each}").count() for each in ("data_files", "snapshots")]
        return counts[0], counts[1]

    def _destination(self, store: SQLiteStore) -> Destination:
        spark = self._workshop.spark
        if self.lake == DELTA:
            return DeltaDestination(
                str(self._folder / "lake"),
                pipeline=self._config.id,
                spark=lambda: spark,
                tables=store,
                upkeep=self._upkeep,
            )
        catalog = CatalogSettings(self._iceberg.catalog_name, self._iceberg.catalog_properties)
        return IcebergDestination(
            catalog, pipeline=self._config.id, spark=lambda: spark, tables=store, upkeep=self._upkeep
        )


SUMS = "count(*), coalesce(sum(id), 0), coalesce(sum(quantity), 0), coalesce(sum(length(note)), 0)"
"""What source and lake are compared by."""


def require_equal(replicator: Replicator, database: Database, table: str) -> None:
    """Refuse a lake that differs from its source."""
    [row] = database.execute(f"select {SUMS} from {table}")  # noqa: S608  # our own words
    wanted, found = tuple(int(each) for each in row), replicator.sums(table)
    if found != wanted:
        raise DestinationError(f"{replicator.lake}: {table} has {found} ({SUMS}) and its source {wanted}")


def wait_for_stream(database: Database, slot: str) -> float:
    """Wait until a slot's stream has begun, and return when it had."""
    with database.connect() as connection:
        statement = "select active from pg_replication_slots where slot_name = %s"
        wait_until(lambda: connection.execute(statement, [slot]).fetchone() == (True,), f"slot {slot} to be in use")
        return time.monotonic()


def _config(id_: str, database: Database, settings: dict[str, Any]) -> PipelineConfig:
    connection = {
        "host": database.host,
        "port": database.port,
        "name": database.name,
        "username": database.username,
        "password": database.password,
    }
    common = {"id": id_, "publication_name": PUBLICATION, "pg_connection": connection}
    return PipelineConfig.model_validate({**common, **settings})


def kept_log() -> dict[str, Any]:
    """Return the settings of a pipeline whose change log is read when all is over."""
    return {"log": {"keep_bytes": _KEEP_BYTES}}
