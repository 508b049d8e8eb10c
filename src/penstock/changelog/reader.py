"""Reading a log: which files hold a table's changes between two positions.

A reader keeps no lock and never writes. It sees whole transactions only: its end is the end of the
last complete entry.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from penstock.changelog.entry import DataFile, Entry, decode_entry, entry_name, without_checksum, without_void
from penstock.changelog.folder import Folder
from penstock.changelog.header import Header, read_header
from penstock.changelog.rows import read_parquet
from penstock.errors import ErrorKind, LogDamagedError
from penstock.model.event import Truncate
from penstock.model.lsn import Lsn
from penstock.model.table import TableId, TableSchema

_SHARED_FILES_KEPT = 8
_READ_AHEAD = 64


def schema_name(table: TableId, version: int) -> str:
    """Return the file that holds a table's columns at a version."""
    return f"schemas/{table:d}-{version}.json"


def read_schema(folder: Folder, table: TableId, version: int) -> TableSchema:
    """Read a table's columns at a version."""
    name = schema_name(table, version)
    return _decode_schema(folder.read(name), name)


def newest_schemas(folder: Folder) -> dict[TableId, tuple[int, TableSchema]]:
    """Read the newest columns of every table that the log has ever described, with their version."""
    versions: dict[TableId, int] = {}
    for table, version in schema_versions(folder):
        versions[table] = max(version, versions.get(table, 0))
    return {table: (version, schema) for (table, version), schema in read_schemas(folder, versions.items())}


def schema_versions(folder: Folder) -> list[tuple[TableId, int]]:
    """List the versions of all tables' columns, in order."""
    parts = (name.removesuffix(".json").split("-") for name in folder.names("schemas", ".json"))
    return sorted((TableId(table), int(version)) for table, version in parts)


def read_schemas(
    folder: Folder, versions: Iterable[tuple[TableId, int]]
) -> Iterator[tuple[tuple[TableId, int], TableSchema]]:
    """Read several tables' columns."""
    wanted = list(versions)
    names = [schema_name(*each) for each in wanted]
    for each, name, content in zip(wanted, names, folder.read_those_there(names), strict=True):
        yield each, _decode_schema(folder.read(name) if content is None else content, name)


def _decode_schema(content: bytes, name: str) -> TableSchema:
    data = without_checksum(content, name)
    del data["format"]
    return TableSchema.from_json(data)


class TableFiles:
    """A table's files, in the log's order, found by where their changes end.

    Asked several times a second for each table, while one that is copied or has stopped may hold back hours of files.
    """

    def __init__(self) -> None:
        self._files: list[DataFile] = []
        self._reached: list[Lsn] = []
        """How far each file reaches, or one before it."""

    def add(self, file: DataFile) -> None:
        """Add the next one."""
        self._reached.append(max(file.last_lsn, self._reached[-1]) if self._reached else file.last_lsn)
        self._files.append(file)

    def since(self, start: Lsn) -> list[DataFile]:
        """Return those that reach a position."""
        first = bisect_left(self._reached, start)
        return [file for file in self._files[first:] if file.last_lsn >= start]

    def forget(self, before: Lsn) -> None:
        """Drop the first ones that do not reach a position."""
        count = bisect_left(self._reached, before)
        del self._files[:count], self._reached[:count]


class LogReader:
    """A log as its readers see it; `poll` looks for what was added or trimmed. Safe to share by threads."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._header = read_header(folder)
        self._entries: list[Entry] = []
        self._ends: list[Lsn] = []
        """Where each entry's transactions end; equal for the members of a chain."""
        self._files: dict[TableId, TableFiles] = defaultdict(TableFiles)
        self._truncates: dict[TableId, list[Truncate]] = defaultdict(list)
        self._size_bytes = 0
        self._schemas: dict[tuple[TableId, int], TableSchema] = {}
        self.next_sequence = self._header.first_sequence
        """The number of the entry after the last visible one."""
        self.open_chain: Sequence[Entry] = ()
        """The entries behind the visible ones, as of the last look: parts of a transaction that has not committed."""
        self.free_sequence = self.next_sequence
        """The first number that no entry had at the last look."""
        self.read_shared = lru_cache(maxsize=_SHARED_FILES_KEPT)(partial(read_parquet, folder))
        """Reads a file that several tables share, and keeps the last ones: each of the tables asks for it."""

    @property
    def entries(self) -> Sequence[Entry]:
        """The visible entries, oldest first."""
        with self._lock:
            return tuple(self._entries)

    @property
    def header(self) -> Header:
        """What the log said of itself when it was opened, with the start as it is for this reader."""
        return self._header

    @property
    def start_lsn(self) -> Lsn:
        """Transactions that committed before this position are not in the log."""
        return self._header.start_lsn

    @property
    def end_lsn(self) -> Lsn:
        """Every transaction from the start that committed before this position is in the log."""
        with self._lock:
            return self._end()

    @property
    def size_bytes(self) -> int:
        """Bytes of data in the visible entries."""
        with self._lock:
            return self._size_bytes

    def poll(self, last: int | None = None) -> bool:
        """Look for complete entries that were added, and say whether there were any.

        Where the number of the `last` one is known, nothing is asked for in vain.
        """
        with self._lock:
            added = self._read_complete(last)
            self._require_continuity(added)
            for entry, end_lsn in zip(added, _ends(added), strict=True):
                self._index(entry, end_lsn)
            return bool(added)

    def forget(self, before: Lsn) -> None:
        """Drop from memory what ends at or before a position; the writer trims the files themselves."""
        with self._lock:
            count = bisect_right(self._ends, before)
            if not count:
                return
            # Whole entries only: `before` may lie inside one, of which everything stays.
            start = self._ends[count - 1]
            self._header = replace(self._header, start_lsn=start)
            self._size_bytes -= sum(entry.size_bytes for entry in self._entries[:count])
            del self._entries[:count], self._ends[:count]
            for files in self._files.values():
                files.forget(start)
            for table, truncates in self._truncates.items():
                self._truncates[table] = [each for each in truncates if each.position.commit_lsn >= start]

    def files(self, table: TableId, start: Lsn, end: Lsn) -> list[DataFile]:
        """Return the files that may hold changes with `start <= commit_lsn < end`, in order."""
        self._require(start)
        with self._lock:
            return [file for file in self._files_from([table], start) if file.first_lsn < end]

    def truncates(self, table: TableId, start: Lsn, end: Lsn) -> list[Truncate]:
        """Return the truncates of a table with `start <= commit_lsn < end`, in order."""
        with self._lock:
            found = self._truncates.get(table, ())
            return [each for each in found if start <= each.position.commit_lsn < end]

    def transaction_files(self, start: Lsn, end: Lsn) -> list[str]:
        """Return the files that list the transactions with `start <= commit_lsn < end`, in order."""
        with self._lock:
            first = bisect_right(self._ends, start)
            last = min(bisect_left(self._ends, end), len(self._ends) - 1)
            within = self._entries[first : bisect_right(self._ends, self._ends[last])] if self._ends else []
            return [entry.transactions_file for entry in within if entry.transactions_file]

    def schema(self, table: TableId, version: int) -> TableSchema:
        """Return a table's columns at a version."""
        key = (table, version)
        if key not in self._schemas:
            self._schemas[key] = read_schema(self.folder, table, version)
        return self._schemas[key]

    def bounded_end(self, tables: Collection[TableId], start: Lsn, max_bytes: int) -> Lsn:
        """Return where a batch of some tables from `start` ends: the log's end, or sooner.

        Its rows take at most `max_bytes` of memory, unless the first entry that has any, which may be a
        transaction in a chain of entries, takes more by itself.
        """
        with self._lock:
            size = 0
            for file in self._files_from(tables, start):
                size += file.memory_bytes or file.size_bytes
                before = bisect_right(self._ends, file.first_lsn)
                if size > max_bytes and before and self._ends[before - 1] > start:
                    return self._ends[before - 1]
            return self._end()

    def _files_from(self, tables: Collection[TableId], start: Lsn) -> list[DataFile]:
        known = [self._files[table] for table in tables if table in self._files]
        found = [file for files in known for file in files.since(start)]
        return found if len(tables) == 1 else sorted(found, key=lambda file: file.first_lsn)

    def _require(self, start: Lsn) -> None:
        if start < self.start_lsn:
            raise LogDamagedError(
                f"change log: position {start} is needed, but the log starts at {self.start_lsn}",
                kind=ErrorKind.LOG_GAP,
            )

    def _read_complete(self, last: int | None) -> list[Entry]:
        """Read on to the last complete entry there is; an open chain behind it is read again next time."""
        read = list(self._read_on(last))
        counted = without_void(read)
        complete = _count_to_complete(counted)
        self.free_sequence = self.next_sequence + len(read)
        self.open_chain = counted[complete:]
        self.next_sequence += _count_to_complete(read)
        return counted[:complete]

    def _read_on(self, last: int | None) -> Iterator[Entry]:
        sequence, found = self.next_sequence, 0
        while last is None or sequence + found <= last:
            ahead = min(max(found, 1), _READ_AHEAD)
            numbers = range(sequence + found, sequence + found + ahead)
            names = [f"entries/{entry_name(number)}" for number in numbers if last is None or number <= last]
            for name, content in zip(names, self.folder.read_those_there(names), strict=True):
                if content is None:
                    return
                yield decode_entry(content, name)
            found += len(names)

    def _end(self) -> Lsn:
        return self._ends[-1] if self._ends else self._header.start_lsn

    def _require_continuity(self, entries: Sequence[Entry]) -> None:
        """Refuse a hole: every entry begins where the log ended before it."""
        end = self._end()
        for entry in entries:
            if entry.start_lsn > end:
                raise LogDamagedError(
                    f"change log: {entry.name} begins at {entry.start_lsn}, but the entries before it end at {end}",
                    kind=ErrorKind.LOG_GAP,
                )
            end = max(end, entry.end_lsn)

    def _index(self, entry: Entry, end_lsn: Lsn) -> None:
        self._entries.append(entry)
        self._ends.append(end_lsn)
        self._size_bytes += entry.size_bytes
        for file in entry.files:
            self._files[file.table].add(file)
        for truncate in entry.truncates:
            for table in truncate.tables:
                self._truncates[table].append(truncate)


def _count_to_complete(entries: Sequence[Entry]) -> int:
    """Return how many entries there are up to the last complete one."""
    return max((count for count, entry in enumerate(entries, start=1) if entry.is_complete), default=0)


def _ends(entries: Sequence[Entry]) -> list[Lsn]:
    """Return where each entry's transactions end: those of an open chain with the entry that closes it."""
    ends: list[Lsn] = []
    for entry in reversed(entries):
        ends.append(entry.end_lsn if entry.is_complete else ends[-1])
    return ends[::-1]
