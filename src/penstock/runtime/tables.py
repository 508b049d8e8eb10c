"""What the workers share about tables: phase, watermark, columns, and how a copy is getting on.

One lock guards it all and doubles as the condition that workers wait on, so nobody polls for a phase.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.contract import Store, Upkeep
from penstock.model.copying import CopyOutline
from penstock.model.lsn import Lsn
from penstock.model.phase import DataSync, Errored, Init, Phase, Ready, SyncDone, TimedRetry
from penstock.model.table import TableId, TableName, TableSchema
from penstock.replication.life import after_restart, check_transition
from penstock.replication.progress import Need
from penstock.runtime.progress import CopyProgress


@dataclass(slots=True)
class UpkeepTotals:
    """What a table's upkeep has come to since the process started."""

    runs: int = 0
    failures: int = 0
    seconds: float = 0.0
    rewritten_files: int = 0
    rewritten_bytes: int = 0
    files: int | None = None
    """How many data files the table had behind the last one."""
    last: dt.datetime | None = None
    """When the last one was that was not brief."""
    is_failing: bool = False
    """Whether the last one failed."""

    def add_failure(self) -> None:
        """Count one that failed."""
        self.failures += 1
        self.is_failing = True

    def add(self, done: Upkeep, seconds: float, now: dt.datetime | None) -> None:
        """Count one more; without a time if it was brief."""
        self.is_failing = False
        self.runs += 1
        self.seconds += seconds
        self.rewritten_files += done.rewritten_files
        self.rewritten_bytes += done.rewritten_bytes
        self.files, self.last = done.files, now or self.last


@dataclass(slots=True)
class TableState:
    """One table, as the workers know it."""

    id: TableId
    name: TableName
    phase: Phase
    watermark: Lsn | None = None
    """All that committed before it is in the destination; of a table being copied, its snapshot's position."""
    copy: CopyProgress | None = None
    """None before this process copied it."""
    applied_events: int = 0
    batches: int = 0
    """Those that had changes of it, since the process started."""
    attempts: int = 0
    """Failures in a row."""
    upkeep: UpkeepTotals = field(default_factory=UpkeepTotals)

    @property
    def is_followed(self) -> bool:
        """Whether the apply worker owns it."""
        return isinstance(self.phase, SyncDone | Ready)


@dataclass
class Tables:
    """All tables of a pipeline."""

    store: Store
    changed: threading.Condition = field(default_factory=threading.Condition)
    _states: dict[TableId, TableState] = field(default_factory=dict)

    def add(self, table: TableId, name: TableName, phase: Phase, watermark: Lsn | None) -> None:
        """Take a table in, with the phase that it resumes in."""
        attempts = phase.retry_policy.attempts if _is_timed(phase) else 0  # type: ignore[union-attr]
        with self.changed:
            self._states[table] = TableState(table, name, phase, watermark, attempts=attempts)
            if self.store.get_table_replication_state(table) != phase:
                self.store.update_table_replication_state(table, phase)
            self.changed.notify_all()

    def has_rejoined(self, table: TableId, membership: str) -> bool:
        """Whether a table left the publication and came back since it was copied: what it missed was not sent."""
        schema = self.store.get_table_schema(table)
        return schema is not None and schema.membership != membership

    def remove(self, table: TableId) -> None:
        """Forget a table that left the publication."""
        with self.changed:
            self._states.pop(table, None)
            self.store.cleanup_table_state(table)
            self.changed.notify_all()

    def all(self) -> list[TableState]:
        """Return the tables, by name."""
        with self.changed:
            return sorted(self._states.values(), key=lambda state: (state.name, state.id))

    def ids(self) -> set[TableId]:
        """Return the tables' ids."""
        with self.changed:
            return set(self._states)

    def get(self, table: TableId) -> TableState:
        """Return one table."""
        return self._states[table]

    def name(self, table: TableId) -> TableName | None:
        """Return a table's name, unless it has left: it may do so while a worker is busy with it."""
        with self.changed:
            return self._states[table].name if table in self._states else None

    def schema(self, table: TableId) -> TableSchema:
        """Return a copied table's columns."""
        schema = self.store.get_table_schema(table)
        assert schema is not None, f"table {table} has no schema"
        return schema

    def enter(self, table: TableId, phase: Phase) -> None:
        """Move a table on, durably; one that has left is passed over."""
        with self.changed:
            state = self._states.get(table)
            if state is None:
                return
            check_transition(state.phase, phase)
            self.store.update_table_replication_state(table, phase)
            state.phase = phase
            self.changed.notify_all()

    def become_ready(self, table: TableId) -> bool:
        """Note that the apply worker has passed the hand-over of a table, and say whether it just did."""
        with self.changed:
            state = self._states.get(table)
            passed = (
                state is not None and isinstance(state.phase, SyncDone) and (state.watermark or 0) >= state.phase.lsn
            )
            if passed:
                self.enter(table, Ready())
            return passed

    def roll_back(self, table: TableId, committed: Lsn | None = None) -> None:
        """Return an errored table to where it can go on from, durably; `committed` is what the destination has."""
        with self.changed:
            state = self._states.get(table)
            if state is None:
                return
            state.phase = self.store.rollback_table_replication_state(table)
            resumed = after_restart(state.phase)
            if resumed != state.phase:
                self.enter(table, resumed)
            if isinstance(resumed, Init):
                state.watermark = None
            elif isinstance(resumed, DataSync) and resumed.outline:
                state.watermark = resumed.outline.since
            elif committed is not None:
                state.watermark = max(committed, state.watermark or committed)
            self.changed.notify_all()

    def count_failure(self, table: TableId) -> int:
        """Count a failure of a table, and return how many there were in a row."""
        with self.changed:
            state = self._states.get(table)
            if state is None:
                return 1
            state.attempts += 1
            return state.attempts

    def hold(self, tables: Iterable[TableId], watermark: Lsn) -> None:
        """Make the log keep the changes of tables that are about to be copied."""
        with self.changed:
            for table in tables:
                self._states[table].watermark = watermark

    def restart_copy(self, table: TableId) -> None:
        """Put a table back in line: its snapshot is of no use any more."""
        with self.changed:
            self.enter(table, Init())
            self._states[table].watermark = None

    def give_up_snapshot(self, table: TableId) -> None:
        """Put a table back in line, unless what is copied of it is of use with another snapshot."""
        with self.changed:
            phase = self._states[table].phase
            if not isinstance(phase, DataSync) or phase.outline is None:
                self.restart_copy(table)

    def begin_copy(self, table: TableId, since: Lsn, outline: CopyOutline | None) -> None:
        """Begin a copy as of a position, durably."""
        with self.changed:
            state = self._states[table]
            if not isinstance(state.phase, Init):
                self.enter(table, Init())
            state.watermark = since
            self.enter(table, DataSync(outline))

    def release(self, tables: Iterable[TableId]) -> None:
        """Let go of tables whose copy did not even start."""
        with self.changed:
            for table in tables:
                if isinstance(self._states[table].phase, Init):
                    self._states[table].watermark = None

    def start_copy(self, table: TableId, progress: CopyProgress) -> None:
        """Note how a copy can be watched."""
        with self.changed:
            self._states[table].copy = progress

    def advance(self, table: TableId, watermark: Lsn, events: int = 0) -> bool:
        """Move a watermark forward in memory, unless the table has left; `persist` makes it durable."""
        with self.changed:
            state = self._states.get(table)
            if state is None:
                return False
            if state.watermark is None or watermark > state.watermark:
                state.watermark = watermark
                state.applied_events += events
                self.changed.notify_all()
            if events:
                state.attempts = 0
                state.batches += 1
            return True

    def persist(self) -> None:
        """Store the watermarks of the followed tables."""
        with self.changed:
            stored = self.store.get_replication_progress()
            found = {state.id: state.watermark for state in self._states.values() if state.is_followed}
        moved = {table: lsn for table, lsn in found.items() if lsn is not None and lsn != stored.get(table)}
        if moved:
            self.store.store_replication_progress(moved)

    def needs(self) -> list[Need]:
        """Return from where on each table needs the log."""
        with self.changed:
            return [Need(state.phase, state.watermark, state.name) for state in self._states.values()]

    def wait_for(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until something about the tables makes a condition true."""
        with self.changed:
            return self.changed.wait_for(condition, timeout_s)

    def wake(self) -> None:
        """Let everyone who waits look again."""
        with self.changed:
            self.changed.notify_all()

    def in_phase(self, *kinds: type[Phase]) -> list[TableState]:
        """Return the tables in some phase."""
        return [state for state in self.all() if isinstance(state.phase, kinds)]


def _is_timed(phase: Phase) -> bool:
    return isinstance(phase, Errored) and isinstance(phase.retry_policy, TimedRetry)
