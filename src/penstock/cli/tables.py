"""`penstock tables`: one table at a time, in the stored state of a replicator that is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from penstock.cli import console
from penstock.config.replicator import ReplicatorConfig
from penstock.errors import StateError
from penstock.model.phase import Errored, Init, Phase, phase_to_json
from penstock.model.table import TableId
from penstock.replication.life import after_restart
from penstock.runtime.lock import lock_state_dir
from penstock.store.sqlite import SQLiteStore


@dataclass(frozen=True, slots=True)
class StoredTable:
    """What the store says of one table."""

    id: TableId
    name: str
    phase: Phase
    watermark: str | None


def print_tables(path: Path | None, *, as_json: bool) -> None:
    """Print every table with its phase."""
    config = ReplicatorConfig.load(path)
    with closing(SQLiteStore.open_readonly(_file(config), config.pipeline.id)) as store:
        tables = _stored(store)
    if as_json:
        console.print_json(
            [
                {"id": int(each.id), "name": each.name, **phase_to_json(each.phase), "watermark": each.watermark}
                for each in tables
            ]
        )
        return
    listing = Table("table", "phase", "watermark", "why", box=None, header_style="bold", pad_edge=False)
    for each in tables:
        reason = each.phase.reason if isinstance(each.phase, Errored) else ""
        listing.add_row(each.name, each.phase.kind, each.watermark or "", reason)
    console.results().print(listing)


def roll_back(path: Path | None, name: str) -> Phase:
    """Return a stopped table to the phase that failed, so that the next run tries again, and return it."""
    with _opened(path) as store:
        table = _find(store, name)
        if not isinstance(table.phase, Errored):
            raise StateError(
                f"table {table.name} is not stopped: it is {table.phase.kind}",
                remedy="Nothing is to be done; to copy it anew, use: penstock tables resync",
            )
        return after_restart(store.rollback_table_replication_state(table.id))


def resync(path: Path | None, name: str) -> None:
    """Make the next run copy a table anew."""
    with _opened(path) as store:
        table = _find(store, name)
        store.reset_replication_progress(table.id)
        store.update_table_replication_state(table.id, Init())


@contextmanager
def _opened(path: Path | None) -> Iterator[SQLiteStore]:
    """Open the store for changes; refused while a replicator works with it, since that would not notice."""
    config = ReplicatorConfig.load(path)
    file = _file(config)
    if not file.is_file():
        raise StateError(f"there is no state in {file}", remedy="Run the pipeline first: penstock run")
    with closing(lock_state_dir(config.state_dir)), closing(SQLiteStore(file, config.pipeline.id)) as store:
        store.load_table_replication_states()
        store.load_table_schemas()
        yield store


def _file(config: ReplicatorConfig) -> Path:
    if config.sqlite_path is None:
        raise StateError("this pipeline's state is in memory only", remedy="Configure store: {sqlite: {}}.")
    return config.sqlite_path


def _stored(store: SQLiteStore) -> list[StoredTable]:
    store.load_table_replication_states()
    store.load_table_schemas()
    progress = store.get_replication_progress()
    names = {schema.id: str(schema.name) for schema in store.get_table_schemas()}
    return sorted(
        (
            StoredTable(table, names.get(table, str(int(table))), phase, str(progress.get(table) or "") or None)
            for table, phase in store.get_table_replication_states().items()
        ),
        key=lambda each: each.name,
    )


def _find(store: SQLiteStore, name: str) -> StoredTable:
    tables = _stored(store)
    found = [each for each in tables if name in {each.name, each.name.partition(".")[2], str(int(each.id))}]
    if len(found) == 1:
        return found[0]
    known = ", ".join(each.name for each in tables) or "none"
    what = f"several tables are called {name}" if found else f"there is no table {name}"
    raise StateError(f"{what}; known are: {known}", remedy="Name one as schema.table, or by its oid.")
