"""What a pipeline's report says as metrics, and where the source is meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version

from penstock.errors import PenstockError
from penstock.model.lsn import Lsn
from penstock.model.phase import PHASES
from penstock.runtime.report import PipelineReport, TableReport
from penstock.telemetry import metrics
from penstock.telemetry.metrics import Metric, Sample

_ASK_S = 10.0  # often enough to see a lag grow, seldom enough for a source that counts connections


class SourceWatch:
    """Asks the source for its position now and then, so that no scrape waits for a source that is away."""

    def __init__(self, ask: Callable[[], Lsn], pause_s: float = _ASK_S) -> None:
        self._ask = ask
        self._pause_s = pause_s
        self._stopped = threading.Event()
        self.position: Lsn | None = None
        """Where the source was when last asked; None if it did not say."""

    def start(self) -> None:
        """Ask from now on."""
        threading.Thread(target=self._run, name="source-watch", daemon=True).start()

    def stop(self) -> None:
        """Ask no more; a question that is under way ends by itself."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.position = self._ask()
            except PenstockError:
                self.position = None
            self._stopped.wait(self._pause_s)


def measure(report: PipelineReport, source: Lsn | None) -> Iterator[Sample]:
    """Yield a report's samples; `source` is where the source is, if that is known."""
    yield Sample(metrics.INFO, (report.pipeline, version("penstock")), 1)
    phases = Counter(table.phase for table in report.tables)
    for phase in PHASES:
        yield Sample(metrics.TABLES, (report.pipeline, phase.kind), phases[phase.kind])
    for metric, value in _of_pipeline(report, source):
        if value is not None:
            yield Sample(metric, (report.pipeline,), value)
    for label, table in _labelled(report.tables):
        yield Sample(metrics.TABLE_PHASE, (report.pipeline, label, table.phase), 1)
        for metric, value in (*_of_table(table, source), *_of_copy(table), *_of_upkeep(table)):
            if value is not None:
                yield Sample(metric, (report.pipeline, label), value)


def _labelled(tables: Sequence[TableReport]) -> Iterator[tuple[str, TableReport]]:
    """Yield the tables by name. Two may share one after a rename, and a scrape that says a thing twice is refused."""
    shared = Counter(table.name for table in tables)
    for table in tables:
        yield table.name if shared[table.name] == 1 else f"{table.name} (oid {table.id})", table


def _of_pipeline(report: PipelineReport, source: Lsn | None) -> Iterator[tuple[Metric, float | None]]:
    yield metrics.RECEIVER_RUNNING, report.receiver_pid is not None
    yield metrics.RECEIVER_RESTARTS, report.receiver_restarts
    yield metrics.RECEIVED_EVENTS, report.received_events
    yield metrics.SOURCE_REACHABLE, source is not None
    yield metrics.SOURCE_LSN, source
    yield metrics.SOURCE_LAG_BYTES, _lag(source, _known(report.acknowledged))
    yield metrics.ACKNOWLEDGED_LSN, _known(report.acknowledged)
    yield metrics.LOG_START_LSN, Lsn.parse(report.log_start)
    yield metrics.LOG_END_LSN, Lsn.parse(report.log_end)
    yield metrics.LOG_BYTES, report.log_bytes
    yield metrics.LOG_FULL, report.is_log_full
    yield metrics.SNAPSHOT_AGE_SECONDS, report.snapshot_age_s


def _of_table(table: TableReport, source: Lsn | None) -> Iterator[tuple[Metric, float | None]]:
    yield metrics.TABLE_FAILURES, table.failures
    watermark = _known(table.watermark)
    yield metrics.TABLE_WATERMARK_LSN, watermark
    yield metrics.TABLE_LAG_BYTES, _lag(source, watermark)
    yield metrics.APPLIED_EVENTS, table.applied_events


def _of_copy(table: TableReport) -> Iterator[tuple[Metric, float | None]]:
    if table.total_bytes is None or table.copied_percent is None:
        return
    yield metrics.COPY_ROWS, table.copied_rows
    yield metrics.COPY_BYTES, table.copied_bytes
    yield metrics.COPY_SIZE_BYTES, table.total_bytes
    yield metrics.COPY_RATIO, table.copied_percent / 100
    yield metrics.COPY_ROWS_PER_SECOND, table.rows_per_second
    yield metrics.COPY_LEFT_SECONDS, table.seconds_left


def _of_upkeep(table: TableReport) -> Iterator[tuple[Metric, float | None]]:
    yield metrics.TABLE_FILES, table.files
    yield metrics.UPKEEP_RUNS, table.upkeep_runs
    yield metrics.UPKEEP_FAILURES, table.upkeep_failures
    yield metrics.UPKEEP_SECONDS, table.upkeep_seconds
    yield metrics.UPKEEP_REWRITTEN_FILES, table.upkeep_rewritten_files
    yield metrics.UPKEEP_REWRITTEN_BYTES, table.upkeep_rewritten_bytes


def _known(position: str | None) -> Lsn | None:
    """Return a position; None for one that is not there yet, from which everything would be far behind."""
    return None if position is None else Lsn.parse(position) or None


def _lag(source: Lsn | None, position: Lsn | None) -> int | None:
    return None if source is None or position is None else max(int(source) - int(position), 0)
