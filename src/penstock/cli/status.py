"""`penstock status`: what a replicator does or last did, told from its state folder, its store and the source."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.changelog.header import read_header
from penstock.cli import console, wiring
from penstock.cli.liveness import replicator_pid
from penstock.cli.log_view import why_kept
from penstock.config.replicator import ReplicatorConfig
from penstock.contract import Store
from penstock.errors import PenstockError, SourceError
from penstock.model.lsn import Lsn
from penstock.model.phase import Errored, Phase, TimedRetry
from penstock.model.table import TableId
from penstock.postgres.connection import connect, source_errors
from penstock.postgres.slot import read_slot
from penstock.runtime.report import TableReport, read_report, read_table_report
from penstock.runtime.source import log_folder

COPYING = "data_sync"
_WATCH_S = 2.0


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The source's side, or why nothing is known of it."""

    position: str | None = None
    slot: str | None = None
    confirmed: str | None = None
    wal_status: str | None = None
    lag_bytes: int | None = None
    """Between what is acknowledged and where the source is: what it keeps for us."""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that is told."""

    pipeline: str
    pid: int | None
    """The replicator's process; None when none is running."""
    report: Mapping[str, Any] | None
    """The replicator's last word."""
    source: SourceStatus
    tables: list[TableReport]
    log_start: str | None = None
    """Where the log on disk starts; what lies before the report's own start is only kept for replay."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        lags = {table.name: _table_lag(table, self.source) for table in self.tables}
        return {
            "pipeline": self.pipeline,
            "is_running": self.pid is not None,
            "pid": self.pid,
            "replicator": {key: value for key, value in (self.report or {}).items() if key != "tables"} or None,
            "log_start": self.log_start,
            "source": asdict(self.source),
            "tables": [{**asdict(table), "lag_bytes": lags[table.name]} for table in self.tables],
        }


def show_status(path: Path | None, *, as_json: bool, watch: bool) -> None:
    """Print the status once, or again and again."""
    config = ReplicatorConfig.load(path)
    if not watch:
        _print(gather(config), as_json=as_json)
    elif as_json or not console.results().is_terminal:
        for status in _repeated(config):
            _print(status, as_json=as_json)
    else:
        with Live(console=console.results(), auto_refresh=False) as live:
            for status in _repeated(config):
                live.update(render(status), refresh=True)


def gather(config: ReplicatorConfig) -> Status:
    """Look at everything once."""
    pid = replicator_pid(config.state_dir)
    report = read_report(config.state_dir)
    reported = {table["id"]: read_table_report(table) for table in report["tables"]} if report else {}
    # While it runs, its own report is the newest there is, and knows the phases that are not stored.
    tables = reported if pid is not None and reported else _stored_tables(config, reported)
    return Status(
        pipeline=str(config.pipeline.id),
        pid=pid,
        report=report,
        source=_look_at_source(config),
        tables=sorted(tables.values(), key=lambda table: table.name),
        log_start=_log_start(config),
    )


def render(status: Status) -> RenderableType:
    """Return the status for people."""
    parts: list[RenderableType] = [Text("\n".join(_head(status)))]
    if status.tables:
        parts.append(_table(status))
    parts.extend(_error(table) for table in status.tables if table.error)
    return Group(*parts)


def _repeated(config: ReplicatorConfig) -> Iterator[Status]:
    pause = threading.Event()
    while True:
        yield gather(config)
        pause.wait(_WATCH_S)


def _print(status: Status, *, as_json: bool) -> None:
    if as_json:
        console.print_json(status.to_json())
    else:
        console.results().print(render(status))


def _stored_tables(config: ReplicatorConfig, reported: Mapping[int, TableReport]) -> dict[int, TableReport]:
    store = wiring.open_stored_state(config)
    if store is None:
        return dict(reported)
    phases, watermarks = store.get_table_replication_states(), store.get_replication_progress()
    return {
        int(table): replace(
            reported.get(int(table)) or _unreported(store, table),
            watermark=str(watermarks[table]) if table in watermarks else None,
            # Nobody copies now.
            rows_per_second=None,
            seconds_left=None,
            **_phase_fields(phase),
        )
        for table, phase in phases.items()
    }


def _unreported(store: Store, table: TableId) -> TableReport:
    schema = store.get_table_schema(table)
    name = str(schema.name) if schema else f"oid {int(table)}"
    return TableReport(int(table), name, "", None, copied_rows=0, estimated_rows=None, applied_events=0)


def _phase_fields(phase: Phase) -> dict[str, Any]:
    errored = phase if isinstance(phase, Errored) else None
    policy = errored.retry_policy if errored else None
    return {
        "phase": phase.kind,
        "error": errored.reason if errored else None,
        "solution": errored.solution if errored else None,
        "next_retry": policy.next_retry.isoformat() if isinstance(policy, TimedRetry) else None,
    }


def _log_start(config: ReplicatorConfig) -> str | None:
    with contextlib.suppress(PenstockError):  # no log yet, or one that `penstock log verify` can tell more of
        return str(read_header(log_folder(config.pipeline.log, config.state_dir)).start_lsn)
    return None


def _look_at_source(config: ReplicatorConfig) -> SourceStatus:
    try:
        with closing(connect(wiring.source_of(config), application_name="penstock status")) as connection:
            slot = read_slot(connection, config.pipeline.id.slot_name)
            with source_errors("asking for the source's position"):
                row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    except SourceError as error:
        return SourceStatus(problem=error.message)
    assert row is not None
    position, confirmed = Lsn.parse(row[0]), slot.confirmed_flush_lsn
    return SourceStatus(
        position=str(position),
        slot=slot.name if slot.exists else None,
        confirmed=None if confirmed is None else str(confirmed),
        wal_status=slot.invalidation or slot.wal_status,
        lag_bytes=None if confirmed is None else max(int(position) - int(confirmed), 0),
    )


def _head(status: Status) -> Iterator[str]:
    running = f"running (process {status.pid})" if status.pid is not None else "not running"
    yield f"pipeline {status.pipeline}: {running}" + ("" if status.report else ", and never was")
    if status.report:
        yield from _reported(status.report)
        yield from _snapshot_lines(status)
        yield from _upkeep_lines(status.tables)
        yield from (f"    {reason}" for reason in why_kept(status.report, _kept_from(status)))
    yield from _source_lines(status.source)


def _kept_from(status: Status) -> Lsn:
    assert status.report is not None
    return Lsn.parse(status.log_start or status.report["log_start"])


def _reported(report: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"log: {report['log_start']} to {report['log_end']}, {console.size(report['log_bytes'])};"
        f" acknowledged {report['acknowledged']} (as of {report['at']})"
    )
    if report["is_log_full"]:
        yield "the log is full: the receiver waits, and the source keeps its WAL"
    if report["receiver_error"]:
        yield f"the receiver was restarted {report['receiver_restarts']} times; last: {report['receiver_error']}"


def _snapshot_lines(status: Status) -> Iterator[str]:
    age_s = (status.report or {}).get("snapshot_age_s")
    if status.pid is not None and age_s is not None:
        yield f"snapshot: held for {console.duration(age_s)}; the source cannot vacuum what has died since"


def _upkeep_lines(tables: Sequence[TableReport]) -> Iterator[str]:
    """Yield what was done for tables besides writing to them, since the replicator started."""
    last = max((table.upkeep_at for table in tables if table.upkeep_at), default=None)
    if last is None:
        return
    rewritten = sum(table.upkeep_rewritten_files for table in tables)
    size = console.size(sum(table.upkeep_rewritten_bytes for table in tables))
    failures = sum(table.upkeep_failures for table in tables)
    yield (
        f"upkeep: {console.count(rewritten)} files ({size}) put together; last at {last}"
        + (f"; {console.count(failures)} times it failed, as the replicator's own log tells" if failures else "")
    )


def _source_lines(source: SourceStatus) -> Iterator[str]:
    if source.problem:
        yield f"source: not reachable, so the lag is unknown: {source.problem}"
    elif source.slot is None:
        yield f"source: at {source.position}; the slot does not exist"
    else:
        yield (
            f"source: at {source.position}; slot {source.slot} confirmed {source.confirmed} ({source.wal_status}),"
            f" {console.size(source.lag_bytes or 0)} behind"
        )


def _table(status: Status) -> Table:
    table = console.table("table", "phase", "watermark", numbers=("behind", "copied", "applied"))
    has_files = any(each.files is not None for each in status.tables)
    if has_files:
        table.add_column("files", justify="right", no_wrap=True)
    is_copying = any(each.phase == COPYING for each in status.tables)
    if is_copying:
        table.add_column("copy", no_wrap=True)
    for each in status.tables:
        lag = _table_lag(each, status.source)
        row: list[RenderableType] = [
            each.name,
            Text(each.phase, "red" if each.error else ""),
            each.watermark or "—",
            "—" if lag is None else console.size(lag),
            console.count(each.copied_rows),
            console.count(each.applied_events),
        ]
        files = "—" if each.files is None else console.count(each.files)
        facts = " · ".join(copy_facts(each))
        table.add_row(*row, *([files] if has_files else []), *([facts] if is_copying else []))
    return table


def copy_facts(table: TableReport) -> Iterator[str]:
    """Yield what there is to say of a copy under way: how much, how long, how fast; first what is wanted most."""
    if table.phase != COPYING:
        return
    if table.total_bytes:
        yield f"{table.copied_percent or 0:.0f} % of {console.size(table.total_bytes)}"
    if table.seconds_left is not None:
        yield f"{console.duration(table.seconds_left)} left"
    if table.rows_per_second:
        yield f"{console.count(round(table.rows_per_second))} rows/s"


def _table_lag(table: TableReport, source: SourceStatus) -> int | None:
    if table.watermark is None or source.position is None:
        return None
    return max(int(Lsn.parse(source.position)) - int(Lsn.parse(table.watermark)), 0)


def _error(table: TableReport) -> Text:
    text = Text.assemble((f"{table.name}: ", "bold red"), table.error or "")
    if table.solution:
        text.append(f"\n    {table.solution}")
    if table.next_retry:
        text.append(f"\n    It is tried again at {table.next_retry}.")
    return text
