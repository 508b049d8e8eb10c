"""Lakes that need no Spark job: copies are written here, in one file each. What a failpoint raises is tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.contract import EventBatch, RowBatch
from penstock.destinations.delta import DeltaDestination
from penstock.destinations.iceberg import IcebergDestination
from penstock.errors import DestinationError, ErrorKind
from penstock.failpoint import FailpointError
from penstock.model.table import TableSchema
from penstock.testing.batch import ArrowRows


def _local(table: TableSchema, rows: RowBatch) -> ArrowRows:
    return ArrowRows(table, [row.values for row in rows], rows.watermark, part=rows.part)


@contextmanager
def _retried() -> Iterator[None]:
    try:
        yield
    except FailpointError as error:
        raise DestinationError("out of reach", kind=ErrorKind.DESTINATION_UNAVAILABLE) from error


class LocalDelta(DeltaDestination):
    """Delta tables; `before_part` is called with the number of a part that is about to be written."""

    before_part: Callable[[int], None] = staticmethod(lambda _: None)

    def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
        self.before_part(rows.part)
        super().write_table_rows(table, _local(table, rows))

    def write_events(self, events: EventBatch) -> None:
        with _retried():
            super().write_events(events)


class LocalIceberg(IcebergDestination):
    """Iceberg tables, which are committed in a JVM."""

    def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
        super().write_table_rows(table, _local(table, rows))

    def write_events(self, events: EventBatch) -> None:
        with _retried():
            super().write_events(events)
