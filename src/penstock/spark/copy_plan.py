"""What an initial copy reads: plain values, which travel to Spark tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.model.copying import CopyRange
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableSchema
from penstock.postgres.connection import SourceAddress
from penstock.postgres.copy import read_range
from penstock.wire.column import arrow_schema


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What to read, from where, as of when: plain values, which travel to Spark tasks."""

    address: SourceAddress
    snapshot: str
    schema: TableSchema
    ranges: tuple[CopyRange, ...]
    row_filter: str | None
    policies: ValuePolicies
    max_connections: int

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns that every range gives."""
        return arrow_schema(self.schema)

    def read(self, part: CopyRange) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return read_range(self.address, self.snapshot, self.schema, part, self.row_filter, self.policies)
