"""The data files: a table's changes as typed columns, or as the server's text where that is better.

Text it is where a policy refused a value, and where many tables with a few rows each share one file.
Rows are collected as text and converted once, when a file of their own is written. What is stored as
text is converted by its reader, with the same functions and so to the same values.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.changelog.entry import DataFile
from penstock.changelog.folder import Folder, io_errors
from penstock.contract import columns as log
from penstock.errors import LogDamagedError
from penstock.model.policy import ValuePolicies
from penstock.model.table import Column, TableSchema
from penstock.wire.arrow import arrow_type, wrap
from penstock.wire.column import convert_column

_METADATA: tuple[pa.Field[Any], ...] = (
    pa.field(log.OP, pa.string()),
    pa.field(log.COMMIT_LSN, pa.int64()),
    pa.field(log.ORDINAL, pa.int64()),
    pa.field(log.COMMIT_TS, pa.timestamp("us", "UTC")),
    pa.field(log.XID, pa.int64()),
)
_TEXTS = pa.list_(pa.string())
_FOOTER_TAIL = struct.Struct("<I4s")  # the footer's length, and Parquet's mark

SHARED_SCHEMA = pa.schema(
    [
        pa.field("_table", pa.int64()),
        pa.field("_version", pa.int64()),
        *_METADATA,
        pa.field("_values", _TEXTS),
        pa.field(log.KEY, _TEXTS),
        pa.field(log.BEFORE, _TEXTS),
        pa.field(log.UNCHANGED, _TEXTS),
    ]
)
"""A file of several tables: each row has its table's oid and schema version, and its values in the server's text."""


def log_schema(schema: TableSchema, *, as_text: bool = False) -> pa.Schema:
    """Return the Arrow schema of a table's own data files; `as_text` that of values not converted."""

    def fields(columns: Iterable[Column]) -> list[pa.Field[Any]]:
        types = ((column.name, pa.string() if as_text else arrow_type(column.type)) for column in columns)
        return [pa.field(log.stored_name(name), type_) for name, type_ in types]

    metadata = [*_METADATA]
    if schema.key:
        metadata.append(pa.field(log.KEY, pa.struct(fields(schema.key))))
    if schema.logs_old_rows:
        metadata.append(pa.field(log.BEFORE, pa.struct(fields(schema.columns))))
    metadata.append(pa.field(log.UNCHANGED, _TEXTS))
    return pa.schema(fields(schema.columns) + metadata)


def convert_rows(text: pa.RecordBatch, schema: TableSchema, policies: ValuePolicies) -> pa.RecordBatch:
    """Convert rows of text to the table's types.

    Raises `UnconvertibleValueError` where a policy refuses a value.
    """
    arrays: list[Any] = list(text.columns)
    for index, column in enumerate(schema.columns):
        arrays[index] = convert_column(schema, column, arrays[index], policies)
    for name, columns in ((log.KEY, schema.key), (log.BEFORE, schema.columns)):
        index = text.schema.get_field_index(name)
        if index >= 0:
            arrays[index] = _convert_struct(arrays[index], schema, columns, policies)
    return pa.RecordBatch.from_arrays(arrays, schema=log_schema(schema))


def _convert_table(text: pa.Table, schema: TableSchema, policies: ValuePolicies) -> pa.Table:
    batches = [convert_rows(batch, schema, policies) for batch in text.to_batches()]
    return pa.Table.from_batches(batches, log_schema(schema))


def _convert_struct(
    struct: Any, schema: TableSchema, columns: Sequence[Column], policies: ValuePolicies
) -> pa.StructArray:
    fields = [pa.field(log.stored_name(column.name), arrow_type(column.type)) for column in columns]
    if struct.null_count == len(struct):
        return pa.nulls(len(struct), pa.struct(fields))
    # `flatten` heeds the struct's own slice and its NULLs; `field` does not.
    arrays = [
        convert_column(schema, column, values, policies)
        for column, values in zip(columns, struct.flatten(), strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=struct.is_null())


def pack_rows(text: pa.Table, schema: TableSchema, version: int) -> pa.Table:
    """Return a table's rows of text in the form that several tables share."""
    rows = len(text)
    columns: dict[str, Any] = {
        "_table": wrap(np.full(rows, int(schema.id)), pa.int64()),
        "_version": wrap(np.full(rows, version), pa.int64()),
        **{field.name: text.column(field.name) for field in _METADATA},
        "_values": _lists([text.column(index).combine_chunks() for index in range(len(schema.columns))], rows, None),
        log.UNCHANGED: text.column(log.UNCHANGED),
    }
    for name in (log.KEY, log.BEFORE):
        if name in text.column_names:
            struct: Any = text.column(name).combine_chunks()
            columns[name] = _lists(struct.flatten(), rows, struct.is_null())
        else:
            columns[name] = pa.nulls(rows, _TEXTS)
    return pa.Table.from_arrays([columns[field.name] for field in SHARED_SCHEMA], schema=SHARED_SCHEMA)


def unpack_rows(shared: pa.Table, schema: TableSchema, version: int) -> pa.Table:
    """Return the rows of one table and version, still as text, from a file that several tables share."""
    wanted = pc.and_(
        pc.equal(shared.column("_table"), pa.scalar(int(schema.id), pa.int64())),
        pc.equal(shared.column("_version"), pa.scalar(version, pa.int64())),
    )
    rows = shared.filter(wanted).combine_chunks()
    arrays: list[Any] = [_element(rows.column("_values"), index) for index in range(len(schema.columns))]
    for field in log_schema(schema, as_text=True).remove_metadata():
        if field.name in (log.KEY, log.BEFORE):
            arrays.append(_struct(rows.column(field.name), field.type))
        elif field.name in log.ALL:
            arrays.append(rows.column(field.name))
    return pa.Table.from_arrays(arrays, schema=log_schema(schema, as_text=True))


def _lists(columns: Sequence[Any], rows: int, absent: Any) -> pa.ListArray[Any]:
    """Turn columns into one column of rows, each a list; NULL where `absent`."""
    width = len(columns)
    offsets: Any = wrap(np.arange(rows + 1, dtype=np.int32) * np.int32(width), pa.int32())
    by_row = (np.arange(rows)[:, None] + rows * np.arange(width)[None, :]).ravel()
    values = pa.concat_arrays(columns).take(wrap(by_row, pa.int64())) if width else pa.array([], pa.string())
    lists: pa.ListArray[Any] = pa.ListArray.from_arrays(offsets, values, type=_TEXTS, mask=absent)
    return lists


def _struct(lists: Any, type_: Any) -> pa.StructArray:
    arrays = [_element(lists, index) for index in range(type_.num_fields)]
    mask = pc.is_null(lists)
    combined = mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask
    return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=combined)


def _element(lists: Any, index: int) -> Any:
    column = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    return pc.list_element(column, index)


def read_rows(folder: Folder, file: DataFile, schema: TableSchema, policies: ValuePolicies) -> pa.Table:
    """Read one table's changes from a data file, typed, in order.

    The policies decide about values kept as text: they may have changed since.
    """
    return rows_of(read_parquet(folder, file.path, file.footer_crc), file, schema, policies)


def footer_checksum(file: Any) -> int | None:
    """Return the CRC-32 of an open Parquet file's footer; None if it has none.

    Pages have checksums of their own, the footer has not.
    """
    end = file.seek(0, os.SEEK_END)
    start = end - _FOOTER_TAIL.size
    if start < 0:
        return None
    file.seek(start)
    length, _ = _FOOTER_TAIL.unpack(file.read(_FOOTER_TAIL.size))
    if length > start:
        return None
    file.seek(start - length)
    return zlib.crc32(file.read(length + _FOOTER_TAIL.size))


def check_footer(folder: Folder, file: DataFile) -> None:
    """Refuse a data file whose footer is not as it was written."""
    with _reading(folder, file.path), folder.open(file.path) as opened:
        _require_footer(opened, file.path, file.footer_crc)


def _require_footer(opened: Any, path: str, expected: int) -> None:
    if footer_checksum(opened) != expected:
        raise LogDamagedError(f"change log: {path} is damaged: its footer fails its checksum")


def rows_of(content: pa.Table, file: DataFile, schema: TableSchema, policies: ValuePolicies) -> pa.Table:
    """Return one table's changes, typed, from what `read_parquet` gave."""
    is_text = file.problem is not None or file.is_shared
    if not content.schema.equals(SHARED_SCHEMA if file.is_shared else log_schema(schema, as_text=is_text)):
        raise LogDamagedError(f"change log: {file.path} is damaged: it has other columns than {schema.name}")
    rows = unpack_rows(content, schema, file.version) if file.is_shared else content
    if len(rows) != file.rows:
        raise LogDamagedError(f"change log: {file.path} is damaged: it has {len(rows)} rows instead of {file.rows}")
    return _convert_table(rows, schema, policies) if is_text else rows


def read_parquet(folder: Folder, path: str, footer_crc: int | None = None) -> pa.Table:
    """Read a file of the log, checking its pages' checksums and, where it is known, that of its footer."""
    with _reading(folder, path), folder.open(path) as opened:
        if footer_crc is not None:
            _require_footer(opened, path, footer_crc)
        return decode_parquet(opened, path)


def decode_parquet(opened: Any, path: str) -> pa.Table:
    """Read what is open, checking its pages' checksums."""
    try:
        # In a bucket a request then brings many columns.
        table = pq.ParquetFile(opened, page_checksum_verification=True, pre_buffer=True).read()
        _ = table.column_names  # damaged ones are noticed when they are decoded
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # by the disk or the store: Arrow's own have no number
        # Without its cause: Arrow's messages may quote what it read.
        raise LogDamagedError(f"change log: {path} is damaged: it cannot be read as it was written") from None
    return table


@contextmanager
def _reading(folder: Folder, path: str) -> Iterator[None]:
    """Tell a file that is missing from one that cannot be read just now."""
    with io_errors(f"{folder}/{path}"):
        try:
            yield
        except FileNotFoundError:
            raise LogDamagedError(f"change log: {path} is missing from {folder}") from None
