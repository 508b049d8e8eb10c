"""Reads a whole log and names every file that is not as it was written.

Unlike a reader it does not stop at the first damage. It may run beside the writer: what the writer
removes or replaces meanwhile is not damage, and is passed over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.entry import DataFile, Entry, entry_name, without_void
from penstock.changelog.folder import Folder
from penstock.changelog.header import read_header
from penstock.changelog.reader import read_schema, schema_name
from penstock.changelog.rows import SHARED_SCHEMA, decode_parquet, footer_checksum, log_schema, unpack_rows
from penstock.changelog.segment import TRANSACTIONS_SCHEMA
from penstock.changelog.visitor import read_entry
from penstock.contract import columns as log
from penstock.errors import LogDamagedError, PenstockError
from penstock.model.lsn import Lsn
from penstock.model.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of the log that is not as it was written."""

    path: str
    """Relative to the log."""
    what: str


@dataclass
class Verification:
    """One look at a whole log. `entries` and `size_bytes` say how much there is to read."""

    folder: Folder
    entries: list[Entry] = field(default_factory=list)
    _found: list[Damage] = field(default_factory=list)
    _schemas: dict[tuple[TableId, int], TableSchema | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._read = self._read_entries()
        # Read behind the listing: a trim in between has moved the start, and left entries over if it was cut off.
        self._header = read_header(self.folder)
        self._read = [entry for entry in self._read if entry.sequence >= self._header.first_sequence]
        self.entries = without_void(self._read)

    @property
    def size_bytes(self) -> int:
        """Bytes in the files that the entries name."""
        return sum(entry.size_bytes for entry in self.entries)

    def run(self, on_entry: Callable[[Entry], None] = lambda _: None) -> list[Damage]:
        """Read everything and return what is damaged; `on_entry` hears of every entry that was read."""
        self._check_continuity()
        for entry in self.entries:
            damages = list(self._check_entry(entry))
            if damages and self._is_current(entry):
                self._found += damages
            on_entry(entry)
        return list(dict.fromkeys(self._found))

    def _read_entries(self) -> list[Entry]:
        read: list[Entry] = []
        for name in self.folder.names("entries", ".json"):
            path, sequence = f"entries/{name}", int(name.removesuffix(".json"))
            try:
                entry = read_entry(self.folder, sequence)
            except LogDamagedError as error:
                self._found.append(Damage(path, error.message.removeprefix(f"change log: {path} ")))
                continue
            if entry is not None and entry.sequence != sequence:
                self._found.append(Damage(path, f"is entry {entry.sequence} under another name"))
            elif entry is not None:
                read.append(entry)
        return read

    def _check_continuity(self) -> None:
        """Every entry follows the one before it, in number and in position."""
        damaged = {damage.path for damage in self._found}
        numbers = {entry.sequence for entry in self._read}
        expected = range(self._header.first_sequence, max(numbers, default=0) + 1)
        missing = [number for number in expected if number not in numbers]
        self._found += [
            Damage(f"entries/{entry_name(number)}", "is missing")
            for number in missing
            if f"entries/{entry_name(number)}" not in damaged and not self._is_trimmed(number)
        ]
        end, after = self._header.start_lsn, self._header.first_sequence - 1
        for entry in self.entries:
            # Behind one that is not known nothing is known of where the log ended.
            if entry.start_lsn != end and not any(after < number < entry.sequence for number in missing):
                self._found.append(_jump(entry, end))
            end, after = entry.end_lsn, entry.sequence

    def _is_trimmed(self, sequence: int) -> bool:
        return read_header(self.folder).first_sequence > sequence

    def _is_current(self, entry: Entry) -> bool:
        """Whether the entry still counts: the writer removes an entry before its files."""
        try:
            return read_entry(self.folder, entry.sequence) == entry and not self._is_void(entry)
        except PenstockError:
            return True

    def _is_void(self, entry: Entry) -> bool:
        """Whether a writer has come since that began the entry's transaction anew."""
        chain = [entry]
        while not chain[-1].is_complete and (found := read_entry(self.folder, chain[-1].sequence + 1)) is not None:
            chain.append(found)
        return without_void(chain)[0] != entry

    def _check_entry(self, entry: Entry) -> Iterator[Damage]:
        by_path: dict[str, list[DataFile]] = defaultdict(list)
        for file in entry.files:
            by_path[file.path].append(file)
        for path, files in by_path.items():
            yield from self._check_file(path, partial(self._check_rows, files))
        if entry.transactions_file is not None:
            check = partial(_check_transactions, entry.transactions)
            yield from self._check_file(entry.transactions_file, check)
        for file in entry.files:
            if self._schema(file) is None:
                yield Damage(schema_name(file.table, file.version), "is missing, or fails its checksum")

    def _check_file(self, path: str, check: Callable[[bytes, str], Iterator[str]]) -> Iterator[Damage]:
        content = self.folder.read_if_there(path)
        try:
            problems = ["is missing"] if content is None else list(check(content, path))
        except (LogDamagedError, pa.ArrowException):
            problems = ["cannot be read as it was written"]
        yield from (Damage(path, what) for what in problems)

    def _check_rows(self, files: Sequence[DataFile], content: bytes, path: str) -> Iterator[str]:
        size_bytes, rows = sum(file.size_bytes for file in files), sum(file.rows for file in files)
        if len(content) != size_bytes:
            yield f"has {len(content)} bytes, the entry says {size_bytes}"
        if footer_checksum(pa.BufferReader(content)) != files[0].footer_crc:
            yield "cannot be read as it was written"
            return
        table = decode_parquet(pa.BufferReader(content), path)
        if len(table) != rows:
            yield f"has {len(table)} rows, the entry says {rows}"
            return
        for file in files:
            schema = self._schema(file)
            if schema is not None:
                yield from _check_table(table, file, schema)

    def _schema(self, file: DataFile) -> TableSchema | None:
        key = (file.table, file.version)
        if key not in self._schemas:
            try:
                self._schemas[key] = read_schema(self.folder, *key)
            except PenstockError:
                self._schemas[key] = None
        return self._schemas[key]


def _jump(entry: Entry, end: Lsn) -> Damage:
    return Damage(f"entries/{entry.name}", f"begins at {entry.start_lsn}, but the log before it ends at {end}")


def _check_table(content: pa.Table, file: DataFile, schema: TableSchema) -> Iterator[str]:
    expected = SHARED_SCHEMA if file.is_shared else log_schema(schema, as_text=file.problem is not None)
    if not content.schema.equals(expected):
        yield f"does not have the columns of {schema.name} at version {file.version}"
        return
    rows = unpack_rows(content, schema, file.version) if file.is_shared else content
    counts: Any = pc.value_counts(rows.column(log.OP))
    found = {each["values"]: each["counts"] for each in counts.to_pylist()}
    said = {"I": file.inserts, "U": file.updates, "D": file.deletes}
    if found != {op: count for op, count in said.items() if count}:
        yield f"has other operations of {schema.name} than the entry says"
    bounds: Any = pc.min_max(rows.column(log.COMMIT_LSN))
    if bounds.as_py() != {"min": int(file.first_lsn), "max": int(file.last_lsn)}:
        yield f"has changes of {schema.name} at other positions than the entry says"


def _check_transactions(transactions: int, content: bytes, path: str) -> Iterator[str]:
    table = decode_parquet(pa.BufferReader(content), path)
    if not table.schema.equals(TRANSACTIONS_SCHEMA):
        yield "does not have the columns of a list of transactions"
    elif len(table) != transactions:
        yield f"lists {len(table)} transactions, the entry says {transactions}"
