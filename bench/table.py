"""The tables that are copied: filled by the server itself, then left alone, so that every run reads the same."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.measure import say
from bench.source import Source
from penstock.model.copying import CopyRange
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableId, TableSchema
from penstock.postgres.catalog import describe_table
from penstock.postgres.connection import connect
from penstock.postgres.ranges import plan_ranges
from penstock.postgres.snapshot import ExportedSnapshot
from penstock.spark.copy_plan import CopyPlan
from penstock.testing.postgres import Database

_WRITERS = 2
_ROWS_AT_ONCE = 500_000
MAX_CONNECTIONS = 4
"""The default of `max_copy_connections_per_table`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a table is called, and what makes rows of it."""

    name: str
    maker: str
    partition_column: str
    """What Spark's JDBC source divides the table by."""


TEN_COLUMNS = Kind("changes", "make_rows", "id")
LINEITEM = Kind("lineitem", "make_lineitems", "l_orderkey")


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A filled table."""

    source: Source
    database: Database
    kind: Kind
    rows: int
    schema: TableSchema
    ranges: tuple[CopyRange, ...]

    @contextlib.contextmanager
    def plan(self, *, tls: bool = False) -> Iterator[tuple[CopyPlan, Lsn]]:
        """Export a snapshot, as a pipeline does, and lend how to read the table as of it."""
        address = self.source.address(self.database, tls=tls)
        with ExportedSnapshot(address, application_name="bench") as snapshot:
            plan = CopyPlan(address, snapshot.name, self.schema, self.ranges, None, ValuePolicies(), MAX_CONNECTIONS)
            yield plan, snapshot.consistent_point

    @property
    def postmaster(self) -> int:
        """The server's first process."""
        return int((self.source.cluster.server.cluster_dir / "postmaster.pid").read_text().splitlines()[0])


@contextlib.contextmanager
def fill_table(source: Source, kind: Kind, rows: int) -> Iterator[CopiedTable]:
    """Lend a table with so many rows in a database of its own."""
    began = time.monotonic()
    with source.database() as database:
        database.execute(Path(__file__).with_name("lineitem.sql").read_text())
        # Nothing follows this table: its WAL would only be written and thrown away.
        database.execute(f"alter table {kind.name} set unlogged")
        _fill(database, kind, rows)
        # As a table is that was written a while ago: no reader has to settle which rows are visible.
        database.execute(f"vacuum (freeze, analyze) {kind.name}")
        database.execute("checkpoint")
        say(f"postgres {source.version_major}, {kind.name}: {rows:,} rows in {time.monotonic() - began:.0f} s")
        yield _describe(source, database, kind, rows)


def _fill(database: Database, kind: Kind, rows: int) -> None:
    starts = range(1, rows + 1, _ROWS_AT_ONCE)
    statements = [
        f"insert into {kind.name} select * from {kind.maker}({start}, {min(start + _ROWS_AT_ONCE - 1, rows)})"  # noqa: S608  # our own words
        for start in starts
    ]
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(database.execute, statements))


def _describe(source: Source, database: Database, kind: Kind, rows: int) -> CopiedTable:
    address = source.address(database, tls=False)
    with contextlib.closing(connect(address, application_name="bench")) as connection:
        found = connection.execute("select %s::regclass::oid::bigint", [f"public.{kind.name}"]).fetchone()
        assert found is not None
        schema = describe_table(connection, TableId(found[0]))
        return CopiedTable(source, database, kind, rows, schema, plan_ranges(connection, schema))
