"""What each change of a batch follows, and what follows it: for tables that keep more than the last state of a row.

A key is held by one row at a time. So the changes that name a key, as it is or as it was, in order, tell everything:
each ends the version that the one before it began, and takes from it the values that it leaves unchanged. What the
first of them finds is in the table. A truncate ends all versions, and behind it nothing in the table counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.contract import columns as log
from penstock.lake.fold import NOWHERE, number_changes
from penstock.lake.key import KeySet, Numbers
from penstock.model.lsn import Position
from penstock.model.table import TableSchema
from penstock.wire.arrow import compute


@dataclass(frozen=True)
class Lineage:
    """The changes of a batch, by their places in it, and the keys that they name."""

    keys: KeySet
    segments: Numbers
    """For every change, how many truncates are before it."""
    previous: Numbers
    """For every update, the change that its row was written by; `NOWHERE` if that is not in the batch."""
    origins: Numbers
    """For every update of a row as the table has it, the number of the key that the row has there."""
    successors: Numbers
    """For every change, the one that ends the version which it begins; `NOWHERE` if none before the next truncate."""
    firsts: Numbers
    """For every key, the first change that names it before any truncate, or `NOWHERE`."""

    def givers(self, is_unchanged: NDArray[np.bool_]) -> Numbers:
        """Return, for every change, itself or the last one before it, of the same row, that carries a value.

        That one may be unchanged too: then the value is in the table, if the row is.
        """
        found = np.where(is_unchanged & (self.previous != NOWHERE), self.previous, np.arange(len(self.previous)))
        # Each round doubles how far back one looks.
        while not np.array_equal(further := found[found], found):
            found = further
        return found

    @property
    def beginnings(self) -> Numbers:
        """For every change, the key that its row has in the table before the batch, or `NOWHERE`."""
        return self.origins[self.givers(np.ones(len(self.previous), np.bool_))]


def follow(changes: pa.Table, schema: TableSchema, truncates: Sequence[Position]) -> Lineage:
    """Follow changes in order, of a table with a key."""
    keys, news, former = number_changes(changes, schema)
    olds = np.full(len(news), NOWHERE, np.int64) if former is None else former
    is_insert, is_delete = (compute.equal(changes.column(log.OP), op).to_numpy() for op in "ID")
    movers = np.flatnonzero(olds != NOWHERE)
    truncated = segments(changes, truncates)
    touched = np.concatenate([news, olds[movers]])
    at = np.concatenate([np.arange(len(news)), movers])
    begins = np.concatenate([~is_delete, np.zeros(len(movers), np.bool_)])
    finds = np.concatenate([(olds == NOWHERE) & ~is_insert, np.ones(len(movers), np.bool_)])
    order = np.lexsort((at, touched, truncated[at]))
    touched, at, begins, finds = touched[order], at[order], begins[order], finds[order]
    is_first = np.ones(len(at), np.bool_)
    is_first[1:] = (touched[1:] != touched[:-1]) | (truncated[at[1:]] != truncated[at[:-1]])
    previous, origins, successors = (_nowhere(len(news)) for _ in range(3))
    found = Lineage(keys, truncated, previous, origins, successors, _nowhere(len(keys)))
    later = np.flatnonzero(~is_first & begins[np.arange(len(at)) - 1])
    found.successors[at[later - 1]] = at[later]
    takers = later[finds[later]]
    found.previous[at[takers]] = at[takers - 1]
    entries = np.flatnonzero(is_first & (truncated[at] == 0))
    found.firsts[touched[entries]] = at[entries]
    takers = entries[finds[entries]]
    found.origins[at[takers]] = touched[takers]
    return found


def _nowhere(count: int) -> Numbers:
    return np.full(count, NOWHERE, np.int64)


def segments(changes: pa.Table, truncates: Sequence[Position]) -> Numbers:
    """Return, for every change, how many of the truncates are before it."""
    lsn, ordinal = (changes.column(name).to_numpy() for name in (log.COMMIT_LSN, log.ORDINAL))
    cuts: list[int] = []
    for each in truncates:
        first, last = (np.searchsorted(lsn, int(each.commit_lsn), side) for side in ("left", "right"))
        cuts.append(int(first + np.searchsorted(ordinal[first:last], each.ordinal)))
    return np.searchsorted(np.array(cuts, np.int64), np.arange(changes.num_rows), "right").astype(np.int64)
