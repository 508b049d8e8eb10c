"""Replicates into Iceberg tables, one for each source table, committing every table's position with its data.

Files are written by Spark's tasks for a copy and by this process for changes; a commit is made by
Iceberg's library in Spark's JVM, on the very version of the table that the position was read from.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from penstock.contract.batch import CopiedFile, EventBatch, RowBatch, TableChanges
from penstock.contract.upkeep import Upkeep
from penstock.destinations.iceberg import validate
from penstock.destinations.iceberg.apply import Application, LakeTable
from penstock.destinations.iceberg.catalog import HADOOP, CatalogSettings, place_of, sql_name
from penstock.destinations.iceberg.client import Library, Mark, MarkKeys, Version
from penstock.destinations.iceberg.fault import translated
from penstock.destinations.iceberg.index import FileIndex, KnownFiles
from penstock.destinations.iceberg.past import Beginning, PastApplication, forget_unfinished_copy
from penstock.destinations.iceberg.rows import DataFolder
from penstock.destinations.iceberg.schema import arrow_schema, iceberg_schema
from penstock.destinations.iceberg.upkeep import TableUpkeep
from penstock.errors import DestinationError, ErrorKind
from penstock.failpoint import hit
from penstock.lake import validate as shared
from penstock.lake.layout import Layout, found_mode
from penstock.lake.mapping import TableMapping
from penstock.lake.past import CopyStart
from penstock.lake.search import Search
from penstock.lake.turn import Turns
from penstock.lake.upkeep import Rest, UpkeepPolicy
from penstock.model.lsn import Lsn
from penstock.model.mode import TableModes
from penstock.model.table import PipelineId, TableId, TableSchema
from penstock.storage.place import files_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each lost race means that somebody else made progress; a table that is written so often is not ours alone.
_ATTEMPTS = 10
# Iceberg keeps bounds for a table's first 100 columns; a key further on needs its own for files to be skipped.
_BOUNDED_COLUMNS = 100
_PROPERTIES = {
    # Deletes by position; those of version 3 are in Puffin files and cost Spark's executors memory without bound.
    "format-version": "2",
    # What others do to the table with SQL is done as we do it: rows are deleted where they stand.
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # There are no partitions to sort rows into before they are written.
    "write.distribution-mode": "none",
    # A commit a second would leave as many metadata files, each as long as the table has snapshots.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # A manifest for each commit is two milliseconds more of every reader's planning.
    "commit.manifest.min-count-to-merge": "4",
    # No more is read and written again for that than lists about a thousand files.
    "commit.manifest.target-size-bytes": str(512 << 10),
}


_ALL_CURRENT = TableModes()
_DEFAULT_UPKEEP = UpkeepPolicy()


class IcebergDestination:
    """A catalog of Iceberg tables, `<schema>.<table>` each; `Positioned`, so exactly once.

    `cdc_columns` adds `_CHANGE_TYPE` (INSERT or UPDATE), `_LSN` and `_TIMESTAMP` of the change that
    last wrote a row. `modes` says which tables keep more than the present, and `upkeep` when small files are put
    together and old versions forgotten.
    """

    name: ClassVar[str] = "iceberg"

    def __init__(
        self,
        catalog: CatalogSettings,
        *,
        pipeline: PipelineId,
        spark: Callable[[], SparkSession],
        tables: TableMapping,
        cdc_columns: bool = True,
        modes: TableModes = _ALL_CURRENT,
        upkeep: UpkeepPolicy = _DEFAULT_UPKEEP,
        clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        validate.check_catalog(catalog)
        self._catalog = catalog
        self._folder = catalog.folder
        self._pipeline = pipeline
        self._spark = spark
        self._tables = tables
        self._cdc = cdc_columns
        self.modes = modes
        self._upkeep = upkeep
        self._clock = clock
        self._turns = Turns()
        self._rest = Rest()
        self._search = Search(spark)
        self._lock = threading.Lock()
        self._opened: tuple[SparkSession, Library] | None = None
        self._known: dict[TableId, KnownFiles] = {}

    def startup(self) -> None:
        """Check that the warehouse can be written, and that a catalog elsewhere answers."""
        if self._folder is not None:
            with translated(f"Writing to the warehouse {self._folder}"):
                validate.check_folder(self._folder, files_at(self._folder, self._catalog.s3))
        if self._catalog.kind != HADOOP:
            with translated(f"Opening the {self._catalog.kind} catalog {self._catalog.name}"):
                self._library().check()

    def shutdown(self) -> None:
        """End our threads; Spark belongs to whoever opened it."""
        self._search.close()

    def table_name(self, table: TableId) -> str | None:
        """Return the table's name for Spark's SQL, or None if there is none."""
        place = self._known_place(table)
        return None if place is None else sql_name(self._catalog.name, place)

    def watermark(self, table: TableId) -> Lsn | None:
        """Return the position in the table's own metadata."""
        mark = self._mark(table)
        return None if mark is None else mark.lsn

    def copied_parts(self, table: TableId) -> int:
        """Return the number in the table's own metadata."""
        mark = self._mark(table)
        return 0 if mark is None else mark.parts

    def _mark(self, table: TableId) -> Mark | None:
        place = self._known_place(table)
        if place is None:
            return None
        with translated(f"Reading the position of the Iceberg table {place}"):
            version = self._library().open(place)
            return None if version is None else version.mark(self._keys(table))

    def truncate_table(self, table: TableId) -> None:
        """Remove every row, in one commit that also takes the position back to 0."""
        place = self._known_place(table)
        if place is not None:
            self._persist(table, f"Emptying the Iceberg table {place}", lambda: self._truncate(table, place))

    def _truncate(self, table: TableId, place: str) -> None:
        version = self._library().open(place)
        # One that somebody else made is left as it is; the copy that follows will say so.
        if version is None or version.owner != self._pipeline:
            return
        if found_mode(version.column_names).keeps_past:
            forget_unfinished_copy(version, self._keys(table), self._search, place)
        else:
            version.commit(self._keys(table), Mark(Lsn(0), 0), empties=True)

    def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
        """Let Spark's tasks write the files into the table's folder, then commit them at once."""
        layout = self._layout(table)
        validate.check_columns(table, layout)
        place = self._place(table)
        what = f"Copying {table.name} to the Iceberg table {place}"
        with translated(what):
            begun = self._begun(table, place, rows.part)
            validate.check_free(begun.location, begun.filesystem)
            folder = DataFolder.of(begun.location, begun.filesystem)
            now = self._clock()
            copied = rows.write_files(folder.path, layout.copied_values(rows.watermark, now), files=begun.filesystem)
        files = [folder.named(file) for file in copied]
        start = CopyStart(table, rows.watermark, now)
        self._persist(table.id, what, lambda: self._add_part(start, place, rows.part, files))

    def _begun(self, table: TableSchema, place: str, part: int) -> Version:
        """Return what a part of a copy is to be committed on: for the first one, a table without rows."""
        present = self._library().open(place)
        if present is not None:
            validate.check_owner(present, self._pipeline, place)
            validate.check_format(present, place)
        layout = self._layout(table)
        if part == 0 and not (present and self._keeps_past(present, table, layout, place)):
            columns = arrow_schema(table, layout)
            properties = {**_PROPERTIES, **_metrics(table), "comment": f"Replicated by Penstock, {self._pipeline}"}
            return self._library().replace(place, present, iceberg_schema(columns), properties)
        if present is None:
            raise validate.never_copied(table, place)
        return present

    def _keeps_past(self, version: Version, table: TableSchema, layout: Layout, place: str) -> bool:
        """Whether a table has what a copy must add to; if not, the copy may begin the table anew."""
        mode = found_mode(version.column_names)
        if not mode.keeps_past or not FileIndex.read(version, pa.schema([]), place).alive:
            return False
        if validate.differing_columns(version, table, layout):
            raise shared.refuse_loss(table, f"the Iceberg table {place}", mode)
        return True

    def _add_part(self, start: CopyStart, place: str, part: int, files: list[CopiedFile]) -> None:
        table, layout = start.schema, self._layout(start.schema)
        keys, version = self._keys(table.id), self._begun(table, place, part)
        since = start.watermark if layout.mode.keeps_past else None
        if part:
            mark = version.mark(keys)
            if mark is None or mark.parts > part:
                raise validate.other_copy(table, place)
            since = mark.since
        if part or version.is_replaced:
            version.commit(keys, Mark(start.watermark, part + 1, since), rows=files)
        else:
            Beginning(self._lake_table(table, place), version, start, files).run()

    def write_events(self, events: EventBatch) -> None:
        """Apply each table's changes in one commit of its own."""
        for table, changes in events.tables().items():
            place = self._place(changes.schema)
            what = f"Applying changes of {changes.schema.name} to the Iceberg table {place}"
            self._persist(table, what, partial(self._apply, table, changes, place, events.end_lsn))

    def _apply(self, table: TableId, changes: TableChanges, place: str, end: Lsn) -> None:
        schema, keys = changes.schema, self._keys(table)
        version = self._library().open(place)
        mark = None if version is None else version.mark(keys)
        hit("iceberg.position_read")
        if version is None or mark is None:
            raise validate.never_copied(schema, place)
        if mark.lsn >= end:
            return
        validate.check_format(version, place)
        layout = self._layout(schema)
        validate.check_same_columns(version, schema, layout)
        application = PastApplication if layout.mode.keeps_past else Application
        application(self._lake_table(schema, place), version, changes, mark, end).run()
        self._rest.note_change(table, self._clock().timestamp())

    def _lake_table(self, schema: TableSchema, place: str) -> LakeTable:
        with self._lock:
            known = self._known.setdefault(schema.id, KnownFiles(place))
        return LakeTable(self._keys(schema.id), self._search, known, self._layout(schema))

    def _layout(self, schema: TableSchema) -> Layout:
        return Layout(self.modes.of(schema.name, schema.id), self._cdc)

    def _persist(self, table: TableId, what: str, attempt: Callable[[], None]) -> None:
        """Make a commit, again on the table's next version if another writer was faster."""
        for _ in range(_ATTEMPTS - 1):
            try:
                with translated(what), self._turns.of(table):
                    return attempt()
            except DestinationError as error:
                if error.kind is not ErrorKind.DESTINATION_CONFLICT:
                    raise
        with translated(what), self._turns.of(table):
            return attempt()

    @property
    def upkeep_every_s(self) -> float | None:
        """How long to wait between two upkeeps of a table."""
        return self._upkeep.every_s

    @property
    def brief_upkeep_after(self) -> int:
        """After how many batches a table gets a brief one."""
        return self._upkeep.brief_after

    def upkeep(self, table: TableSchema, is_stopping: Callable[[], bool], *, is_brief: bool = False) -> Upkeep:
        """Rewrite small and worn files, put deletes together, and forget old versions; in a brief one no versions."""
        place = self._known_place(table.id)
        if place is None:
            return Upkeep()
        with translated(f"Upkeep of the Iceberg table {place}"):
            lake_table, turn = self._lake_table(table, place), self._turns.of(table.id)
            open_ = partial(self._library().open, place)
            policy, rest, clock = self._upkeep, self._rest, self._clock
            return TableUpkeep(lake_table, table, open_, policy, rest, turn, clock, is_stopping, is_brief).run()

    def _library(self) -> Library:
        """Return Iceberg's library in the JVM that runs now."""
        spark = self._spark()
        with self._lock:
            if self._opened is None or self._opened[0] is not spark:
                self._opened = (spark, Library(spark, self._catalog))
            return self._opened[1]

    def _keys(self, table: TableId) -> MarkKeys:
        return MarkKeys(self._pipeline, table)

    def _known_place(self, table: TableId) -> str | None:
        """Return the table's name if it has one here; a path is what a Delta lake left in the same state."""
        place = self._tables.get_table_mapping(table)
        return None if place is None or "/" in place else place

    def _place(self, schema: TableSchema) -> str:
        """Return the table's name, choosing it when the table is first met; it stays when the table is renamed."""
        with self._lock:
            known = self._known_place(schema.id)
            if known is not None:
                return known
            place = place_of(schema.name)
            # Some catalogs, and some file systems below them, do not tell "Items" from "items".
            if place.lower() in {each.lower() for each in self._tables.get_table_mappings().values()}:
                # Or another table had this name first and was renamed since; `~` is in no plain name.
                place = f"{place}~{int(schema.id)}"
            self._tables.store_table_mapping(schema.id, place)
            return place


def _metrics(schema: TableSchema) -> dict[str, str]:
    last = max((schema.columns.index(column) for column in schema.key), default=0)
    return {"write.metadata.metrics.max-inferred-column-defaults": str(max(_BOUNDED_COLUMNS, last + 1))}
