"""The rows of a table that has one for every version of a row: `scd2`.

A change ends the version that its row has, and begins another unless it is a delete. To end a version of the table,
its row is removed and added again with the time at which it ended; a batch may begin and end any number of its own.
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
from penstock.lake.fold import NOWHERE, changes_behind, with_columns
from penstock.lake.history import change_types
from penstock.lake.key import KeySet, Numbers
from penstock.lake.layout import IS_CURRENT, VALID_FROM, VALID_TO
from penstock.lake.lineage import follow, segments
from penstock.lake.past import FoundRows, Waiting, Wholes, completed_in_batch, truncates_since, whole_changes
from penstock.lake.sought import Sought, all_current, current_with_key, key_columns, some_keys
from penstock.lake.validate import refuse_keyless, refuse_missing_row
from penstock.model.lsn import Lsn
from penstock.wire.arrow import compute, wrap, wrap_mask

_MOMENT = pa.timestamp("us", "UTC")
_ENDED = log.XID
"""Where a change carries the time at which its version ended, in microseconds: no table has transaction ids."""


@dataclass(frozen=True)
class _Prepared:
    """Changes that end and begin versions."""

    begun: Wholes
    """Those that begin one."""
    keys: KeySet
    ends_us: Numbers
    """For every key, when the version ends that the table has of it; `NOWHERE` if it cannot have one."""


class Versioning:
    """A batch's changes on their way into the table: those of transactions from a position on."""

    replaces: ClassVar[bool] = True
    """Whether the rows sought go when those that are given are added."""

    def __init__(self, changes: TableChanges, since: Lsn, target: pa.Schema, place: str) -> None:
        self._changes = changes
        self._schema = changes.schema
        self._since = since
        self._target = target
        self._place = place
        self._truncates = truncates_since(changes, since)

    @property
    def sought(self) -> Sought | None:
        """The versions that the batch ends; None if it can end none, as when it only inserts."""
        if self._truncates:
            return all_current()
        if self._prepared is None:
            return None
        named = np.flatnonzero(self._prepared.ends_us != NOWHERE)
        return current_with_key(self._schema, some_keys(self._prepared.keys, named)) if len(named) else None

    def rows(self, found: Sequence[FoundRows] = ()) -> Iterator[pa.Table]:
        """Yield the rows to be added, given those that are sought, which they replace."""
        if self._prepared is None:
            yield from self._inserted()
            yield from (self._ended(chunk, None) for each in found for _, chunk in each.chunks(self._target.names))
            return
        waiting = Waiting(self._prepared.begun)
        yield self._begun(waiting.others())
        for each in found:
            for _, chunk in each.chunks(self._target.names):
                numbers = self._numbers(chunk, self._prepared.keys)
                yield self._ended(chunk, numbers)
                yield self._begun(self._completed(waiting, chunk, numbers))
        if waiting.missing:
            raise refuse_missing_row(self._schema, self._place)

    @cached_property
    def _prepared(self) -> _Prepared | None:
        if not self._schema.key or not (self._changes.updates or self._changes.deletes):
            return None
        fresh = changes_behind(self._changes.arrow(), self._since, None)
        if not fresh:
            return None
        changes = whole_changes(fresh, self._schema)
        lineage = follow(changes, self._schema, [each.position for each in self._truncates])
        moments = _moments(changes)
        is_insert, is_delete = (compute.equal(changes.column(log.OP), op).to_numpy() for op in "ID")
        ended = self._ends(moments, lineage.segments, lineage.successors)
        wholes = completed_in_batch(with_columns(changes, {_ENDED: ended}), self._schema, lineage)
        # A key that is inserted first is not in the table.
        is_there = (lineage.firsts != NOWHERE) & ~is_insert[lineage.firsts]
        ends_us = np.where(is_there, moments[lineage.firsts], NOWHERE)
        return _Prepared(wholes.where(~is_delete), lineage.keys, ends_us)

    def _ends(self, moments: Numbers, truncated: Numbers, successors: Numbers | None = None) -> Any:
        """Return when the version ends that each change begins: with its successor, a truncate, or not at all."""
        truncates = np.array([*(each.moment_us for each in self._truncates), NOWHERE], np.int64)
        ends = truncates[truncated]
        if successors is not None:
            ends = np.where(successors != NOWHERE, moments[successors], ends)
        # Clocks may be set back; a version then ends where it begins.
        known = wrap(np.maximum(ends, moments), pa.int64())
        return compute.if_else(wrap_mask(ends == NOWHERE), pa.scalar(None, pa.int64()), known)

    def _inserted(self) -> Iterator[pa.Table]:
        """Yield the versions that inserts begin, a batch at a time: only a truncate can end them."""
        positions = [each.position for each in self._truncates]
        for batch in self._changes.arrow():
            for fresh in changes_behind([batch], self._since, None):
                if compute.any(compute.not_equal(fresh.column(log.OP), "I")).as_py():
                    raise refuse_keyless(self._schema)
                changes = pa.Table.from_batches([fresh])
                ends = self._ends(_moments(changes), segments(changes, positions))
                yield self._begun(with_columns(changes, {_ENDED: ends}))

    def _begun(self, changes: pa.Table) -> pa.Table:
        """Return changes as versions."""
        ended: Any = changes.column(_ENDED)
        columns: list[Any] = [changes.column(log.stored_name(column.name)) for column in self._schema.columns]
        columns += [change_types(changes), changes.column(log.COMMIT_LSN), changes.column(log.ORDINAL)]
        columns += [changes.column(log.COMMIT_TS)] * 2
        columns += [ended.cast(_MOMENT), compute.is_null(ended)]
        arrays = [column.cast(field.type) for column, field in zip(columns, self._target, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self._target)

    def _numbers(self, chunk: pa.Table, keys: KeySet) -> Numbers:
        """Return the number of each version's key, or `NOWHERE`: a truncate ends those that no change names too."""
        numbers = np.full(chunk.num_rows, NOWHERE, np.int64)
        places, found = keys.match([chunk.column(each.name).cast(each.type) for each in key_columns(self._schema)])
        numbers[places] = found
        return numbers

    def _ended(self, chunk: pa.Table, numbers: Numbers | None) -> pa.Table:
        """Return versions of the table, ended."""
        ends = np.full(chunk.num_rows, self._truncates[0].moment_us if self._truncates else NOWHERE, np.int64)
        if numbers is not None and self._prepared is not None:
            own = self._prepared.ends_us[numbers]
            ends = np.where((numbers != NOWHERE) & (own != NOWHERE), own, ends)
        begun: Any = chunk.column(VALID_FROM).cast(pa.int64())
        moments = compute.max_element_wise(wrap(ends, pa.int64()), begun).cast(_MOMENT)
        is_current = pa.repeat(pa.scalar(False, pa.bool_()), chunk.num_rows)
        return with_columns(chunk, {VALID_TO: moments, IS_CURRENT: is_current})

    def _completed(self, waiting: Waiting, chunk: pa.Table, numbers: Numbers) -> pa.Table:
        """Return the changes that wait for values of these versions."""
        names = [column.name for column in self._schema.columns if log.stored_name(column.name) in waiting.columns]
        named = np.flatnonzero(numbers != NOWHERE)
        values = chunk.select(names).take(wrap(named, pa.int64()))
        return waiting.completed(numbers[named], values.rename_columns([log.stored_name(name) for name in names]))


def _moments(changes: pa.Table) -> Numbers:
    moments: Any = changes.column(log.COMMIT_TS).cast(pa.int64()).to_numpy()
    return moments  # type: ignore[no-any-return]
