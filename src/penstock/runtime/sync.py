"""Table-sync workers: copy tables as of one snapshot per wave, then catch up with the apply worker.

A wave is the set of tables that wait to be copied when a snapshot is taken. They share it, so a fresh
pipeline's first state is consistent across tables. The snapshot lives until the wave's last copy ends, or
until it is too old: the source cannot vacuum meanwhile. What is left then belongs to the next wave.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from penstock import failpoint
from penstock.errors import ErrorKind, PenstockError
from penstock.model.lsn import Lsn, Position
from penstock.model.phase import Catchup, DataSync, Errored, FinishedCopy, Init, Ready, SyncDone, SyncWait
from penstock.model.table import TableId, TableName
from penstock.postgres.connection import SourceAddress, connect
from penstock.postgres.publication import PublishedTable, published_tables
from penstock.postgres.slot import source_position
from penstock.postgres.snapshot import ExportedSnapshot
from penstock.runtime.apply import Applier
from penstock.runtime.copy import Copier
from penstock.runtime.failure import FailurePolicy
from penstock.runtime.tables import Tables, TableState
from penstock.telemetry.log import get_logger

_RECONCILE_S = 5.0  # how soon a change of the publication is noticed


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """What table-sync needs to know of the pipeline."""

    address: SourceAddress
    publication: str
    max_workers: int
    max_bytes: int
    """What the changes that are applied at once may take in memory."""
    max_snapshot_age_s: float
    is_copied: Callable[[TableName, TableId], bool] = lambda name, id_: True  # noqa: ARG005
    """Whether a table is copied; one that is not begins empty."""


class TableSync:
    """Finds tables to copy, and copies them with a bounded number of workers."""

    def __init__(
        self, settings: SyncSettings, tables: Tables, applier: Applier, copier: Copier, failures: FailurePolicy
    ) -> None:
        self._settings = settings
        self._tables = tables
        self._applier = applier
        self._copier = copier
        self._failures = failures
        self._log = get_logger(worker="table_sync")
        self._copies = ThreadPoolExecutor(settings.max_workers, thread_name_prefix="copy")
        self._catchups = ThreadPoolExecutor(settings.max_workers, thread_name_prefix="catchup")
        self._catching_up: set[TableId] = set()
        self._stopping = threading.Event()
        self._snapshot: ExportedSnapshot | None = None

    @property
    def snapshot_age_s(self) -> float | None:
        """For how long the snapshot of the wave under way has been held; None when there is none."""
        snapshot = self._snapshot
        return None if snapshot is None else snapshot.age_s

    def stop(self) -> None:
        """Start no more copies, cancel those under way, and let waiting workers go."""
        self._stopping.set()
        self._copier.cancel()
        snapshot = self._snapshot
        if snapshot is not None:
            snapshot.cancel()
        self._tables.wake()

    def run(self) -> None:
        """Copy tables as they come until stopped."""
        try:
            while not self._stopping.is_set():
                self._step()
        finally:
            self._copies.shutdown(cancel_futures=True)
            self._catchups.shutdown(cancel_futures=True)

    def _step(self) -> None:
        try:
            published = self._reconcile()
            self._catch_up_copied()
            waiting = [published[state.id] for state in self._uncopied() if state.id in published]
            if waiting:
                self._run_wave(waiting)
        except PenstockError as error:
            if not self._stopping.is_set():
                self._log.warning("cannot look for tables to copy", kind=error.kind, reason=error.message)
            self._stopping.wait(_RECONCILE_S)
        self._tables.wait_for(self._has_work, _RECONCILE_S)

    def _has_work(self) -> bool:
        return self._stopping.is_set() or bool(self._uncopied()) or bool(self._copied())

    def _uncopied(self) -> list[TableState]:
        """Return the tables to copy: between waves, one that is being copied is one that was left unfinished."""
        return self._tables.in_phase(Init, DataSync)

    def _reconcile(self) -> dict[TableId, PublishedTable]:
        """Take in tables that joined the publication, and forget those that left."""
        with connect(self._settings.address, application_name="penstock table sync") as connection:
            published = {table.id: table for table in published_tables(connection, self._settings.publication)}
        known = self._tables.ids()
        for table in published.values():
            if table.id not in known:
                self._log.info("table joined the publication", table=str(table.name))
                self._tables.add(table.id, table.name, Init(), None)
        # One that is just being copied is dealt with when that is over.
        for state in self._tables.in_phase(Ready, Errored):
            if state.id in published and self._tables.has_rejoined(state.id, published[state.id].membership):
                self._log.warning("table is published in another way, it is copied anew", table=str(state.name))
                self._tables.restart_copy(state.id)
        for state in self._tables.in_phase(Init, DataSync, Ready, Errored):
            if state.id not in published:
                self._log.info("table left the publication", table=str(state.name))
                self._tables.remove(state.id)
        return published

    def _run_wave(self, waiting: list[PublishedTable]) -> None:
        # A copy that goes on needs the log from where it began.
        fresh = [table.id for table in waiting if isinstance(self._tables.get(table.id).phase, Init)]
        # Before the snapshot is taken: a change made right after it must not be trimmed from the log meanwhile.
        self._tables.hold(fresh, self._applier.view.reader.end_lsn)
        try:
            truncated = self._copy_together(waiting, fresh)
            # Not under the snapshot: a transaction takes as long as it is large, and the source could not vacuum.
            begins = [self._copies.submit(self._begin_at, table, position) for table, position in truncated]
            for begin in begins:
                begin.result()
        finally:
            self._tables.release(fresh)

    def _copy_together(
        self, waiting: list[PublishedTable], fresh: list[TableId]
    ) -> list[tuple[PublishedTable, Position]]:
        """Copy tables as of one snapshot; return those that were truncated meanwhile, and where."""
        try:
            self._snapshot = ExportedSnapshot(self._settings.address, application_name="penstock snapshot")
            if self._stopping.is_set():
                return []
            with self._snapshot as snapshot:
                self._log.info("snapshot taken", tables=len(waiting), position=str(snapshot.consistent_point))
                self._tables.hold(fresh, snapshot.consistent_point)
                copies = [(table, self._copies.submit(self._copy, table, snapshot)) for table in waiting]
                found = [(table, copy.result()) for table, copy in copies]
            return [(table, truncated) for table, truncated in found if truncated is not None]
        finally:
            self._snapshot = None

    def _copy(self, table: PublishedTable, snapshot: ExportedSnapshot) -> Position | None:
        """Copy a table, or empty it and return where it was truncated meanwhile."""
        if self._stopping.is_set() or snapshot.age_s > self._settings.max_snapshot_age_s:
            return None
        try:
            failpoint.hit("table_sync.before_copy")
            return self._copy_or_empty(table, snapshot)
        except Exception as error:  # noqa: BLE001  # whatever it is, it stops this table and no other
            self._fail(table.id, error)
            return None

    def _begin_at(self, table: PublishedTable, truncated: Position) -> None:
        """Apply what follows a truncate in its transaction: what comes before it is of rows that nobody has."""
        if self._stopping.is_set():
            return  # the next process copies it anew
        try:
            behind = Lsn(truncated.commit_lsn + 1)
            self._applier.apply({table.id: truncated.commit_lsn}, behind, begins=truncated)
            self._finish_copy(table, behind)
        except Exception as error:  # noqa: BLE001  # whatever it is, it stops this table and no other
            self._fail(table.id, error)

    def _finish_copy(self, table: PublishedTable, watermark: Lsn) -> None:
        failpoint.hit("table_sync.after_copy")
        self._tables.hold([table.id], watermark)
        self._tables.store.store_replication_progress({table.id: watermark})
        self._tables.enter(table.id, FinishedCopy())
        progress = self._tables.get(table.id).copy
        self._log.info("table is copied", table=str(table.name), rows=progress.rows if progress else 0)
        self._catch_up_copied()

    def _copy_or_empty(self, table: PublishedTable, snapshot: ExportedSnapshot) -> Position | None:
        if not self._settings.is_copied(table.name, table.id):
            self._copier.begin_empty(table, snapshot, snapshot.consistent_point)
            self._finish_copy(table, snapshot.consistent_point)
            return None
        try:
            watermark = self._copier.copy(table, snapshot)
        except PenstockError as error:
            truncated = self._truncate_behind(table.id, error)
            self._copier.begin_empty(table, snapshot, truncated.commit_lsn)
            return truncated
        if watermark is None:
            self._log.info("snapshot is old, the copy goes on with another", table=str(table.name))
        else:
            self._finish_copy(table, watermark)
        return None

    def _truncate_behind(self, table: TableId, error: PenstockError) -> Position:
        """Return where the table was truncated, if that is why its copy failed, or else raise the error.

        A table that is truncated again and again might never be copied in between. But a truncate that
        the log holds makes all that was before it irrelevant: from there the table can begin empty.
        """
        since = self._tables.get(table).watermark
        if error.kind is not ErrorKind.SOURCE_SNAPSHOT_LOST or since is None:
            raise error
        truncated = self._last_truncate(table, since)
        if truncated is None:
            raise error
        return truncated

    def _last_truncate(self, table: TableId, since: Lsn) -> Position | None:
        """Return where a table was last truncated, once the log has come to the present."""
        reader = self._applier.view.reader
        self._copier.wait_for_log(source_position(self._settings.address))
        truncates = reader.truncates(table, since, reader.end_lsn)
        return truncates[-1].position if truncates else None

    def _copied(self) -> list[TableId]:
        found = [state.id for state in self._tables.in_phase(FinishedCopy)]
        return [table for table in found if table not in self._catching_up]

    def _catch_up_copied(self) -> None:
        with self._tables.changed:
            for table in self._copied():
                self._catching_up.add(table)
                self._catchups.submit(self._catch_up, table)

    def _catch_up(self, table: TableId) -> None:
        """Apply the table's own log up to the position that the apply worker takes over from."""
        try:
            state = self._tables.get(table)
            assert state.watermark is not None
            self._tables.enter(table, SyncWait(state.watermark))
            if not self._wait_for_catchup(table):
                return
            assert isinstance(state.phase, Catchup)
            end = state.phase.lsn
            failpoint.hit("table_sync.before_catchup")
            self._apply_up_to(state, end)
            self._tables.store.store_replication_progress({table: end})
            self._tables.enter(table, SyncDone(end))
        except Exception as error:  # noqa: BLE001  # whatever it is, it stops this table and no other
            self._fail(table, error)
        finally:
            self._catching_up.discard(table)

    def _apply_up_to(self, state: TableState, end: Lsn) -> None:
        while state.watermark is not None and state.watermark < end:
            step = min(end, self._applier.end({state.id: state.watermark}, self._settings.max_bytes))
            events = self._applier.apply({state.id: state.watermark}, step)
            self._tables.advance(state.id, step, events.get(state.id, 0))

    def _wait_for_catchup(self, table: TableId) -> bool:
        state = self._tables.get(table)
        self._tables.wait_for(lambda: self._stopping.is_set() or isinstance(state.phase, Catchup))
        return not self._stopping.is_set()

    def _fail(self, table: TableId, error: Exception) -> None:
        if self._stopping.is_set():
            return  # a cancelled copy is not the table's fault
        if isinstance(error, PenstockError) and error.kind is ErrorKind.SOURCE_SNAPSHOT_LOST:
            self._log.warning("snapshot is lost", table=str(self._tables.name(table)), reason=error.message)
            self._tables.give_up_snapshot(table)
            return
        self._failures.fail(table, error)
