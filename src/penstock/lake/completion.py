"""Completes folded rows with values that no change carried, taken from the rows that the table is about to lose.

Such values are large, or they would not have been left out of the stream; so rows are completed and handed on
a few at a time, and never stand in memory all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.lake.fold import NOWHERE, Folded, with_columns
from penstock.lake.key import Numbers
from penstock.lake.locate import Found
from penstock.wire.arrow import compute, wrap, wrap_mask


class Completion:
    """The folded rows that lack values, and how far they have been found."""

    def __init__(self, folded: Folded) -> None:
        self._rows = folded.rows
        self._kept = folded.kept
        self._lacking = _any(folded.kept, folded.rows.num_rows)
        self._waiting = np.full(len(folded.keys), NOWHERE, np.int64)
        lacking = np.flatnonzero(self._lacking & (folded.origins != NOWHERE))
        self._waiting[folded.origins[lacking]] = lacking
        self._missing = int(self._lacking.sum())

    @property
    def columns(self) -> list[str]:
        """The columns that are lacking somewhere, by the change log's names."""
        return list(self._kept)

    @property
    def missing(self) -> int:
        """How many rows have not been found yet."""
        return self._missing

    def whole(self) -> pa.Table:
        """Return the rows that lack nothing."""
        return self._rows if self._missing == 0 else self._rows.filter(wrap_mask(~self._lacking))

    def completed(self, found: Found, values: Callable[[Numbers], Iterable[pa.Table]]) -> Iterator[pa.Table]:
        """Yield rows that a file completes; `values` gives `columns` at the places asked for, in order.

        A key that stands in the table twice completes its row once.
        """
        rows = self._claimed(found)
        wanted = rows != NOWHERE
        done, rows = 0, rows[wanted]
        for table in values(found.places[wanted]) if len(rows) else ():
            yield self._merged(rows[done : done + table.num_rows], table)
            done += table.num_rows

    def _claimed(self, found: Found) -> Numbers:
        """Return the row that each place completes, or `NOWHERE`, and wait for it no more."""
        rows = self._waiting[found.numbers]
        _, first = np.unique(found.numbers, return_index=True)
        is_first = np.zeros(len(rows), np.bool_)
        is_first[first] = True
        rows[~is_first] = NOWHERE
        self._waiting[found.numbers] = NOWHERE
        self._missing -= int((rows != NOWHERE).sum())
        return rows

    def _merged(self, rows: Numbers, values: pa.Table) -> pa.Table:
        own = self._rows.take(wrap(rows, pa.int64()))
        merged: dict[str, Any] = {
            name: compute.if_else(wrap_mask(is_kept[rows]), values.column(name), own.column(name))
            for name, is_kept in self._kept.items()
        }
        return with_columns(own, merged)


def _any(masks: Mapping[str, NDArray[np.bool_]], rows: int) -> NDArray[np.bool_]:
    found = np.zeros(rows, np.bool_)
    for mask in masks.values():
        found |= mask
    return found
