"""Those who copy a table: the server's own client to nowhere, Penstock's tasks, and Spark's own JDBC source.

Every one begins with a session that is there already, and ends when what it copied is committed and has been found
to have every row; finding that out is not part of its time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from psycopg.conninfo import make_conninfo

from bench.processes import Accounts, accounted
from bench.table import CopiedTable
from penstock.config.destination import IcebergConfig
from penstock.contract import Destination
from penstock.destinations.delta import DeltaDestination
from penstock.destinations.iceberg import CatalogSettings, IcebergDestination
from penstock.errors import DestinationError, SourceError
from penstock.model.copying import CopyRange
from penstock.model.table import PipelineId
from penstock.spark.copy_task import ease_worker
from penstock.spark.rows import CopyRows
from penstock.spark.session import FORMATS, SparkSettings, open_session
from penstock.store.memory import MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

REFERENCE = "copy-to-nowhere"
JDBC_PACKAGE = "org.postgresql:postgresql:42.7.8"
_PARTITIONS, _FETCH_ROWS = "8", "20000"
_PIPELINE = PipelineId("bench")
_ICEBERG = "penstock"  # the catalog's name, by default
_JDBC_TABLE = f"{_ICEBERG}.jdbc.copied"


@dataclass(frozen=True, slots=True)
class Run:
    """One copy of a table."""

    seconds: float
    accounts: Accounts


@dataclass(frozen=True, slots=True)
class Copier:
    """Who copies, and how."""

    name: str
    copy: Callable[[CopiedTable], Run]


@dataclass(frozen=True, slots=True)
class Lakes:
    """A session and the lakes that it writes to."""

    spark: SparkSession
    delta: DeltaLake
    iceberg: IcebergLake


@contextlib.contextmanager
def open_lakes(master: str, directory: Path) -> Iterator[Lakes]:
    """Lend a session that knows both formats of tables, and the JDBC driver; what it writes is below `directory`."""
    iceberg = IcebergConfig(warehouse=str(directory / "iceberg"))
    conf = {"spark.local.dir": str(directory / "spark"), **iceberg.spark_conf}
    settings = SparkSettings(master=master, conf=conf, formats=tuple(FORMATS), packages=(JDBC_PACKAGE,))
    spark = open_session(settings, "penstock-bench")
    try:
        yield Lakes(spark, DeltaLake(spark, directory / "delta"), IcebergLake(spark, iceberg))
    finally:
        spark.stop()


def copy_to_nowhere(table: CopiedTable) -> Run:
    """Let `psql` of the server's version copy the table by one backend, and throw it away."""
    address = table.source.address(table.database, tls=False)
    conninfo = make_conninfo(
        host=address.host, port=address.port, dbname=address.dbname, user=address.user, sslmode="disable"
    )
    statement = f"copy {table.kind.name} to stdout (format binary)"
    command = [table.source.program("psql"), "-X", "-q", "-d", conninfo, "-c", statement]
    with accounted(table.postmaster) as accounts:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SourceError(f"psql ended with code {process.returncode}")
    accounts.cpu_s["workers"] = usage.ru_utime + usage.ru_stime
    return Run(seconds, accounts)


def copy_to_arrow(spark: SparkSession, table: CopiedTable, *, tls: bool = False) -> Run:
    """Read the table in Spark tasks into Arrow record batches, and throw them away."""
    with table.plan(tls=tls) as (plan, _):

        def count(part: CopyRange) -> int:
            # A function inside of another travels to executors whole: they need not know this module.
            rows = sum(batch.num_rows for batch in plan.read(part))
            ease_worker()
            return rows

        def copy() -> int:
            ranges = spark.sparkContext.parallelize(table.ranges, len(table.ranges))
            return sum(ranges.map(count).collect())

        return _timed(table, copy, int)


class Lake(Protocol):
    """Tables of one format."""

    @property
    def spark(self) -> SparkSession:
        """The session that reads and writes them."""

    def clear(self, table: CopiedTable) -> None:
        """Remove what an earlier run left of a table: it must not be paid for by the next one."""

    def destination(self) -> Destination:
        """Return Penstock's own way to write."""

    def copied_name(self, table: CopiedTable) -> str:
        """Return what Spark's SQL calls the table that the destination wrote."""

    def write_frame(self, frame: DataFrame) -> str:
        """Write a table Spark's own way, and return what its SQL calls it."""


@dataclass(frozen=True, slots=True)
class DeltaLake:
    """Delta tables below a folder."""

    spark: SparkSession
    directory: Path

    def clear(self, table: CopiedTable) -> None:
        """Remove the folders."""
        for folder in (self._copied(table), self._by_jdbc):
            shutil.rmtree(folder, ignore_errors=True)

    def destination(self) -> Destination:
        """Return Penstock's own way to write."""
        return DeltaDestination(
            str(self.directory / "ours"), pipeline=_PIPELINE, spark=lambda: self.spark, tables=MemoryStore()
        )

    def copied_name(self, table: CopiedTable) -> str:
        """Return the destination's folder for the table."""
        return f"delta.`{self._copied(table)}`"

    def write_frame(self, frame: DataFrame) -> str:
        """Write a folder."""
        frame.write.format("delta").save(str(self._by_jdbc))
        return f"delta.`{self._by_jdbc}`"

    def _copied(self, table: CopiedTable) -> Path:
        return self.directory / "ours" / "public" / table.kind.name

    @property
    def _by_jdbc(self) -> Path:
        return self.directory / "jdbc"


@dataclass(frozen=True, slots=True)
class IcebergLake:
    """Iceberg tables in a catalog that is a folder."""

    spark: SparkSession
    config: IcebergConfig

    def clear(self, table: CopiedTable) -> None:
        """Drop the tables with their files."""
        self.spark.sql(f"create namespace if not exists {_ICEBERG}.jdbc")
        for name in (self.copied_name(table), _JDBC_TABLE):
            self.spark.sql(f"drop table if exists {name} purge")

    def destination(self) -> Destination:
        """Return Penstock's own way to write."""
        return IcebergDestination(
            CatalogSettings(self.config.catalog_name, self.config.catalog_properties),
            pipeline=_PIPELINE,
            spark=lambda: self.spark,
            tables=MemoryStore(),
        )

    def copied_name(self, table: CopiedTable) -> str:
        """Return the destination's name for the table."""
        return f"{_ICEBERG}.public.{table.kind.name}"

    def write_frame(self, frame: DataFrame) -> str:
        """Write a table of the catalog."""
        frame.writeTo(_JDBC_TABLE).using("iceberg").create()
        return _JDBC_TABLE


def copy_into(lake: Lake, table: CopiedTable, *, tls: bool = False) -> Run:
    """Copy as a pipeline does: tasks write files, and one commit makes them a table."""
    lake.clear(table)
    destination = lake.destination()
    destination.startup()
    try:
        with table.plan(tls=tls) as (plan, watermark):
            rows = CopyRows(plan, watermark, lambda: lake.spark)
            return _timed(
                table,
                lambda: destination.write_table_rows(table.schema, rows),
                lambda _: _count(lake.spark, lake.copied_name(table)),
            )
    finally:
        destination.shutdown()


def copy_by_jdbc(lake: Lake, table: CopiedTable) -> Run:
    """Let Spark's own JDBC source read the table in parts, and write a table of the same format."""
    lake.clear(table)
    return _timed(table, lambda: lake.write_frame(_jdbc(lake.spark, table)), lambda name: _count(lake.spark, name))


def _jdbc(spark: SparkSession, table: CopiedTable) -> DataFrame:
    address = table.source.address(table.database, tls=False)
    return (
        spark.read.format("jdbc")
        .option("url", f"jdbc:postgresql://{address.host}:{address.port}/{address.dbname}?user={address.user}")
        .option("driver", "org.postgresql.Driver")
        .option("dbtable", table.kind.name)
        .option("partitionColumn", table.kind.partition_column)
        .option("lowerBound", "1")
        .option("upperBound", str(table.rows))
        .option("numPartitions", _PARTITIONS)
        .option("fetchsize", _FETCH_ROWS)
        .load()
    )


def _count(spark: SparkSession, name: str) -> int:
    [row] = spark.sql(f"select count(*) from {name}").collect()  # noqa: S608  # our own names
    return int(row[0])


def _timed(table: CopiedTable, copy: Callable[[], T], count: Callable[[T], int]) -> Run:
    """Take the time of a copy, and make sure that it has every row."""
    with accounted(table.postmaster) as accounts:
        began = time.monotonic()
        copied = copy()
        seconds = time.monotonic() - began
    found = count(copied)
    if found != table.rows:
        raise DestinationError(f"the copy has {found} rows of {table.rows} that there are")
    return Run(seconds, accounts)
