"""Writes a segment's data files: one per table, except that many tables with a few rows each share one.

Without sharing, five hundred tables that change every second would be five hundred files a second,
each fsynced, each opened again by every reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import failpoint
from penstock.changelog.entry import DataFile
from penstock.changelog.folder import Folder
from penstock.changelog.rows import SHARED_SCHEMA, convert_rows, footer_checksum, log_schema, pack_rows
from penstock.changelog.segment import TRANSACTIONS_SCHEMA, FileSummary, Segment, TableRows
from penstock.contract import columns as log
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


def write_files(folder: Folder, place: str, segment: Segment, policies: ValuePolicies) -> tuple[DataFile, ...]:
    """Write a segment's rows below a folder of the log, fsynced, and return what the manifest says of them.

    Takes the rows out of the segment: their memory is wanted for their files' pages.
    """
    own, sharing = _split(list(segment.tables.values()))
    files = [file for rows in own for file in _OwnFiles(folder, place, rows, policies).write()]
    if sharing:
        files += _write_shared(folder, f"{place}/shared.parquet", sharing)
    return tuple(files)


def write_transactions(folder: Folder, path: str, segment: Segment) -> None:
    """Write the list of the transactions that committed."""
    folder.write_by_path(path, lambda to: _write_parquet(to, TRANSACTIONS_SCHEMA, [segment.transactions]))


def _split(tables: Sequence[TableRows]) -> tuple[list[TableRows], list[TableRows]]:
    """Tell the tables that have a file of their own from those that share one."""
    small = [rows for rows in tables if rows.size_bytes < _OWN_FILE_BYTES]
    if len(small) <= _SMALL_FILES:
        return list(tables), []
    return [rows for rows in tables if rows.size_bytes >= _OWN_FILE_BYTES], small


class _OwnFiles:
    """One table's rows: typed and, from the first value on that its policy refuses, as text."""

    def __init__(self, folder: Folder, place: str, rows: TableRows, policies: ValuePolicies) -> None:
        self._folder = folder
        self._path = f"{place}/{rows.schema.id:d}-{rows.version}"
        self._rows = rows
        self._policies = policies
        self._problem: str | None = None

    def write(self) -> Iterator[DataFile]:
        """Write them, and yield what the manifest says of each file."""
        typed, text = (FileSummary(self._rows.schema, self._rows.version) for _ in range(2))
        path = f"{self._path}.parquet"
        size = self._write(path, log_schema(self._rows.schema), self._typed(typed))
        if typed.rows:
            yield typed.describe(path, size, self._checksum(path))
            path = f"{self._path}-text.parquet"
        if self._problem is not None:
            size = self._write(path, log_schema(self._rows.schema, as_text=True), self._text(text))
            yield text.describe(path, size, self._checksum(path), problem=self._problem)

    def _write(self, path: str, schema: pa.Schema, groups: Iterable[Sequence[pa.RecordBatch]]) -> int:
        is_large = any(batch.nbytes > _LARGE_BYTES for batch in self._rows.batches)
        size = self._folder.write_by_path(path, lambda to: _write_parquet(to, schema, groups, compress=not is_large))
        failpoint.hit("changelog.after_file")
        return size

    def _checksum(self, path: str) -> int:
        return footer_checksum(self._folder / path)

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


def _write_shared(folder: Folder, path: str, sharing: Sequence[TableRows]) -> list[DataFile]:
    packed = pa.concat_tables(pack_rows(rows.text, rows.schema, rows.version) for rows in sharing)
    size = folder.write_by_path(path, lambda to: _write_parquet(to, SHARED_SCHEMA, [packed.to_batches()]))
    failpoint.hit("changelog.after_file")
    shares = [size * rows.rows // len(packed) for rows in sharing]
    shares[0] += size - sum(shares)
    checksum = footer_checksum(folder / path)
    return [
        _summary(rows).describe(path, share, checksum, is_shared=True)
        for rows, share in zip(sharing, shares, strict=True)
    ]


def _summary(rows: TableRows) -> FileSummary:
    summary = FileSummary(rows.schema, rows.version)
    _counted(rows.batches, summary)
    return summary


def _write_parquet(
    path: str, schema: pa.Schema, groups: Iterable[Sequence[pa.RecordBatch]], *, compress: bool = True
) -> None:
    # zstd's first level costs no more than snappy and halves the file. Dictionaries cost more than they save on
    # files that are read once or twice, and only positions are searched for.
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd" if compress else "none",
        compression_level=1 if compress else None,
        use_dictionary=False,
        write_statistics=[log.COMMIT_LSN],
        write_page_checksum=True,
    ) as writer:
        for group in groups:
            writer.write_table(pa.Table.from_batches(group, schema))
