"""Finds rows by their key in Parquet files, reading the key's columns and nothing else.

Files are immutable, so where a row stands in its file is where it is for ever: a place found here can
become an entry of a deletion vector, or of a position delete. A function of a path and plain values, so
that it runs in a thread or in a Spark task alike. What is held in memory is one batch of keys a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.contract.files import Files
from penstock.lake.key import Bound, KeySet, Numbers, comparable, ordered_value
from penstock.wire.arrow import wrap

# Each look-up builds a table of the keys, so few large batches are cheaper: of integers, 8 MB.
_BATCH_ROWS = 1 << 20
# Values that an update left unchanged may be large; few of them at a time are decoded.
_WIDE_BATCH_ROWS = 1 << 12


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of one file whose keys were looked for."""

    places: Numbers
    """Where they stand in the file, from 0, in order."""
    numbers: Numbers
    """For each, the number of its key."""

    def where(self, wanted: NDArray[np.bool_]) -> Found:
        """Return some of them."""
        return Found(self.places[wanted], self.numbers[wanted])


@dataclass(frozen=True)
class LakeFiles:
    """The Parquet files of one table, with its key's columns as they are compared."""

    files: Files
    key: pa.Schema

    def find(self, path: str, keys: KeySet) -> Found:
        """Return every row of a file that has one of the keys."""
        with self._open(path) as file:
            found = [(*keys.match(columns), start) for start, columns in self._key_batches(file, keys)]
        places = [start + each for each, _numbers, start in found]
        return Found(_joined(places), _joined([numbers for _places, numbers, _start in found]))

    def values(self, path: str, columns: pa.Schema, places: Numbers) -> Iterator[pa.Table]:
        """Yield the values of some columns at places in order, a few at a time."""
        with self._open(path) as file:
            for group, start in _groups(file):
                end = start + file.metadata.row_group(group).num_rows
                within = places[np.searchsorted(places, start) : np.searchsorted(places, end)]
                if len(within):
                    yield from self._values(file, group, columns, within - start)

    def keys(self, path: str, max_bytes: int) -> list[Any] | None:
        """Return the keys of all rows, comparable, an array for each of the key's columns; None if they are larger."""
        with self._open(path) as file:
            groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
            if sum(column.total_uncompressed_size for group in groups for column in self._columns(group)) > max_bytes:
                return None
            table = file.read(self.key.names)
        return [comparable(column) for column in _cast(table, self.key)]

    def rows(self, path: str) -> int:
        """Return how many rows a file has."""
        with self._open(path) as file:
            return int(file.metadata.num_rows)

    def _values(self, file: pq.ParquetFile, group: int, columns: pa.Schema, places: Numbers) -> Iterator[pa.Table]:
        start = 0
        for batch in file.iter_batches(_WIDE_BATCH_ROWS, row_groups=[group], columns=columns.names):
            first, last = np.searchsorted(places, [start, start + batch.num_rows])
            if first < last:
                rows = batch.take(wrap(places[first:last] - start, pa.int64()))
                yield pa.Table.from_arrays(_cast(rows, columns), schema=columns)
            start += batch.num_rows

    def _key_batches(self, file: pq.ParquetFile, keys: KeySet) -> Iterator[tuple[int, list[Any]]]:
        for group, start in _groups(file):
            if not keys.may_be_within(self._bounds(file.metadata.row_group(group))):
                continue
            at = start
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=self.key.names):
                yield at, _cast(batch, self.key)
                at += batch.num_rows

    def _bounds(self, group: Any) -> Mapping[int, Bound]:
        """Return what a row group says of the key's columns."""
        known = {column.path_in_schema: column.statistics for column in self._columns(group) if column.is_stats_set}
        return {place: bound for place, field in enumerate(self.key) if (bound := _bound(known.get(field.name), field))}

    def _columns(self, group: Any) -> list[Any]:
        """Return the chunks of the key's columns; an array's path goes on behind its name."""
        chunks = [group.column(index) for index in range(group.num_columns)]
        names = self.key.names
        return [each for each in chunks if any(f"{each.path_in_schema}.".startswith(f"{name}.") for name in names)]

    def _open(self, path: str) -> pq.ParquetFile:
        # Spark writes timestamps as INT96, which would otherwise be read as nanoseconds, and overflow.
        return pq.ParquetFile(self.files.open(path), coerce_int96_timestamp_unit="us")


def _bound(statistics: Any, field: pa.Field[Any]) -> Bound | None:
    if statistics is None or not statistics.has_min_max:
        return None
    low, high = ordered_value(statistics.min, field.type), ordered_value(statistics.max, field.type)
    return None if low is None or high is None else (low, high)


def _groups(file: pq.ParquetFile) -> Iterator[tuple[int, int]]:
    """Yield each row group with the place of its first row."""
    start = 0
    for group in range(file.metadata.num_row_groups):
        yield group, start
        start += file.metadata.row_group(group).num_rows


def _cast(batch: pa.RecordBatch | pa.Table, wanted: pa.Schema) -> list[Any]:
    """Return columns in the types they are compared or written in; writers differ in how they store some."""
    columns: Sequence[Any] = [batch.column(field.name) for field in wanted]
    return [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, wanted, strict=True)
    ]


def _joined(parts: Sequence[Numbers]) -> Numbers:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
