"""The initial copy of a table: ranges of its blocks, each read by COPY into Arrow record batches.

Ranges of one snapshot cover every row exactly once: they divide the blocks without gap or overlap,
and the last one is open, for blocks that were added after the plan was made. Values go through the
same text forms and the same conversion as the stream's, so a row is the same by either way.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import selectors
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from psycopg import OperationalError
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from pyarrow import csv

from penstock.errors import ErrorKind, SourceError, WireError
from penstock.model.policy import DEFAULT_POLICIES, ValuePolicies
from penstock.model.table import TableName, TableSchema, quote_identifier
from penstock.postgres.catalog import Leaf, blocks
from penstock.postgres.connection import Connection, SourceAddress, connect, source_errors
from penstock.postgres.publication import PublishedTable
from penstock.postgres.snapshot import import_snapshot
from penstock.wire.column import arrow_schema, convert_column

BLOCKS_PER_RANGE = 16384
"""128 MiB of heap: seconds of work for one task, and little to repeat when one fails."""
MAX_RANGES = 10_000
"""More tasks than this only burden Spark's scheduler."""
BATCH_BYTES = 8 << 20
"""Large enough to make the cost per batch vanish, small enough for a dozen in flight."""


@dataclass(frozen=True, slots=True)
class CopyRange:
    """A part of a table: the rows of one leaf in the blocks from `first_block` up to, not including, `end_block`."""

    relation: TableName
    file: int
    """The number of the leaf's file as of the snapshot: in another file, blocks mean nothing."""
    first_block: int = 0
    end_block: int | None = None
    """None for all blocks from the first on."""


def plan_ranges(
    connection: Connection,
    table: PublishedTable | TableSchema,
    *,
    blocks_per_range: int = BLOCKS_PER_RANGE,
    max_ranges: int = MAX_RANGES,
) -> tuple[CopyRange, ...]:
    """Divide a table, or each of its leaf partitions, into ranges; every leaf has one at least."""
    leaves = blocks(connection, table.id)
    # Each leaf may end with a range that is not full, hence the allowance.
    full_ranges = max(max_ranges - len(leaves), 1)
    size = max(blocks_per_range, -(-sum(leaf.blocks for leaf in leaves) // full_ranges))
    return tuple(part for leaf in leaves for part in _divide(leaf, size))


def _divide(leaf: Leaf, size: int) -> Iterator[CopyRange]:
    starts = range(0, max(leaf.blocks, 1), size)
    for start in starts:
        yield CopyRange(leaf.name, leaf.file, start, None if start == starts[-1] else start + size)


def copy_statement(schema: TableSchema, part: CopyRange, row_filter: str | None = None) -> str:
    """Return the COPY that sends a range's rows as CSV.

    `only` keeps the rows of tables that inherit from this one out: they are tables of their own.
    """
    columns = ", ".join(quote_identifier(column.name) for column in schema.columns)
    conditions = [f"ctid >= '({part.first_block},0)'"] if part.first_block else []
    if part.end_block is not None:
        conditions.append(f"ctid < '({part.end_block},0)'")
    if row_filter is not None:
        conditions.append(f"({row_filter})")
    where = f" where {' and '.join(conditions)}" if conditions else ""
    # Names are quoted, and the filter is the server's own text.
    return f"copy (select {columns} from only {part.relation.quoted}{where}) to stdout (format csv)"  # noqa: S608


def read_range(
    address: SourceAddress,
    snapshot_name: str,
    schema: TableSchema,
    part: CopyRange,
    row_filter: str | None = None,
    policies: ValuePolicies = DEFAULT_POLICIES,
    batch_bytes: int = BATCH_BYTES,
    *,
    application_name: str = "penstock copy",
) -> Iterator[pa.RecordBatch]:
    """Yield a range's rows, as of the snapshot, in batches of about `batch_bytes` of CSV (a row at least).

    Opens a connection of its own and closes it when the iteration ends, however it ends.
    """
    with contextlib.closing(connect(address, application_name=application_name)) as connection:
        import_snapshot(connection, snapshot_name)
        _require_same_file(connection, part)
        statement = copy_statement(schema, part, row_filter)
        with source_errors(f"copying {schema.name}"), connection.cursor().copy(statement):
            for data, rows in _receive(connection.pgconn, batch_bytes):
                yield to_batch(data, rows, schema, policies)


def _require_same_file(connection: Connection, part: CopyRange) -> None:
    """Refuse a table that was rewritten since the snapshot, and keep it from being rewritten until the range is read.

    A rewrite (VACUUM FULL, CLUSTER, TRUNCATE, some ALTER TABLE) moves rows to other blocks, or hides
    them from older snapshots: ranges would miss some. Only the range's own transaction locks: one
    lock for all ranges would make a writer wait that they in turn would queue behind.
    """
    with source_errors(f"looking at the file of {part.relation}"):
        connection.execute(f"lock table only {part.relation.quoted} in access share mode")
        row = connection.execute(
            "select pg_catalog.pg_relation_filenode(%s::regclass)::bigint", [part.relation.quoted]
        ).fetchone()
    if row is None or row[0] != part.file:
        raise SourceError(
            f"table {part.relation} was rewritten or truncated while it was copied",
            kind=ErrorKind.SOURCE_SNAPSHOT_LOST,
        )


def _receive(pgconn: PGconn, batch_bytes: int) -> Iterator[tuple[bytearray, int]]:
    """Collect COPY's messages; each is one row (manual, "COPY Operations"), so no row is ever cut.

    Reads from libpq itself, and keeps no object per row: psycopg's own iteration takes thrice as long.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(pgconn.socket, selectors.EVENT_READ)
        data, rows = bytearray(), 0
        while (received := pgconn.get_copy_data(1))[0] >= 0:
            length, row = received
            if length:
                data += row
                rows += 1
            else:
                selector.select()
                pgconn.consume_input()
            if len(data) >= batch_bytes:
                yield data, rows
                data, rows = bytearray(), 0
        _finish(pgconn, selector)
    if rows:
        yield data, rows


def _finish(pgconn: PGconn, selector: selectors.BaseSelector) -> None:
    """Read how the COPY ended: only then is it known to be whole."""
    results = list(_results(pgconn, selector))
    for result in results:
        if result.status != ExecStatus.COMMAND_OK:
            raise error_from_result(result)
    if not results:
        raise OperationalError("the COPY ended without a result")


def _results(pgconn: PGconn, selector: selectors.BaseSelector) -> Iterator[PGresult]:
    while True:
        while pgconn.is_busy():
            selector.select()
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            return
        yield result


def to_batch(data: bytes | bytearray, rows: int, schema: TableSchema, policies: ValuePolicies) -> pa.RecordBatch:
    """Convert so many rows of CSV, as COPY sends them, to a record batch with the table's columns."""
    if not schema.columns:
        return pa.RecordBatch.from_struct_array(cast("pa.StructArray", pa.array([{}] * rows, pa.struct([]))))
    texts = _parse(data, schema)
    if texts.num_rows != rows:
        raise WireError(f"{schema.name}: COPY sent {rows} rows, but {texts.num_rows} were read")
    return pa.RecordBatch.from_arrays(
        [
            convert_column(schema, column, texts.column(index).combine_chunks(), policies)
            for index, column in enumerate(schema.columns)
        ],
        schema=arrow_schema(schema),
    )


def _parse(data: bytes | bytearray, schema: TableSchema) -> pa.Table:
    """Split CSV into columns of text, in one block whatever its size, so that no value is too long."""
    names = [str(index) for index in range(len(schema.columns))]
    try:
        return csv.read_csv(
            # Arrow strips one byte order mark: ours, so that a value which begins with one keeps it.
            io.BytesIO(codecs.BOM_UTF8 + data),
            read_options=csv.ReadOptions(column_names=names, block_size=len(data) + 4, use_threads=False),
            # A row of one NULL is an empty line.
            parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                # An empty field is NULL; a quoted one is the empty string.
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:
        # Without its cause: Arrow's message quotes the row.
        raise WireError(
            f"{schema.name}: the server sent text that is not UTF-8, or not {len(names)} columns of CSV",
            remedy="Check the database's encoding: SQL_ASCII lets any bytes in.",
        ) from None
