"""The initial copy of a table: ranges of its blocks, each read by COPY into Arrow record batches.

Values come in binary where `wire.binary` reads that, and as the server prints them otherwise: a row is the same as
by the stream. Where the server wants an authentication that only libpq can give, libpq reads, and what it read is
framed again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

import psycopg
import pyarrow as pa
from psycopg import pq

from penstock.errors import ErrorKind, SourceError
from penstock.model.copying import CopyRange
from penstock.model.policy import DEFAULT_POLICIES, ValuePolicies
from penstock.model.table import Column, TableSchema, quote_identifier
from penstock.postgres.connection import SourceAddress, connect, error_from_response, source_errors
from penstock.postgres.frame import encode_frame
from penstock.postgres.raw import RawConnection, Row, wait
from penstock.postgres.replication import LibpqStream, error_body
from penstock.postgres.startup import UnspokenMethodError
from penstock.postgres.transport import Transport
from penstock.wire.binary import CopyDecoder, base_name, is_printed

BATCH_BYTES = 4 << 20
"""Large enough to make the cost per batch vanish, small enough for a dozen in flight."""
_SMALL_READ_BYTES = 256 * 1024
_COLLECT_S = 0.001  # a server sends 8 kB at a time: waiting a moment after a small read makes the next one large


def copy_statement(schema: TableSchema, part: CopyRange, row_filter: str | None = None) -> str:
    """Return the COPY that sends a range's rows, each column in the form that `wire.binary` reads.

    `only` keeps the rows of tables that inherit from this one out: they are tables of their own.
    """
    columns = ", ".join(_selected(column) for column in schema.columns)
    conditions = [f"ctid >= '({part.first_block},0)'"] if part.first_block else []
    if part.end_block is not None:
        conditions.append(f"ctid < '({part.end_block},0)'")
    conditions.extend(f"({each})" for each in (row_filter, part.condition) if each is not None)
    where = f" where {' and '.join(conditions)}" if conditions else ""
    # Names are quoted, and the filter is the server's own text.
    return f"copy (select {columns} from only {part.relation.quoted}{where}) to stdout (format binary)"  # noqa: S608


def _selected(column: Column) -> str:
    """Return a column as it is selected.

    `concat` prints a value with its type's output function, as the stream does. A cast to text may not: it
    drops the padding of a domain over char(n), adds a mask to an inet, and anyone can define another. It
    makes NULL empty, hence the condition; `is null` would be true of a composite value of NULLs.
    """
    name = quote_identifier(column.name)
    return f"case when {name} is distinct from null then concat({name}) end" if is_printed(column.type) else name


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
    """Yield a range's rows, as of the snapshot, in batches of at most `batch_bytes` of the wire (a row at least).

    Opens a connection of its own and closes it when the iteration ends, however it ends. The schema's
    types are those that its policies left.
    """
    doing = f"copying {schema.name}"
    with contextlib.closing(open_copy_stream(address, application_name=application_name)) as stream:
        _import_snapshot(stream, snapshot_name)
        _require_same_file(stream, part)
        _require_same_types(stream, schema, part)
        stream.start_copy(copy_statement(schema, part, row_filter), doing=doing)
        yield from _receive(stream, schema, policies, batch_bytes, doing)


def _import_snapshot(stream: CopyStream, name: str) -> None:
    """Begin a read-only transaction that sees what the snapshot saw; closing the connection ends it."""
    stream.execute("begin transaction isolation level repeatable read, read only", doing="importing a snapshot")
    try:
        stream.execute(f"set transaction snapshot {_quote_literal(name)}", doing="importing a snapshot")
    except SourceError as error:
        if error.kind not in _REFUSALS:
            raise
        raise SourceError(
            f"snapshot {name} is gone: the session that exported it has ended", kind=ErrorKind.SOURCE_SNAPSHOT_LOST
        ) from None


_REFUSALS = {
    ErrorKind.SOURCE_SNAPSHOT_LOST,
    # What its words, in another language, leave of a snapshot that is not known (any more).
    ErrorKind.SOURCE_QUERY_FAILED,
    ErrorKind.SOURCE_SCHEMA,
    ErrorKind.SOURCE_ERROR,
}


def _quote_literal(text: str) -> str:
    """Quote a string in the form that means the same whatever `standard_conforming_strings` is."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _require_same_file(stream: CopyStream, part: CopyRange) -> None:
    """Refuse a table that was rewritten since the snapshot, and keep it from being rewritten until the range is read.

    A rewrite (VACUUM FULL, CLUSTER, TRUNCATE, some ALTER TABLE) moves rows to other blocks, or hides
    them from older snapshots: ranges would miss some. Only the range's own transaction locks: one
    lock for all ranges would make a writer wait that they in turn would queue behind.
    """
    doing = f"looking at the file of {part.relation}"
    # Reading takes the lock too, and keeps it; LOCK TABLE would ask for the right to every column.
    stream.execute(f"select from only {part.relation.quoted} limit 0", doing=doing)
    name = _quote_literal(part.relation.quoted)
    rows = stream.execute(f"select pg_catalog.pg_relation_filenode({name}::regclass)::bigint", doing=doing)
    if rows != [(str(part.file),)]:
        raise SourceError(
            f"table {part.relation} was rewritten or truncated while it was copied",
            kind=ErrorKind.SOURCE_SNAPSHOT_LOST,
        )


def _require_same_types(stream: CopyStream, schema: TableSchema, part: CopyRange) -> None:
    """Refuse a column that has another type than when the table was described: its bytes would be misread.

    Not every change rewrites the table: int to oid does not, nor do two columns that exchange their
    names. What is printed needs no such care. `pg_typeof` tells the type as of now, as COPY uses it; the
    catalog's tables would tell that of the snapshot. The lock that is held keeps it.
    """
    columns = [column for column in schema.columns if not is_printed(column.type)]
    if not columns:
        return
    types = ", ".join(f"pg_catalog.pg_typeof(joined.{quote_identifier(column.name)})::text" for column in columns)
    # A row of no columns, joined with no row of the table: one row, whatever the table holds.
    source = f"(select) as single left join only {part.relation.quoted} as joined on false"
    statement = f"select {types} from {source}"  # noqa: S608  # names are quoted
    [found] = stream.execute(statement, doing=f"looking at the columns of {part.relation}")
    for column, name in zip(columns, found, strict=True):
        if name != _unmodified(column.type.name):
            raise SourceError(
                f"table {part.relation}: the type of column {column.name} was changed while it was copied",
                kind=ErrorKind.SOURCE_SNAPSHOT_LOST,
            )


def _unmodified(type_name: str) -> str:
    """Return a type's name as `regtype` prints it: without modifiers, and char(n) by its SQL name."""
    name = base_name(type_name)
    return "character" if name == "bpchar" else name


def _receive(
    stream: CopyStream, schema: TableSchema, policies: ValuePolicies, batch_bytes: int, doing: str
) -> Iterator[pa.RecordBatch]:
    decoder = CopyDecoder(schema, policies, batch_bytes, lambda body: error_from_response(body, doing))
    while not decoder.is_over:
        room = decoder.room
        size = _read(stream, room, doing)
        decoder.advance(size)
        while decoder.is_due:
            yield decoder.take()
        if size < min(_SMALL_READ_BYTES, len(room)) and not decoder.is_over:
            time.sleep(_COLLECT_S)


def _read(stream: CopyStream, room: memoryview, doing: str) -> int:
    """Wait for bytes; return how many came."""
    try:
        while not (size := stream.receive_into(room)):
            wait(stream)
    except SourceError as error:
        raise SourceError(f"{doing}: {error.message}", kind=error.kind, remedy=error.remedy) from None
    return size


class CopyStream(Transport, Protocol):
    """One session. Not for several threads at once; `receive_into` never waits, statements do."""

    def execute(self, sql: str, *, doing: str = "") -> list[Row]:
        """Run one statement and return its rows, each value as the server prints it; only before `start_copy`."""

    def start_copy(self, sql: str, *, doing: str = "") -> None:
        """Run a statement that makes the server copy to us; from then on everything is for `receive_into`."""


def open_copy_stream(address: SourceAddress, *, application_name: str) -> CopyStream:
    """Connect: by ourselves, or with libpq where the authentication asks for it."""
    try:
        return RawConnection.open(address, application_name=application_name)
    except UnspokenMethodError as error:
        return LibpqCopy(connect(address, application_name=application_name), fallback_reason=error.message)


class LibpqCopy(LibpqStream):
    """The copy as libpq reads it: one call per row."""

    def execute(self, sql: str, *, doing: str = "") -> list[Row]:
        """Run one statement and return its rows, each value as the server prints it; only before `start_copy`."""
        with source_errors(doing):
            result = self._connection.execute(sql.encode()).pgresult
        assert result is not None
        return [
            tuple(_decoded(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def start_copy(self, sql: str, *, doing: str = "") -> None:
        """Run a statement that makes the server copy to us; from then on everything is for `receive_into`."""
        with source_errors(doing):
            result = self._pg.exec_(sql.encode())
            if result.status != pq.ExecStatus.COPY_OUT:
                raise psycopg.errors.error_from_result(result)
        self._pg.nonblocking = 1

    def _end(self) -> None:
        """Frame how the copy ended: with an error in the server's words, or with the three messages of its success."""
        self._is_over = True
        result = self._pg.get_result()
        if result is None:
            raise psycopg.OperationalError("the COPY ended without a result")
        if result.status != pq.ExecStatus.COMMAND_OK:
            self._framed.feed(encode_frame(b"E", error_body(result)))
            return
        self._framed.feed(encode_frame(b"c", b"") + encode_frame(b"C", (result.command_status or b"") + b"\0"))
        # The server is ready only when there are no more results.
        if (failure := self._pg.get_result()) is not None:
            self._framed.feed(encode_frame(b"E", error_body(failure)))
        else:
            self._framed.feed(encode_frame(b"Z", b"T"))


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
