"""What a running pipeline says of itself: a value for live views, and a file for `penstock status`."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from penstock.model.phase import DataSync, Errored, Init, TimedRetry
from penstock.replication.progress import Need
from penstock.runtime.progress import CopyProgress
from penstock.runtime.tables import TableState, UpkeepTotals

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
    failures: int = 0
    """In a row."""
    copied_bytes: int = 0
    """Of the source's table, on its disk."""
    total_bytes: int | None = None
    """How large that was when the copy began; this and what follows is None unless this process copied the table."""
    copied_percent: float | None = None
    """Of the bytes: the source knows them exactly, and its rows only about."""
    rows_per_second: float | None = None
    """None when the table is not being copied, and was not copied to the end either."""
    seconds_left: float | None = None
    """None when nothing is left to wait for, and while nobody knows."""
    files: int | None = None
    """Of the destination's table, behind its last upkeep; this and what follows is of this process only."""
    upkeep_at: str | None = None
    upkeep_runs: int = 0
    upkeep_failures: int = 0
    upkeep_seconds: float = 0.0
    upkeep_rewritten_files: int = 0
    upkeep_rewritten_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why the log is as long as it is: a table that still needs it."""

    table: str
    phase: str
    watermark: str
    others: int = 0
    """How many more tables stand at the same position."""


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
    """From here on a table needs it; there may be more, kept for replay."""
    log_end: str
    log_bytes: int
    """Of what is needed."""
    acknowledged: str
    received_events: int
    tables: Sequence[TableReport]
    log_held_by: HeldBack | None = None
    """None when every table has all of it."""
    log_keep_ms: int = 0
    log_keep_bytes: int = 0
    snapshot_age_s: float | None = None
    """Of the oldest snapshot that is held on the source, which cannot vacuum what is younger; None when none is."""

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
        copied_rows=state.copy.rows if state.copy else 0,
        estimated_rows=state.copy.estimated_rows if state.copy else None,
        applied_events=state.applied_events,
        error=errored.reason if errored else None,
        solution=errored.solution if errored else None,
        next_retry=policy.next_retry.isoformat() if isinstance(policy, TimedRetry) else None,
        failures=state.attempts,
        **(_copy_fields(state, state.copy) if state.copy else {}),
        **_upkeep_fields(state.upkeep),
    )


def _upkeep_fields(upkeep: UpkeepTotals) -> dict[str, Any]:
    return {
        "files": upkeep.files,
        "upkeep_at": upkeep.last.isoformat(timespec="seconds") if upkeep.last else None,
        "upkeep_runs": upkeep.runs,
        "upkeep_failures": upkeep.failures,
        "upkeep_seconds": round(upkeep.seconds, 3),
        "upkeep_rewritten_files": upkeep.rewritten_files,
        "upkeep_rewritten_bytes": upkeep.rewritten_bytes,
    }


def _copy_fields(state: TableState, copy: CopyProgress) -> dict[str, Any]:
    is_copying = isinstance(state.phase, DataSync)
    is_copied = not isinstance(state.phase, Init | DataSync | Errored)
    left_s = copy.seconds_left if is_copying else None
    return {
        "copied_bytes": copy.total_bytes if is_copied else copy.bytes,
        "total_bytes": copy.total_bytes,
        "copied_percent": 100.0 if is_copied else round(copy.percent, 1),
        "rows_per_second": round(copy.rows_per_second, 1) if is_copying or is_copied else None,
        "seconds_left": None if left_s is None else round(left_s, 1),
    }


def read_table_report(data: Mapping[str, Any]) -> TableReport:
    """Rebuild a table's report from plain data: of an older version it has less, of a newer one more."""
    known = {field.name for field in fields(TableReport)}
    return TableReport(**{name: value for name, value in data.items() if name in known})


def held_back(holders: Sequence[Need]) -> HeldBack | None:
    """Return who holds the log back, by the name that sorts first."""
    named = sorted((str(need.table), need.phase.kind, str(need.watermark)) for need in holders)
    return HeldBack(*named[0], others=len(named) - 1) if named else None


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
