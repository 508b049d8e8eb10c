"""Looks for keys in many files at once: in threads of this process, or in Spark's tasks where there is much to read.

Threads start at once; tasks take a second to plan, and use every core of a cluster. The keys of small files stay in
memory, within a bound: batches leave many such files behind, and to open one costs more than to look into it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.failpoint import hit
from penstock.lake.key import KeySet, Numbers
from penstock.lake.locate import Found, LakeFiles
from penstock.wire.arrow import wrap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CACHE_BYTES = 64 << 20
"""For all tables together: eight million keys of one integer each."""
_SMALL_BYTES = 1 << 20
SPARK_BYTES = 2 << 30
"""From so many bytes of keys on, Spark reads them: ten seconds' work for the threads of two cores."""
_FILE, _PLACE, _NUMBER = "file", "place", "number"


@dataclass(frozen=True, slots=True)
class SearchedFile:
    """A file that may have some of the keys."""

    path: str
    rows: int
    """How many it has, as far as is known."""


class Search:
    """Finds rows in a lake's files. Used by several tables at once."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        *,
        spark_bytes: int = SPARK_BYTES,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._spark = spark
        self._spark_bytes = spark_bytes
        self._cache = KeyCache(cache_bytes)
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="search")

    def find(self, files: LakeFiles, searched: Sequence[SearchedFile], keys: KeySet) -> Sequence[Found]:
        """Return what each file has of the keys, in the order of the files."""
        if sum(file.rows for file in searched) * keys.row_bytes >= self._spark_bytes:
            return find_with_spark(self._spark(), files, [file.path for file in searched], keys)
        kept = ((place, self._cache.get(files, file.path)) for place, file in enumerate(searched))
        known = {place: columns for place, columns in kept if columns is not None}
        found = dict(zip(known, _match_together(list(known.values()), keys), strict=True))
        rest = [place for place in range(len(searched)) if place not in known]
        look = partial(self._look, files, keys)
        found.update(zip(rest, self._threads.map(look, [searched[place] for place in rest]), strict=True))
        hit("search.found")
        return [found[place] for place in range(len(searched))]

    def _look(self, files: LakeFiles, keys: KeySet, file: SearchedFile) -> Found:
        columns = files.keys(file.path, _SMALL_BYTES) if file.rows * keys.row_bytes <= _SMALL_BYTES else None
        if columns is None:
            return files.find(file.path, keys)
        self._cache.put(files, file.path, columns)
        return Found(*keys.match(columns))

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()


class KeyCache:
    """The keys of files that were looked into lately. Files never change, so neither does what is kept of them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, ...], Sequence[Any]] = OrderedDict()

    def get(self, files: LakeFiles, path: str) -> Sequence[Any] | None:
        """Return a file's keys, if they are kept."""
        with self._lock:
            found = self._kept.get(_name(files, path))
            if found is not None:
                self._kept.move_to_end(_name(files, path))
            return found

    def put(self, files: LakeFiles, path: str, columns: Sequence[Any]) -> None:
        """Keep a file's keys, and let those go that were not asked for the longest."""
        with self._lock:
            self._forget(_name(files, path))
            self._kept[_name(files, path)] = columns
            self._bytes += _size(columns)
            while self._bytes > self._max_bytes:
                self._forget(next(iter(self._kept)))

    def _forget(self, name: tuple[str, ...]) -> None:
        self._bytes -= _size(self._kept.pop(name, ()))


def _name(files: LakeFiles, path: str) -> tuple[str, ...]:
    """Return what keys are kept under: a table's key may come to have other columns."""
    return path, *files.key.names


def _size(columns: Sequence[Any]) -> int:
    return sum(column.nbytes for column in columns)


def _match_together(kept: Sequence[Sequence[Any]], keys: KeySet) -> Iterator[Found]:
    """Look into many files' keys at once, because every look-up first builds a table of what it looks for."""
    if not kept:
        return
    columns = [pa.chunked_array([*column]) for column in zip(*kept, strict=True)]
    places, numbers = keys.match(columns)
    ends = np.cumsum([len(file[0]) for file in kept])
    cuts = np.searchsorted(places, ends)
    start, first = 0, 0
    for end, last in zip(ends, cuts, strict=True):
        yield Found(places[first:last] - start, numbers[first:last])
        start, first = int(end), int(last)


def find_with_spark(spark: SparkSession, files: LakeFiles, paths: Sequence[str], keys: KeySet) -> Sequence[Found]:
    """Let Spark's tasks look, some files each; the keys are sent to every worker once."""
    context = spark.sparkContext
    shared = context.broadcast(keys)

    def look(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            for index in _column(batch, "id"):
                yield _reported(index, files.find(paths[index], shared.value))

    # A task costs as much as several files: two for each core, so that none waits long for the last.
    tasks = spark.range(len(paths), numPartitions=max(1, min(len(paths), 2 * context.defaultParallelism)))
    schema = f"{_FILE} long, {_PLACE} long, {_NUMBER} long"
    try:
        return _collected(tasks.mapInArrow(look, schema).toArrow(), len(paths))
    finally:
        shared.destroy()


def _reported(index: int, found: Found) -> pa.RecordBatch:
    columns = (np.full(len(found.places), index, np.int64), found.places, found.numbers)
    return pa.RecordBatch.from_arrays([wrap(each, pa.int64()) for each in columns], names=[_FILE, _PLACE, _NUMBER])


def _collected(rows: pa.Table, files: int) -> Sequence[Found]:
    """Sort what tasks reported, in whatever order, by file and place."""
    file, place, number = (_column(rows, name) for name in (_FILE, _PLACE, _NUMBER))
    order = np.lexsort((place, file))
    starts = np.searchsorted(file[order], np.arange(files + 1))
    pieces = [order[start:end] for start, end in pairwise(starts)]
    return [Found(place[piece], number[piece]) for piece in pieces]


def _column(rows: pa.Table | pa.RecordBatch, name: str) -> Numbers:
    values: Any = rows.column(name).to_numpy()
    return values.astype(np.int64, copy=False)  # type: ignore[no-any-return]
