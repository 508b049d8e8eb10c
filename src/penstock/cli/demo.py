"""`penstock demo`: a bundled Postgres under a live workload, replicated into a local lake, then compared."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from penstock.cli import console, wiring
from penstock.cli.compare import Comparison
from penstock.cli.interrupt import ending
from penstock.cli.setup import require_pyspark
from penstock.cli.shop import PUBLICATION, Workload, create_shop
from penstock.cli.status import copy_facts
from penstock.cli.view import Lag, Rate, View, choose_view, progress_bar
from penstock.config.connection import PgConnectionConfig
from penstock.config.destination import DeltaConfig, DestinationConfig, IcebergConfig
from penstock.config.pipeline import BatchConfig, PipelineConfig
from penstock.config.replicator import ReplicatorConfig
from penstock.errors import ConfigError, PenstockError
from penstock.model.lsn import Lsn
from penstock.model.table import PipelineId
from penstock.postgres.embedded import EmbeddedServer, newest_server
from penstock.runtime.pipeline import Pipeline
from penstock.runtime.report import PipelineReport, TableReport

_TICK_S = 0.25
_LINE_S = 2.0
_POSITION_S = 0.5
_STANDSTILL_S = 300.0
"""A busy machine may take long to catch up, but not this long for a single step."""
_NOT_VISIBLE = {"init", "data_sync", "errored"}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user chose."""

    seconds: float
    directory: Path | None
    keep: bool
    rows: int
    seed: int
    lake_format: str = "delta"
    """Delta or iceberg."""


def run_demo(options: DemoOptions, *, configure_logging: Callable[[], None]) -> bool:
    """Run the demo, and say whether source and lake are the same."""
    require_pyspark()
    say = console.results().print
    with ending(), _folder(options) as folder, _server(folder) as server:
        version = server.binaries.version_major
        say(f"Postgres {version} on port {server.port}; lake in {folder / 'lake'}; seed {options.seed}")
        create_shop(server.conninfo(), options.rows)
        with choose_view(console.progress(), _LINE_S) as view:
            configure_logging()
            with contextlib.closing(wiring.assemble(_config(server, folder, options.lake_format))) as parts:
                demo = _Demo(parts, Workload(server.conninfo(), options.rows, options.seed), view)
                results = demo.run(options.seconds)
        is_good = _print_results(results, demo)
        if options.keep or options.directory:
            say(f"kept: {folder} (the lake's tables are in {folder / 'lake' / 'public'})")
        return is_good


@contextlib.contextmanager
def _folder(options: DemoOptions) -> Iterator[Path]:
    """Lend a folder to work in; one of our own is removed again unless it is to be kept."""
    if options.directory is not None:
        yield _empty_folder(options.directory.absolute())
        return
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        yield folder
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def _empty_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"--dir {folder}: {error.strerror}", remedy="Name a folder that can be written.") from None
    if not is_empty:
        raise ConfigError(f"--dir {folder} is not empty", remedy="Name a new folder, or empty this one.")
    return folder


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(newest_server(), folder / "postgres", durable=False)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _config(server: EmbeddedServer, folder: Path, lake_format: str) -> ReplicatorConfig:
    connection = PgConnectionConfig(host=server.host, port=server.port, name="postgres", username=server.username)
    return ReplicatorConfig(
        pipeline=PipelineConfig(
            id=PipelineId("demo"),
            publication_name=PUBLICATION,
            pg_connection=connection,
            # A demo is watched: less to wait is worth the smaller files.
            batch=BatchConfig(max_fill_ms=500, merge_every_ms=0),
        ),
        destination=_destination(lake_format, str(folder / "lake")),
        state_dir=folder / "state",
    )


def _destination(lake_format: str, lake: str) -> DestinationConfig:
    if lake_format == "iceberg":
        return DestinationConfig(iceberg=IcebergConfig(warehouse=lake))
    return DestinationConfig(delta=DeltaConfig(path=lake))


@dataclass(frozen=True, slots=True)
class _Moment:
    """What is shown of one moment."""

    report: PipelineReport
    elapsed_s: float
    transactions: int
    events_per_second: float
    lag_bytes: int
    lag_s: float
    first_visible_s: float | None


class _Demo:
    """The pipeline and the workload beside it, measured while they run."""

    def __init__(
        self, parts: wiring.Parts, workload: Workload, view: View, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.first_visible_s: float | None = None
        self.caught_up_s = 0.0
        self.workload = workload
        self.events = 0
        self._parts = parts
        self._view = view
        self._clock = clock
        self._start_s = clock()
        self._events = Rate()
        self._lag = Lag()
        self._asked_s = 0.0
        self._seen: object = None
        self._moved_s = 0.0

    def run(self, seconds: float) -> list[tuple[TableReport, Comparison | None]]:
        """Replicate under load for so long, catch up, and compare."""
        from penstock.cli.verification import compare_tables  # it needs the lakes' libraries

        pipeline = self._parts.pipeline
        self._start_s = self._clock()
        with _running(pipeline), _working(self.workload):
            self._watch(lambda: self._elapsed_s >= seconds)
            self.workload.stop()
            target, stopped_s = pipeline.source_position(), self._clock()
            self._watch(lambda: pipeline.wait_until_ready(target, timeout_s=0))
            self.caught_up_s = self._clock() - stopped_s
            tables = pipeline.report.tables
            self.events = sum(table.applied_events for table in tables)
            self._view.show(Text("comparing source and lake, row for row"), "comparing source and lake, row for row")
            compared = {int(table.id): comparison for table, comparison in compare_tables(self._parts)}
        return [(table, compared.get(table.id)) for table in tables]

    @property
    def _elapsed_s(self) -> float:
        return self._clock() - self._start_s

    def _watch(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            moment = self._measure()
            self._require_progress(moment.report)
            self._view.show(_picture(moment), _line(moment))
            if self._parts.pipeline.wait(_TICK_S):
                raise PenstockError("the pipeline ended before the demo did")

    def _require_progress(self, report: PipelineReport) -> None:
        if (places := [_place(table) for table in report.tables]) != self._seen:
            self._seen, self._moved_s = places, self._clock()
        elif self._clock() - self._moved_s > _STANDSTILL_S:
            raise PenstockError(f"no table has moved for {_STANDSTILL_S:.0f} s")

    def _measure(self) -> _Moment:
        now, report = self._clock(), self._parts.pipeline.report
        if now - self._asked_s >= _POSITION_S:
            self._asked_s = now
            self._lag.add(now, self._parts.pipeline.source_position())
        self._events.add(now, sum(table.applied_events for table in report.tables))
        if self.first_visible_s is None and any(_is_visible(table) for table in report.tables):
            self.first_visible_s = now - self._start_s
        position = _slowest(report)
        return _Moment(
            report=report,
            elapsed_s=now - self._start_s,
            transactions=self.workload.transactions,
            events_per_second=self._events.per_second,
            lag_bytes=self._lag.bytes_behind(position) if position else 0,
            lag_s=self._lag.seconds_behind(position, now) if position else 0.0,
            first_visible_s=self.first_visible_s,
        )


@contextlib.contextmanager
def _running(pipeline: Pipeline) -> Iterator[None]:
    pipeline.start()
    try:
        yield
    finally:
        pipeline.shutdown_and_wait()


@contextlib.contextmanager
def _working(workload: Workload) -> Iterator[None]:
    workload.start()
    try:
        yield
    finally:
        workload.stop()


def _place(table: TableReport) -> tuple[object, ...]:
    """Return what moves when a table does; a rate or a time left changes by itself."""
    return table.id, table.phase, table.watermark, table.copied_rows, table.copied_bytes, table.applied_events


def _is_visible(table: TableReport) -> bool:
    return table.phase not in _NOT_VISIBLE and table.copied_rows > 0


def _slowest(report: PipelineReport) -> Lsn | None:
    """Return how far the lake as a whole is; None while no table has a snapshot yet."""
    known = [Lsn.parse(table.watermark) for table in report.tables if table.watermark and not table.error]
    return min(known, default=None)


def _line(moment: _Moment) -> str:
    tables = moment.report.tables
    rows, events = sum(table.copied_rows for table in tables), sum(table.applied_events for table in tables)
    ready = sum(table.phase == "ready" for table in tables)
    return (
        f"{moment.elapsed_s:5.1f} s  {console.count(rows)} rows copied, {ready} of {len(tables)} tables ready,"
        f" {console.count(events)} events applied ({moment.events_per_second:,.0f}/s),"
        f" lag {console.size(moment.lag_bytes)}, {moment.lag_s:.1f} s"
    )


def _picture(moment: _Moment) -> RenderableType:
    table = console.table("table", "phase", "copy", numbers=("rows", "events"))
    table.add_column(no_wrap=True)
    for each in moment.report.tables:
        phase = Text(each.phase, "green" if each.phase == "ready" else "red" if each.error else "yellow")
        counts = (console.count(each.copied_rows), console.count(each.applied_events))
        table.add_row(each.name, phase, progress_bar(each), *counts, " · ".join(copy_facts(each)))
    visible = "not yet" if moment.first_visible_s is None else f"after {moment.first_visible_s:.1f} s"
    head = (
        f"{moment.elapsed_s:.0f} s · {console.count(moment.transactions)} transactions at the source"
        f" · {moment.events_per_second:,.0f} events/s applied · lag {console.size(moment.lag_bytes)},"
        f" {moment.lag_s:.1f} s · first row visible {visible}"
    )
    return Group(Text(head, "bold"), table)


def _print_results(results: list[tuple[TableReport, Comparison | None]], demo: _Demo) -> bool:
    table = console.table("", "table", "phase", numbers=("copied", "events", "source", "lake", "differ"))
    for report, comparison in results:
        table.add_row(*_row(report, comparison))
    out = console.results()
    out.print(table)
    for report, comparison in results:
        for text in _troubles(report, comparison):
            out.print(text)
    visible = f"{demo.first_visible_s:.1f} s" if demo.first_visible_s is not None else "never"
    out.print(
        f"first row visible after {visible} · {console.count(demo.workload.transactions)} transactions at the source"
        f" · {console.count(demo.events)} events applied · caught up {demo.caught_up_s:.1f} s after the workload ended"
    )
    is_good = bool(results) and all(_is_good(*result) for result in results)
    verdict = "every row and value is the same in source and lake" if is_good else "source and lake are not the same"
    out.print(Text.assemble(console.mark(console.OK if is_good else console.FAILED), f" {verdict}"))
    return is_good


def _is_good(report: TableReport, comparison: Comparison | None) -> bool:
    return report.error is None and comparison is not None and comparison.is_equal


def _row(report: TableReport, comparison: Comparison | None) -> list[RenderableType]:
    sign = console.mark(console.OK if _is_good(report, comparison) else console.FAILED)
    row: list[RenderableType] = [sign, report.name, report.phase]
    row += [console.count(report.copied_rows), console.count(report.applied_events)]
    if comparison is None:
        return [*row, "—", "—", "—"]
    found = (comparison.source_rows, comparison.lake_rows, comparison.differences)
    return [*row, *map(console.count, found)]


def _troubles(report: TableReport, comparison: Comparison | None) -> Iterator[str]:
    if report.error:
        yield f"{report.name}: {report.error}\n    {report.solution or ''}"
    if comparison is None:
        return
    if comparison.columns:
        yield f"{report.name}: other columns or types: {', '.join(comparison.columns)}"
    for what, keys in (("not in the lake", comparison.missing), ("only in the lake", comparison.extra)):
        if keys:
            yield f"{report.name}: {what}, among others: {', '.join(map(str, keys))}"
    for key, columns in comparison.differing:
        yield f"{report.name}: {key} differs in {', '.join(columns)}"
