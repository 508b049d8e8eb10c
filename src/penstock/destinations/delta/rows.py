"""The rows of a lake table as they are written: from the change log's columns to the table's, in one Parquet file."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.contract.batch import CopiedFile
from penstock.destinations.delta.folder import TableFolder
from penstock.failpoint import hit
from penstock.lake.rewrite import Compression
from penstock.spark.parquet import describe_file

# Of memory, before encoding and compression: enough for a good row group, and little beside the batch itself.
_GROUP_BYTES = 32 << 20


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables of a size to be a row group each: what comes in a few rows at a time is put together."""
    waiting: list[pa.Table] = []
    size = 0
    for table in tables:
        if not table.num_rows:  # written, it would make a row group that knows nothing of its columns
            continue
        waiting.append(table)
        size += table.nbytes
        if size >= _GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def write_rows(
    folder: TableFolder,
    tables: Iterable[pa.Table],
    target: pa.Schema,
    compression: Compression = "snappy",
    *,
    is_grouped: bool = False,
) -> list[CopiedFile]:
    """Write rows as one Parquet file in a table's folder, durably; no file if there are none.

    `is_grouped` if each table is to be a row group as it is.
    """
    name = f"part-{uuid.uuid4()}.parquet"
    written: list[pq.FileMetaData] = []
    with (
        folder.new_file(name) as new,
        pq.ParquetWriter(new.file, target, compression=compression, metadata_collector=written) as out,
    ):
        for table in tables if is_grouped else _gathered(tables):
            out.write_table(table)
    described = describe_file(f"{folder.base}/{name}", new.size, written[0])
    if not described.rows:
        folder.remove(name)
        return []
    hit("delta.rows_written")
    return [described]
