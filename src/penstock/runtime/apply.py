"""The apply worker: takes ranges of whole transactions from the log into the destination, and acknowledges them.

A `Positioned` destination gets one table at a time, several tables at once: each table has its own
watermark, so a slow or broken one holds back nobody. Any other destination gets batches that span
tables, one after the other, in commit order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from penstock import failpoint
from penstock.contract import Destination, Maintained, Positioned
from penstock.errors import PenstockError, Retry
from penstock.model.lsn import Lsn, Position
from penstock.model.phase import Catchup, SyncWait
from penstock.model.table import TableId
from penstock.receiver.settings import Command
from penstock.replication.progress import Need, Positions, positions
from penstock.runtime.failure import FailurePolicy
from penstock.runtime.pause import Pauses
from penstock.runtime.tables import Tables, TableState
from penstock.spark.changes import LogEvents, LogView, require_same_columns
from penstock.telemetry.log import get_logger

_AWAY_S = 1.0  # until a store that does not answer is asked again
_TICK_S = 0.1  # the longest a hand-over or a due retry waits for the loop


@dataclass(frozen=True, slots=True)
class Applier:
    """Applies ranges of the log; shared by the apply worker and the table-sync workers."""

    view: LogView
    tables: Tables
    destination: Destination

    def end(self, starts: Mapping[TableId, Lsn], max_bytes: int) -> Lsn:
        """Return where a batch ends: at the log's end, where its memory does, or before a table's columns change.

        What was committed before a change of columns is applied; the batch that begins with it is refused.
        """
        end = self.view.reader.bounded_end(starts.keys(), min(starts.values()), max_bytes)
        changed = (self.view.columns_changed(self.tables.schema(table), start, end) for table, start in starts.items())
        return min((position for position in changed if position is not None), default=end)

    def apply(self, starts: Mapping[TableId, Lsn], end: Lsn, begins: Position | None = None) -> dict[TableId, int]:
        """Apply changes of some tables, each from its own watermark, up to `end`; return how many each had.

        `begins` is where in its first transaction a lone table begins.
        """
        schemas = {table: self.tables.schema(table) for table in starts}
        events = LogEvents(self.view, starts, schemas, end, begins)
        changes = events.tables()
        if changes:
            failpoint.hit("apply.before_write")
            self.destination.write_events(events)
            failpoint.hit("apply.after_write")
        return {table: each.events for table, each in changes.items()}


class ApplyWorker:
    """Runs the loop on a thread of its own."""

    def __init__(
        self,
        applier: Applier,
        failures: FailurePolicy,
        *,
        send: Callable[[Command], None],
        max_bytes: int,
        max_log_bytes: int,
        parallel_tables: int,
        acknowledges_staged: bool,
        merge_every_s: float = 0.0,
    ) -> None:
        self._applier = applier
        self._tables = applier.tables
        self._reader = applier.view.reader
        self._failures = failures
        self._send = send
        self._max_bytes = max_bytes
        self._max_log_bytes = max_log_bytes
        self._acknowledges_staged = acknowledges_staged
        self._log = get_logger(worker="apply")
        self._heard_of = self._looked_up_to = 0
        self._wakened = threading.Event()
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(parallel_tables, thread_name_prefix="apply")
        self._under_way: dict[frozenset[TableId], Future[None]] = {}
        self._is_positioned = isinstance(applier.destination, Positioned)
        self._pauses = Pauses(merge_every_s if isinstance(applier.destination, Maintained) else 0.0)
        self.held_by: tuple[Need, ...] = ()
        """Those that the log still waits for."""

    def hear_of(self, sequence: int) -> None:
        """Look at the log now: the receiver has written an entry."""
        self._heard_of = max(self._heard_of, sequence)
        self.wake()

    def wake(self) -> None:
        """Look now whether there is something to do."""
        self._wakened.set()

    def stop(self) -> None:
        """Let what is under way finish, and start nothing new."""
        self._stopping.set()
        self.wake()

    def run(self) -> None:
        """Apply until stopped."""
        try:
            while not self._stopping.is_set():
                self._wakened.wait(_TICK_S)
                self._wakened.clear()
                self._step()
        finally:
            self._pool.shutdown()
            self._collect()
            self._acknowledge()

    def _step(self) -> None:
        self._look()
        self._collect()
        self._retry()
        self._hand_over()
        self._dispatch()
        self._acknowledge()

    def _look(self) -> None:
        """See what is new in the log; in a bucket, where every look is a request, only what was heard of."""
        if self._reader.folder.is_local:
            self._reader.poll()
        elif (heard_of := self._heard_of) > self._looked_up_to:
            try:
                self._reader.poll(heard_of)
            except PenstockError as error:
                if error.retry is not Retry.TIMED:
                    raise
                self._log.warning("the change log cannot be read, it is tried again", reason=error.message)
                self._stopping.wait(_AWAY_S)
            else:
                self._looked_up_to = heard_of

    def _hand_over(self) -> None:
        """Give every table that waits for it the position from which the apply worker takes over."""
        for state in self._tables.in_phase(SyncWait):
            assert state.watermark is not None
            self._tables.enter(state.id, Catchup(max(self._reader.end_lsn, state.watermark)))

    def _retry(self) -> None:
        """Return the tables whose pause is over to work, if the destination can say how far they really are."""
        for table in self._failures.due():
            try:
                committed = self._committed(table)
            except Exception as error:  # noqa: BLE001  # the destination is still away, for this table
                self._failures.fail(table, error)
                continue
            self._tables.roll_back(table, committed)

    def _committed(self, table: TableId) -> Lsn | None:
        """Ask a destination that knows: a commit may have succeeded unnoticed."""
        destination = self._applier.destination
        return destination.watermark(table) if isinstance(destination, Positioned) else None

    def _dispatch(self) -> None:
        busy = frozenset[TableId]().union(*self._under_way)
        end = self._reader.end_lsn
        idle = [state for state in self._tables.all() if state.is_followed and state.id not in busy]
        free = [state for state in idle if not self._pauses.is_waiting(state.id, end)]
        pending = self._skip_unchanged(free)
        if self._is_positioned:
            for state in pending:
                if self._is_due(state):
                    self._submit([state])
        elif pending and not self._under_way:
            self._submit(pending)

    def _skip_unchanged(self, states: list[TableState]) -> list[TableState]:
        """Move tables without changes to the log's end, and return the others."""
        end = self._reader.end_lsn
        pending: list[TableState] = []
        for state in states:
            assert state.watermark is not None
            try:
                has_changes = state.watermark < end and self._has_changes(state.id, state.watermark, end)
            except PenstockError as error:  # a gap in the log, or another schema, stops this table only
                self._failures.fail(state.id, error)
                continue
            if has_changes:
                pending.append(state)
            else:
                self._finish(state.id, max(end, state.watermark), 0)
        return pending

    def _has_changes(self, table: TableId, start: Lsn, end: Lsn) -> bool:
        files = self._reader.files(table, start, end)
        # Other columns are refused here: so the table stops alone, even where batches span tables.
        for version in {file.version for file in files if file.first_lsn <= start}:
            require_same_columns(self._tables.schema(table), self._reader.schema(table, version))
        return bool(files) or bool(self._reader.truncates(table, start, end))

    def _is_due(self, state: TableState) -> bool:
        assert state.watermark is not None
        table, end = state.id, self._reader.end_lsn
        span = table, state.watermark, end
        is_truncated = bool(self._reader.truncates(*span))
        return self._pauses.is_due(table, end, self._reader.files(*span), is_truncated=is_truncated)

    def _submit(self, states: list[TableState]) -> None:
        starts = {state.id: state.watermark for state in states if state.watermark is not None}
        self._under_way[frozenset(starts)] = self._pool.submit(self._apply, starts)

    def _apply(self, starts: Mapping[TableId, Lsn]) -> None:
        try:
            # Chosen now and not when the tables were found to have changes: what arrived while they waited comes along.
            end = self._applier.end(starts, self._max_bytes)
            for table in starts:
                self._pauses.begin(table)
            failpoint.hit("apply.range_chosen")
            starts = {table: start for table, start in starts.items() if start < end}
            events = self._applier.apply(starts, end)
        except Exception as error:  # noqa: BLE001  # whatever it is, it stops these tables and no others
            for table in starts:
                self._failures.fail(table, error)
        else:
            for table in starts:
                self._finish(table, end, events.get(table, 0))
        finally:
            self.wake()

    def _finish(self, table: TableId, end: Lsn, events: int) -> None:
        if self._tables.advance(table, end, events) and self._tables.become_ready(table):
            self._log.info("table is ready", table=str(self._tables.name(table)), watermark=str(end))

    def _collect(self) -> None:
        for tables, future in list(self._under_way.items()):
            if future.done():
                del self._under_way[tables]
                future.result()

    def _acknowledge(self) -> None:
        found = self._positions()
        self.held_by = found.held_by
        failpoint.hit("apply.before_progress")
        self._tables.persist()
        failpoint.hit("apply.before_acknowledge")
        self._send(Command(found.acknowledge, found.trim))
        failpoint.hit("apply.acknowledged")
        self._reader.forget(found.trim)

    def _positions(self) -> Positions:
        needs, end = self._tables.needs(), self._reader.end_lsn
        decide = partial(positions, needs, end, acknowledges_staged=self._acknowledges_staged)
        found = decide()
        # Forgotten first: what the log only keeps for replay is no claim of anybody's.
        self._reader.forget(found.trim)
        # Half a log is what stopped tables may claim: they must never fill it and so stop the others.
        return found if self._reader.size_bytes < self._max_log_bytes // 2 else decide(keeps_errored=False)
