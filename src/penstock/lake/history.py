"""The rows of a table that has one for every change: `history`.

Rows are only ever added, each with what happened, where and when. What a change leaves unchanged is looked up in the
latest row of its key: the only case in which the table is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.contract import columns as log
from penstock.contract.batch import TableChanges
from penstock.lake.fold import changes_behind
from penstock.lake.key import KeySet, Numbers
from penstock.lake.layout import COPY, DELETE, INSERT, KEY_CHANGE, ORDINAL, RESYNC, TRUNCATE, UPDATE
from penstock.lake.lineage import follow
from penstock.lake.locate import Found
from penstock.lake.past import (
    CopyStart,
    FoundRows,
    Waiting,
    Wholes,
    completed_in_batch,
    former_rows,
    truncates_since,
    whole_changes,
)
from penstock.lake.rows import CHANGE_TYPE, LSN, TIMESTAMP
from penstock.lake.sought import Sought, by_key, some_keys
from penstock.lake.validate import refuse_missing_row
from penstock.model.lsn import Lsn
from penstock.wire.arrow import compute

_ALIVE = pa.array([COPY, INSERT, UPDATE])
"""Rows that say what a row was."""


@dataclass(frozen=True)
class _Prepared:
    """Changes of which some leave values unchanged."""

    changes: pa.Table
    wholes: Wholes
    keys: KeySet
    needed: Numbers
    """The numbers of the keys whose values the table has."""


class Recording:
    """A batch's changes on their way into the table: those of transactions from a position on."""

    replaces: ClassVar[bool] = False
    """Whether the rows sought go when those that are given are added."""

    def __init__(self, changes: TableChanges, since: Lsn, target: pa.Schema, place: str) -> None:
        self._changes = changes
        self._schema = changes.schema
        self._since = since
        self._target = target
        self._place = place

    @property
    def sought(self) -> Sought | None:
        """The rows of the table that are needed; None if the changes alone will do."""
        prepared = self._prepared
        if prepared is None or not len(prepared.needed):
            return None
        return by_key(self._schema, some_keys(prepared.keys, prepared.needed))

    def rows(self, found: Sequence[FoundRows] = ()) -> Iterator[pa.Table]:
        """Yield the rows to be added, given those that are needed."""
        yield from self._streamed() if self._prepared is None else self._completed(self._prepared, found)
        yield self._markers()

    @cached_property
    def _prepared(self) -> _Prepared | None:
        # Without a key there is always the old row, which has every value.
        if not self._changes.has_unchanged or not self._schema.key:
            return None
        fresh = changes_behind(self._changes.arrow(), self._since, None)
        if not fresh:
            return None
        changes = whole_changes(fresh, self._schema)
        truncates = truncates_since(self._changes, self._since)
        lineage = follow(changes, self._schema, [each.position for each in truncates])
        wholes = completed_in_batch(changes, self._schema, lineage)
        return _Prepared(changes, wholes, lineage.keys, Waiting(wholes).keys)

    def _streamed(self) -> Iterator[pa.Table]:
        for batch in self._changes.arrow():
            for fresh in changes_behind([batch], self._since, None):
                changes = whole_changes([fresh], self._schema)
                yield self._formers(changes)
                yield self._recorded(changes)

    def _completed(self, prepared: _Prepared, found: Sequence[FoundRows]) -> Iterator[pa.Table]:
        waiting = Waiting(prepared.wholes)
        yield self._formers(prepared.changes)
        yield self._recorded(waiting.others())
        names = [column.name for column in self._schema.columns if log.stored_name(column.name) in waiting.columns]
        for latest in _latest(found):
            for here, values in latest.chunks(names):
                stored = values.rename_columns([log.stored_name(name) for name in names])
                yield self._recorded(waiting.completed(prepared.needed[here.numbers], stored))
        if waiting.missing:
            raise refuse_missing_row(self._schema, self._place)

    def _formers(self, changes: pa.Table) -> pa.Table:
        return self._recorded(former_rows(changes, self._schema), KEY_CHANGE)

    def _recorded(self, changes: pa.Table, kind: str | None = None) -> pa.Table:
        """Return changes as rows of the table."""
        columns: list[Any] = [changes.column(log.stored_name(column.name)) for column in self._schema.columns]
        columns.append(pa.repeat(kind, changes.num_rows) if kind else change_types(changes))
        columns += [changes.column(name) for name in (log.COMMIT_LSN, log.ORDINAL, log.COMMIT_TS)]
        arrays = [column.cast(field.type) for column, field in zip(columns, self._target, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self._target)

    def _markers(self) -> pa.Table:
        """Return a row without values for every truncate."""
        truncates = truncates_since(self._changes, self._since)
        ours: dict[str, Any] = {
            CHANGE_TYPE: [RESYNC if isinstance(self._changes, CopyStart) else TRUNCATE] * len(truncates),
            LSN: [int(each.position.commit_lsn) for each in truncates],
            ORDINAL: [each.position.ordinal for each in truncates],
            TIMESTAMP: [each.moment_us for each in truncates],
        }
        nothing = [None] * len(truncates)
        own = len(self._target) - len(ours)
        arrays = [
            pa.array(nothing if place < own else ours[field.name], field.type)
            for place, field in enumerate(self._target)
        ]
        return pa.Table.from_arrays(arrays, schema=self._target)


def change_types(changes: pa.Table) -> Any:
    """Return what each change is called."""
    is_insert, is_update = (compute.equal(changes.column(log.OP), op) for op in "IU")
    return compute.if_else(is_insert, INSERT, compute.if_else(is_update, UPDATE, DELETE))


def _latest(found: Sequence[FoundRows]) -> Iterator[FoundRows]:
    """Return, of the rows found, the latest of every key that has values."""
    seen = [_positions(place, each) for place, each in enumerate(found)]
    if not seen:
        return
    files, places, numbers, lsns, ordinals = (np.concatenate(column) for column in zip(*seen, strict=True))
    order = np.lexsort((ordinals, lsns, numbers))
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = numbers[order][1:] != numbers[order][:-1]
    last = np.sort(order[is_last])
    for place, each in enumerate(found):
        here = last[files[last] == place]
        if len(here):
            yield FoundRows(Found(places[here], numbers[here]), each.read)


def _positions(place: int, rows: FoundRows) -> tuple[Numbers, ...]:
    """Return the file's number and, for its rows that have values: place, key, position."""
    parts: list[tuple[Numbers, ...]] = [(np.empty(0, np.int64),) * 4]
    for here, table in rows.chunks([CHANGE_TYPE, LSN, ORDINAL]):
        is_alive = compute.is_in(table.column(CHANGE_TYPE), value_set=_ALIVE).to_numpy()
        lsn, ordinal = (table.column(name).to_numpy() for name in (LSN, ORDINAL))
        parts.append(tuple(each[is_alive] for each in (here.places, here.numbers, lsn, ordinal)))
    columns = [np.concatenate(column).astype(np.int64, copy=False) for column in zip(*parts, strict=True)]
    return np.full(len(columns[0]), place, np.int64), *columns
