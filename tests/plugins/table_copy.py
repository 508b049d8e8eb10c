"""Copies of whole tables, range by range, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from penstock.model.copying import CopyRange
from penstock.model.policy import DEFAULT_POLICIES, ValuePolicies
from penstock.model.table import TableId, TableSchema
from penstock.postgres.catalog import blocks, describe_table
from penstock.postgres.connection import Connection, SourceAddress, connect
from penstock.postgres.copy import read_range
from penstock.postgres.ranges import plan_ranges
from penstock.testing.postgres import Database
from penstock.wire.column import arrow_schema


def whole(connection: Connection, schema: TableSchema) -> CopyRange:
    """Return a table as one range."""
    [leaf] = blocks(connection, schema.id)
    return CopyRange(schema.name, leaf.file, blocks=leaf.blocks)


def describe(connection: Connection, name: str) -> TableSchema:
    row = connection.execute("select %s::regclass::oid::bigint", [name]).fetchone()
    assert row is not None
    return describe_table(connection, TableId(row[0]))


@contextlib.contextmanager
def exported(database: Database | Addressed) -> Iterator[str]:
    """Export a snapshot from an ordinary session: cheaper than a slot, and the same to an importer."""
    with database.connect() as holder:
        holder.execute("set client_encoding to 'UTF8'")
        holder.execute("begin isolation level repeatable read")
        row = holder.execute("select pg_export_snapshot()").fetchone()
        assert row is not None
        yield row[0]


@dataclass(frozen=True)
class Addressed:
    """A database as somebody else reaches it."""

    database: Database
    address: SourceAddress

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return self.database.connect()


def read_all(
    database: Database | Addressed,
    schema: TableSchema,
    row_filter: str | None = None,
    policies: ValuePolicies = DEFAULT_POLICIES,
    **options: Any,
) -> pa.Table:
    with connect(database.address, application_name="test") as connection:
        ranges = plan_ranges(connection, schema, blocks_per_range=2)
    with exported(database) as snapshot:
        batches = [
            batch
            for part in ranges
            for batch in read_range(database.address, snapshot, schema, part, row_filter, policies, **options)
        ]
    return pa.Table.from_batches(batches, arrow_schema(schema))
