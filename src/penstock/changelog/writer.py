"""The log's one writer: segments in, durable entries out; and the log's own care, recovery and trimming."""

from __future__ import annotations

import fcntl
import itertools
import time
import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO

from penstock import failpoint
from penstock.changelog.entry import FORMAT, Entry, data_name, encode_entry, entry_name, with_checksum
from penstock.changelog.files import write_files, write_transactions
from penstock.changelog.folder import Folder, io_errors
from penstock.changelog.reader import Header, LogReader, read_header, read_schema, schema_name
from penstock.changelog.retention import NOTHING_KEPT, Retention, Shelf
from penstock.changelog.segment import Segment
from penstock.changelog.visitor import read_entry
from penstock.errors import ErrorKind, LogDamagedError, StateError
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableId, TableSchema


def create_log(root: Path, *, slot: str, system_identifier: str, start_lsn: Lsn) -> None:
    """Make an empty log that starts at a slot's consistent point. One that is there already stays."""
    folder = Folder(root)
    for name in ("", "schemas", "data", "entries"):
        folder.make(name)
    if not (folder / "LOG.json").exists():
        _write_header(folder, Header(slot, system_identifier, start_lsn))


def _write_header(folder: Folder, header: Header) -> None:
    data = {"format": FORMAT, **asdict(header), "start_lsn": str(header.start_lsn)}
    folder.replace("LOG.json", with_checksum(data))


class LogWriter:
    """Appends to one log. Holds an exclusive lock on it until closed, or until its process ends."""

    def __init__(self, root: Path, policies: ValuePolicies) -> None:
        self._folder = Folder(root)
        self._policies = policies
        self._session = uuid.uuid4().hex
        self._shelf = Shelf()
        self._lock = self._take_lock()
        try:
            self._take_up(LogReader(root))
        except BaseException:
            self.close()
            raise

    def _take_up(self, reader: LogReader) -> None:
        """Go on where the log ends."""
        reader.poll()
        self._header = read_header(self._folder)
        self._entries = list(reader.entries)
        self.size_bytes = reader.size_bytes
        """Bytes of data in the log; counted along, since a log that keeps a day for replay has 100,000 entries."""
        self._sequence = reader.next_sequence
        self.end_lsn = reader.end_lsn
        self._versions = self._load_versions()
        self._require_no_hole()
        self._drop_leftovers()

    def close(self) -> None:
        """Let the lock go."""
        self._lock.close()

    @property
    def system_identifier(self) -> str:
        """Of the database cluster that the log belongs to."""
        return self._header.system_identifier

    @property
    def timeline(self) -> int | None:
        """The source's timeline that the log follows; None before the first connection."""
        return self._header.timeline

    def follow_timeline(self, timeline: int) -> None:
        """Note durably which timeline of the source the next entries come from."""
        if timeline != self._header.timeline:
            self._header = replace(self._header, timeline=timeline)
            _write_header(self._folder, self._header)

    def version_of(self, schema: TableSchema) -> int:
        """Return the version number of a table's columns, recording them durably if they are new."""
        known = self._versions.get(schema.id)
        if known is not None and known[1] == schema:
            return known[0]
        version = known[0] + 1 if known else 1
        self._folder.replace(schema_name(schema.id, version), with_checksum({"format": FORMAT, **schema.to_json()}))
        failpoint.hit("changelog.after_schema")
        self._versions[schema.id] = (version, schema)
        return version

    def append(self, segment: Segment, *, end_lsn: Lsn | None) -> Entry:
        """Write a segment and return its entry, durable; `end_lsn` is None inside an open transaction."""
        entry = Entry(
            sequence=self._sequence,
            session=self._session,
            written_us=time.time_ns() // 1000,
            is_complete=end_lsn is not None,
            start_lsn=self.end_lsn,
            end_lsn=self.end_lsn if end_lsn is None else end_lsn,
            transactions=segment.transaction_count,
            transactions_file=None,
            files=(),
            truncates=tuple(segment.truncates),
        )
        if segment.tables or segment.transactions:
            entry = self._write_data(segment, entry)
        failpoint.hit("changelog.before_entry")
        self._folder.replace(f"entries/{entry.name}", encode_entry(entry))
        failpoint.hit("changelog.after_entry")
        self._sequence += 1
        self._entries.append(entry)
        self.size_bytes += entry.size_bytes
        self.end_lsn = entry.end_lsn
        return entry

    def trim(self, needed: Lsn, retention: Retention = NOTHING_KEPT, *, now_us: int = 0) -> None:
        """Remove the oldest entries: those that end at or before `needed` and that the retention does not keep.

        The last complete entry always stays, because it says where the log ends and how entries are numbered.
        """
        count = self._shelf.take(self._entries, needed, retention, now_us)
        if not count:
            return
        removed, self._entries = self._entries[:count], self._entries[count:]
        # The start moves first: a crash in between leaves entries below the start, which the next open removes.
        self._header = replace(self._header, start_lsn=removed[-1].end_lsn)
        _write_header(self._folder, self._header)
        failpoint.hit("changelog.after_trim_header")
        for entry in removed:
            self._remove(entry.sequence)
            self.size_bytes -= entry.size_bytes

    def _take_lock(self) -> BinaryIO:
        path = self._folder / "LOCK"
        with io_errors(path):
            lock = path.open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StateError(
                f"change log: another process writes to {self._folder.root}",
                kind=ErrorKind.SLOT_IN_USE,
                remedy="Stop the other replicator of this pipeline, or give this one its own state_dir.",
            ) from None
        return lock

    def _load_versions(self) -> dict[TableId, tuple[int, TableSchema]]:
        versions: dict[TableId, tuple[int, TableSchema]] = {}
        for name in self._folder.names("schemas", ".json"):
            table, version = (int(part) for part in name.removesuffix(".json").split("-"))
            if version > versions.get(TableId(table), (0, None))[0]:
                versions[TableId(table)] = (version, read_schema(self._folder, TableId(table), version))
        return versions

    def _require_no_hole(self) -> None:
        """Refuse a log of which an entry was lost: readers stop before it, and what is behind is no leftover."""
        sequences = {int(name.removesuffix(".json")) for name in self._folder.names("entries", ".json")}
        behind = (read_entry(self._folder.root, sequence) for sequence in sequences if sequence >= self._sequence)
        if any(entry is not None and entry.is_complete for entry in behind):
            missing = next(number for number in itertools.count(self._sequence) if number not in sequences)
            raise LogDamagedError(f"change log: entries/{entry_name(missing)} is missing, but later ones are there")

    def _drop_leftovers(self) -> None:
        """Remove what no reader can see: an open transaction's entries, data without an entry, trimmed entries."""
        for place in ("./", "schemas/"):
            for name in self._folder.names(place, ".tmp"):
                self._folder.remove(place + name)
        kept = {entry.sequence for entry in self._entries}
        # From the end, so that a crash in between leaves no hole among the entries.
        for name in reversed(self._folder.names("entries", "")):
            if name.endswith(".tmp") or int(name.removesuffix(".json")) not in kept:
                self._folder.remove(f"entries/{name}")
        self._folder.sync("entries")
        for name in self._folder.names("data", ""):
            if int(name) not in kept:
                self._folder.remove(f"data/{name}")

    def _remove(self, sequence: int) -> None:
        self._folder.remove(f"entries/{entry_name(sequence)}")
        failpoint.hit("changelog.after_trim_entry")
        self._folder.remove(f"data/{data_name(sequence)}")

    def _write_data(self, segment: Segment, entry: Entry) -> Entry:
        place = f"data/{data_name(entry.sequence)}"
        self._folder.make(place)
        transactions_file = None
        if segment.transactions:
            transactions_file = f"{place}/transactions.parquet"
            write_transactions(self._folder, transactions_file, segment)
        files = write_files(self._folder, place, segment, self._policies)
        failpoint.hit("changelog.after_data")
        self._folder.sync(place)
        return replace(entry, files=files, transactions_file=transactions_file)
