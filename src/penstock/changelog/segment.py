"""Changes on their way into the log: each table's rows as columns of the server's text, in commit order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.entry import DataFile
from penstock.contract import columns as log
from penstock.model.event import Truncate
from penstock.model.lsn import Lsn
from penstock.model.table import TableId, TableSchema

TRANSACTIONS_SCHEMA = pa.schema(
    [
        pa.field("commit_lsn", pa.int64()),
        pa.field("end_lsn", pa.int64()),
        pa.field("commit_ts", pa.timestamp("us", "UTC")),
        pa.field("xid", pa.int64()),
        pa.field("changes", pa.int64()),
    ]
)


@dataclass(slots=True)
class TableRows:
    """One table's changes in a segment, all of one schema version: batches of `log_schema(schema, as_text=True)`."""

    schema: TableSchema
    version: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.size_bytes += batch.nbytes

    @property
    def text(self) -> pa.Table:
        """The rows as one table."""
        return pa.Table.from_batches(self.batches)


@dataclass(slots=True)
class Segment:
    """What the next entry of the log will hold."""

    tables: dict[tuple[TableId, int], TableRows] = field(default_factory=dict)
    transactions: list[pa.RecordBatch] = field(default_factory=list)
    """Those that committed, in `TRANSACTIONS_SCHEMA`."""
    truncates: list[Truncate] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not (self.tables or self.transactions or self.truncates)

    @property
    def transaction_count(self) -> int:
        """How many transactions committed."""
        return sum(batch.num_rows for batch in self.transactions)

    def add_rows(self, schema: TableSchema, version: int, batch: pa.RecordBatch) -> None:
        """Append some of a table's rows."""
        table = self.tables.setdefault((schema.id, version), TableRows(schema, version))
        table.add(batch)
        self.size_bytes += batch.nbytes

    def add_transactions(self, batch: pa.RecordBatch) -> None:
        """Append transactions that committed."""
        self.transactions.append(batch)
        self.size_bytes += batch.nbytes


@dataclass(slots=True)
class FileSummary:
    """What the manifest says of one table's changes in one file, as they are written."""

    schema: TableSchema
    version: int
    rows: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    has_unchanged: bool = False
    has_key_changes: bool = False
    first_lsn: int = 0
    last_lsn: int = 0
    memory_bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count rows, as text or typed, behind those before."""
        commits = batch.column(log.COMMIT_LSN)
        self.first_lsn = self.first_lsn if self.rows else commits[0].as_py()
        self.last_lsn = commits[-1].as_py()
        self.rows += batch.num_rows
        self.memory_bytes += batch.nbytes
        counts: Any = pc.value_counts(batch.column(log.OP))
        self.operations.update({each["values"]: each["counts"] for each in counts.to_pylist()})
        self.has_unchanged |= _has_any(batch, log.UNCHANGED)
        self.has_key_changes |= bool(self.schema.key) and _has_any(batch, log.KEY)

    def describe(
        self, path: str, size_bytes: int, footer_crc: int, *, problem: str | None = None, is_shared: bool = False
    ) -> DataFile:
        """Return the file as the manifest has it."""
        return DataFile(
            table=self.schema.id,
            version=self.version,
            path=path,
            rows=self.rows,
            size_bytes=size_bytes,
            inserts=self.operations["I"],
            updates=self.operations["U"],
            deletes=self.operations["D"],
            has_unchanged=self.has_unchanged,
            has_key_changes=self.has_key_changes,
            first_lsn=Lsn(self.first_lsn),
            last_lsn=Lsn(self.last_lsn),
            footer_crc=footer_crc,
            problem=problem,
            is_shared=is_shared,
            memory_bytes=self.memory_bytes,
        )


def _has_any(batch: pa.RecordBatch, name: str) -> bool:
    return batch.column(name).null_count < batch.num_rows
