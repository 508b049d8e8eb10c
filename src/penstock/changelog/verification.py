"""Reads a whole log and names every file that is not as it was written.

Unlike a reader it does not stop at the first damage. It may run beside the writer: what the writer
removes or replaces meanwhile is not damage, and is passed over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.entry import DataFile, Entry, entry_name
from penstock.changelog.folder import Folder
from penstock.changelog.reader import read_header, read_schema, schema_name
from penstock.changelog.rows import SHARED_SCHEMA, check_footer, log_schema, read_parquet, unpack_rows
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

    root: Path
    entries: list[Entry] = field(default_factory=list)
    _found: list[Damage] = field(default_factory=list)
    _schemas: dict[tuple[TableId, int], TableSchema | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        read = self._read_entries()
        # Read behind the listing: a trim in between has moved the start.
        self._start = read_header(Folder(self.root)).start_lsn
        self.entries = self._without_leftovers(read)

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
        for name in Folder(self.root).names("entries", ".json"):
            path, sequence = f"entries/{name}", int(name.removesuffix(".json"))
            try:
                entry = read_entry(self.root, sequence)
            except LogDamagedError as error:
                self._found.append(Damage(path, error.message.removeprefix(f"change log: {path} ")))
                continue
            if entry is not None and entry.sequence != sequence:
                self._found.append(Damage(path, f"is entry {entry.sequence} under another name"))
            elif entry is not None:
                read.append(entry)
        return read

    def _without_leftovers(self, read: Sequence[Entry]) -> list[Entry]:
        """Leave out the entries before the start: a trim that was cut off left them, perhaps without their data."""
        ended = (
            index for index, entry in enumerate(read[:-1], 1) if entry.is_complete and entry.end_lsn <= self._start
        )
        return list(read[max(ended, default=0) :])

    def _check_continuity(self) -> None:
        """Every entry follows the one before it, in number and in position."""
        damaged = {damage.path for damage in self._found}
        for first in self.entries[:1]:
            # Behind a damaged entry nothing is known of where the log ended.
            if first.start_lsn > self._start and not any(path < f"entries/{first.name}" for path in damaged):
                self._found.append(_jump(first, self._start))
        for before, entry in pairwise(self.entries):
            if entry.sequence != before.sequence + 1:
                self._check_hole(before, entry, damaged)
            elif entry.start_lsn != before.end_lsn:
                self._found.append(_jump(entry, before.end_lsn))

    def _check_hole(self, before: Entry, after: Entry, damaged: set[str]) -> None:
        missing = [f"entries/{entry_name(number)}" for number in range(before.sequence + 1, after.sequence)]
        if self._is_current(before):
            self._found += [Damage(path, "is missing") for path in missing if path not in damaged]

    def _is_current(self, entry: Entry) -> bool:
        """Whether the entry is still there: the writer removes an entry before its files."""
        try:
            return read_entry(self.root, entry.sequence) == entry
        except PenstockError:
            return True

    def _check_entry(self, entry: Entry) -> Iterator[Damage]:
        by_path: dict[str, list[DataFile]] = defaultdict(list)
        for file in entry.files:
            by_path[file.path].append(file)
        for path, files in by_path.items():
            yield from self._check_size(path, sum(file.size_bytes for file in files))
            yield from self._check_file(path, partial(self._check_rows, files))
        if entry.transactions_file is not None:
            check = partial(_check_transactions, entry.transactions)
            yield from self._check_file(entry.transactions_file, check)
        for file in entry.files:
            if self._schema(file) is None:
                yield Damage(schema_name(file.table, file.version), "is missing, or fails its checksum")

    def _check_size(self, path: str, size_bytes: int) -> Iterator[Damage]:
        place = self.root / path
        found = place.stat().st_size if place.is_file() else None
        if found not in (None, size_bytes):
            yield Damage(path, f"has {found} bytes, the entry says {size_bytes}")

    def _check_file(self, path: str, check: Callable[[pa.Table], Iterator[str]]) -> Iterator[Damage]:
        if not (self.root / path).is_file():
            yield Damage(path, "is missing")
            return
        try:
            problems = list(check(read_parquet(self.root, path)))
        except (LogDamagedError, pa.ArrowException):
            problems = ["cannot be read as it was written"]
        yield from (Damage(path, what) for what in problems)

    def _check_rows(self, files: Sequence[DataFile], content: pa.Table) -> Iterator[str]:
        check_footer(self.root, files[0])
        rows = sum(file.rows for file in files)
        if len(content) != rows:
            yield f"has {len(content)} rows, the entry says {rows}"
            return
        for file in files:
            schema = self._schema(file)
            if schema is not None:
                yield from _check_table(content, file, schema)

    def _schema(self, file: DataFile) -> TableSchema | None:
        key = (file.table, file.version)
        if key not in self._schemas:
            try:
                self._schemas[key] = read_schema(Folder(self.root), *key)
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


def _check_transactions(transactions: int, content: pa.Table) -> Iterator[str]:
    if not content.schema.equals(TRANSACTIONS_SCHEMA):
        yield "does not have the columns of a list of transactions"
    elif len(content) != transactions:
        yield f"lists {len(content)} transactions, the entry says {transactions}"
