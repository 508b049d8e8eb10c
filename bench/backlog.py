"""A backlog from the slot to the committed lake, beside the same one sent to nowhere and to the change log alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.contender import FAILURES, ReceiverDrains, drain_with_pg_recvlogical
from bench.measure import median, per_million, say
from bench.processes import accounted
from bench.replicator import LAKES, Replicator, Workshop, require_equal, wait_for_stream
from bench.source import Backlog, Source, make_backlog
from bench.witness import stage_figures
from penstock.testing.postgres import Database

Figures = dict[str, Any]

INSERTS, UPDATES = "inserts", "updates"
RATIOS = {INSERTS: 0.7, UPDATES: 0.35}
"""The least rate into a lake, as a part of that of `pg_recvlogical` to nowhere in the same run."""
REFERENCE, RECEIVER = "pg_recvlogical", "receiver"
_ROWS_PER_TRANSACTION = 100
_FIRST_NEW_ID = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """What a backlog consists of."""

    name: str
    prepare: Callable[[Database, int], None]
    write: Callable[[Database, int], None]


def _call(database: Database, call: str) -> None:
    with database.connect() as connection:
        # Nobody measures the writing: neither an fsync for every commit nor a plan for every statement is worth it.
        connection.execute("set synchronous_commit = off; set plan_cache_mode = force_generic_plan")
        connection.execute(call)


WORKLOADS = (
    Workload(
        INSERTS,
        lambda *_: None,
        lambda database, changes: _call(
            database, f"call write_inserts({_FIRST_NEW_ID}, {changes}, {_ROWS_PER_TRANSACTION})"
        ),
    ),
    Workload(
        UPDATES,
        lambda database, changes: _call(database, f"call write_inserts(1, {changes}, 100000)"),
        lambda database, changes: _call(
            database, f"call write_updates({_FIRST_NEW_ID}, {changes}, {_ROWS_PER_TRANSACTION}, {changes})"
        ),
    ),
)


def measure_backlogs(source: Source, workshop: Workshop, changes: int, lakes: tuple[str, ...]) -> Iterator[Figures]:
    """Drain every workload by everyone; one that fails is reported as such, and the next one follows."""
    for workload in WORKLOADS:
        say(f"backlog: {changes:,} {workload.name}")
        subject = {"workload": workload.name, "changes": changes}
        try:
            yield {**subject, "contenders": _measure(source, workshop, workload, changes, lakes)}
        except FAILURES as error:
            yield {**subject, "error": str(error)}


def _measure(
    source: Source, workshop: Workshop, workload: Workload, changes: int, lakes: tuple[str, ...]
) -> dict[str, Figures]:
    with source.database() as database:
        database.execute(Path(__file__).with_name("apply.sql").read_text())
        workload.prepare(database, changes)
        replicators = [Replicator(workshop, lake, database) for lake in LAKES if lake in lakes]

        def write(each: Database) -> None:
            for replicator in replicators:
                replicator.prepare()
            workload.write(each, changes)

        backlog = make_backlog(source, database, ["changes"], changes, write)
        # Once for nothing: whoever goes first reads the WAL from the disk.
        ReceiverDrains().drain(backlog)
        before = _reference(backlog)
        found = {RECEIVER: _receive(backlog)}
        for replicator in replicators:
            found[replicator.lake] = _apply(backlog, workshop, replicator)
        after = _reference(backlog)
    seconds = median([before["seconds"], after["seconds"]])
    reference = {**before, "seconds": seconds, "changes_per_s": backlog.changes / seconds}
    everyone = {REFERENCE: reference, **found}
    return {name: {**each, "ratio": seconds / each["seconds"]} for name, each in everyone.items()}


def _reference(backlog: Backlog) -> Figures:
    drain = drain_with_pg_recvlogical(backlog, tls=False)
    return _told(
        REFERENCE,
        backlog,
        {"seconds": drain.seconds, "client_cpu_s_per_million": per_million(drain.client_cpu_s, backlog.changes)},
    )


def _receive(backlog: Backlog) -> Figures:
    drain = ReceiverDrains().drain(backlog)
    return _told(
        RECEIVER,
        backlog,
        {"seconds": drain.seconds, "client_cpu_s_per_million": per_million(drain.client_cpu_s, backlog.changes)},
    )


def _apply(backlog: Backlog, workshop: Workshop, replicator: Replicator) -> Figures:
    """Run the pipeline from its slot to the last commit, and compare its lake with the source."""
    jobs = workshop.jobs
    postmaster = int((backlog.source.cluster.server.cluster_dir / "postmaster.pid").read_text().split()[0])
    with replicator.running() as running:
        began = wait_for_stream(backlog.database, replicator.slot)
        with accounted(postmaster) as accounts:
            seconds = running.catch_up(backlog.end_lsn) - began
    jobs = workshop.jobs - jobs
    require_equal(replicator, backlog.database, "changes")
    batches = [batch for batch in running.witness.batches if batch.changes]
    return _told(
        replicator.lake,
        backlog,
        {
            "seconds": seconds,
            "client_cpu_s_per_million": per_million(accounts.client_cpu_s, backlog.changes),
            "cpu_s": accounts.cpu_s,
            "peak_mib": accounts.peak_mib,
            "batches": len(batches),
            "jobs": jobs,
            "busy_s": sum(batch.seconds for batch in batches),
            "stages_ms": stage_figures(batches),
        },
    )


def _told(name: str, backlog: Backlog, figures: Figures) -> Figures:
    rate = backlog.changes / figures["seconds"]
    say(f"  {name}: {rate:,.0f} changes/s, {figures['seconds']:.2f} s")
    return {"changes_per_s": rate, **figures}


def backlog_rows(section: Figures) -> list[dict[str, Any]]:
    """Return a backlog's figures for people."""
    return [
        {
            "contender": name,
            "changes/s": figures["changes_per_s"],
            "ratio": figures["ratio"],
            "client CPU s/M": figures["client_cpu_s_per_million"],
            "batches": figures.get("batches"),
            "Spark jobs": figures.get("jobs"),
            "in batches s": figures.get("busy_s"),
            "peak MiB: driver": figures.get("peak_mib", {}).get("driver"),
            "receiver": figures.get("peak_mib", {}).get("receiver"),
        }
        for name, figures in section["contenders"].items()
    ]
