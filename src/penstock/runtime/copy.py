"""Copies one table into the destination: in parts, as of one snapshot or several, going on where an earlier copy ended.

`penstock.model.copying` says why that is right. Only a destination that counts the parts with their data can go on;
only a table with a key, of which every change is in the log, can be settled. Any other is copied in one part.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock import failpoint
from penstock.contract import Destination, Positioned
from penstock.errors import ErrorKind, PenstockError
from penstock.model.copying import CopyOutline, CopyRange
from penstock.model.lsn import Lsn
from penstock.model.phase import DataSync
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableId
from penstock.postgres.catalog import Leaf, blocks, describe_table
from penstock.postgres.connection import SourceAddress, connect
from penstock.postgres.keys import has_exact_key, key_conditions
from penstock.postgres.privilege import require_readable
from penstock.postgres.publication import PublishedTable, publishes_every_change
from penstock.postgres.ranges import BLOCKS_PER_RANGE, Copied, plan_ranges
from penstock.postgres.snapshot import ExportedSnapshot, import_snapshot
from penstock.runtime.progress import CopyProgress
from penstock.runtime.tables import Tables
from penstock.spark.changes import LogChanges, LogView
from penstock.spark.copy_plan import CopyPlan
from penstock.spark.rows import CopyRows
from penstock.spark.settling import Removal, touched_keys
from penstock.telemetry.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG_POLL_S = 0.05
_ONE_PART = sys.maxsize


@dataclass(frozen=True, slots=True)
class CopySettings:
    """What copying needs to know of the pipeline."""

    address: SourceAddress
    publication: str
    policies: ValuePolicies
    max_connections: int
    part_blocks: int
    """How many blocks are committed at once, where a copy can go on from there."""
    max_snapshot_age_s: float


@dataclass(frozen=True, slots=True)
class _Planned:
    """A table as a snapshot has it, and how it is to be read."""

    table: PublishedTable
    snapshot: ExportedSnapshot
    plan: CopyPlan
    estimate: int | None
    is_divisible: bool

    @property
    def files(self) -> dict[object, int]:
        return {part.relation: part.file for part in self.plan.ranges}


@dataclass
class Copier:
    """Plans copies and hands them to the destination; remembers those under way so that they can be cancelled."""

    settings: CopySettings
    tables: Tables
    destination: Destination
    view: LogView
    spark: Callable[[], SparkSession]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _under_way: set[CopyRows] = field(default_factory=set)
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def copy(self, table: PublishedTable, snapshot: ExportedSnapshot) -> Lsn | None:
        """Copy a table, durably, and return its watermark; None if the rest must be read as of a younger snapshot."""
        planned = self._plan(table, snapshot, is_read=True)
        outline = self._outline_to_go_on_with(planned)
        done = self._copied_parts(table.id) if outline else 0
        if outline is None:
            outline = self._begin(planned, snapshot.consistent_point)
        elif done > len(outline.parts):
            return self._settled_at(table.id)
        progress = self._watch(planned, outline, done)
        if not self._write_parts(planned, outline, done, progress):
            return None
        watermark = outline.since
        if outline.since != snapshot.consistent_point:
            watermark = self._settle(planned, outline, progress)
        progress.finish()
        return watermark

    def begin_empty(self, table: PublishedTable, snapshot: ExportedSnapshot, watermark: Lsn) -> None:
        """Make the destination's table empty as of a position."""
        planned = self._plan(table, snapshot, is_read=False)
        planned = replace(planned, plan=replace(planned.plan, ranges=()), is_divisible=False)
        outline = self._begin(planned, watermark)
        self._write_parts(planned, outline, 0, self._watch(planned, outline, 0))

    def cancel(self) -> None:
        """Make the copies under way fail soon, and those that follow at once."""
        with self._lock:
            self._cancelled.set()
            for rows in self._under_way:
                rows.cancel()

    def wait_for_log(self, position: Lsn) -> None:
        """Wait until the log has come to a position."""
        while self.view.reader.end_lsn < position:
            if self._cancelled.wait(_LOG_POLL_S):
                raise PenstockError("the copy was cancelled", kind=ErrorKind.SOURCE_OPERATION_CANCELED)

    def _plan(self, table: PublishedTable, snapshot: ExportedSnapshot, *, is_read: bool) -> _Planned:
        settings = self.settings
        with closing(connect(settings.address, application_name="penstock copy plan")) as connection:
            import_snapshot(connection, snapshot.name)
            if is_read:
                require_readable(connection, table)
            schema = settings.policies.resolve(describe_table(connection, table.id, table.columns))
            schema = replace(schema, membership=table.membership)
            is_divisible = (
                isinstance(self.destination, Positioned)
                and has_exact_key(schema, settings.policies)
                and publishes_every_change(connection, settings.publication)
            )
            ranges = plan_ranges(connection, table, blocks_per_range=min(BLOCKS_PER_RANGE, settings.part_blocks))
            estimate = _estimate(blocks(connection, table.id))
        plan = CopyPlan(
            settings.address,
            snapshot.name,
            schema,
            ranges,
            table.row_filter,
            settings.policies,
            settings.max_connections,
        )
        return _Planned(table, snapshot, plan, estimate, is_divisible)

    def _outline_to_go_on_with(self, planned: _Planned) -> CopyOutline | None:
        """Return how an earlier copy divided the table, if what it left can still be used."""
        table = planned.table
        phase = self.tables.get(table.id).phase
        if not isinstance(phase, DataSync) or phase.outline is None:
            return None
        known, outline = self.tables.store.get_table_schema(table.id), phase.outline
        is_usable = (
            planned.is_divisible
            and outline.files == planned.files
            and known is not None
            and (known, known.membership) == (planned.plan.schema, table.membership)
            and self.view.reader.start_lsn <= outline.since
            and self._copied_parts(table.id) > 0
        )
        if not is_usable:
            get_logger(table=str(table.name)).info("copy starts again: its table, log or destination is another one")
        return outline if is_usable else None

    def _begin(self, planned: _Planned, since: Lsn) -> CopyOutline:
        """Begin a copy anew. The destination forgets its parts before anybody may go on with this copy's."""
        table, store = planned.table.id, self.tables.store
        store.reset_replication_progress(table)
        store.store_table_schema(planned.plan.schema)
        self.destination.truncate_table(table)
        part_blocks = self.settings.part_blocks if planned.is_divisible else _ONE_PART
        outline = CopyOutline(since, planned.plan.ranges, part_blocks)
        self.tables.begin_copy(table, since, outline if planned.is_divisible else None)
        return outline

    def _watch(self, planned: _Planned, outline: CopyOutline, done: int) -> CopyProgress:
        """Show how the copy gets on; rows that an earlier process copied are not known, only their share."""
        table = planned.table.id
        former = self.tables.get(table).copy if done else None
        blocks_done = sum(each.blocks for part in outline.parts[:done] for each in part)
        copied = Copied(former.rows if former else 0, blocks_done)
        progress = CopyProgress(sum(each.blocks for each in outline.ranges), planned.estimate, copied)
        self.tables.start_copy(table, progress)
        return progress

    def _write_parts(self, planned: _Planned, outline: CopyOutline, done: int, progress: CopyProgress) -> bool:
        """Write the parts that are missing, and say whether all are there now; one at least, however old a snapshot."""
        parts = outline.parts
        for number in range(done, len(parts)):
            if number > done and planned.snapshot.age_s > self.settings.max_snapshot_age_s:
                return False
            self._write(planned, parts[number], outline.since, number, progress)
            failpoint.hit("table_sync.part_copied")
        return True

    def _settle(self, planned: _Planned, outline: CopyOutline, progress: CopyProgress) -> Lsn:
        """Remove what was touched since the first snapshot, and read it anew as of this one."""
        schema, end = planned.plan.schema, planned.snapshot.consistent_point
        self.wait_for_log(end)
        keys = touched_keys(LogChanges(self.view, schema, outline.since, end))
        log = get_logger(table=str(schema.name))
        log.info("copy is settled", since=str(outline.since), position=str(end), touched=keys.num_rows)
        failpoint.hit("table_sync.before_settling")
        if keys.num_rows:
            self.destination.write_events(Removal(schema, keys, Lsn(end - 1), self.spark))
        failpoint.hit("table_sync.touched_rows_removed")
        conditions = list(key_conditions(schema, keys))
        ranges = tuple(
            CopyRange(relation, file, condition=condition)
            for relation, file in outline.files.items()
            for condition in conditions
        )
        self._write(planned, ranges, end, len(outline.parts), progress)
        return end

    def _write(
        self, planned: _Planned, ranges: Sequence[CopyRange], watermark: Lsn, number: int, progress: CopyProgress
    ) -> None:
        rows = CopyRows(replace(planned.plan, ranges=tuple(ranges)), watermark, self.spark, number)
        progress.start_part(lambda: rows.copied)
        self._enter(rows)
        try:
            self.destination.write_table_rows(rows.schema, rows)
        finally:
            with self._lock:
                self._under_way.discard(rows)
        progress.finish_part()

    def _enter(self, rows: CopyRows) -> None:
        with self._lock:
            self._under_way.add(rows)
            if self._cancelled.is_set():
                rows.cancel()

    def _copied_parts(self, table: TableId) -> int:
        return self.destination.copied_parts(table) if isinstance(self.destination, Positioned) else 0

    def _settled_at(self, table: TableId) -> Lsn | None:
        """Return the watermark of a copy whose process ended between its last commit and saying so."""
        assert isinstance(self.destination, Positioned)
        return self.destination.watermark(table)


def _estimate(leaves: Sequence[Leaf]) -> int | None:
    """Return about how many rows there are, if the source has counted since the table was made."""
    estimates = [leaf.rows_estimate for leaf in leaves if leaf.blocks]
    known = [estimate for estimate in estimates if estimate is not None]
    return sum(known) if len(known) == len(estimates) else None
