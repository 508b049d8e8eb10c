"""What a running pipeline says of itself: a value for live views, and a file for `penstock status`."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.model.phase import Errored, TimedRetry
from penstock.runtime.tables import TableState

REPORT_FILE_NAME = "status.json"


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table."""

    id: int
    name: str
    phase: str
    watermark: str | None
    copied_rows: int
    estimated_rows: int | None
    applied_events: int
    error: str | None = None
    solution: str | None = None
    next_retry: str | None = None


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """The pipeline at one moment."""

    pipeline: str
    pid: int
    at: str
    receiver_pid: int | None
    receiver_restarts: int
    receiver_error: str | None
    is_log_full: bool
    log_start: str
    log_end: str
    log_bytes: int
    acknowledged: str
    received_events: int
    tables: Sequence[TableReport]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)


def table_report(state: TableState) -> TableReport:
    """Return what there is to say of one table."""
    phase = state.phase
    errored = phase if isinstance(phase, Errored) else None
    policy = errored.retry_policy if errored else None
    return TableReport(
        id=int(state.id),
        name=str(state.name),
        phase=phase.kind,
        watermark=str(state.watermark) if state.watermark is not None else None,
        copied_rows=state.copied_rows(),
        estimated_rows=state.estimated_rows,
        applied_events=state.applied_events,
        error=errored.reason if errored else None,
        solution=errored.solution if errored else None,
        next_retry=policy.next_retry.isoformat() if isinstance(policy, TimedRetry) else None,
    )


def now() -> str:
    """Return the time as reports have it."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


def write_report(state_dir: Path, report: PipelineReport) -> None:
    """Publish a report for other processes, atomically; it need not survive a crash of the machine."""
    path = state_dir / REPORT_FILE_NAME
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(report.to_json()))
    temporary.replace(path)


def read_report(state_dir: Path) -> dict[str, Any] | None:
    """Return the last report that was published, or None."""
    try:
        data: dict[str, Any] = json.loads((state_dir / REPORT_FILE_NAME).read_text())
    except FileNotFoundError:
        return None
    return data
