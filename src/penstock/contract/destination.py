"""Where replicated data goes."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from penstock.contract.batch import EventBatch, RowBatch
from penstock.model.lsn import Lsn
from penstock.model.mode import TableModes
from penstock.model.table import TableId, TableSchema


@runtime_checkable
class Destination(Protocol):
    """Receives tables and then their changes.

    For one table the calls are: `truncate_table`, `write_table_rows` once or more, then
    `write_events` for ever; calls for one table never overlap, calls for different tables do. After a
    crash or an error a call may be repeated with the same data, split differently. A destination
    that is also `Positioned` is spared what it has already committed; any other must be idempotent,
    or accept duplicates.

    Raising stops the table concerned (or, when a batch spans several, the batch): a `PenstockError`
    decides by its kind whether it is tried again; anything else counts as an internal error.
    """

    name: ClassVar[str]
    """Names the destination in logs and metrics."""

    def startup(self) -> None:
        """Check that the destination can be used. Called once, before any other method."""
        ...

    def truncate_table(self, table: TableId) -> None:
        """Empty the table, if it exists. Called before every copy, also when nothing was ever written."""
        ...

    def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
        """Store rows of the initial copy; when it returns they are durable and visible.

        Called by a table-sync worker, for several tables at once. An empty table has a call too: it
        creates the table.
        """
        ...

    def write_events(self, events: EventBatch) -> None:
        """Apply changes in order; when it returns they are durable and visible.

        Called by the apply worker, and by table-sync workers for the table that they catch up. A
        `Positioned` destination is given one table at a time, different tables at once; any other is
        given batches that may span tables, one at a time from the apply worker.
        """
        ...

    def shutdown(self) -> None:
        """Release what `startup` took. Called once, after the last write returned."""
        ...


@runtime_checkable
class Moded(Protocol):
    """A destination whose tables may keep more than the present."""

    @property
    def modes(self) -> TableModes:
        """What each table keeps. Asked for at start, to tell whether the source's tables fit."""
        ...


@runtime_checkable
class Positioned(Protocol):
    """A destination that commits each table's watermark together with its data: exactly once.

    `write_table_rows` commits `rows.watermark` and that `rows.part` is there; `write_events` commits `events.end_lsn`.
    """

    def watermark(self, table: TableId) -> Lsn | None:
        """Return the position committed with the table's data, or None if there is no such table.

        Read from the destination itself, never from memory. Called at start and after every error.
        """
        ...

    def copied_parts(self, table: TableId) -> int:
        """Return how many parts of the table's last copy are committed; `truncate_table` makes it 0.

        Committed with the parts themselves, so that a copy that was cut off can go on with the next one.
        """
        ...
