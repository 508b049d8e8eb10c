"""`penstock run`: the replicator, from start to a signal, or to the position that the source has at start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from rich.text import Text

from penstock.cli import console, wiring
from penstock.cli.interrupt import draining
from penstock.cli.metrics import MetricsEndpoint
from penstock.cli.view import View, choose_view, render_copies
from penstock.config.replicator import ReplicatorConfig
from penstock.model.lsn import Lsn
from penstock.runtime.pipeline import Pipeline
from penstock.runtime.report import PipelineReport

_TICK_S = 0.25


def run_pipeline(path: Path | None, *, once: bool, as_json: bool, configure_logging: Callable[[], None]) -> bool:
    """Run to the end, and say whether all went well."""
    config = ReplicatorConfig.load(path)
    view = choose_view(console.progress(), line_pause_s=None)
    with view:
        # Only now: log lines have to go through the view, or they tear it apart.
        configure_logging()
        with (
            closing(wiring.assemble(config)) as parts,
            closing(MetricsEndpoint(config.metrics)) as metrics,
            draining(lambda: _drain(parts.pipeline), lambda: _leave(view)),
        ):
            report = _run(parts.pipeline, metrics, view, once=once)
    if once:
        _print_summary(report, as_json=as_json)
        return not any(table.error for table in report.tables)
    return True


def _run(pipeline: Pipeline, metrics: MetricsEndpoint, view: View, *, once: bool) -> PipelineReport:
    pipeline.start()
    try:
        metrics.serve(pipeline)
        _follow(pipeline, view, pipeline.source_position() if once else None)
    finally:
        pipeline.shutdown_and_wait()
    return pipeline.report


def _follow(pipeline: Pipeline, view: View, target: Lsn | None) -> None:
    """Show how it goes until it ends, or has caught up with a position."""
    while target is None or not _is_done(pipeline, target):
        view.show(render_copies(pipeline.report), "")
        if pipeline.wait(_TICK_S):
            return


def _is_done(pipeline: Pipeline, target: Lsn) -> bool:
    return pipeline.wait_until_ready(target, timeout_s=0)


def _drain(pipeline: Pipeline) -> None:
    pipeline.shutdown()
    # Printing is not reentrant, and the signal may have come in the middle of it.
    with suppress(RuntimeError):
        console.progress().print("stopping: what is under way is finished first; once more to stop at once")


def _leave(view: View) -> None:
    view.__exit__(None, None, None)
    console.progress().print("stopped at once; the next start goes on from what is durable")


def _print_summary(report: PipelineReport, *, as_json: bool) -> None:
    if as_json:
        console.print_json(report.to_json())
        return
    table = console.table("", "table", "phase", numbers=("rows copied", "events applied"))
    for each in report.tables:
        sign = console.mark(console.FAILED if each.error else console.OK)
        table.add_row(sign, each.name, each.phase, console.count(each.copied_rows), console.count(each.applied_events))
    console.results().print(table)
    for each in report.tables:
        if each.error:
            text = Text.assemble((f"error: table {each.name}: ", "red"), each.error, f"\n    {each.solution or ''}")
            console.progress().print(text)
