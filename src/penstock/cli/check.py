"""`penstock check`: everything that a pipeline needs, tested without changing the source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rich.text import Text

from penstock.changelog.folder import require_place
from penstock.cli import console, wiring
from penstock.cli.liveness import replicator_pid
from penstock.cli.setup import require_pyspark
from penstock.config.replicator import ReplicatorConfig
from penstock.errors import ErrorKind, PenstockError, SourceError
from penstock.model.phase import Init
from penstock.postgres.connection import SourceAddress, connect
from penstock.postgres.preflight import APPLICATION_NAME, Finding, Level, check_source
from penstock.postgres.slot import SlotState, read_slot
from penstock.replication.life import after_restart
from penstock.runtime.source import log_folder
from penstock.spark.java import find_java_home, java_version
from penstock.spark.lazy import LazySession
from penstock.store.memory import MemoryStore

_OWN_AND_SNAPSHOT_SLOTS = 2


def run_check(path: Path | None, *, as_json: bool, with_spark: bool) -> bool:
    """Print every finding, and say whether none of them keeps the pipeline from running."""
    config = ReplicatorConfig.load(path)
    shown: list[Finding] = []
    for finding in findings(config, with_spark=with_spark):
        shown.append(finding)
        if not as_json:
            console.results().print(render(finding))
    is_good = not any(_sign(finding) == console.FAILED for finding in shown)
    if as_json:
        console.print_json({"ok": is_good, "findings": [_to_json(finding) for finding in shown]})
    return is_good


def findings(config: ReplicatorConfig, *, with_spark: bool) -> Iterator[Finding]:
    """Yield the findings as they are made, those on which others depend first."""
    yield _check_state_dir(config.state_dir)
    if config.pipeline.log.location is not None:
        yield _attempt("log", lambda: _try_log(config))
    yield from _check_source(config)
    yield _check_destination(config)
    yield from _check_spark(config, starts_it=with_spark)


def render(finding: Finding) -> Text:
    """Return a finding as a line with its mark, and its remedy on a second one."""
    text = Text.assemble(console.mark(_sign(finding)), f" {finding.name}: {finding.message}")
    if finding.remedy:
        text.append(f"\n    {finding.remedy}", "bold")
    return text


def _sign(finding: Finding) -> str:
    if finding.ok:
        return console.OK
    return console.WARNING if finding.level is Level.WARNING else console.FAILED


def _to_json(finding: Finding) -> dict[str, Any]:
    result = {console.OK: "ok", console.WARNING: "warning", console.FAILED: "failed"}[_sign(finding)]
    return {"name": finding.name, "result": result, "message": finding.message, "remedy": finding.remedy or None}


def _attempt(name: str, attempt: Callable[[], str], level: Level = Level.ERROR) -> Finding:
    """Try something that says how it went, or raises."""
    try:
        return Finding(name, ok=True, message=attempt())
    except PenstockError as error:
        return Finding(name, ok=False, message=error.message, remedy=error.remedy, level=level, kind=error.kind)


def _check_state_dir(state_dir: Path) -> Finding:
    return _attempt("state_dir", lambda: _require_writable(state_dir))


def _try_log(config: ReplicatorConfig) -> str:
    folder = log_folder(config.pipeline.log, config.state_dir)
    if folder.is_local:
        return _require_writable(Path(folder.path()))
    require_place(folder)
    return f"{folder} can be written"


def _require_writable(folder: Path) -> str:
    """Look at the nearest folder that exists: a check leaves nothing behind."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise PenstockError(
            f"{folder} cannot be written: {nearest} is not a folder in which this process may write",
            kind=ErrorKind.LOG_IO,
            remedy="Give the process write access there, or set state_dir or pipeline.log.location to another.",
        )
    return f"{folder} can be written" if nearest == folder else f"{folder} can be created"


def _check_source(config: ReplicatorConfig) -> Iterator[Finding]:
    address = wiring.source_of(config)
    try:
        with closing(connect(address, application_name=APPLICATION_NAME)) as connection:
            slot = read_slot(connection, config.pipeline.id.slot_name)
    except SourceError:
        slot = SlotState(config.pipeline.id.slot_name, exists=False)
        yield from _source_findings(address, config, slot)
    else:
        yield from _source_findings(address, config, slot)
        yield _attempt("slot", lambda: _require_sound(slot, config))


def _source_findings(address: SourceAddress, config: ReplicatorConfig, slot: SlotState) -> list[Finding]:
    # One for a temporary slot while a snapshot is taken, and our own.
    needed = _OWN_AND_SNAPSHOT_SLOTS - slot.exists
    pipeline = config.pipeline
    return check_source(
        address,
        pipeline.publication_name,
        slots_needed=needed,
        table_sync_copy=pipeline.table_sync_copy,
        modes=config.destination.modes,
    )


def _require_sound(slot: SlotState, config: ReplicatorConfig) -> str:
    if not slot.exists:
        if _has_replicated(config):
            message = f"replication slot {slot.name} does not exist, but tables were replicated through it"
            raise SourceError(message, kind=ErrorKind.SLOT_MISSING)
        return f"replication slot {slot.name} will be created at the first start"
    if slot.invalidation is not None:
        message = f"replication slot {slot.name} was invalidated by the source: {slot.invalidation}"
        raise SourceError(message, kind=ErrorKind.SLOT_INVALIDATED)
    if slot.active and replicator_pid(config.state_dir) is None:
        message = f"replication slot {slot.name} is in use by process {slot.active_pid} on the source"
        raise SourceError(message, kind=ErrorKind.SLOT_IN_USE)
    return f"replication slot {slot.name} stands at {slot.confirmed_flush_lsn}, its WAL is {slot.wal_status}"


def _has_replicated(config: ReplicatorConfig) -> bool:
    store = wiring.open_stored_state(config)
    phases = store.get_table_replication_states().values() if store else ()
    return any(not isinstance(after_restart(phase), Init) for phase in phases)


def _check_destination(config: ReplicatorConfig) -> Finding:
    return _attempt("destination", lambda: _start_destination(config))


def _start_destination(config: ReplicatorConfig) -> str:
    # A catalog that is not a folder is asked through Spark, which is ended again for the check of Spark itself.
    with _session(config) as session:
        destination = wiring.build_destination(config, MemoryStore(), session)
        destination.startup()
        destination.shutdown()
    return f"{destination.name} can be written" + _place(config)


def _place(config: ReplicatorConfig) -> str:
    """Return where the destination's tables are, as far as the configuration says."""
    delta, iceberg = config.destination.delta, config.destination.iceberg
    if iceberg is not None:
        where = f" in {iceberg.warehouse}" if iceberg.warehouse else ""
        return f"{where}, {iceberg.catalog.kind} catalog {iceberg.catalog_name}"
    return f" at {delta.path}" if delta else ""


def _check_spark(config: ReplicatorConfig, *, starts_it: bool) -> Iterator[Finding]:
    # A destination that never asks for a DataFrame works without.
    level = Level.ERROR if config.destination.table_formats else Level.WARNING
    java = _attempt("java", _find_java, level)
    yield java
    if starts_it and java.ok:
        yield _attempt("spark", lambda: _start_spark(config), level)


def _find_java() -> str:
    require_pyspark()
    home = find_java_home()
    return f"Spark will run on Java {java_version(home)} in {home}"


def _start_spark(config: ReplicatorConfig) -> str:
    with _session(config) as session:
        spark = session()
        spark.range(1).count()
        return f"Spark {spark.version} runs on {config.spark.master}"


@contextmanager
def _session(config: ReplicatorConfig) -> Iterator[LazySession]:
    """Lend a session, and end it if it was started."""
    session = wiring.build_session(config)
    try:
        yield session
    finally:
        session.stop()
