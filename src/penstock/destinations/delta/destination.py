"""Replicates into Delta tables, one folder each, committing every table's position with its data.

Everything is committed from Python in milliseconds: copies, whose files Spark's tasks write, through the Delta
library, and changes through the table's log itself, since they mark rows as gone where they stand. All commits
name the position as the table's transaction version.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from deltalake import DeltaTable

from penstock.contract.batch import EventBatch, RowBatch, TableChanges
from penstock.contract.upkeep import Upkeep
from penstock.destinations.delta import validate
from penstock.destinations.delta.apply import Application, LakeTable
from penstock.destinations.delta.catalog import CatalogNames, Registry, refuse_catalog
from penstock.destinations.delta.commit import Committer
from penstock.destinations.delta.fault import translated
from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.log import TableLog, TableState
from penstock.destinations.delta.past import Beginning, Emptying, PastApplication
from penstock.destinations.delta.schema import delta_schema, folder_name
from penstock.destinations.delta.upkeep import TableUpkeep
from penstock.errors import DestinationError, ErrorKind
from penstock.failpoint import hit
from penstock.lake import validate as shared
from penstock.lake.layout import Layout
from penstock.lake.mapping import TableMapping
from penstock.lake.past import CopyStart
from penstock.lake.search import Search
from penstock.lake.turn import Turns
from penstock.lake.upkeep import Rest, UpkeepPolicy
from penstock.model.lsn import Lsn
from penstock.model.mode import TableModes
from penstock.model.table import PipelineId, TableId, TableSchema
from penstock.storage.place import files_at, in_full
from penstock.storage.s3 import S3Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ALL_CURRENT = TableModes()
_DEFAULT_UPKEEP = UpkeepPolicy()


class DeltaDestination:
    """A lake of Delta tables at `<path>/<schema>/<table>`; `Positioned`, so exactly once.

    Spark is asked for by copies, and where rows have to be found in very large tables. `cdc_columns` adds
    `_CHANGE_TYPE` (INSERT or UPDATE), `_LSN` and `_TIMESTAMP` of the change that last wrote a row. `modes` says which
    tables keep more than the present, and `upkeep` when small files are put together and old ones removed. `path` may
    be `s3://bucket/folder`, reached as `s3` says. With a `catalog`, tables have names in it too.
    """

    name: ClassVar[str] = "delta"

    def __init__(
        self,
        path: str,
        *,
        pipeline: PipelineId,
        spark: Callable[[], SparkSession],
        tables: TableMapping,
        cdc_columns: bool = True,
        modes: TableModes = _ALL_CURRENT,
        upkeep: UpkeepPolicy = _DEFAULT_UPKEEP,
        s3: S3Settings | None = None,
        catalog: CatalogNames | None = None,
        clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._path = in_full(path).rstrip("/")
        self._files = files_at(self._path, s3)
        self._pipeline = pipeline
        self._tables = tables
        self._cdc = cdc_columns
        self.modes = modes
        self._upkeep = upkeep
        self._clock = clock
        self._turns = Turns()
        self._rest = Rest()
        self._lock = threading.Lock()
        self._logs: dict[TableId, TableLog] = {}
        self._search = Search(spark)
        self._registry = None if catalog is None else Registry(spark, catalog, self._path, self._files)

    def startup(self) -> None:
        """Check that the lake's folder can be written, by one writer at a time."""
        if self._registry is not None and not self._files.is_local:
            raise refuse_catalog(self._path)
        validate.check_lake(self._path, self._files)

    def shutdown(self) -> None:
        """End our threads; Spark belongs to whoever opened it."""
        self._search.close()

    def watermark(self, table: TableId) -> Lsn | None:
        """Return the position in the table's own log."""
        folder = self._tables.get_table_mapping(table)
        if folder is None:
            return None
        committer = self._committer(table, folder)
        with translated(f"Reading the position of the Delta table at {committer.location}"):
            return _position(committer, committer.open())

    def copied_parts(self, table: TableId) -> int:
        """Return the number in the table's own log."""
        folder = self._tables.get_table_mapping(table)
        if folder is None:
            return 0
        committer = self._committer(table, folder)
        with translated(f"Reading how much is copied to the Delta table at {committer.location}"):
            present = committer.open()
            return 0 if present is None else present.transaction_version(committer.copy_app_id) or 0

    def truncate_table(self, table: TableId) -> None:
        """Remove every row, in one commit that also takes the position back to 0."""
        folder = self._tables.get_table_mapping(table)
        if folder is None:
            return
        committer = self._committer(table, folder)
        with translated(f"Emptying the Delta table at {committer.location}"), self._turns.of(table):
            present = committer.open()
            # What another pipeline made, the copy refuses; it is not ours to empty.
            if present is not None and validate.is_owned(present, committer.description):
                self._empty(table, committer, present)

    def _empty(self, table: TableId, committer: Committer, present: DeltaTable) -> None:
        log = self._log(table, committer)
        state = log.refresh()
        if state is None or not state.mode.keeps_past:
            committer.empty(present, Lsn(0), parts=0)
        elif state.transactions.get(committer.app_id):
            Emptying(LakeTable(log, committer, self._search, Layout(state.mode)), state).run(state)

    def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
        """Let Spark's tasks write the files into the table's folder, then commit them at once."""
        layout = self._layout(table)
        shared.check_columns(table, layout, self.name)
        committer = self._committer(table.id, self._place(table))
        with translated(f"Copying {table.name} to the Delta table at {committer.location}"):
            present = committer.open()
            if present is not None:
                validate.check_owner(present, committer.description, committer.location)
            elif rows.part:
                raise _never_copied(table, committer.location)
            base = committer.folder.base
            self._files.make_folder(base)
            now = self._clock()
            past = self._past_state(table, layout, committer) if present is not None and rows.part == 0 else None
            # Whoever reads tables with deletion vectors reads Parquet's newer encodings too.
            values = layout.copied_values(rows.watermark, now)
            files = rows.write_files(base, values, is_packed=True, files=self._files)
            if past is not None:
                lake_table = LakeTable(self._log(table.id, committer), committer, self._search, layout)
                with self._turns.of(table.id):
                    Beginning(lake_table, CopyStart(table, rows.watermark, now), files).run(past)
            elif present is None or rows.part == 0:
                committer.replace(delta_schema(table, layout), files, rows.watermark, rows.part + 1, layout.mode)
            else:
                committer.append(present, files, rows.watermark, parts=rows.part + 1)
            self._register(table.id)

    def _past_state(self, table: TableSchema, layout: Layout, committer: Committer) -> TableState | None:
        """Return the state of a table that a copy must add to; None if it may begin the table anew."""
        with self._turns.of(table.id):
            state = self._log(table.id, committer).refresh()
        if state is None or not state.mode.keeps_past or not state.members:
            return None
        if validate.differing_columns(state, table, layout):
            raise shared.refuse_loss(table, f"the Delta table at {committer.location}", state.mode)
        return state

    def write_events(self, events: EventBatch) -> None:
        """Apply each table's changes in one commit of its own."""
        for table, changes in events.tables().items():
            self._apply(table, changes, events.end_lsn)

    def _apply(self, table: TableId, changes: TableChanges, end: Lsn) -> None:
        schema = changes.schema
        committer = self._committer(table, self._place(schema))
        what = f"Applying changes of {schema.name} to the Delta table at {committer.location}"
        with translated(what), self._turns.of(table):
            log = self._log(table, committer)
            state = log.refresh()
            since = None if state is None else state.transactions.get(committer.app_id)
            hit("delta.position_read")
            if state is None or since is None:
                raise _never_copied(schema, committer.location)
            if since >= end:
                return
            layout = self._layout(schema)
            validate.check_state(state, schema, layout, committer.location)
            application = PastApplication if layout.mode.keeps_past else Application
            application(LakeTable(log, committer, self._search, layout), changes, Lsn(since), end).run(state)
            self._rest.note_change(table, self._clock().timestamp())
            self._register(table)

    def table_name(self, table: TableId) -> str | None:
        """Return the table's name for Spark's SQL, or None if it has none."""
        place = self._tables.get_table_mapping(table)
        if self._registry is None or place is None:
            return None
        with translated(f"Giving the Delta table at {self._path}/{place} its name in the catalog"):
            return self._registry.register(table, place)

    def _register(self, table: TableId) -> None:
        """Give a table its name, behind its commit: one that was cut off in between is named by the next."""
        hit("delta.registering")
        self.table_name(table)

    @property
    def upkeep_every_s(self) -> float | None:
        """How long to wait between two upkeeps of a table."""
        return self._upkeep.every_s

    @property
    def brief_upkeep_after(self) -> int:
        """After how many batches a table gets a brief one."""
        return self._upkeep.brief_after

    def upkeep(self, table: TableSchema, is_stopping: Callable[[], bool], *, is_brief: bool = False) -> Upkeep:
        """Rewrite small and worn files, and remove what is out of retention; in a brief one only the small ones."""
        committer = self._committer(table.id, self._place(table))
        with translated(f"Upkeep of the Delta table at {committer.location}"):
            lake_table = LakeTable(self._log(table.id, committer), committer, self._search, self._layout(table))
            policy, rest, turn, clock = self._upkeep, self._rest, self._turns.of(table.id), self._clock
            return TableUpkeep(lake_table, table, policy, rest, turn, clock, is_stopping, is_brief).run()

    def _layout(self, schema: TableSchema) -> Layout:
        return Layout(self.modes.of(schema.name, schema.id), self._cdc)

    def _log(self, table: TableId, committer: Committer) -> TableLog:
        """Return the table's log as far as it is known: it is read on from there."""
        with self._lock:
            known = self._logs.get(table)
            if known is None or known.folder.location != committer.location:
                known = self._logs[table] = TableLog(committer.folder)
            return known

    def _committer(self, table: TableId, folder: str) -> Committer:
        return Committer(TableFolder(f"{self._path}/{folder}", self._files), self._pipeline, table)

    def _place(self, schema: TableSchema) -> str:
        """Return the table's folder, choosing it when the table is first met; it stays when the table is renamed."""
        with self._lock:
            known = self._tables.get_table_mapping(schema.id)
            if known is not None:
                return known
            folder = folder_name(schema.name)
            if folder in self._tables.get_table_mappings().values():
                # Another table had this name first and was renamed since; `~` is in no plain name.
                folder = f"{folder}~{int(schema.id)}"
            self._tables.store_table_mapping(schema.id, folder)
            return folder


def _position(committer: Committer, table: DeltaTable | None) -> Lsn | None:
    version = table.transaction_version(committer.app_id) if table is not None else None
    return None if version is None else Lsn(version)


def _never_copied(schema: TableSchema, location: str) -> DestinationError:
    return DestinationError(
        f"There is no copy of {schema.name} at {location} to apply changes to.",
        kind=ErrorKind.DESTINATION_UNSUPPORTED,
        remedy="Resync the table; its Delta table was moved, removed or replaced.",
    )
