"""Puts the rows of several files into one, in order, while others go on deleting rows of those files.

Where every row came from is remembered until the new file is committed: what was deleted meanwhile where it was is
then deleted where it is now. So nobody waits while rows are read and written, and no change is undone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray
from pyroaring import BitMap64

from penstock.lake.key import Numbers
from penstock.lake.layout import IS_CURRENT, ORDINAL, Layout
from penstock.lake.rows import LSN
from penstock.model.mode import TableMode
from penstock.model.table import TableSchema
from penstock.wire.arrow import arrow_type, compute

# Of Arrow's memory: so much is sorted at once, and exists twice meanwhile. A file with more rows has several runs.
_SORTED_BYTES = 128 << 20
# Row groups are what a search within the file can skip; smaller ones would make other readers slower.
_GROUP_BYTES = 16 << 20
_GROUP_ROWS = 1 << 16
# A third of the processor's time beside a busy thread: whoever needs Python's lock waits for us when we hold it.
_NICENESS = 5

Work = TypeVar("Work")
Compression: TypeAlias = Literal["snappy", "zstd"]
COMPRESSION: Compression = "zstd"
"""Half the size of snappy's, for a time that does not matter here."""


def unhurriedly(work: Callable[[], Work]) -> Work:
    """Do something in a thread that has what others leave of the processor, where threads have a priority of their own.

    Not for what others wait for, a commit say: they would wait for everybody else too.
    """
    with ThreadPoolExecutor(1, "rewrite", _lower_priority) as thread:
        return thread.submit(work).result()


def _lower_priority() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class StoppedError(Exception):
    """Raised where a rewriting ends because everything does."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that is rewritten, as it was when that began."""

    path: str
    rows: int
    gone: BitMap64

    @property
    def places(self) -> Numbers:
        """Where rows are that are still there."""
        return np.flatnonzero(~_flags(self.gone, self.rows))

    def deleted_since(self, now: BitMap64 | None) -> NDArray[np.bool_]:
        """Return for every row whether it has been deleted since, given what is now; None for all."""
        return np.ones(self.rows, np.bool_) if now is None else _flags(now - self.gone, self.rows)


def _flags(places: BitMap64, rows: int) -> NDArray[np.bool_]:
    flags = np.zeros(rows, np.bool_)
    flags[np.frombuffer(places.to_array(), np.uint64).astype(np.int64)] = True
    return flags


Read: TypeAlias = Callable[[str, Numbers], Iterator[pa.Table]]
"""What gives the rows of a file at places, in order, a few at a time."""


@dataclass
class Rewriting:
    """Files on their way into one."""

    sources: Sequence[SourceFile]
    read: Read
    order: Sequence[str]
    """The columns that rows are ordered by."""
    is_stopping: Callable[[], bool]
    _origins: list[Numbers] = field(default_factory=list)

    def tables(self) -> Iterator[pa.Table]:
        """Yield all rows, a row group at a time."""
        waiting: list[tuple[pa.Table, Numbers]] = []
        size = 0
        for table, origins in self._read():
            waiting.append((table, origins))
            size += table.nbytes
            if size >= _SORTED_BYTES:
                yield from self._ordered(waiting)
                waiting, size = [], 0
        if waiting:
            yield from self._ordered(waiting)

    def lost(self, now: Mapping[str, BitMap64]) -> Numbers | None:
        """Return the new file's rows that have been deleted since, given the deleted rows of the sources still there.

        A source that is not there has lost all, whoever removed it and wherever its rows may be now. None if the new
        file is not worth having: most of it is gone, or a source has rows again that it had lost.
        """
        if any(source.gone - now[source.path] for source in self.sources if source.path in now):
            return None
        is_gone = np.concatenate([source.deleted_since(now.get(source.path)) for source in self.sources])
        origins = np.concatenate([np.empty(0, np.int64), *self._origins])
        lost = np.flatnonzero(is_gone[origins])
        return None if 2 * len(lost) > len(origins) else lost

    @property
    def _starts(self) -> list[int]:
        """What to add to a place in each source to make it differ from all places in others."""
        return [0, *accumulate(source.rows for source in self.sources)][:-1]

    def _read(self) -> Iterator[tuple[pa.Table, Numbers]]:
        for source, start in zip(self.sources, self._starts, strict=True):
            places, first = source.places, 0
            for table in self.read(source.path, places):
                if self.is_stopping():
                    raise StoppedError
                yield table, start + places[first : first + table.num_rows]
                first += table.num_rows

    def _ordered(self, parts: Sequence[tuple[pa.Table, Numbers]]) -> Iterator[pa.Table]:
        table = pa.concat_tables([each for each, _origins in parts])
        origins = np.concatenate([each for _table, each in parts])
        if self.order:
            indices = compute.sort_indices(table, sort_keys=[(name, "ascending") for name in self.order])
            table, origins = table.take(indices), origins[indices.to_numpy()]
        self._origins.append(origins)
        rows = min(max(table.num_rows * _GROUP_BYTES // max(table.nbytes, 1), 1), _GROUP_ROWS)
        for start in range(0, table.num_rows, rows):
            yield table.slice(start, rows)


def clustering(schema: TableSchema, layout: Layout) -> list[str]:
    """Return the columns that a file's rows are ordered by, so that a search for a key can skip most of them.

    Of a table that keeps versions, those that are current come last, together: no other is ever looked for.
    """
    key = [column.name for column in schema.key if not pt.is_nested(arrow_type(column.type))]
    if layout.mode is TableMode.CURRENT:
        return key
    return [*([IS_CURRENT] if layout.mode is TableMode.SCD2 else []), *key, LSN, ORDINAL]
