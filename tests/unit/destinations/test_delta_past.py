"""Delta tables that keep the past, against a model that applies changes one by one."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import failpoint
from penstock.destinations.delta import DeltaDestination
from penstock.destinations.delta.log import Action, TableLog, TableState
from penstock.errors import DestinationError
from penstock.failpoint import FailpointError
from penstock.model.cell import UNCHANGED, Cell, OldRow, OldRowKind, Unchanged, UpdatedRow
from penstock.model.event import Delete, Event, Update
from penstock.model.lsn import Lsn
from penstock.model.mode import TableMode, TableModes
from penstock.model.table import PipelineId, ReplicaIdentity, TableSchema
from penstock.store.memory import MemoryStore
from penstock.testing.batch import ArrowEvents, no_spark, transaction
from penstock.testing.destination_suite import (
    COPIED,
    EVERYTHING,
    ITEMS,
    START,
    TYPES,
    Make,
    delete,
    insert,
    truncate,
    update,
)
from penstock.testing.past import PastModel
from penstock.testing.past_suite import (
    CORNERS,
    FULL,
    KEYLESS,
    NOON,
    PastLake,
    PastSuite,
    full_delete,
    full_update,
    in_both_modes,
)


class Lake:
    """A lake without Spark."""

    def __init__(self, path: Path) -> None:
        self.path, self.store = path, MemoryStore()
        self.opened: list[DeltaDestination] = []

    def open(self, mode: TableMode) -> DeltaDestination:
        destination = DeltaDestination(
            str(self.path),
            pipeline=PipelineId("p"),
            spark=no_spark,
            tables=self.store,
            modes=TableModes(mode),
            clock=lambda: NOON,
        )
        self.opened.append(destination)
        return destination

    def location(self, schema: TableSchema) -> Path:
        return self.path / str(self.store.get_table_mapping(schema.id))

    def rows(self, schema: TableSchema) -> list[dict[str, Any]]:
        table = DeltaTable(self.location(schema))
        return pa.table(QueryBuilder().register("t", table).execute("select * from t").read_all()).to_pylist()

    def past(self) -> PastLake:
        return PastLake(self.open, self.rows)

    def close(self) -> None:
        for destination in self.opened:
            destination.shutdown()


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(tmp_path)
    yield lake
    lake.close()
    failpoint.arm("")


class TestDelta(PastSuite):
    @pytest.fixture
    def lake(self, delta: Lake) -> PastLake:
        return delta.past()


steps = st.lists(
    st.tuples(
        st.sampled_from(["change", "change", "keep", "keep", "move", "move and keep", "delete", "truncate"]),
        st.integers(0, 5),
        st.integers(0, 5),
        st.sampled_from([None, "a", "b" * 40]),
        st.booleans(),
        st.integers(0, 4),
    ),
    max_size=30,
)


@dataclass
class Source:
    """A table that is changed step by step, in transactions."""

    schema: TableSchema
    rows: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    transactions: list[list[Make]] = field(default_factory=lambda: [[]])

    def step(self, kind: str, key: int, other: int, body: str | None, is_end: bool) -> None:
        self.transactions[-1].append(self._change(kind, key, other, body))
        if is_end:
            self.transactions.append([])

    def _change(self, kind: str, key: int, other: int, body: str | None) -> Make:
        schema = self.schema
        if kind == "truncate" and key == 0:
            self.rows.clear()
            return truncate(schema)
        if key not in self.rows:
            self.rows[key] = (key, "new", body)
            return insert(schema, key, "new", body)
        former = self.rows.pop(key)
        full = OldRow(OldRowKind.FULL, former) if schema.identity is ReplicaIdentity.FULL else None
        if kind == "delete":
            gone = full or OldRow(OldRowKind.KEY, (key,))
            return lambda at: Delete(at, schema.id, gone)
        new = other if kind.startswith("move") and other not in self.rows else key
        is_kept = kind.endswith("keep")
        self.rows[new] = (new, f"{kind} {body}", former[2] if is_kept else body)
        row = UpdatedRow((new, self.rows[new][1], UNCHANGED if is_kept else body))
        old = full or (OldRow(OldRowKind.KEY, (key,)) if new != key else None)
        return lambda at: Update(at, schema.id, row, old)


def moments(number: int) -> dt.datetime:
    """Return when a transaction committed: the first ones before the copy's clock."""
    return NOON + dt.timedelta(minutes=number - 2)


@pytest.mark.parametrize(
    ("mode", "schema"),
    [
        (TableMode.HISTORY, ITEMS),
        (TableMode.HISTORY, FULL),
        (TableMode.HISTORY, KEYLESS),
        (TableMode.SCD2, ITEMS),
        (TableMode.SCD2, FULL),
    ],
    ids=["history", "history of full rows", "history without a key", "scd2", "scd2 of full rows"],
)
@settings(max_examples=25)
@given(history=steps)
def test_random_changes_in_random_batches_give_the_models_rows(
    tmp_path_factory: pytest.TempPathFactory, mode: TableMode, schema: TableSchema, history: list[Any]
) -> None:
    delta = Lake(tmp_path_factory.mktemp("lake"))
    table, source, model = delta.past().table(schema, mode), Source(schema), PastModel(schema)
    copied: list[tuple[Cell, ...]] = [(1, "copied", "c" * 30), (2, "copied", None)]
    source.rows = {1: copied[0], 2: copied[1]}
    table.model = model
    table.copy(copied)
    for *step, _cut in history:
        source.step(*step)
    cuts = [cut for *_step, cut in history]
    held: list[Event] = []
    waiting: list[Event] = []
    for number, changes in enumerate(source.transactions):
        lsn = int(START) + 10 * number
        events = transaction(lsn, *changes, commit_time=moments(number))
        model.apply(events)
        waiting += events
        if number == len(source.transactions) - 1 or cuts[number % len(cuts)] == 0:
            # Every batch comes again with the next one, as after a lost answer.
            table.destination.write_events(ArrowEvents([schema], [*held, *waiting], Lsn(lsn + 5)))
            held, waiting = waiting, []
    table.check()
    if mode is TableMode.SCD2:
        current = [tuple(row[name] for name in schema.column_names) for row in delta.rows(schema) if row["_is_current"]]
        assert sorted(current, key=repr) == sorted(source.rows.values(), key=repr)
    delta.close()
    shutil.rmtree(delta.path)


@in_both_modes
@pytest.mark.parametrize("moment", ["delta.files_written", "delta.commit", "delta.committed"])
@pytest.mark.parametrize("first", [0, 5, 6], ids=["rewrite", "truncate", "append"])
def test_a_batch_interrupted_at_any_step_is_kept_once(delta: Lake, mode: TableMode, moment: str, first: int) -> None:
    table = delta.past().table(ITEMS, mode)
    table.copy()
    table.apply(*CORNERS[:first])
    failpoint.arm(f"{moment}=raise*1")
    with pytest.raises(FailpointError):
        table.apply(CORNERS[first], start=START + 10 * first)
    again = replace(table, destination=delta.open(mode))
    again.apply(*CORNERS[first + 1 :], start=START + 10 * (first + 1))
    again.check()


@in_both_modes
def test_inserts_never_read_the_table(delta: Lake, mode: TableMode) -> None:
    table = delta.past().table(ITEMS, mode)
    table.copy()
    for file in delta.location(ITEMS).glob("*.parquet"):
        file.rename(file.with_suffix(".away"))
    table.apply([insert(ITEMS, 4, "new", None)])
    for file in delta.location(ITEMS).glob("*.away"):
        file.rename(file.with_suffix(".parquet"))
    table.check()


def test_a_history_reads_the_table_only_for_unchanged_values(delta: Lake) -> None:
    table = delta.past().table(ITEMS, TableMode.HISTORY)
    table.copy()
    for file in delta.location(ITEMS).glob("*.parquet"):
        file.unlink()
    table.apply([update(ITEMS, 1, "uno", None), delete(ITEMS, 2), update(ITEMS, 33, "x", "y", old=[3])])
    table.apply([truncate(ITEMS), insert(ITEMS, 1, "a", "b"), update(ITEMS, 1, "c", UNCHANGED)], start=200)
    with pytest.raises(DestinationError):
        table.apply([update(ITEMS, 1, "needs the row", UNCHANGED)], start=300)


@in_both_modes
def test_an_update_of_a_row_that_is_not_there_is_refused(delta: Lake, mode: TableMode) -> None:
    table = delta.past().table(ITEMS, mode)
    table.copy()
    event = transaction(110, update(ITEMS, 55, "unknown", UNCHANGED))
    with pytest.raises(DestinationError, match="a row that the table does not have"):
        table.destination.write_events(ArrowEvents([ITEMS], event, Lsn(120)))
    table.check()


@in_both_modes
def test_a_compaction_that_commits_first_costs_another_look(delta: Lake, mode: TableMode) -> None:
    table = delta.past().table(ITEMS, mode)
    table.copy()
    table.apply(*CORNERS[:2])
    log, compacted = TableLog.commit, False

    def outrun(self: TableLog, state: TableState, actions: Sequence[Action]) -> bool:
        nonlocal compacted
        if not compacted:
            compacted = True
            DeltaTable(delta.location(ITEMS)).optimize.compact()
        return log(self, state, actions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableLog, "commit", outrun)
        table.apply(*CORNERS[2:], start=START + 20)
    table.check()
    table.copy(COPIED, Lsn(900), is_again=True)
    table.check()


@in_both_modes
def test_old_rows_of_every_type_are_used(delta: Lake, mode: TableMode) -> None:
    schema = replace(EVERYTHING, identity=ReplicaIdentity.FULL)
    table = delta.past().table(schema, mode)
    rows: list[tuple[Cell, ...]] = [(number, *(pair[number] for pair in TYPES.values())) for number in (0, 1)]
    table.copy(rows)
    kept: list[Cell | Unchanged] = [UNCHANGED] * len(TYPES)
    table.apply([full_update(schema, rows[0], 0, *kept), full_update(schema, rows[1], 7, *kept)])
    table.apply([full_delete(schema, *rows[0]), full_delete(schema, 7, *rows[1][1:])], start=200)
    table.check()


@in_both_modes
def test_old_rows_may_begin_to_be_logged_within_a_batch(delta: Lake, mode: TableMode) -> None:
    table = delta.past().table(FULL, mode)
    table.copy()
    moved = update(FULL, 8, "moved", UNCHANGED, old=[2])
    table.apply([update(FULL, 1, "uno", UNCHANGED), moved, full_update(FULL, COPIED[2], 9, "moved", UNCHANGED)])
    table.apply([full_update(FULL, (1, "uno", "body one"), 1, "eins", UNCHANGED), delete(FULL, 8)], start=200)
    table.check()
