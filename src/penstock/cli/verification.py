"""Reads each table from the source, as of one snapshot, and from the Delta lake, and compares them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pyarrow as pa

from penstock.cli import wiring
from penstock.cli.compare import Comparison, compare
from penstock.destinations.delta.schema import CDC_NAMES
from penstock.model.table import TableId
from penstock.postgres.catalog import describe_table
from penstock.postgres.connection import SourceAddress, connect
from penstock.postgres.copy import plan_ranges
from penstock.postgres.publication import PublishedTable, published_tables
from penstock.postgres.snapshot import ExportedSnapshot, import_snapshot
from penstock.spark.rows import CopyPlan

APPLICATION_NAME = "penstock verification"


def compare_tables(parts: wiring.Parts) -> Iterator[tuple[PublishedTable, Comparison]]:
    """Yield a comparison for every published table; nothing may change the source meanwhile."""
    address = wiring.source_of(parts.config)
    with closing(connect(address, application_name=APPLICATION_NAME)) as connection:
        tables = published_tables(connection, parts.config.pipeline.publication_name)
    with ExportedSnapshot(address, application_name=APPLICATION_NAME) as snapshot:
        for table in tables:
            plan = _plan(parts, address, table, snapshot)
            batches = [batch for part in plan.ranges for batch in plan.read(part)]
            source = pa.Table.from_batches(batches, schema=plan.arrow_schema)
            yield table, compare(source, _lake_table(parts, table.id), [column.name for column in plan.schema.key])


def _plan(parts: wiring.Parts, address: SourceAddress, table: PublishedTable, snapshot: ExportedSnapshot) -> CopyPlan:
    policies = parts.config.pipeline.value_policies
    with closing(connect(address, application_name=APPLICATION_NAME)) as connection:
        import_snapshot(connection, snapshot.name)
        schema = policies.resolve(describe_table(connection, table.id, table.columns))
        ranges = plan_ranges(connection, table)
    return CopyPlan(
        address=address,
        snapshot=snapshot.name,
        schema=schema,
        ranges=ranges,
        row_filter=table.row_filter,
        policies=policies,
        max_connections=1,
    )


def _lake_table(parts: wiring.Parts, table: TableId) -> pa.Table:
    delta = parts.config.destination.delta
    folder = parts.store.get_table_mapping(table)
    assert delta is not None
    if folder is None:
        return pa.table(cast("dict[str, Any]", {}))
    frame = parts.session().read.format("delta").load(f"{delta.path}/{folder}")
    return frame.drop(*CDC_NAMES).toArrow()
