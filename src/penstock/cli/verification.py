"""Reads each table from the source, as of one snapshot, and from the lake, and compares them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from penstock.cli import wiring
from penstock.cli.compare import Comparison, compare, narrowed
from penstock.destinations.iceberg.catalog import sql_name
from penstock.lake.rows import CDC_NAMES
from penstock.model.table import TableId
from penstock.postgres.catalog import describe_table
from penstock.postgres.connection import SourceAddress, connect
from penstock.postgres.publication import PublishedTable, published_tables
from penstock.postgres.ranges import plan_ranges
from penstock.postgres.snapshot import ExportedSnapshot, import_snapshot
from penstock.spark.copy_plan import CopyPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
            lake = narrowed(_lake_table(parts, table.id), source.schema)
            yield table, compare(source, lake, [column.name for column in plan.schema.key])


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
    """Return the lake's rows without our columns."""
    place = parts.store.get_table_mapping(table)
    if place is None:
        return pa.table(cast("dict[str, Any]", {}))
    return _lake_frame(parts, place).drop(*CDC_NAMES).toArrow()


def _lake_frame(parts: wiring.Parts, place: str) -> DataFrame:
    delta, iceberg = parts.config.destination.delta, parts.config.destination.iceberg
    if iceberg is not None:
        return parts.session().read.table(sql_name(iceberg.catalog_name, place))
    assert delta is not None
    return parts.session().read.format("delta").load(f"{delta.path}/{place}")
