"""The log's one writer: segments in, durable entries out; and the log's own care, recovery and trimming."""

from __future__ import annotations

import fcntl
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import failpoint
from penstock.changelog.entry import DataFile, Entry, data_name, encode_entry, entry_name, with_checksum
from penstock.changelog.folder import Folder
from penstock.changelog.reader import LogReader, read_header, read_schema, schema_name
from penstock.changelog.segment import Segment, TableChangeList, Transaction, build_table
from penstock.errors import ErrorKind, StateError
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableId, TableSchema

_TRANSACTIONS = pa.schema(
    [
        pa.field("commit_lsn", pa.int64()),
        pa.field("end_lsn", pa.int64()),
        pa.field("commit_ts", pa.timestamp("us", "UTC")),
        pa.field("xid", pa.int64()),
        pa.field("changes", pa.int64()),
    ]
)


def create_log(root: Path, *, slot: str, system_identifier: str, start_lsn: Lsn) -> None:
    """Make an empty log that starts at a slot's consistent point. One that is there already stays."""
    folder = Folder(root)
    for name in ("", "schemas", "data", "entries"):
        folder.make(name)
    if not (folder / "LOG.json").exists():
        _write_header(folder, slot, system_identifier, start_lsn)


def _write_header(folder: Folder, slot: str, system_identifier: str, start_lsn: Lsn) -> None:
    header = {"format": 1, "slot": slot, "system_identifier": system_identifier, "start_lsn": str(start_lsn)}
    folder.replace("LOG.json", with_checksum(header))


class LogWriter:
    """Appends to one log. Holds an exclusive lock on it until closed, or until its process ends."""

    def __init__(self, root: Path, policies: ValuePolicies) -> None:
        self._folder = Folder(root)
        self._policies = policies
        self._lock = self._take_lock()
        self._header = read_header(self._folder)
        self._session = uuid.uuid4().hex
        reader = LogReader(root)
        reader.poll()
        self._entries = list(reader.entries)
        self._sequence = reader.next_sequence
        self._start_lsn = reader.start_lsn
        self.end_lsn = reader.end_lsn
        self._versions = self._load_versions()
        self._drop_leftovers()

    def close(self) -> None:
        """Let the lock go."""
        self._lock.close()

    @property
    def size_bytes(self) -> int:
        """Bytes of data in the log."""
        return sum(entry.size_bytes for entry in self._entries)

    def version_of(self, schema: TableSchema) -> int:
        """Return the version number of a table's columns, recording them durably if they are new."""
        known = self._versions.get(schema.id)
        if known is not None and known[1] == schema:
            return known[0]
        version = known[0] + 1 if known else 1
        self._folder.replace(schema_name(schema.id, version), with_checksum({"format": 1, **schema.to_json()}))
        self._versions[schema.id] = (version, schema)
        return version

    def append(self, segment: Segment, *, end_lsn: Lsn | None) -> Entry:
        """Write a segment and return its entry, durable; `end_lsn` is None inside an open transaction."""
        entry = Entry(
            sequence=self._sequence,
            session=self._session,
            is_complete=end_lsn is not None,
            start_lsn=self.end_lsn,
            end_lsn=self.end_lsn if end_lsn is None else end_lsn,
            transactions=len(segment.transactions),
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
        self.end_lsn = entry.end_lsn
        return entry

    def trim(self, before: Lsn) -> None:
        """Remove the entries that end at or before a position: nobody needs them any more.

        The last complete entry always stays, because it says where the log ends and how entries are numbered.
        """
        count = self._count_passed(before)
        if not count:
            return
        removed, self._entries = self._entries[:count], self._entries[count:]
        # The start moves first: a crash in between leaves entries below the start, which the next open removes.
        self._start_lsn = removed[-1].end_lsn
        _write_header(self._folder, self._header.slot, self._header.system_identifier, self._start_lsn)
        failpoint.hit("changelog.after_trim_header")
        for entry in removed:
            self._remove(entry.sequence)

    def _count_passed(self, before: Lsn) -> int:
        """Count the leading entries that may go: up to the last complete one that `before` has passed."""
        complete = [index for index, entry in enumerate(self._entries) if entry.is_complete]
        passed = [index for index in complete[:-1] if self._entries[index].end_lsn <= before]
        return passed[-1] + 1 if passed else 0

    def _take_lock(self) -> BinaryIO:
        lock = (self._folder / "LOCK").open("ab")
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

    def _drop_leftovers(self) -> None:
        """Remove what no reader can see: an open transaction's entries, data without an entry, trimmed entries."""
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
        self._folder.remove(f"data/{data_name(sequence)}")

    def _write_data(self, segment: Segment, entry: Entry) -> Entry:
        folder = f"data/{data_name(entry.sequence)}"
        self._folder.make(folder)
        transactions_file = f"{folder}/transactions.parquet"
        self._write_parquet(transactions_file, _transactions_table(segment.transactions))
        files = tuple(self._write_table(folder, listed) for listed in segment.tables.values())
        failpoint.hit("changelog.after_data")
        self._folder.sync(folder)
        return replace(entry, files=files, transactions_file=transactions_file)

    def _write_table(self, folder: str, listed: TableChangeList) -> DataFile:
        table, problem = build_table(listed, self._policies)
        path = f"{folder}/{listed.schema.id:d}-{listed.version}.parquet"
        size_bytes = self._write_parquet(path, table)
        return describe_file(listed, path, size_bytes, problem)

    def _write_parquet(self, path: str, table: pa.Table) -> int:
        # Dictionaries cost more than they save on files that are read once or twice.
        return self._folder.write(
            path, lambda file: pq.write_table(table, file, compression="snappy", use_dictionary=False)
        )


def describe_file(listed: TableChangeList, path: str, size_bytes: int, problem: str | None) -> DataFile:
    """Return what the manifest says of a table's file."""
    operations = Counter(change.op for change in listed.changes)
    return DataFile(
        table=listed.schema.id,
        version=listed.version,
        path=path,
        rows=len(listed.changes),
        size_bytes=size_bytes,
        inserts=operations["I"],
        updates=operations["U"],
        deletes=operations["D"],
        has_unchanged=any(change.unchanged for change in listed.changes),
        has_key_changes=any(change.old_key is not None for change in listed.changes),
        first_lsn=listed.changes[0].transaction.commit_lsn,
        last_lsn=listed.changes[-1].transaction.commit_lsn,
        problem=problem,
    )


def _transactions_table(transactions: list[Transaction]) -> pa.Table:
    rows = [
        (int(each.commit_lsn), int(each.end_lsn), each.commit_time_us, each.xid, each.changes) for each in transactions
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(_TRANSACTIONS)
    arrays = [
        pa.array(column, pa.int64()).cast(field.type) for column, field in zip(columns, _TRANSACTIONS, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=_TRANSACTIONS)
