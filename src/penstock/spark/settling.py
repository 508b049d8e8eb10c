"""What settles a copy that took several snapshots: the keys that were touched meanwhile, and their removal.

See `penstock.model.copying`. A removal is handed to the destination as deletes, at a position just before that of the
last snapshot, as of which the rows are read anew.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.rows import log_schema
from penstock.contract import columns as log
from penstock.contract.batch import TableChanges
from penstock.model.cell import Cell, OldRow, OldRowKind
from penstock.model.event import Begin, Commit, Delete, Event, Truncate
from penstock.model.lsn import Lsn, Position
from penstock.model.table import TableId, TableSchema
from penstock.wire.arrow import arrow_type
from penstock.wire.text import cell_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COMPACT_ROWS = 1 << 20


def touched_keys(changes: TableChanges) -> pa.Table:
    """Return every key that a change has, as it is or as it was, once; columns in table order."""
    key = changes.schema.key
    schema = pa.schema([pa.field(column.name, arrow_type(column.type)) for column in key])
    found, waiting = schema.empty_table(), [schema.empty_table()]
    for batch in changes.arrow():
        waiting += [_new_keys(batch, changes.schema, schema), _old_keys(batch, changes.schema, schema)]
        if sum(each.num_rows for each in waiting) >= _COMPACT_ROWS:
            found, waiting = _distinct([found, *waiting]), []
    return _distinct([found, *waiting])


def _new_keys(batch: pa.RecordBatch, table: TableSchema, schema: pa.Schema) -> pa.Table:
    arrays = [batch.column(log.stored_name(column.name)) for column in table.key]
    return pa.Table.from_arrays(arrays, schema=schema).drop_null()


def _old_keys(batch: pa.RecordBatch, table: TableSchema, schema: pa.Schema) -> pa.Table:
    old: Any = batch.column(log.KEY)
    arrays = [pc.struct_field(old, log.stored_name(column.name)) for column in table.key]
    return pa.Table.from_arrays(arrays, schema=schema).drop_null()


def _distinct(tables: Sequence[pa.Table]) -> pa.Table:
    joined = pa.concat_tables(tables)
    return joined.group_by(joined.column_names).aggregate([])


@dataclass(frozen=True)
class Removal:
    """Deletes of keys, all of one transaction that ends at `end_lsn`."""

    schema: TableSchema
    keys: pa.Table
    end_lsn: Lsn
    spark: Callable[[], SparkSession]

    def tables(self) -> Mapping[TableId, RemovedKeys]:
        """Return the table."""
        return {self.schema.id: RemovedKeys(self.schema, self._rows, self.spark)}

    def __iter__(self) -> Iterator[Event]:
        """Yield the deletes between a Begin and a Commit."""
        lsn, now = self._commit_lsn, dt.datetime.now(dt.UTC)
        yield Begin(Position(lsn, 0), now, 0)
        for ordinal, key in enumerate(self._cells(), 1):
            yield Delete(Position(lsn, ordinal), self.schema.id, OldRow(OldRowKind.KEY, key))
        yield Commit(Position(lsn, self.keys.num_rows + 1), self.end_lsn, now)

    def _cells(self) -> Iterator[tuple[Cell, ...]]:
        for batch in self.keys.to_batches():
            yield from zip(*(cell_values(batch.column(each.name), each.type) for each in self.schema.key), strict=True)

    @property
    def _commit_lsn(self) -> Lsn:
        return Lsn(self.end_lsn - 1)

    @property
    def _rows(self) -> pa.Table:
        """The deletes as the log would have them."""
        rows = self.keys.num_rows
        known: dict[str, Any] = {
            log.OP: pa.repeat(pa.scalar("D"), rows),
            log.COMMIT_LSN: pa.repeat(pa.scalar(int(self._commit_lsn), pa.int64()), rows),
            log.ORDINAL: pa.array(range(1, rows + 1), pa.int64()),
            log.COMMIT_TS: pa.repeat(pa.scalar(dt.datetime.now(dt.UTC), pa.timestamp("us", "UTC")), rows),
            log.XID: pa.repeat(pa.scalar(0, pa.int64()), rows),
            **{log.stored_name(column.name): self.keys.column(column.name) for column in self.schema.key},
        }
        schema = log_schema(self.schema)
        return pa.table([known.get(field.name, pa.nulls(rows, field.type)) for field in schema], schema=schema)


@dataclass(frozen=True)
class RemovedKeys:
    """One table's deletes."""

    schema: TableSchema
    rows: pa.Table
    spark: Callable[[], SparkSession]
    inserts: int = 0
    updates: int = 0
    has_unchanged: bool = False
    has_key_changes: bool = False
    truncates: Sequence[Truncate] = ()
    truncate_times: Mapping[Lsn, dt.datetime] = field(default_factory=dict)
    is_settling: bool = True

    @property
    def deletes(self) -> int:
        """How many keys are removed."""
        return self.rows.num_rows

    def arrow(self) -> Iterator[pa.RecordBatch]:
        """Yield the deletes."""
        yield from self.rows.to_batches()

    @property
    def frame(self) -> DataFrame:
        """The deletes in Spark."""
        return self.spark().createDataFrame(self.rows)
