"""Iceberg's library, called in Spark's JVM: the only code that knows its classes.

A commit is prepared as a transaction on the version of the table that was read, and made only if that
is still the table's version. The library's own commits take whatever version they find, which is right
for a lone append and wrong for us: what we write follows from what we read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from penstock.contract.batch import CopiedFile
from penstock.contract.files import Files
from penstock.destinations.iceberg.catalog import CatalogSettings
from penstock.destinations.iceberg.versions import needed_since, superfluous_versions
from penstock.errors import DestinationError, ErrorKind
from penstock.failpoint import hit
from penstock.model.lsn import Lsn
from penstock.model.table import PipelineId, TableId
from penstock.spark.local_files import ease_local_files
from penstock.storage.place import files_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER = "penstock.pipeline"
"""The table property that says whose a table is."""
_NAME_MAPPING = "schema.name-mapping.default"
_DESCRIBING_THREADS = 4
_SEPARATOR = "\n\0"  # in no path
_MISSING = ("NoSuchTableException", "NoSuchNamespaceException")


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a table has come: stored with every commit of ours."""

    lsn: Lsn
    parts: int
    """Of the last copy."""
    since: Lsn | None = None
    """In a table that keeps the past, the position at which a copy began that no change has followed yet, or 0."""

    def items(self) -> Mapping[str, str]:
        """Return what is stored."""
        since = {} if self.since is None else {"since": str(self.since)}
        return {"lsn": str(self.lsn), "parts": str(self.parts), **since}


@dataclass(frozen=True, slots=True)
class MarkKeys:
    """What a pipeline's marks of a table are stored under."""

    pipeline: PipelineId
    table: TableId

    def __getitem__(self, item: str) -> str:
        return f"penstock.{self.pipeline}.{int(self.table)}.{item}"


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file that a version of a table has."""

    path: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files that take the place of others, with the same rows."""

    replaced: Sequence[KnownFile]
    rows: Sequence[CopiedFile]
    merged: Sequence[KnownFile]
    """Files of deletes that go."""
    deletes: Sequence[CopiedFile]


class Library:
    """The classes of Iceberg that we call, looked up once, and one catalog; used by all threads of a destination."""

    def __init__(self, spark: SparkSession, settings: CatalogSettings) -> None:
        self.spark = spark
        self.settings = settings
        jvm = spark._jvm  # noqa: SLF001  (Iceberg has no other door for Python on the driver)
        assert jvm is not None
        ease_local_files(spark)
        iceberg = jvm.org.apache.iceberg
        self.hash_map = jvm.java.util.HashMap
        self.identifier = iceberg.catalog.TableIdentifier
        self.schema_parser = iceberg.SchemaParser
        self.metadata_parser = iceberg.TableMetadataParser
        self.metadata_only = iceberg.ExpireSnapshots.CleanupLevel.METADATA_ONLY
        self.files_table = iceberg.MetadataTableType.FILES
        self.table_util = iceberg.spark.SparkTableUtil
        self.manifest_files = iceberg.ManifestFiles
        self.joiner = iceberg.relocated.com.google.common.base.Joiner.on(_SEPARATOR)
        self.spark_actions = iceberg.spark.actions.SparkActions
        self.mapping_util = iceberg.mapping.MappingUtil
        self.mapping_parser = iceberg.mapping.NameMappingParser
        self.metrics_config = iceberg.MetricsConfig
        self.delete_metrics = iceberg.MetricsConfig.forPositionDelete()
        self.parquet_util = iceberg.parquet.ParquetUtil
        self.data_files = iceberg.DataFiles
        self.delete_files = iceberg.FileMetadata
        self.every_row = iceberg.expressions.Expressions.alwaysTrue()
        self._is_local = settings.is_local
        self._same_thread = iceberg.relocated.com.google.common.util.concurrent.MoreExecutors.newDirectExecutorService()
        conf = self._conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        parquet = iceberg.shaded.org.apache.parquet
        self._path = jvm.org.apache.hadoop.fs.Path
        self._input_file = parquet.hadoop.util.HadoopInputFile
        self._parquet_file = parquet.hadoop.ParquetFileReader
        self._no_more_metrics = jvm.java.util.stream.Stream.empty
        # Made once: without any, a reader makes its own, and reads Hadoop's configuration files for it.
        self._read_options = parquet.HadoopReadOptions.builder(conf).build()
        options = self.to_map(settings.properties)
        self._catalog = iceberg.CatalogUtil.buildIcebergCatalog(settings.name, options, conf)

    def to_map(self, items: Mapping[str, str]) -> Any:
        """Return a Java map."""
        found = self.hash_map()
        for key, value in items.items():
            found.put(key, value)
        return found

    def unthreaded(self, operation: Any) -> Any:
        """Let an operation do its own work where files are near, and few.

        What Iceberg gives to a pool of threads it waits for in steps of ten milliseconds, several times a commit.
        """
        return operation.scanManifestsWith(self._same_thread) if self._is_local else operation

    def metrics(self, path: str, io: Any, config: Any, mapping: Any = None) -> Any:
        """Return what a Parquet file's footer says of its columns, by their ids or by their names."""
        if not self._is_local:
            return self.parquet_util.fileMetrics(io.newInputFile(path), config, mapping)
        found = self._input_file.fromPath(self._path(path), self._conf)
        reader = self._parquet_file.open(found, self._read_options)
        try:
            return self.parquet_util.footerMetrics(reader.getFooter(), self._no_more_metrics(), config, mapping)
        finally:
            reader.close()

    def open(self, place: str) -> Version | None:
        """Read the table's present version, or None if there is no such table."""
        try:
            table = self._catalog.loadTable(self.identifier.parse(place))
        except Py4JJavaError as error:
            if java_class(error).endswith(_MISSING):
                return None
            raise
        return Version(self, table, table.newTransaction())

    def replace(
        self, place: str, present: Version | None, schema: Mapping[str, Any], properties: Mapping[str, str]
    ) -> Version:
        """Prepare a table with these columns and no rows, in the place of the present one if there is one."""
        columns = self.schema_parser.fromJson(json.dumps(schema))
        identifier = self.identifier.parse(place)
        builder = self._catalog.buildTable(identifier, columns).withProperties(self.to_map(properties))
        if present is not None:
            return Version(self, present.table, builder.replaceTransaction(), is_replaced=True, ground=present.ground)
        self._make_namespace(identifier.namespace())
        transaction = builder.createTransaction()
        return Version(self, transaction.table(), transaction, is_replaced=True)

    def _make_namespace(self, namespace: Any) -> None:
        if self._catalog.namespaceExists(namespace):
            return
        try:
            self._catalog.createNamespace(namespace)
        except Py4JJavaError:
            # Another table's copy was quicker; catalogs differ in how they say so, a database by a constraint.
            if not self._catalog.namespaceExists(namespace):
                raise

    def check(self) -> None:
        """Ask the catalog for something, so that one that cannot be reached is noticed."""
        self._catalog.listNamespaces()


class Ground(NamedTuple):
    """What a commit is made on."""

    operations: Any
    base: Any
    """A version's metadata; None before the first."""


class Version:
    """One version of a table, and the commit that is to follow it."""

    def __init__(
        self,
        library: Library,
        table: Any,
        transaction: Any,
        *,
        is_replaced: bool = False,
        ground: Ground | None = None,
    ) -> None:
        self.table = table
        self._library = library
        self._transaction = transaction
        self.is_replaced = is_replaced
        self._base = transaction.startMetadata()
        self.ground = ground or Ground(transaction.underlyingOps(), self._base)

    @cached_property
    def location(self) -> str:
        """Where the table's files are."""
        return str(self._transaction.table().location())

    @cached_property
    def filesystem(self) -> Files:
        """How they are reached."""
        return files_at(self.location, self._library.settings.s3)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The columns, with their ids, as the commit will have them."""
        found: dict[str, Any] = json.loads(self._library.schema_parser.toJson(self._transaction.table().schema()))
        return found

    @property
    def column_names(self) -> list[str]:
        """The columns' names, in order."""
        return [field["name"] for field in self.schema["fields"]]

    @property
    def exists(self) -> bool:
        """Whether there is a table already."""
        return self._base is not None

    @cached_property
    def owner(self) -> str | None:
        """The pipeline that made the table, or None if no pipeline did."""
        found: str | None = self._base.property(OWNER, None)
        return found

    @property
    def format_version(self) -> int:
        """Which of Iceberg's formats the table has."""
        return int(self._base.formatVersion())

    @cached_property
    def snapshot_id(self) -> int | None:
        """What names the rows that the table has now; None before its first commit."""
        snapshot = self._base.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    def mark(self, keys: MarkKeys) -> Mark | None:
        """Return the last mark that the present rows descend from, or None if there is none.

        A snapshot of somebody else's, a compaction's say, has no mark; its ancestors do. Where these have
        expired the table's properties tell, unless the table was since taken back to an older snapshot.
        """
        snapshot = newest = self._base.currentSnapshot() if self.exists else None
        while snapshot is not None:
            summary = snapshot.summary()
            text = summary.get(keys["lsn"])
            if text is not None:
                return _mark(text, summary.get(keys["parts"]), summary.get(keys["since"]))
            parent = snapshot.parentId()
            snapshot = None if parent is None else self._base.snapshot(parent)
        return None if newest is None else self._property_mark(keys, int(newest.sequenceNumber()))

    def _property_mark(self, keys: MarkKeys, sequence: int) -> Mark | None:
        text = self._base.property(keys["lsn"], None)
        if text is None or int(self._base.property(keys["sequence"], "0")) > sequence:
            return None
        return _mark(text, self._base.property(keys["parts"], "0"), self._base.property(keys["since"], None))

    def files(self) -> pa.Table:
        """Return the present files, as Iceberg's metadata table `files` describes them: those with deletes too.

        By way of Spark, in one job: asking for each file across the bridge takes milliseconds a file.
        """
        from pyspark.sql import DataFrame

        library = self._library
        session = library.spark._jsparkSession  # noqa: SLF001
        loaded = library.table_util.loadMetadataTable(session, self.table, library.files_table)
        wanted = ["content", "file_path", "file_format", "record_count", "file_size_in_bytes"]
        found = DataFrame(loaded, library.spark).select(*wanted, "lower_bounds", "upper_bounds").toArrow()
        # Listed is what the table has, which could be more than this version of it.
        if int(self.table.currentSnapshot().snapshotId()) != self.snapshot_id:
            raise self._outdated()
        return found

    def commit(
        self,
        keys: MarkKeys,
        mark: Mark,
        *,
        rows: Sequence[CopiedFile] = (),
        deletes: CopiedFile | None = None,
        empties: bool = False,
    ) -> int:
        """Make the next version and return its snapshot's id: add rows, delete positions, or remove all rows first.

        Fails, with nothing changed, if somebody else committed since this version was read.
        """
        return self._sealed(self._operation(rows, deletes, empties=empties), keys, mark)

    def rewrite(self, keys: MarkKeys, mark: Mark, rewrite: Rewrite) -> int:
        """Make the next version, with the same rows in other files, and return its snapshot's id.

        Fails, with nothing changed, if somebody else committed since this version was read.
        """
        # From this very version on: deletes before it are what the new files were made from.
        operation = self._transaction.newRewrite().validateFromSnapshot(self.snapshot_id)
        for file in (*map(self._known_data_file, rewrite.replaced), *map(self._known_delete_file, rewrite.merged)):
            operation.deleteFile(file)
        for file in (*self._data_files(rewrite.rows), *map(self._delete_file, rewrite.deletes)):
            operation.addFile(file)
        return self._sealed(self._library.unthreaded(operation), keys, mark)

    @property
    def snapshots(self) -> int:
        """How many versions the table can be read at, as far as it was last looked at."""
        return int(self.table.operations().current().snapshots().size())

    def delete_files(self) -> set[str]:
        """Return the paths of the files of deletes, without a job of Spark.

        With the answer for a whole manifest as one text: a call per file across the bridge takes too long.
        """
        library, io, specs = self._library, self.table.io(), self.table.specs()
        found: set[str] = set()
        for manifest in self._base.currentSnapshot().deleteManifests(io):
            paths = library.manifest_files.readPaths(manifest, io, specs)
            try:
                found.update(library.joiner.join(paths).split(_SEPARATOR))
            finally:
                paths.close()
        return found - {""}

    def expire(self, older_than_ms: int) -> int:
        """Forget old versions and remove files that only they had; return how many they were.

        The present one is kept, the one that was so at that time, and what branches and tags name.
        """
        needed_ms = needed_since(self._metadata(), older_than_ms)
        return self._forgotten(self.table.expireSnapshots().expireOlderThan(needed_ms).retainLast(1))

    def thin_out(self, older_than_ms: int, most_young: int, least: int) -> int:
        """Forget versions by which no file lives, if they are many; return how many they were.

        Those from before a time, and before the newest `most_young`. Their manifests go with them, data files do not.
        """
        due = superfluous_versions(self._metadata(), older_than_ms, most_young)
        if len(due) < max(least, 1):
            return 0
        # Without a time of ours that of the table's properties would count, or five days.
        expiring = self.table.expireSnapshots().expireOlderThan(0).cleanupLevel(self._library.metadata_only)
        for id_ in due:
            expiring.expireSnapshotId(id_)
        return self._forgotten(expiring)

    def _metadata(self) -> dict[str, Any]:
        """Return the table's metadata as last looked at. As one text: a call for each version would take too long."""
        found: dict[str, Any] = json.loads(self._library.metadata_parser.toJson(self.table.operations().current()))
        return found

    def _forgotten(self, expiring: Any) -> int:
        before = self.snapshots
        expiring.commit()
        self.table.refresh()
        # Others may have added some meanwhile.
        return max(before - self.snapshots, 0)

    def remove_orphans(self, older_than_ms: int) -> int:
        """Remove files in the table's folders that no version has; return how many. Runs jobs of Spark."""
        actions = self._library.spark_actions.get(self._library.spark._jsparkSession)  # noqa: SLF001
        # In a bucket Iceberg's own way of listing counts: Spark's may not know the bucket.
        seeking = actions.deleteOrphanFiles(self.table).usePrefixListing(not self.filesystem.is_local)
        result = seeking.olderThan(older_than_ms).execute()
        return sum(1 for _ in result.orphanFileLocations().iterator())

    def _sealed(self, operation: Any, keys: MarkKeys, mark: Mark) -> int:
        for name, value in mark.items().items():
            operation.set(keys[name], value)
        operation.commit()
        snapshot = self._transaction.currentMetadata().currentSnapshot()
        properties = self._transaction.updateProperties()
        properties.set(OWNER, keys.pipeline)
        for name, value in mark.items().items():
            properties.set(keys[name], value)
        properties.set(keys["sequence"], str(snapshot.sequenceNumber()))
        if self.is_replaced:
            properties.set(_NAME_MAPPING, self._library.mapping_parser.toJson(self._mapping))
        properties.commit()
        hit("iceberg.commit")
        self._make(snapshot.snapshotId())
        hit("iceberg.committed")
        return int(snapshot.snapshotId())

    def _make(self, snapshot_id: int) -> None:
        """Commit on the very version that was read.

        A replacement too: by its own transaction a REST catalog would put it in the place of whatever there is.
        """
        operations, base = self.ground
        if base is not self._base and base.metadataFileLocation() != self._base.metadataFileLocation():
            raise self._outdated()
        try:
            operations.commit(base, self._transaction.currentMetadata())
        except Py4JJavaError as error:
            # A request may come twice, from the library or from somebody on the way, if its answer was lost: then the
            # second is refused because of the first, and what is in its files is in the table.
            if not (is_outrun(error) or is_taken(error)) or not _has_snapshot(operations.refresh(), snapshot_id):
                raise

    def _outdated(self) -> DestinationError:
        return DestinationError(
            f"The Iceberg table {self.table.name()} has another version by now.", kind=ErrorKind.DESTINATION_CONFLICT
        )

    def _operation(self, rows: Sequence[CopiedFile], deletes: CopiedFile | None, *, empties: bool) -> Any:
        files = self._data_files(rows)
        if empties:
            operation = self._transaction.newOverwrite().overwriteByRowFilter(self._library.every_row)
            add = operation.addFile
        elif deletes is not None:
            operation = self._transaction.newRowDelta().addDeletes(self._delete_file(deletes))
            add = operation.addRows
        else:
            operation = self._transaction.newAppend()
            add = operation.appendFile
        for file in files:
            add(file)
        return operation if empties else self._library.unthreaded(operation)

    @cached_property
    def _mapping(self) -> Any:
        """Columns by name, for files without ids."""
        return self._library.mapping_util.create(self._transaction.table().schema())

    @cached_property
    def _row_metrics(self) -> Any:
        return self._library.metrics_config.forTable(self._transaction.table())

    def _data_files(self, files: Sequence[CopiedFile]) -> list[Any]:
        """Describe files with what their footers say; a copy has many, and each takes milliseconds."""
        if len(files) <= 1:
            return [self._data_file(file) for file in files]
        with ThreadPoolExecutor(_DESCRIBING_THREADS) as threads:
            return list(threads.map(self._data_file, files))

    def _data_file(self, file: CopiedFile) -> Any:
        metrics = self._library.metrics(file.path, self._io, self._row_metrics, self._mapping)
        return self._described(self._library.data_files.builder(self._spec), file, metrics)

    def _delete_file(self, file: CopiedFile) -> Any:
        metrics = self._library.metrics(file.path, self._io, self._library.delete_metrics)
        builder = self._library.delete_files.deleteFileBuilder(self._spec).ofPositionDeletes()
        return self._described(builder, file, metrics)

    def _known_data_file(self, file: KnownFile) -> Any:
        return _named(self._library.data_files.builder(self._spec), file)

    def _known_delete_file(self, file: KnownFile) -> Any:
        return _named(self._library.delete_files.deleteFileBuilder(self._spec).ofPositionDeletes(), file)

    def _described(self, builder: Any, file: CopiedFile, metrics: Any) -> Any:
        """Fill in a description; by the path we give, since deletes name files by exactly that."""
        builder.withPath(file.path).withFormat("PARQUET").withFileSizeInBytes(file.size_bytes)
        return builder.withMetrics(metrics).build()

    @cached_property
    def _io(self) -> Any:
        return self._transaction.table().io()

    @cached_property
    def _spec(self) -> Any:
        return self._transaction.table().spec()


def _named(builder: Any, file: KnownFile) -> Any:
    """Describe a file that the table has: by its path alone it is told from others."""
    builder.withPath(file.path).withFormat("PARQUET").withFileSizeInBytes(file.size_bytes)
    return builder.withRecordCount(file.rows).build()


def _has_snapshot(metadata: Any, snapshot_id: int) -> bool:
    return metadata is not None and metadata.snapshot(snapshot_id) is not None


def _mark(lsn: str, parts: str, since: str | None) -> Mark:
    return Mark(Lsn.parse(lsn), int(parts), None if since is None else Lsn.parse(since))


def java_class(error: Py4JJavaError) -> str:
    """Return the name of the Java exception's class."""
    return str(error.java_exception.getClass().getName())


def is_refused(error: Py4JJavaError) -> bool:
    """Whether a commit does not fit the version that it was made on, so that nothing of it is there."""
    return java_class(error).endswith("ValidationException")


def is_taken(error: Py4JJavaError) -> bool:
    """Whether a table was not made because there is one of its name."""
    return java_class(error).endswith("AlreadyExistsException")


def is_outrun(error: Py4JJavaError) -> bool:
    """Whether a commit failed because of another one, so that nothing of it is there."""
    return java_class(error).endswith("CommitFailedException")
