"""Writes a copy's rows as Parquet files in bounded memory, and says of a file what a commit wants; needs no JVM.

A row group is written when enough bytes have gathered, however many rows that are: so what is held does not
depend on how wide rows are, and row groups are not as small as the batches that rows come in. Another thread encodes
and writes one while the next gathers: a server need not wait while we compress, nor we for the disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.contract.batch import CopiedFile
from penstock.contract.files import Files, NewFile
from penstock.model.table import TableSchema
from penstock.storage.local import LOCAL
from penstock.wire.arrow import compute
from penstock.wire.column import arrow_schema

ROW_GROUP_BYTES = 32 << 20
"""Of Arrow's memory, twice: one row group is gathered, one written. A quarter of it is left on disk."""
COMPRESSION: Literal["zstd"] = "zstd"
"""At its lowest level, half the size that snappy makes of a table of usual types, in less time."""
_SAMPLE_ROWS = 8192
_FEW_PER_ROW = 1 / 16
"""With at most so many different values in a sample, a dictionary pays: it takes longer to make than all the rest."""

_LARGE_VALUE_BYTES = 1024
_DIGITS_OF_64_BITS = 18


class FileWriter:
    """Writes record batches of one schema as one file, with constant columns behind their own.

    Nothing is on disk before the first row group; without rows there is no file.
    """

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        constants: Mapping[str, Any],
        encodings: Mapping[str, str] | None = None,
        files: Files = LOCAL,
    ) -> None:
        self._path = path
        self._files = files
        self._new: NewFile | None = None
        self._encodings = encodings or {}
        self._constants = tuple(constants.values())
        self._schema = pa.schema([*schema, *(pa.field(name, value.type) for name, value in constants.items())])
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[pq.FileMetaData] = []
        self._thread = ThreadPoolExecutor(1, "parquet")
        self._encoding: Future[None] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; they are written once a row group is full."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self) -> CopiedFile | None:
        """Write the rest, make the file durable and describe it; None if there were no rows."""
        if self._waiting:
            self._flush()
        self._wait()
        self._thread.shutdown()
        if self._writer is None or self._new is None:
            return None
        self._writer.close()
        self._new.finish()
        return describe_file(self._path, self._new.size, self._metadata[0])

    def discard(self) -> None:
        """Remove what was written, whether or not it is finished."""
        self._thread.shutdown()
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
            self._writer.is_open = False  # or else it would try again when it is collected
        if self._new is not None:
            self._new.discard()

    def _flush(self) -> None:
        rows = self._gathered()
        self._wait()
        self._encoding = self._thread.submit(self._encode, rows)

    def _wait(self) -> None:
        """Wait for the row group before, and raise what was raised while it was written."""
        if self._encoding is not None:
            self._encoding.result()

    def _encode(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = self._open(rows)
        self._writer.write_table(rows, rows.num_rows)

    def _gathered(self) -> pa.Table:
        """Return what waits, with the constants; it waits no longer."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        count = sum(batch.num_rows for batch in waiting)  # a table without columns would not tell
        constants = [pa.repeat(value, count) for value in self._constants]
        return pa.table([*pa.Table.from_batches(waiting).columns, *constants], schema=self._schema)

    def _open(self, sample: pa.Table) -> pq.ParquetWriter:
        repetitive = repetitive_columns(sample)
        self._new = self._files.create(self._path)
        return pq.ParquetWriter(
            self._new.file,
            self._schema,
            compression=COMPRESSION,
            use_dictionary=repetitive,  # type: ignore[arg-type]  # the stubs know no names
            column_encoding={name: each for name, each in self._encodings.items() if name not in repetitive},
            write_statistics=_bounded_columns(sample),
            store_decimal_as_integer=True,  # up to 18 digits, as Iceberg asks for; smaller, and packed like integers
            metadata_collector=self._metadata,
        )


def packed_encodings(schema: TableSchema) -> dict[str, str]:
    """Return the newer encodings that a table's columns are smaller and quicker with: numbers by their differences.

    A uuid's text by itself, without lengths in between, is compressed in two thirds of the time.
    """
    by_type = {field.name: _packed_encoding(field.type) for field in arrow_schema(schema)}
    by_type |= {column.name: "DELTA_LENGTH_BYTE_ARRAY" for column in schema.columns if column.type.name == "uuid"}
    return {name: encoding for name, encoding in by_type.items() if encoding is not None}


def _packed_encoding(type_: pa.DataType) -> str | None:
    counts = pa.types.is_integer(type_) or pa.types.is_timestamp(type_) or pa.types.is_date(type_)
    return "DELTA_BINARY_PACKED" if counts or _is_integer_in_parquet(type_) else None


def _is_integer_in_parquet(type_: pa.DataType) -> bool:
    return pa.types.is_decimal(type_) and type_.precision <= _DIGITS_OF_64_BITS


def repetitive_columns(sample: pa.Table) -> list[str]:
    """Return the columns with few different values among the first; none that are nested, or have large values."""
    rows = sample.slice(0, _SAMPLE_ROWS)
    return [field.name for field in rows.schema if _is_repetitive(rows[field.name], field.type)]


def _is_repetitive(values: pa.ChunkedArray[Any], type_: pa.DataType) -> bool:
    if pa.types.is_nested(type_) or _has_large_values(values):
        return False
    different: int = compute.count_distinct(values, mode="all").as_py()
    return different <= max(1, int(len(values) * _FEW_PER_ROW))


def _bounded_columns(sample: pa.Table) -> Any:
    """Return the columns that have statistics: all, or those without large values.

    No format keeps a bound of some kilobytes, and to find one Arrow copies values six times.
    """
    small = [name for name in sample.column_names if not _has_large_values(sample[name])]
    return True if len(small) == sample.num_columns else small


def _has_large_values(values: pa.ChunkedArray[Any]) -> bool:
    return values.nbytes > _LARGE_VALUE_BYTES * len(values)


def describe_file(path: str, size_bytes: int, metadata: pq.FileMetaData) -> CopiedFile:
    """Return a file with its columns' bounds and NULL counts, where every row group knows them."""
    minimums: dict[str, Any] = {}
    maximums: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        known: list[Any] = [
            metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)
        ]
        # Nested columns have a path of several names; a bound of their elements is none of the column.
        if "." in name or not all(item is not None and item.has_null_count for item in known):
            continue
        nulls[name] = sum(item.null_count for item in known)
        bounds = _bounds(known)
        if bounds is not None:
            minimums[name], maximums[name] = bounds
    return CopiedFile(path, metadata.num_rows, size_bytes, minimums, maximums, nulls)


def _bounds(known: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the least and greatest value, or None if some row group has values and no bounds."""
    if any(not item.has_min_max and item.num_values for item in known):
        return None
    bounded = [item for item in known if item.has_min_max]
    return (min(item.min for item in bounded), max(item.max for item in bounded)) if bounded else None
