"""The rows of a lake's table: the source's columns, then ours, taken from the change that wrote a row last."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.contract import columns as log
from penstock.model.table import TableSchema
from penstock.wire.arrow import compute

CHANGE_TYPE, LSN, TIMESTAMP = "_CHANGE_TYPE", "_LSN", "_TIMESTAMP"
CDC_NAMES = (CHANGE_TYPE, LSN, TIMESTAMP)
CDC_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string()),
    pa.field(LSN, pa.int64()),
    pa.field(TIMESTAMP, pa.timestamp("us", "UTC")),
)


def lake_rows(changes: pa.Table, schema: TableSchema, target: pa.Schema, *, cdc_columns: bool) -> pa.Table:
    """Return changes, each the last of its row, as rows of the lake's table."""
    columns: list[Any] = [changes.column(log.stored_name(column.name)) for column in schema.columns]
    if cdc_columns:
        columns.append(compute.if_else(compute.equal(changes.column(log.OP), "I"), "INSERT", "UPDATE"))
        columns += [changes.column(log.COMMIT_LSN), changes.column(log.COMMIT_TS)]
    arrays = [column.cast(field.type) for column, field in zip(columns, target, strict=True)]
    return pa.Table.from_arrays(arrays, schema=target)
