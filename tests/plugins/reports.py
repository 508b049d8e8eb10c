"""What a pipeline at work reports, for those who show it."""

from __future__ import annotations

from typing import Any

from penstock.runtime.report import PipelineReport, TableReport


def make_report(*tables: TableReport, **fields: Any) -> PipelineReport:
    usual: dict[str, Any] = {
        "pipeline": "p",
        "pid": 1,
        "at": "2024-01-01T00:00:00+00:00",
        "receiver_pid": 2,
        "receiver_restarts": 0,
        "receiver_error": None,
        "is_log_full": False,
        "log_start": "0/1",
        "log_end": "0/20",
        "log_bytes": 1500,
        "acknowledged": "0/10",
        "received_events": 3,
    }
    return PipelineReport(**{**usual, **fields}, tables=tables)
