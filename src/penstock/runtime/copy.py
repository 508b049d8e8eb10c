"""Copies one table as of a wave's snapshot into the destination."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.contract import Destination
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.postgres.catalog import Leaf, blocks, describe_table
from penstock.postgres.connection import SourceAddress, connect
from penstock.postgres.copy import plan_ranges
from penstock.postgres.publication import PublishedTable
from penstock.postgres.snapshot import ExportedSnapshot, import_snapshot
from penstock.runtime.tables import Tables
from penstock.spark.rows import CopyPlan, CopyRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Copier:
    """Plans copies and hands them to the destination; remembers those under way so that they can be cancelled."""

    address: SourceAddress
    policies: ValuePolicies
    tables: Tables
    destination: Destination
    spark: Callable[[], SparkSession]
    max_connections: int
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _under_way: set[CopyRows] = field(default_factory=set)
    _is_cancelled: bool = False

    def copy(self, table: PublishedTable, snapshot: ExportedSnapshot) -> int:
        """Copy a table, durably, and return how many rows it had."""
        plan, estimate = self._plan(table, snapshot)
        rows = CopyRows(plan, snapshot.consistent_point, self.spark)
        self.tables.start_copy(table.id, estimate, lambda: rows.copied_rows)
        self._write(table, rows)
        return rows.copied_rows

    def begin_empty(self, table: PublishedTable, snapshot: ExportedSnapshot, watermark: Lsn) -> None:
        """Make the destination's table empty as of a position."""
        plan, _ = self._plan(table, snapshot)
        self._write(table, CopyRows(replace(plan, ranges=()), watermark, self.spark))

    def _write(self, table: PublishedTable, rows: CopyRows) -> None:
        self.tables.store.reset_replication_progress(table.id)
        self.tables.store.store_table_schema(rows.schema)
        self._enter(rows)
        try:
            self.destination.truncate_table(table.id)
            self.destination.write_table_rows(rows.schema, rows)
        finally:
            with self._lock:
                self._under_way.discard(rows)

    def cancel(self) -> None:
        """Make the copies under way fail soon, and those that follow at once."""
        with self._lock:
            self._is_cancelled = True
            for rows in self._under_way:
                rows.cancel()

    def _enter(self, rows: CopyRows) -> None:
        with self._lock:
            self._under_way.add(rows)
            if self._is_cancelled:
                rows.cancel()

    def _plan(self, table: PublishedTable, snapshot: ExportedSnapshot) -> tuple[CopyPlan, int | None]:
        with closing(connect(self.address, application_name="penstock copy plan")) as connection:
            import_snapshot(connection, snapshot.name)
            schema = self.policies.resolve(describe_table(connection, table.id, table.columns))
            schema = replace(schema, membership=table.membership)
            ranges = plan_ranges(connection, table)
            estimate = _estimate(blocks(connection, table.id))
        plan = CopyPlan(
            self.address, snapshot.name, schema, ranges, table.row_filter, self.policies, self.max_connections
        )
        return plan, estimate


def _estimate(leaves: Sequence[Leaf]) -> int | None:
    """Return about how many rows there are, if the source has counted since the table was made."""
    estimates = [leaf.rows_estimate for leaf in leaves if leaf.blocks]
    known = [estimate for estimate in estimates if estimate is not None]
    return sum(known) if len(known) == len(estimates) else None
