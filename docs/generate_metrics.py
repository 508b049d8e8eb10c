"""Writes docs/reference/metrics.md from the metrics that are declared in `penstock.telemetry.metrics`.

Run it after a change there; a unit test fails while the page is stale.
"""
# ruff: noqa: INP001  (a program, not a package)

from __future__ import annotations

from pathlib import Path

from penstock.telemetry.metrics import METRICS, Metric

PAGE = Path(__file__).parent / "reference" / "metrics.md"

HEAD = """\
# Metrics

<!-- Written by docs/generate_metrics.py from src/penstock/telemetry/metrics.py: edit that, then run it. -->

`penstock run` serves metrics in Prometheus's format when the configuration says where:

```yaml
metrics:
  address: 127.0.0.1:9464       # http://127.0.0.1:9464/metrics
```

There is no password: listen on loopback, or on an address that only the monitoring can reach. Nothing but the names
of tables and positions is told. A port that is taken ends the start with an error. From Python, a pipeline of one's
own can be served likewise with `penstock.telemetry.metrics.MetricsServer` and `penstock.runtime.measure.measure`.

Counters count from the start of the process. Positions (`_lsn`) are bytes of WAL since the source's beginning, so that
their differences are distances. The source is asked for its position every ten seconds; while it does not answer,
what depends on it is absent. What is told of copies is about the last one that this process made, and absent if it
made none.
"""

TAIL = """\
## What to watch

```yaml
groups:
  - name: penstock
    rules:
      - alert: TableStopped
        expr: penstock_tables{phase="errored"} > 0
      - alert: SourceKeepsWal
        expr: penstock_source_lag_bytes > 10e9
      - alert: SourceAway
        expr: min_over_time(penstock_source_reachable[5m]) == 0
      - alert: ChangeLogFull
        expr: penstock_log_full == 1
      - alert: SnapshotHoldsVacuumBack
        expr: penstock_snapshot_age_seconds > 4 * 3600
      - alert: ReceiverKeepsFailing
        expr: increase(penstock_receiver_restarts_total[15m]) > 3
```

[Operations](../operations.md) says what to do about each.
"""


def render() -> str:
    """Return the page."""
    rows = "\n".join(_row(metric) for metric in METRICS)
    table = f"| metric | kind | labels | |\n|---|---|---|---|\n{rows}\n"
    return f"{HEAD}\n{table}\n{TAIL}"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


if __name__ == "__main__":
    PAGE.write_text(render())
