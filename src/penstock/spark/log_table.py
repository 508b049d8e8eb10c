"""One table of a change log, and the plan of reading its changes between two positions.

A plan is made of plain values, which travel to Spark tasks. It covers whole transactions: a position
cuts between them, and nothing behind the log's last complete entry is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.changelog.entry import DataFile, Entry
from penstock.changelog.folder import Folder
from penstock.changelog.header import Header, find_header, read_header
from penstock.changelog.reader import LogReader, newest_schemas
from penstock.changelog.rows import log_schema, read_parquet
from penstock.changelog.visitor import open_log
from penstock.errors import ConfigError, ErrorKind, LogDamagedError, SourceError
from penstock.model.event import Truncate
from penstock.model.lsn import Lsn, Position
from penstock.model.table import TableId, TableName, TableSchema
from penstock.spark.conform import can_become

# Starting a task costs as much as reading a few megabytes.
_PARTITION_BYTES = 16 << 20
_NAMES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class TruncateRow:
    """A truncate as a row of its table's changes."""

    position: Position
    commit_time_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class LogPart:
    """Some consecutive changes of a table: what one task reads."""

    folder: Folder
    start: Lsn
    end: Lsn
    """Changes with `start <= commit_lsn < end`; the files may hold others."""
    files: tuple[DataFile, ...]
    schemas: Mapping[int, TableSchema]
    """The table's columns at each version that the files have."""
    truncates: tuple[TruncateRow, ...]


class LogTable:
    """One table of an open log."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        _require_log(folder)
        newest = newest_schemas(folder)
        self.id = _find(folder, {table: schema.name for table, (_, schema) in newest.items()}, name)
        self.newest_version = newest[self.id][0]
        self.reader: LogReader = open_log(folder)

    @property
    def header(self) -> Header:
        """What the log says of itself now: a trim may have moved its start."""
        return read_header(self._folder)

    @property
    def newest(self) -> TableSchema:
        """The table's newest columns."""
        return self.reader.schema(self.id, self.newest_version)

    def columns(self, version: int) -> pa.Schema:
        """Return the columns of the table's changes at a version."""
        return log_schema(self.reader.schema(self.id, version))

    def require_columns(self, wanted: pa.Schema) -> None:
        """Refuse a schema with columns that no version of the table has."""
        known = {name for version in range(1, self.newest_version + 1) for name in self.columns(version).names}
        unknown = [name for name in wanted.names if name not in known]
        if unknown:
            raise ConfigError(
                f"format penstock: table {self.newest.name} has no column {', '.join(unknown)}",
                remedy=f"It has {', '.join(self.columns(self.newest_version).names)}.",
            )

    def require_held(self, start: Lsn) -> None:
        """Refuse a position that the log does not reach back to any more."""
        held_from = self.header.start_lsn
        if start < held_from:
            raise gap(self._folder, start, held_from)

    def has_changes(self, start: Lsn, end: Lsn) -> bool:
        """Whether the table may have changed between two positions."""
        return bool(self.reader.files(self.id, start, end) or self.reader.truncates(self.id, start, end))

    def plan(self, start: Lsn, end: Lsn, wanted: pa.Schema) -> list[LogPart]:
        """Return what to read for the changes with `start <= commit_lsn < end`, in order."""
        self.require_held(start)
        files = self.reader.files(self.id, start, end)
        self._require_convertible(files, wanted)
        groups = _groups(files)
        truncates = [self._truncate_row(each) for each in self.reader.truncates(self.id, start, end)]
        return [
            LogPart(self._folder, start, end, group, self._schemas(group), own)
            for group, own in zip(groups or [()], _shares(truncates, groups), strict=True)
            if group or own
        ]

    def bounded_end(self, start: Lsn, max_bytes: int | None, max_entries: int | None) -> Lsn:
        """Return where a batch from `start` ends: the log's end, or sooner, when a limit is reached.

        Only the table's own files count. A batch has whole transactions, and one entry at least.
        """
        size = count = 0
        for entry in _behind(self.reader.entries, start):
            own = [file.size_bytes for file in entry.files if file.table == self.id]
            size += sum(own)
            count += bool(own)
            is_full = (max_bytes and size >= max_bytes) or (max_entries and count >= max_entries)
            if is_full and entry.is_complete:
                return entry.end_lsn
        return self.reader.end_lsn

    def _schemas(self, files: Sequence[DataFile]) -> dict[int, TableSchema]:
        return {version: self.reader.schema(self.id, version) for version in {file.version for file in files}}

    def _require_convertible(self, files: Sequence[DataFile], wanted: pa.Schema) -> None:
        ends: dict[int, Lsn] = {}
        for file in files:
            ends[file.version] = max(file.last_lsn, ends.get(file.version, file.last_lsn))
        for version, last_lsn in ends.items():
            own = self.columns(version)
            for field in wanted:
                if field.name in own.names and not can_become(own.field(field.name).type, field.type):
                    raise SourceError(
                        f"table {self.newest.name}: column {field.name} is {field.type} here, but was "
                        f"{own.field(field.name).type} in changes up to {last_lsn}: the one cannot become the other",
                        kind=ErrorKind.SCHEMA_CHANGED,
                        remedy=f"Read from startingPosition {Lsn(last_lsn + 1)} on, or name the columns you need, "
                        "with their types, by .schema(…).",
                    )

    def _truncate_row(self, truncate: Truncate) -> TruncateRow:
        commit_lsn = truncate.position.commit_lsn
        for path in self.reader.transaction_files(commit_lsn, Lsn(commit_lsn + 1)):
            transactions = read_parquet(self._folder, path).to_pylist()
            for each in transactions:
                if each["commit_lsn"] == commit_lsn:
                    return TruncateRow(truncate.position, _microseconds(each["commit_ts"]), each["xid"])
        raise LogDamagedError(f"change log: no transaction is listed for the truncate at {commit_lsn}")


def gap(folder: Folder, start: Lsn, held_from: Lsn) -> LogDamagedError:
    """Return the error that changes from `start` on are no longer in the log."""
    return LogDamagedError(
        f"change log {folder}: changes from {start} on are needed, but the log now starts at {held_from}",
        kind=ErrorKind.LOG_GAP,
        remedy="What is in between was trimmed and must come from elsewhere: copy the table anew, then read with "
        f"startingPosition {held_from} or earliest (a stream: with a new checkpoint). To keep changes longer for "
        "readers, set pipeline.log.keep_ms or keep_bytes.",
    )


def _microseconds(moment: object) -> int:
    value: int = pa.scalar(moment, pa.timestamp("us", "UTC")).cast(pa.int64()).as_py()
    return value


def _require_log(folder: Folder) -> None:
    if find_header(folder) is None:
        raise ConfigError(
            f"format penstock: {folder} is not a change log: it has no LOG-….json",
            remedy="Give the log folder below a pipeline's state_dir, such as .penstock/log; it must be reachable "
            "under the same path from the driver and every executor.",
        )


def _find(folder: Folder, names: Mapping[TableId, TableName], wanted: str) -> TableId:
    if wanted.isascii() and wanted.isdigit() and TableId(wanted) in names:
        return TableId(wanted)
    found = [table for table, name in names.items() if wanted in {str(name), name.quoted}]
    if len(found) == 1:
        return found[0]
    if found:
        # A table that was dropped and made again, or a dot in a name: which one is meant is not ours to guess.
        oids = ", ".join(f"{table:d}" for table in sorted(found))
        raise ConfigError(
            f"format penstock: {len(found)} tables of the log have the name {wanted}", remedy=f"Give an oid: {oids}."
        )
    raise ConfigError(
        f"format penstock: the log {folder} has no table {wanted}",
        remedy=_listed(sorted(map(str, names.values()))),
    )


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "It has no tables yet: one appears with its first change."
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"It has {', '.join(names[:_NAMES_SHOWN])}{more}; a table appears with its first change."


def _behind(entries: Sequence[Entry], start: Lsn) -> Sequence[Entry]:
    """Leave out the entries whose transactions all committed before a position."""
    passed = [index for index, entry in enumerate(entries) if entry.is_complete and entry.end_lsn <= start]
    return entries[passed[-1] + 1 :] if passed else entries


def _groups(files: Sequence[DataFile]) -> list[tuple[DataFile, ...]]:
    """Put small neighbours together."""
    groups: list[list[DataFile]] = []
    size = _PARTITION_BYTES
    for file in files:
        if size + file.size_bytes > _PARTITION_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size_bytes
    return [tuple(group) for group in groups]


def _shares(truncates: Sequence[TruncateRow], groups: Sequence[Sequence[DataFile]]) -> list[tuple[TruncateRow, ...]]:
    """Give each truncate to the group that its place is in."""
    shares: list[list[TruncateRow]] = [[] for _ in groups] or [[]]
    for truncate in truncates:
        later = [index for index, group in enumerate(groups) if group[0].first_lsn <= truncate.position.commit_lsn]
        shares[later[-1] if later else 0].append(truncate)
    return [tuple(share) for share in shares]
