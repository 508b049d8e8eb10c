"""Writes a segment's data files: one per table, except that many tables with a few rows each share one.

Without sharing, five hundred tables that change every second would be five hundred files a second,
each fsynced, each opened again by every reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import failpoint
from penstock.changelog.entry import DataFile, Entry
from penstock.changelog.folder import Folder
from penstock.changelog.rows import SHARED_SCHEMA, convert_rows, footer_checksum, log_schema, pack_rows
from penstock.changelog.segment import TRANSACTIONS_SCHEMA, FileSummary, Segment, TableRows
from penstock.contract import columns as log
from penstock.contract.files import NewFile
from penstock.model.policy import ValuePolicies
from penstock.wire.text import UnconvertibleValueError

_OWN_FILE_BYTES = 256 << 10
"""A table with this much text in a segment has a file of its own, whatever the others do."""
_SMALL_FILES = 16
"""Up to so many tables with less have their own files too: typed columns are worth a few small files."""
_ROW_GROUP_BYTES = 16 << 20
"""Text that is converted and encoded at a time: it bounds the memory that this takes."""
_LARGE_BYTES = 32 << 20
"""Rows of this size are not compressed: it would take their size once more in memory."""
_UPLOADS = 6
"""Files that are on their way into a bucket at once: each answer takes its time, and each file its memory."""


def write_data(folder: Folder, segment: Segment, entry: Entry, policies: ValuePolicies) -> Entry:
    """Write a segment's data, durably, and return the entry with what the manifest says of it.

    Takes the rows out of the segment: their memory is wanted for their files' pages.
    """
    if not (segment.tables or segment.transactions):
        return entry
    place = entry.folder
    folder.make(place)
    with _Files(folder) as files:
        transactions_file = f"{place}/transactions.parquet" if segment.transactions else None
        if transactions_file is not None:
            files.write(transactions_file, TRANSACTIONS_SCHEMA, [segment.transactions])
        described = list(_write_rows(files, place, segment, policies))
        found = tuple(describe() for describe in described)
    failpoint.hit("changelog.after_data")
    folder.sync(place)
    return replace(entry, files=found, transactions_file=transactions_file)


class _Stored(NamedTuple):
    """What a file turned out to be."""

    size_bytes: int
    footer_crc: int


_Describe = Callable[[], DataFile]
"""Waits until a file is durable, and says what the manifest says of it."""


class _Files:
    """Writes Parquet files: on a disk one after the other, into a bucket several at once."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._pool = None if folder.is_local else self._stack.enter_context(ThreadPoolExecutor(_UPLOADS))
        self._under_way: deque[Future[_Stored]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            while error is None and self._under_way:
                self._under_way.popleft().result()

    def write(
        self, path: str, schema: pa.Schema, groups: Iterable[Sequence[pa.RecordBatch]], *, compress: bool = True
    ) -> Callable[[], _Stored]:
        """Encode a file, and return what waits until it is durable."""
        with self._folder.errors(path):
            new = self._folder.create(path)
            try:
                _write_parquet(new.file, schema, groups, compress=compress)
            except BaseException:
                new.discard()
                raise
        return self._finished(partial(self._finish, path, new))

    def _finished(self, finish: Callable[[], _Stored]) -> Callable[[], _Stored]:
        if self._pool is None:
            stored = finish()
            return lambda: stored
        if len(self._under_way) == _UPLOADS:
            self._under_way.popleft().result()
        self._under_way.append(self._pool.submit(finish))
        return self._under_way[-1].result

    def _finish(self, path: str, new: NewFile) -> _Stored:
        with self._folder.errors(path):
            new.finish(syncs_name=False)
            with self._folder.open(path) as written:
                checksum = footer_checksum(written)
        assert checksum is not None
        failpoint.hit("changelog.after_file")
        return _Stored(new.size, checksum)


def _write_rows(files: _Files, place: str, segment: Segment, policies: ValuePolicies) -> Iterator[_Describe]:
    own, sharing = _split(list(segment.tables.values()))
    for rows in own:
        yield from _OwnFiles(files, place, rows, policies).write()
    if sharing:
        yield from _write_shared(files, f"{place}/shared.parquet", sharing)


def _split(tables: Sequence[TableRows]) -> tuple[list[TableRows], list[TableRows]]:
    """Tell the tables that have a file of their own from those that share one."""
    small = [rows for rows in tables if rows.size_bytes < _OWN_FILE_BYTES]
    if len(small) <= _SMALL_FILES:
        return list(tables), []
    return [rows for rows in tables if rows.size_bytes >= _OWN_FILE_BYTES], small


class _OwnFiles:
    """One table's rows: typed and, from the first value on that its policy refuses, as text."""

    def __init__(self, files: _Files, place: str, rows: TableRows, policies: ValuePolicies) -> None:
        self._files = files
        self._path = f"{place}/{rows.schema.id:d}-{rows.version}"
        self._rows = rows
        self._policies = policies
        self._problem: str | None = None

    def write(self) -> Iterator[_Describe]:
        """Write them, and yield what the manifest says of each file."""
        typed, text = (FileSummary(self._rows.schema, self._rows.version) for _ in range(2))
        path = f"{self._path}.parquet"
        stored = self._write(path, log_schema(self._rows.schema), self._typed(typed))
        if typed.rows:
            yield partial(_describe, typed, path, stored)
            path = f"{self._path}-text.parquet"
        else:
            stored()  # in whose place text is written now
        if self._problem is not None:
            stored = self._write(path, log_schema(self._rows.schema, as_text=True), self._text(text))
            yield partial(_describe, text, path, stored, problem=self._problem)

    def _write(self, path: str, schema: pa.Schema, groups: Iterable[Sequence[pa.RecordBatch]]) -> Callable[[], _Stored]:
        is_large = any(batch.nbytes > _LARGE_BYTES for batch in self._rows.batches)
        return self._files.write(path, schema, groups, compress=not is_large)

    def _typed(self, summary: FileSummary) -> Iterator[list[pa.RecordBatch]]:
        while group := _take_group(self._rows.batches):
            try:
                typed = [convert_rows(batch, self._rows.schema, self._policies) for batch in group]
            except UnconvertibleValueError as error:
                self._problem = error.message
                self._rows.batches[:0] = group
                return
            del group
            yield _counted(typed, summary)

    def _text(self, summary: FileSummary) -> Iterator[list[pa.RecordBatch]]:
        while group := _take_group(self._rows.batches):
            yield _counted(group, summary)


def _counted(batches: list[pa.RecordBatch], summary: FileSummary) -> list[pa.RecordBatch]:
    for batch in batches:
        summary.add(batch)
    return batches


def _take_group(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Take the next piece of a bounded size out of the list."""
    count, size = 0, 0
    while count < len(batches) and (count == 0 or size + batches[count].nbytes <= _ROW_GROUP_BYTES):
        size += batches[count].nbytes
        count += 1
    taken, batches[:count] = batches[:count], []
    return taken


def _describe(
    summary: FileSummary, path: str, stored: Callable[[], _Stored], *, problem: str | None = None
) -> DataFile:
    return summary.describe(path, *stored(), problem=problem)


def _write_shared(files: _Files, path: str, sharing: Sequence[TableRows]) -> Iterator[_Describe]:
    packed = pa.concat_tables(pack_rows(rows.text, rows.schema, rows.version) for rows in sharing)
    stored = files.write(path, SHARED_SCHEMA, [packed.to_batches()])()
    shares = [stored.size_bytes * rows.rows // len(packed) for rows in sharing]
    shares[0] += stored.size_bytes - sum(shares)
    for rows, share in zip(sharing, shares, strict=True):
        yield partial(_summary(rows).describe, path, share, stored.footer_crc, is_shared=True)


def _summary(rows: TableRows) -> FileSummary:
    summary = FileSummary(rows.schema, rows.version)
    _counted(rows.batches, summary)
    return summary


def _write_parquet(
    file: Any, schema: pa.Schema, groups: Iterable[Sequence[pa.RecordBatch]], *, compress: bool = True
) -> None:
    # zstd's first level costs no more than snappy and halves the file. Dictionaries cost more than they save on
    # files that are read once or twice, and only positions are searched for.
    with pq.ParquetWriter(
        file,
        schema,
        compression="zstd" if compress else "none",
        compression_level=1 if compress else None,
        use_dictionary=False,
        write_statistics=[log.COMMIT_LSN],
        write_page_checksum=True,
    ) as writer:
        for group in groups:
            writer.write_table(pa.Table.from_batches(group, schema))
