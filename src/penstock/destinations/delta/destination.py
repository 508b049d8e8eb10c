"""Replicates into Delta tables, one folder each, committing every table's position with its data.

Copies, appends and emptied tables are committed from Python in milliseconds; only what must look at
the target's rows is a Spark MERGE. Both name the position as the table's transaction version, so
that each refuses, or is spared, what the other has already written.
"""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow import fs

from penstock.contract import columns as log
from penstock.contract.batch import CopiedFile, EventBatch, RowBatch, TableChanges
from penstock.destinations.delta import merge, validate
from penstock.destinations.delta.commit import Committer
from penstock.destinations.delta.fault import translated
from penstock.destinations.delta.schema import (
    CHANGE_TYPE,
    LSN,
    TIMESTAMP,
    arrow_schema,
    delta_schema,
    folder_name,
)
from penstock.errors import DestinationError, ErrorKind
from penstock.failpoint import hit
from penstock.model.lsn import Lsn, Position
from penstock.model.table import PipelineId, TableId, TableSchema
from penstock.spark.fold import Folded, fold, placed_rows
from penstock.spark.parquet import describe_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TableMapping(Protocol):
    """The part of a `StateStore` that remembers where tables are."""

    def get_table_mapping(self, table: TableId) -> str | None:
        """Return the table's folder below the lake, or None."""
        ...

    def get_table_mappings(self) -> Mapping[TableId, str]:
        """Return all folders."""
        ...

    def store_table_mapping(self, table: TableId, destination_table: str) -> None:
        """Keep a table's folder."""
        ...


class DeltaDestination:
    """A lake of Delta tables at `<path>/<schema>/<table>`; `Positioned`, so exactly once.

    Spark is asked for when the first MERGE needs it. `cdc_columns` adds `_CHANGE_TYPE` (INSERT or
    UPDATE), `_LSN` and `_TIMESTAMP` of the change that last wrote a row.
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
        clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._filesystem, self._folder = _filesystem(path)
        self._path = self._folder
        self._pipeline = pipeline
        self._spark = spark
        self._tables = tables
        self._cdc = cdc_columns
        self._clock = clock
        self._lock = threading.Lock()
        self._copying: set[TableId] = set()
        self._sessions: dict[TableId, tuple[SparkSession, SparkSession]] = {}

    def startup(self) -> None:
        """Check that the lake's folder can be written."""
        validate.check_lake(self._path, self._filesystem, self._folder)

    def shutdown(self) -> None:
        """Forget the sessions; Spark itself belongs to whoever opened it."""
        with self._lock:
            self._sessions.clear()

    def watermark(self, table: TableId) -> Lsn | None:
        """Return the position in the table's own log."""
        folder = self._tables.get_table_mapping(table)
        if folder is None:
            return None
        committer = self._committer(table, folder)
        with translated(f"Reading the position of the Delta table at {committer.location}"):
            return _position(committer, committer.open())

    def truncate_table(self, table: TableId) -> None:
        """Remove every row, in one commit that also takes the position back to 0."""
        with self._lock:
            self._copying.discard(table)
        folder = self._tables.get_table_mapping(table)
        if folder is None:
            return
        committer = self._committer(table, folder)
        with translated(f"Emptying the Delta table at {committer.location}"):
            present = committer.open()
            if present is not None:
                committer.empty(present, Lsn(0))

    def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:
        """Let Spark's tasks write the files into the table's folder, then commit them at once."""
        validate.check_columns(table, cdc_columns=self._cdc)
        committer = self._committer(table.id, self._place(table))
        with translated(f"Copying {table.name} to the Delta table at {committer.location}"):
            present = committer.open()
            if present is not None:
                validate.check_owner(present, committer.description, committer.location)
            self._filesystem.create_dir(f"{self._folder}/{self._place(table)}", recursive=True)
            files = rows.write_files(committer.location, self._copied_values(rows.watermark))
            self._commit_copy(table, committer, present, files, rows.watermark)

    def _commit_copy(
        self,
        table: TableSchema,
        committer: Committer,
        present: DeltaTable | None,
        files: Sequence[CopiedFile],
        watermark: Lsn,
    ) -> None:
        """Commit a copy's files: the first ones after `truncate_table` replace the table, its columns too."""
        with self._lock:
            is_first = table.id not in self._copying
        if is_first or present is None:
            committer.replace(delta_schema(table, cdc_columns=self._cdc), files, watermark)
        else:
            committer.append(present, files, watermark)
        with self._lock:
            self._copying.add(table.id)

    def write_events(self, events: EventBatch) -> None:
        """Apply each table's changes in one commit of its own."""
        for table, changes in events.tables().items():
            self._apply(table, changes, events.end_lsn)

    def _apply(self, table: TableId, changes: TableChanges, end: Lsn) -> None:
        schema = changes.schema
        committer = self._committer(table, self._place(schema))
        with translated(f"Applying changes of {schema.name} to the Delta table at {committer.location}"):
            present = committer.open()
            since = _position(committer, present)
            if present is None or since is None:
                raise _never_copied(schema, committer.location)
            if since >= end:
                return
            validate.check_same_columns(present, schema, cdc_columns=self._cdc)
            _Application(self, committer, present, changes, since, end).run()

    def session(self, table: TableId) -> SparkSession:
        """Return the table's own session: Delta's transaction settings are a session's, tables apply in parallel."""
        base = self._spark()
        with self._lock:
            known = self._sessions.get(table)
            if known is None or known[0] is not base:
                known = self._sessions[table] = (base, base.newSession())
        return known[1]

    def read(self, location: str) -> DataFrame:
        """Return a table's present rows, in the session that changes come in."""
        return self._spark().read.format("delta").load(location)

    def write_file(
        self, committer: Committer, batches: Iterator[pa.RecordBatch], schema: pa.Schema
    ) -> list[CopiedFile]:
        """Write batches as one Parquet file in the table's folder; none if there are no rows."""
        name = f"part-{uuid.uuid4()}.parquet"
        folder = f"{self._folder}/{committer.location.removeprefix(self._path).lstrip('/')}"
        written: list[pq.FileMetaData] = []
        with (
            self._filesystem.open_output_stream(f"{folder}/{name}") as stream,
            pq.ParquetWriter(stream, schema, metadata_collector=written) as out,
        ):
            for batch in batches:
                out.write_batch(batch)
        size = self._filesystem.get_file_info(f"{folder}/{name}").size
        file = describe_file(f"{committer.location}/{name}", size, written[0])
        return [file] if file.rows else []

    @property
    def cdc_columns(self) -> bool:
        """Whether tables have our columns."""
        return self._cdc

    def _copied_values(self, watermark: Lsn) -> dict[str, pa.Scalar[Any]]:
        if not self._cdc:
            return {}
        return {
            CHANGE_TYPE: pa.scalar("INSERT", pa.string()),
            LSN: pa.scalar(int(watermark), pa.int64()),
            TIMESTAMP: pa.scalar(self._clock(), pa.timestamp("us", "UTC")),
        }

    def _committer(self, table: TableId, folder: str) -> Committer:
        return Committer(f"{self._path.rstrip('/')}/{folder}", self._pipeline, table)

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


class _Application:
    """One table's changes on their way into one commit."""

    def __init__(
        self,
        lake: DeltaDestination,
        committer: Committer,
        present: DeltaTable,
        changes: TableChanges,
        since: Lsn,
        end: Lsn,
    ) -> None:
        self.lake = lake
        self.committer = committer
        self.present = present
        self.changes = changes
        self.schema = changes.schema
        self.since = since
        self.end = end
        truncates = [event.position for event in changes.truncates if event.position.commit_lsn >= since]
        self.truncated: Position | None = max(truncates, default=None)

    def run(self) -> None:
        """Choose the cheapest way that is right."""
        changes = self.changes
        if not changes.inserts and not changes.updates and not changes.deletes:
            self._move_position()
        elif not self.schema.key:
            self._insert_only()
        elif self.truncated is not None:
            rows = merge.table_rows(self._folded(None), self.schema, cdc_columns=self.lake.cdc_columns)
            self._overwrite(rows)
        elif not changes.updates and not changes.deletes:
            self._append()
        else:
            self._merge()

    def _move_position(self) -> None:
        if self.truncated is not None:
            self.committer.empty(self.present, self.end)
        else:
            self.committer.append(self.present, [], self.end)

    def _insert_only(self) -> None:
        """Apply a table without a key: every change must be a new row."""
        if self.truncated is None:
            self._append()
            return
        rows = placed_rows(self.changes.frame, self.schema, self.since, self.truncated)
        if not rows.filter("op <> 'I'").isEmpty():
            raise validate.refuse_keyless(self.schema)
        self._overwrite(merge.table_rows(Folded.of_inserts(rows), self.schema, cdc_columns=self.lake.cdc_columns))

    def _append(self) -> None:
        """Add new rows without looking at the target: none of them can be there.

        Committed on the very version that the position was read from: if a dead driver's JVM commits the
        same rows late, this commit is refused. A Spark append would read the table's version anew.
        """
        target = arrow_schema(self.schema, cdc_columns=self.lake.cdc_columns)
        batches = (self._lake_batch(batch, target) for batch in self.changes.arrow())
        files = self.lake.write_file(self.committer, batches, target)
        self.committer.append(self.present, files, self.end)

    def _lake_batch(self, batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
        fresh = batch.filter(pc.greater_equal(batch.column(log.COMMIT_LSN), pa.scalar(int(self.since), pa.int64())))
        if pc.any(pc.not_equal(fresh.column(log.OP), pa.scalar("I"))).as_py():
            raise validate.refuse_keyless(self.schema)
        columns = [fresh.column(log.stored_name(column.name)) for column in self.schema.columns]
        if self.lake.cdc_columns:
            columns.append(pa.repeat(pa.scalar("INSERT"), fresh.num_rows))
            columns += [fresh.column(log.COMMIT_LSN), fresh.column(log.COMMIT_TS)]
        arrays = [column.cast(field.type) for column, field in zip(columns, target, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    def _overwrite(self, rows: DataFrame) -> None:
        """Put rows in place of all there are, through Spark; the options make a repeated version a no-op."""
        hit("delta.commit")
        writer = rows.write.format("delta").mode("overwrite")
        writer = writer.option("txnAppId", self.committer.app_id).option("txnVersion", str(int(self.end)))
        writer.option("userMetadata", self.committer.metadata(self.end)).save(self.committer.location)
        hit("delta.committed")

    def _folded(self, target: Callable[[], DataFrame] | None) -> Folded:
        return fold(self.changes, since=self.since, after=self.truncated, target=target)

    def _merge(self) -> None:
        """MERGE the folded changes; they are computed once and kept, because MERGE reads its source twice."""
        session = self.lake.session(self.committer.table)
        folded = self._folded(lambda: self.lake.read(self.committer.location))
        frame = folded.frame.persist()
        try:
            rows, bounds = merge.key_bounds(frame, self.schema)
            if rows:
                self._run_merge(session, Folded(frame, folded.keeps), bounds)
            else:
                self.committer.append(self.present, [], self.end)
        finally:
            frame.unpersist()

    def _run_merge(self, session: SparkSession, folded: Folded, bounds: list[str]) -> None:
        # The frame belongs to the session that made it; a global view is how another one can see it.
        view = f"penstock_{uuid.uuid4().hex}"
        folded.frame.createGlobalTempView(view)
        try:
            statement = merge.merge_statement(
                self.committer.location,
                f"global_temp.{view}",
                folded,
                self.schema,
                bounds,
                cdc_columns=self.lake.cdc_columns,
            )
            self._set_transaction(session)
            hit("delta.commit")
            session.sql(statement)
            hit("delta.committed")
        finally:
            session.catalog.dropGlobalTempView(view)

    def _set_transaction(self, session: SparkSession) -> None:
        session.conf.set("spark.databricks.delta.write.txnAppId", self.committer.app_id)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(int(self.end)))
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", self.committer.metadata(self.end))
        # A `${…}` in a column's name is part of the name.
        session.conf.set("spark.sql.variable.substitute", "false")


def _position(committer: Committer, table: DeltaTable | None) -> Lsn | None:
    version = table.transaction_version(committer.app_id) if table is not None else None
    return None if version is None else Lsn(version)


def _never_copied(schema: TableSchema, location: str) -> DestinationError:
    return DestinationError(
        f"There is no copy of {schema.name} at {location} to apply changes to.",
        kind=ErrorKind.DESTINATION_UNSUPPORTED,
        remedy="Resync the table; its Delta table was moved, removed or replaced.",
    )


def _filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """Return where a lake is, in full. Tasks write files with local calls, so a URL is refused, not half served."""
    if "://" in path:
        raise DestinationError(
            f"the lake at {path} is not a folder: lakes on object stores are not supported yet",
            kind=ErrorKind.DESTINATION_UNSUPPORTED,
            remedy="Set destination.delta.path to a folder, local or mounted.",
        )
    return fs.LocalFileSystem(), str(Path(path).expanduser().absolute())
