"""What a destination is handed: rows of a copy, or changes, each with three views.

The views are objects (iterate), Arrow record batches (`arrow()`) and a Spark DataFrame (`frame`).
Nothing is read or computed until a view is used, and using one twice reads twice. Only `frame` and
`write_files` start Spark: a destination that never touches them needs no JVM.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.contract.files import Files
from penstock.model.cell import TableRow
from penstock.model.event import Event, Truncate
from penstock.model.lsn import Lsn
from penstock.model.table import TableId, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A Parquet file that a Spark task wrote and that nobody reads until a destination commits it."""

    path: str
    """Among the files that it was written to: absolute on a disk, a key in a bucket."""
    rows: int
    size_bytes: int
    minimums: Mapping[str, Any]
    """Per column, where the file's own statistics know it."""
    maximums: Mapping[str, Any]
    null_counts: Mapping[str, int]


class RowBatch(Protocol):
    """Rows of one table's initial copy, all as of one snapshot: the whole table, or a part of it."""

    @property
    def watermark(self) -> Lsn:
        """The position from which on the table needs its changes: that of the first part's snapshot."""
        ...

    @property
    def part(self) -> int:
        """Which part of the copy this is, from 0 on; the first begins the table anew."""
        ...

    def __iter__(self) -> Iterator[TableRow]:
        """Yield the rows as objects, in no particular order."""
        ...

    def arrow(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches of bounded size, read by this process."""
        ...

    @property
    def frame(self) -> DataFrame:
        """The rows as a lazy, distributed DataFrame: every action on it reads the source again."""
        ...

    def write_files(
        self,
        folder: str,
        extra: Mapping[str, pa.Scalar[Any]] | None = None,
        *,
        is_packed: bool = False,
        files: Files | None = None,
    ) -> Sequence[CopiedFile]:
        """Let Spark tasks write the rows as Parquet into a folder, and return what they wrote.

        The folder is on this machine's disks, or among `files`: then every task reaches it as they say.

        `extra` are constant columns to append. `is_packed` allows encodings that Parquet's second version brought,
        which are smaller and quicker, and which not every reader knows. Files of failed attempts may remain in
        the folder; only those returned count. A table without rows gives no files.
        """
        ...


class TableChanges(Protocol):
    """One table's changes between two positions, in order, with what is known of them beforehand.

    Rows have the table's columns, then those of `penstock.contract.columns`. A deleted row has its
    key's columns and NULL in the others.
    """

    @property
    def schema(self) -> TableSchema:
        """The table as these changes have it."""
        ...

    @property
    def inserts(self) -> int:
        """How many rows were inserted; an upper bound."""
        ...

    @property
    def updates(self) -> int:
        """How many rows were updated; an upper bound."""
        ...

    @property
    def deletes(self) -> int:
        """How many rows were deleted; an upper bound."""
        ...

    @property
    def has_unchanged(self) -> bool:
        """Whether any update may leave a TOASTed value unchanged."""
        ...

    @property
    def has_key_changes(self) -> bool:
        """Whether any update may change a key."""
        ...

    @property
    def truncates(self) -> Sequence[Truncate]:
        """Where the table was truncated, in order."""
        ...

    @property
    def truncate_times(self) -> Mapping[Lsn, dt.datetime]:
        """When the transactions committed that truncated the table, by their `commit_lsn`."""
        ...

    @property
    def is_settling(self) -> bool:
        """Whether these are no changes of the source: deletes of what a copy under way has read and must forget.

        A table that keeps the past forgets them without a trace.
        """
        ...

    def arrow(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes in order, read by this process."""
        ...

    @property
    def frame(self) -> DataFrame:
        """The changes as a lazy DataFrame, in no particular order."""
        ...


class EventBatch(Protocol):
    """Whole transactions of one or more tables, up to `end_lsn`."""

    @property
    def end_lsn(self) -> Lsn:
        """Every transaction of these tables that committed before this position is here or was before."""
        ...

    def __iter__(self) -> Iterator[Event]:
        """Yield the events in commit order, each transaction between its Begin and Commit.

        A transaction without a change of these tables is left out.
        """
        ...

    def tables(self) -> Mapping[TableId, TableChanges]:
        """Return the tables that changed."""
        ...
