"""Changes read back from the log: one range of it, as events, as Arrow, or as a Spark frame."""

from __future__ import annotations

import datetime as dt
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock import failpoint
from penstock.changelog.entry import DataFile
from penstock.changelog.reader import LogReader
from penstock.changelog.rows import check_footer, log_schema, read_parquet, read_rows, rows_of
from penstock.contract import columns as log
from penstock.errors import ErrorKind, SourceError
from penstock.model.cell import UNCHANGED, Cell, OldRow, OldRowKind, TableRow, UpdatedRow
from penstock.model.event import Begin, Commit, Delete, Event, Insert, Relation, Truncate, Update
from penstock.model.lsn import Lsn, Position
from penstock.model.policy import ValuePolicies
from penstock.model.table import Column, TableId, TableSchema
from penstock.wire.text import cell_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class LogView:
    """How changes are read: from which log, under which policies, with which Spark."""

    reader: LogReader
    policies: ValuePolicies
    spark: Callable[[], SparkSession]

    def read(self, file: DataFile, schema: TableSchema) -> pa.Table:
        """Read one table's changes from a data file."""
        read = self.reader.read_shared if file.is_shared else partial(read_parquet, self.reader.folder)
        rows = rows_of(read(file.path, file.footer_crc), file, schema, self.policies)
        failpoint.hit("changes.read")
        return rows

    def columns_changed(self, known: TableSchema, start: Lsn, end: Lsn) -> Lsn | None:
        """Return the first transaction behind `start` with other columns than these, if there is one before `end`."""
        files = self.reader.files(known.id, start, end)
        same = {version: has_same_columns(known, self.reader.schema(known.id, version)) for version in _versions(files)}
        changed = next((file.first_lsn for file in files if not same[file.version]), start)
        return changed if changed > start else None


@dataclass(frozen=True)
class LogChanges:
    """One table's changes with `start <= commit_lsn < end`."""

    view: LogView
    schema: TableSchema
    start: Lsn
    end: Lsn
    begins: Position | None = None
    """Where in the first transaction the table begins, if that is not its beginning."""

    @cached_property
    def files(self) -> Sequence[DataFile]:
        """The data files that hold the changes, in order. Refuses a table whose columns have changed."""
        files = self.view.reader.files(self.schema.id, self.start, self.end)
        for version in _versions(files):
            require_same_columns(self.schema, self.view.reader.schema(self.schema.id, version))
        return files

    @cached_property
    def truncates(self) -> Sequence[Truncate]:
        """Where the table was truncated, in order."""
        found = self.view.reader.truncates(self.schema.id, self.start, self.end)
        return [each for each in found if self.begins is None or each.position >= self.begins]

    @property
    def truncate_times(self) -> Mapping[Lsn, dt.datetime]:
        """When the transactions committed that truncated the table: only then are any looked up."""
        wanted = {each.position.commit_lsn for each in self.truncates}
        found: dict[Lsn, dt.datetime] = {}
        for path in self.view.reader.transaction_files(min(wanted), Lsn(max(wanted) + 1)) if wanted else ():
            table = read_parquet(self.view.reader.folder, path).select(["commit_lsn", "commit_ts"])
            found.update({Lsn(row["commit_lsn"]): _utc(row["commit_ts"]) for row in table.to_pylist()})
        return {lsn: found[lsn] for lsn in wanted}

    @property
    def is_settling(self) -> bool:
        """Whether these are no changes of the source; those of the log always are."""
        return False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to apply."""
        return not self.files and not self.truncates

    @property
    def inserts(self) -> int:
        """How many rows were inserted, at most."""
        return sum(file.inserts for file in self.files)

    @property
    def updates(self) -> int:
        """How many rows were updated, at most."""
        return sum(file.updates for file in self.files)

    @property
    def deletes(self) -> int:
        """How many rows were deleted, at most."""
        return sum(file.deletes for file in self.files)

    @property
    def events(self) -> int:
        """How many changes there are, at most."""
        return sum(file.rows for file in self.files) + len(self.truncates)

    @property
    def has_unchanged(self) -> bool:
        """Whether any update may leave a TOASTed value unchanged."""
        return any(file.has_unchanged for file in self.files)

    @property
    def has_key_changes(self) -> bool:
        """Whether any update may change a key."""
        return any(file.has_key_changes for file in self.files)

    def arrow(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes in order."""
        for file in self.files:
            table = self._read(file)
            position = table.column(log.COMMIT_LSN)
            wanted = pc.and_(
                pc.greater_equal(position, pa.scalar(int(self.start), pa.int64())),
                pc.less(position, pa.scalar(int(self.end), pa.int64())),
            )
            if self.begins is not None:
                is_later = pc.greater(position, pa.scalar(int(self.start), pa.int64()))
                is_behind = pc.greater_equal(table.column(log.ORDINAL), pa.scalar(self.begins.ordinal, pa.int64()))
                wanted = pc.and_(wanted, pc.or_(is_later, is_behind))
            yield from table.filter(wanted).to_batches()

    @property
    def frame(self) -> DataFrame:
        """The changes as a lazy DataFrame, in no particular order."""
        from pyspark.sql.pandas.types import from_arrow_schema

        spark = self.view.spark()
        if not self.view.reader.folder.is_local:
            return self._between(self._read_by_tasks(spark))
        typed = [self._checked_path(file) for file in self.files if not _is_text(file)]
        frame = spark.read.schema(from_arrow_schema(self._arrow_schema)).parquet(*typed) if typed else None
        if len(typed) < len(self.files):
            texts = spark.createDataFrame(pa.concat_tables(self._read(file) for file in self.files if _is_text(file)))
            frame = texts if frame is None else frame.unionByName(texts)
        assert frame is not None
        return self._between(frame)

    def _between(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        position, ordinal = f.col(log.COMMIT_LSN), self.begins.ordinal if self.begins else 0
        is_behind = (position > int(self.start)) | ((position == int(self.start)) & (f.col(log.ORDINAL) >= ordinal))
        return frame.where(is_behind & (position < int(self.end)))

    def _read_by_tasks(self, spark: SparkSession) -> DataFrame:
        """Let tasks read the files as we do: Spark itself does not reach the bucket."""
        from pyspark.sql.pandas.types import from_arrow_schema

        folder, files, schema = self.view.reader.folder, self.files, self.schema
        policies, wanted = self.view.policies, self._arrow_schema

        def read(numbers: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    rows = read_rows(folder, files[number or 0], schema, policies)
                    yield from _with_schema(rows, wanted).to_batches()

        numbers = spark.range(0, len(files), 1, len(files))
        return numbers.mapInArrow(read, from_arrow_schema(wanted))

    def _checked_path(self, file: DataFile) -> str:
        """Return the path for Spark, which checks pages and no footers."""
        check_footer(self.view.reader.folder, file)
        return self.view.reader.folder.path(file.path)

    @property
    def _arrow_schema(self) -> pa.Schema:
        return log_schema(self.schema)

    def _read(self, file: DataFile) -> pa.Table:
        return _with_schema(self.view.read(file, self.schema), self._arrow_schema)


def _versions(files: Sequence[DataFile]) -> list[int]:
    return sorted({file.version for file in files})


def _is_text(file: DataFile) -> bool:
    """Whether the file's values are still text, which the driver converts: there are few of them."""
    return file.is_shared or file.problem is not None


def _with_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Bring a file's columns into the order of the schema; one that it does not have is NULL."""
    arrays = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table([_cast(array, field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema)


def _cast(array: Any, type_: pa.DataType) -> Any:
    return array if array.type == type_ else array.cast(type_)


def has_same_columns(known: TableSchema, logged: TableSchema) -> bool:
    """Whether changes have the columns that the table was copied with."""
    return _shape(known) == _shape(logged)


def require_same_columns(known: TableSchema, logged: TableSchema) -> None:
    """Refuse changes whose columns differ from those that the table was copied with."""
    if has_same_columns(known, logged):
        return
    missing = sorted(set(known.column_names) - set(logged.column_names))
    added = sorted(set(logged.column_names) - set(known.column_names))
    details = [f"{what} {', '.join(names)}" for what, names in (("lost", missing), ("gained", added)) if names]
    raise SourceError(
        f"table {known.name}: its columns changed at the source: {'; '.join(details) or 'a type or the key differs'}",
        kind=ErrorKind.SCHEMA_CHANGED,
    )


def _shape(schema: TableSchema) -> tuple[object, ...]:
    columns = tuple((column.name, column.type.kind, column.type.name) for column in schema.columns)
    return columns, frozenset(column.name for column in schema.key)


@dataclass(frozen=True)
class LogEvents:
    """Whole transactions of some tables, each table from its own watermark on."""

    view: LogView
    starts: Mapping[TableId, Lsn]
    schemas: Mapping[TableId, TableSchema]
    end_lsn: Lsn
    begins: Position | None = None
    """Where in its first transaction a lone table begins, if that is not its beginning."""

    def tables(self) -> Mapping[TableId, LogChanges]:
        """Return the tables that changed."""
        changes = {
            table: LogChanges(self.view, self.schemas[table], start, self.end_lsn, self.begins)
            for table, start in self.starts.items()
        }
        return {table: each for table, each in changes.items() if not each.is_empty}

    def __iter__(self) -> Iterator[Event]:
        """Yield the events in commit order, each transaction between its Begin and Commit."""
        transactions = self._transactions()
        current: Lsn | None = None
        last = 0
        for position, event in self._changes():
            if position.commit_lsn != current:
                if current is not None:
                    yield _commit(current, last, transactions)
                current = position.commit_lsn
                yield _begin(current, transactions)
            last = position.ordinal
            yield event
        if current is not None:
            yield _commit(current, last, transactions)

    def _changes(self) -> Iterator[tuple[Position, Event]]:
        streams = [_positioned(changes) for changes in self.tables().values()]
        truncates = {each.position: each for changes in self.tables().values() for each in changes.truncates}
        own = [(position, truncates[position]) for position in sorted(truncates)]
        return heapq.merge(own, *streams, key=lambda pair: pair[0])

    def _transactions(self) -> dict[int, dict[str, Any]]:
        start = min(self.starts.values())
        found: dict[int, dict[str, Any]] = {}
        for path in self.view.reader.transaction_files(start, self.end_lsn):
            rows = read_parquet(self.view.reader.folder, path).to_pylist()
            found.update({row["commit_lsn"]: row for row in rows})
        return found


def _begin(commit_lsn: Lsn, transactions: Mapping[int, dict[str, Any]]) -> Begin:
    found = transactions[int(commit_lsn)]
    return Begin(Position(commit_lsn, 0), _utc(found["commit_ts"]), found["xid"])


def _commit(commit_lsn: Lsn, last: int, transactions: Mapping[int, dict[str, Any]]) -> Commit:
    found = transactions[int(commit_lsn)]
    return Commit(Position(commit_lsn, last + 1), Lsn(found["end_lsn"]), _utc(found["commit_ts"]))


def _utc(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone(dt.UTC)


def _positioned(changes: LogChanges) -> Iterator[tuple[Position, Event]]:
    is_first = True
    for batch in changes.arrow():
        for row in _rows(changes.schema, batch):
            if is_first:
                yield row.position, Relation(row.position, changes.schema)
                is_first = False
            yield row.position, _event(changes.schema, row)


class _Row(NamedTuple):
    position: Position
    op: str
    values: tuple[Cell, ...]
    old_key: tuple[Cell, ...] | None
    before: tuple[Cell, ...] | None
    unchanged: list[str] | None


def _rows(schema: TableSchema, batch: pa.RecordBatch) -> Iterator[_Row]:
    """Turn columns into rows of Python objects."""
    commits: list[Any] = batch.column(log.COMMIT_LSN).to_pylist()
    positions = zip(commits, batch.column(log.ORDINAL).to_pylist(), strict=True)
    return map(
        _Row,
        (Position(Lsn(commit_lsn), ordinal or 0) for commit_lsn, ordinal in positions),
        batch.column(log.OP).to_pylist(),
        _cells(schema.columns, batch.num_rows, batch.column),
        _struct_cells(schema.key, log.KEY, batch),
        _struct_cells(schema.columns, log.BEFORE, batch),
        batch.column(log.UNCHANGED).to_pylist(),
    )


def _cells(columns: Sequence[Column], rows: int, array_of: Callable[[str], Any]) -> Iterator[tuple[Cell, ...]]:
    if not columns:
        return iter([()] * rows)
    return zip(*(cell_values(array_of(log.stored_name(column.name)), column.type) for column in columns), strict=True)


def _struct_cells(columns: Sequence[Column], name: str, batch: pa.RecordBatch) -> Iterator[tuple[Cell, ...] | None]:
    if name not in batch.schema.names:
        return iter([None] * batch.num_rows)
    struct: Any = batch.column(name)
    present = struct.is_valid().to_pylist()
    cells = _cells(columns, batch.num_rows, struct.field)
    return (values if is_present else None for is_present, values in zip(present, cells, strict=True))


def _event(schema: TableSchema, row: _Row) -> Event:
    match row.op:
        case "I":
            return Insert(row.position, schema.id, TableRow(row.values))
        case "U":
            unchanged = set(row.unchanged or ())
            cells = tuple(
                UNCHANGED if column.name in unchanged else value
                for column, value in zip(schema.columns, row.values, strict=True)
            )
            return Update(row.position, schema.id, UpdatedRow(cells), _old_row(row))
        case _:
            key = tuple(row.values[schema.column_names.index(column.name)] for column in schema.key)
            return Delete(row.position, schema.id, _old_row(row) or OldRow(OldRowKind.KEY, key))


def _old_row(row: _Row) -> OldRow | None:
    if row.before is not None:
        return OldRow(OldRowKind.FULL, row.before)
    return OldRow(OldRowKind.KEY, row.old_key) if row.old_key is not None else None
