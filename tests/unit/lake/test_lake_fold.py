"""Folded changes against the plain meaning of the same changes, applied one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.contract import columns as log
from penstock.lake.completion import Completion
from penstock.lake.fold import changes_behind, fold
from penstock.lake.key import Numbers
from penstock.lake.locate import Found
from penstock.model.cell import UNCHANGED
from penstock.model.event import Event
from penstock.model.lsn import Lsn, Position
from penstock.model.table import Column, TableId, TableName, TableSchema
from penstock.testing.batch import ArrowChanges, ArrowEvents, table_schema, transaction
from penstock.testing.destination_suite import INT8, ITEMS, TEXT, Make, delete, insert, update

ODD = TableSchema(
    TableId(9),
    TableName("public", "odd"),
    (Column("_op", TEXT), Column("_key", INT8, nullable=False, key_ordinal=0), Column("body", TEXT)),
)


@dataclass
class Source:
    """A table that is changed one row at a time, and what its changes say in the log."""

    rows: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    made: list[Make] = field(default_factory=list)

    def step(self, kind: str, key: int, other: int, body: str | None) -> None:
        if key not in self.rows:
            self.rows[key] = (f"new {len(self.made)}", body)
            self.made.append(insert(ITEMS, key, *self.rows[key]))
        elif kind == "delete":
            del self.rows[key]
            self.made.append(delete(ITEMS, key))
        else:
            self._update(key, other if kind.startswith("move") and other not in self.rows else key, kind, body)

    def _update(self, key: int, new: int, kind: str, body: str | None) -> None:
        _name, former = self.rows.pop(key)
        is_kept = kind.endswith("kept")
        self.rows[new] = (f"changed {len(self.made)}", former if is_kept else body)
        given_body = UNCHANGED if is_kept else body
        self.made.append(update(ITEMS, new, self.rows[new][0], given_body, old=None if new == key else [key]))


KINDS = ("change", "change kept", "move", "move kept", "delete")
steps = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 5), st.integers(0, 5), st.sampled_from([None, "a", "b"])),
    min_size=1,
    max_size=25,
)


def changes_of(schema: TableSchema, made: Sequence[Make]) -> ArrowChanges:
    events: list[Event] = []
    for number in range(0, len(made), 3):
        events += transaction(100 + number * 10, *made[number : number + 3])
    [changes] = ArrowEvents([schema], events, Lsn(10_000)).tables().values()
    assert isinstance(changes, ArrowChanges)
    return changes


def applied(target: Sequence[tuple[Any, ...]], batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Do with a table in memory what a destination does with its files."""
    folded = fold(batches, ITEMS)
    table = pa.Table.from_pylist(
        [dict(zip(ITEMS.column_names, row, strict=True)) for row in target], table_schema(ITEMS)
    )
    places, numbers = folded.keys.match([table.column("id")])
    completion = Completion(folded)

    def values(at: Numbers) -> Iterator[pa.Table]:
        yield from (table.slice(place, 1).select(completion.columns) for place in at)

    gained = [completion.whole(), *completion.completed(Found(places, numbers), values)]
    assert completion.missing == 0
    kept = [row for place, row in enumerate(target) if place not in set(places.tolist())]
    return kept + [tuple(row.values()) for each in gained for row in each.select(ITEMS.column_names).to_pylist()]


@given(steps, steps, st.integers(1, 5))
def test_folding_a_history_gives_what_its_changes_give_one_by_one(
    before: list[Any], after: list[Any], size: int
) -> None:
    source = Source()
    for step in before:
        source.step(*step)
    target = [(key, *row) for key, row in source.rows.items()]
    source.made.clear()
    for step in after:
        source.step(*step)
    table = changes_of(ITEMS, source.made).table
    batches = [batch for start in range(0, len(table), size) for batch in table.slice(start, size).to_batches()]
    assert sorted(applied(target, batches)) == sorted((key, *row) for key, row in source.rows.items())


def test_a_key_held_twice_is_lost_twice_and_completes_one_row() -> None:
    made = [update(ITEMS, 1, "new", UNCHANGED)]
    target = [(1, "old", "body"), (1, "old", "body"), (2, "other", None)]
    assert sorted(applied(target, changes_of(ITEMS, made).table.to_batches())) == [
        (1, "new", "body"),
        (2, "other", None),
    ]


def test_columns_called_like_the_logs_are_told_apart() -> None:
    made = [insert(ODD, "x", 1, "b"), update(ODD, UNCHANGED, 2, "c", old=[1]), insert(ODD, None, 1, None)]
    folded = fold(changes_of(ODD, made).table.to_batches(), ODD)
    names = [log.stored_name(column.name) for column in ODD.columns]
    rows = [tuple(row.values()) for row in folded.rows.select(names).to_pylist()]
    assert sorted(rows, key=repr) == sorted([("x", 2, "c"), (None, 1, None)], key=repr)
    assert not folded.kept


def test_a_value_nobody_carried_is_asked_for_where_its_row_was() -> None:
    made = [update(ITEMS, 1, "a", UNCHANGED), update(ITEMS, 7, "b", UNCHANGED, old=[1]), insert(ITEMS, 1, "c", "d")]
    folded = fold(changes_of(ITEMS, made).table.to_batches(), ITEMS)
    by_key = dict(zip(folded.rows.column("id").to_pylist(), folded.kept["body"].tolist(), strict=True))
    assert by_key == {7: True, 1: False}
    origin = folded.origins[folded.rows.column("id").to_pylist().index(7)]
    assert folded.keys.columns[0][origin].as_py() == 1


def test_only_changes_behind_both_positions_count() -> None:
    events = [
        *transaction(90, insert(ITEMS, 1, "before", None)),
        *transaction(100, insert(ITEMS, 2, "in front of it", None), insert(ITEMS, 3, "behind it", None)),
        *transaction(110, insert(ITEMS, 4, "after", None)),
    ]
    [changes] = ArrowEvents([ITEMS], events, Lsn(200)).tables().values()

    def ids(since: int, after: Position | None) -> list[Any]:
        return [key for batch in changes_behind(changes.arrow(), Lsn(since), after) for key in batch["id"].to_pylist()]

    assert ids(0, None) == [1, 2, 3, 4]
    assert ids(100, None) == [2, 3, 4]
    assert ids(0, Position(Lsn(100), 1)) == [3, 4]
    assert ids(111, None) == []
