"""The pipeline: everything that runs, from start to shutdown."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.changelog.reader import LogReader
from penstock.config.pipeline import PipelineConfig
from penstock.contract import Destination, Maintained, Moded, Positioned, Store
from penstock.errors import ErrorKind, PenstockError, StateError
from penstock.model.lsn import NOWHERE, Lsn
from penstock.model.mode import TableModes
from penstock.model.phase import DataSync, Errored, Init, Phase, Ready, TimedRetry
from penstock.model.table import TableId
from penstock.postgres.connection import connect
from penstock.postgres.preflight import require_source
from penstock.postgres.publication import PublishedTable, published_tables
from penstock.postgres.ranges import BLOCK_BYTES
from penstock.postgres.slot import read_slot, source_position
from penstock.receiver.settings import Command, ReceiverSettings
from penstock.replication.life import after_restart
from penstock.runtime.apply import Applier, ApplyWorker
from penstock.runtime.copy import Copier, CopySettings
from penstock.runtime.failure import FailurePolicy
from penstock.runtime.lock import lock_state_dir
from penstock.runtime.report import PipelineReport, held_back, now, table_report, write_report
from penstock.runtime.source import SlotAndLog, log_folder, source_address
from penstock.runtime.supervisor import ReceiverSupervisor
from penstock.runtime.sync import SyncSettings, TableSync
from penstock.runtime.tables import Tables
from penstock.runtime.upkeep import UpkeepWorker
from penstock.spark.changes import LogView
from penstock.spark.lazy import LazySession
from penstock.spark.session import SparkSettings
from penstock.telemetry.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REPORT_S = 1.0
# More at once only share the same cores: Spark divides each table's work by itself.
_PARALLEL_TABLES = 4
# What one table's changes in one commit may take in memory, as Arrow, before folding and writing: some hundred thousand
# rows of usual width, beside which a commit costs little.
_APPLY_BYTES = 128 << 20


class Pipeline:
    """Replicates one publication into one destination.

    `start` returns when everything runs; `wait` returns when it has ended, and raises what ended it;
    `shutdown`, from any thread or a signal handler, asks it to end: what is under way is finished,
    the source hears how far we are, the destination is shut down. A pipeline runs once.
    """

    def __init__(
        self,
        config: PipelineConfig,
        *,
        store: Store,
        destination: Destination,
        state_dir: str | os.PathLike[str] = ".penstock",
        spark: Callable[[], SparkSession] | None = None,
        failpoints: str = "",
    ) -> None:
        self._config = config
        self._state_dir = Path(state_dir)
        self._log_folder = log_folder(config.log, self._state_dir)
        self._destination = destination
        self._failpoints = failpoints
        self._log = get_logger(pipeline=str(config.id))
        self._tables = Tables(store)
        self._cleanup = ExitStack()
        self._spark = spark or self._own_session()
        self._threads: list[threading.Thread] = []
        self._errors: list[Exception] = []
        self._stop_requested = threading.Event()
        self._is_started = False
        self._is_finished = False
        self._command = Command(NOWHERE, NOWHERE)
        self._received_events = 0

    def start(self) -> None:
        """Check the source, take up the state that is stored, and set everything going."""
        if self._is_started:
            raise StateError("this pipeline has been started already", remedy="Make a new Pipeline to start again.")
        self._is_started = True
        try:
            self._prepare()
        except BaseException:
            self._cleanup.close()
            raise
        self._supervisor.start()
        works = {"apply": self._apply.run, "table-sync": self._sync.run, "report": self._report}
        if self._upkeep is not None:
            works["upkeep"] = self._upkeep.run
        for name, work in works.items():
            thread = threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        self._log.info("pipeline started", tables=len(self._tables.ids()))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end, at most so long, and say whether it has come; raise the error that caused it."""
        if not self._is_started:
            raise StateError("this pipeline was not started", remedy="Call start first.")
        if not self._stop_requested.wait(timeout_s):
            return False
        self._finish()
        if len(self._errors) > 1:
            raise ExceptionGroup("the pipeline failed", self._errors)
        if self._errors:
            raise self._errors[0]
        return True

    def shutdown(self) -> None:
        """Ask the pipeline to end. Returns at once; `wait` tells when it has."""
        self._stop_requested.set()

    def shutdown_and_wait(self) -> None:
        """End the pipeline, and return when it has ended."""
        self.shutdown()
        self.wait()

    def wait_until_ready(self, target: Lsn, timeout_s: float | None = None) -> bool:
        """Wait until every table is followed and has passed a position, or waits for a person, or all ends."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._has_passed(target):
            left = _REPORT_S if deadline is None else min(_REPORT_S, deadline - time.monotonic())
            if self._stop_requested.is_set() or left <= 0:
                return False
            self._tables.wait_for(lambda: self._has_passed(target), left)
        return True

    def source_position(self) -> Lsn:
        """Return the position that the source has reached just now."""
        return source_position(self._address)

    @property
    def report(self) -> PipelineReport:
        """What there is to say at this moment."""
        supervisor, reader = self._supervisor, self._reader
        return PipelineReport(
            pipeline=str(self._config.id),
            pid=os.getpid(),
            at=now(),
            receiver_pid=supervisor.pid,
            receiver_restarts=supervisor.restarts,
            receiver_error=supervisor.last_error.message if supervisor.last_error else None,
            is_log_full=supervisor.is_log_full,
            log_start=str(reader.start_lsn),
            log_end=str(reader.end_lsn),
            log_bytes=reader.size_bytes,
            acknowledged=str(self._command.acknowledge),
            received_events=self._received_events,
            tables=[table_report(state) for state in self._tables.all()],
            log_held_by=held_back(self._apply.held_by),
            log_keep_ms=self._config.log.keep_ms,
            log_keep_bytes=self._config.log.keep_bytes,
            snapshot_age_s=self._sync.snapshot_age_s,
        )

    def _own_session(self) -> LazySession:
        session = LazySession(SparkSettings())
        self._cleanup.callback(session.stop)
        return session

    def _prepare(self) -> None:
        config, tables = self._config, self._tables
        self._cleanup.enter_context(closing(lock_state_dir(self._state_dir)))
        self._address = source_address(config.pg_connection, self._state_dir)
        for load in ("load_table_replication_states", "load_table_schemas", "load_table_mappings"):
            getattr(tables.store, load)()
        published = self._check_source()
        self._reader = self._open_log()
        self._destination.startup()
        self._cleanup.callback(self._destination.shutdown)
        self._take_up(published)
        self._supervisor = ReceiverSupervisor(
            self._receiver_settings(), on_entry=self._hear_of_entry, on_failure=self._fail
        )
        failures = FailurePolicy(
            tables, delay_ms=config.table_error_retry_delay_ms, max_attempts=config.table_error_retry_max_attempts
        )
        applier = Applier(LogView(self._reader, config.value_policies, self._spark), tables, self._destination)
        self._apply = ApplyWorker(
            applier,
            failures,
            send=self._send,
            max_bytes=_APPLY_BYTES,
            max_log_bytes=config.log.max_bytes,
            parallel_tables=_PARALLEL_TABLES,
            acknowledges_staged=config.ack == "staged",
            merge_every_s=config.batch.merge_every_ms / 1000,
        )
        copier = Copier(self._copy_settings(), tables, self._destination, applier.view, self._spark)
        settings = SyncSettings(
            self._address,
            config.publication_name,
            config.max_table_sync_workers,
            _APPLY_BYTES,
            config.initial_copy.max_snapshot_age_ms / 1000,
            config.table_sync_copy.copies,
        )
        self._sync = TableSync(settings, tables, applier, copier, failures)
        self._upkeep = self._make_upkeep()

    def _make_upkeep(self) -> UpkeepWorker | None:
        destination = self._destination
        if not isinstance(destination, Maintained) or destination.upkeep_every_s is None:
            return None
        return UpkeepWorker(destination, self._tables, destination.upkeep_every_s)

    def _check_source(self) -> tuple[PublishedTable, ...]:
        with closing(connect(self._address, application_name="penstock check")) as connection:
            has_slot = read_slot(connection, self._config.id.slot_name).exists
            # One for a temporary slot while a snapshot is taken, and our own.
            modes = self._destination.modes if isinstance(self._destination, Moded) else TableModes()
            config = self._config
            require_source(self._address, config.publication_name, 1 if has_slot else 2, config.table_sync_copy, modes)
            return published_tables(connection, self._config.publication_name)

    def _open_log(self) -> LogReader:
        source = SlotAndLog(self._address, self._config.id.slot_name, self._log_folder, self._config.failover_slot)
        states = self._tables.store.get_table_replication_states()
        # A copy that was under way can start again; a table that was followed must not skip what a new slot lacks.
        may_create = all(isinstance(after_restart(phase), Init | DataSync) for phase in states.values())
        try:
            return source.open(may_create=may_create)
        except PenstockError as error:
            lost = {ErrorKind.SLOT_INVALIDATED, ErrorKind.SLOT_MISSING}
            if error.kind not in lost or self._config.invalidated_slot != "resync":
                raise
            self._log.warning("slot is lost, all tables are copied anew", reason=error.message)
            for table in states:
                self._tables.store.update_table_replication_state(table, Init())
            source.drop()
            return source.open(may_create=True)

    def _take_up(self, published: tuple[PublishedTable, ...]) -> None:
        """Take every table up where it stood; one that left the publication meanwhile is forgotten."""
        store = self._tables.store
        states, progress = store.get_table_replication_states(), store.get_replication_progress()
        for gone in states.keys() - {table.id for table in published}:
            store.cleanup_table_state(gone)
        for table in published:
            phase = after_restart(states.get(table.id, Init()))
            if self._tables.has_rejoined(table.id, table.membership):
                self._log.warning("table is published in another way, it is copied anew", table=str(table.name))
                phase = Init()
            phase, watermark = self._recover(table.id, phase, progress.get(table.id))
            self._tables.add(table.id, table.name, phase, watermark)

    def _recover(self, table: TableId, phase: Phase, stored: Lsn | None) -> tuple[Phase, Lsn | None]:
        """Return where a table really stands: what the destination committed counts before what was noted."""
        if isinstance(phase, DataSync):
            return self._recover_copy(phase)
        if isinstance(phase, Init) or not isinstance(self._destination, Positioned):
            return phase, None if isinstance(phase, Init) else stored
        committed = self._destination.watermark(table)
        if committed is None and not isinstance(phase, Errored):
            self._log.warning("table is gone from the destination, it is copied anew", table=int(table))
            return Init(), None
        known = [position for position in (committed, stored) if position is not None]
        return phase, max(known, default=None)

    def _recover_copy(self, phase: DataSync) -> tuple[Phase, Lsn | None]:
        """Return where an interrupted copy goes on from: from nothing, if the log lacks what happened since."""
        outline = phase.outline
        if outline is None or outline.since < self._reader.start_lsn:
            return Init(), None
        return phase, outline.since

    def _copy_settings(self) -> CopySettings:
        config = self._config
        return CopySettings(
            self._address,
            config.publication_name,
            config.value_policies,
            config.max_copy_connections_per_table,
            part_blocks=max(config.initial_copy.commit_bytes // BLOCK_BYTES, 1),
            max_snapshot_age_s=config.initial_copy.max_snapshot_age_ms / 1000,
        )

    def _receiver_settings(self) -> ReceiverSettings:
        config = self._config
        return ReceiverSettings(
            address=self._address,
            slot=config.id.slot_name,
            publication=config.publication_name,
            log=self._log_folder,
            spool=self._state_dir / "spool",
            policies=config.value_policies,
            max_bytes=config.batch.max_bytes,
            max_fill_ms=config.batch.max_fill_ms,
            max_log_bytes=config.log.max_bytes,
            keep_ms=config.log.keep_ms,
            keep_bytes=config.log.keep_bytes,
            acknowledges_staged=config.ack == "staged",
            max_memory_bytes=config.receiver.max_memory_bytes,
            heartbeat_s=config.receiver.heartbeat_ms / 1000,
            failpoints=self._failpoints,
        )

    def _send(self, command: Command) -> None:
        self._command = command
        self._supervisor.send(command)

    def _hear_of_entry(self, sequence: int, events: int) -> None:
        self._received_events += events
        self._apply.hear_of(sequence)

    def _has_passed(self, target: Lsn) -> bool:
        states = self._tables.all()
        return all(
            (isinstance(state.phase, Errored) and not isinstance(state.phase.retry_policy, TimedRetry))
            or (isinstance(state.phase, Ready) and state.watermark is not None and state.watermark >= target)
            for state in states
        )

    def _guard(self, work: Callable[[], None]) -> None:
        """Run a thread's work; an error that it does not handle ends the pipeline."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  # handed to whoever waits
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._log.error(
            "pipeline failed", error=str(error) if isinstance(error, PenstockError) else type(error).__name__
        )
        self._errors.append(error)
        self.shutdown()
        self._tables.wake()

    def _report(self) -> None:
        while not self._stop_requested.wait(_REPORT_S):
            self._write_report()
        self._write_report()

    def _write_report(self) -> None:
        try:
            write_report(self._state_dir, self.report)
        except OSError as error:  # a view of the pipeline must not end it
            self._log.warning("status cannot be written", reason=error.strerror)

    def _finish(self) -> None:
        """End everything, in the order of the data: copies, applying, the receiver, the destination."""
        if self._is_finished:
            return
        self._is_finished = True
        self._log.info("pipeline stops")
        self._sync.stop()
        if self._upkeep is not None:
            self._upkeep.stop()
        self._apply.stop()
        for thread in self._threads:
            thread.join()
        self._supervisor.stop()
        try:
            self._cleanup.close()
        except Exception as error:  # noqa: BLE001  # told with the others
            self._errors.append(error)
        self._log.info("pipeline stopped", acknowledged=str(self._command.acknowledge))
