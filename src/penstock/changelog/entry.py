"""The manifest's entries: what a segment holds, as checksummed JSON."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import LogDamagedError
from penstock.model.event import Truncate
from penstock.model.lsn import Lsn, Position
from penstock.model.table import TableId

FORMAT = 3
_ENTRY_BYTES = 4096  # a block of most file systems
_SESSION_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class DataFile:
    """One table's changes in one segment, all of one schema version."""

    table: TableId
    version: int
    path: str
    """Relative to the log."""
    rows: int
    size_bytes: int
    inserts: int
    updates: int
    deletes: int
    has_unchanged: bool
    has_key_changes: bool
    first_lsn: Lsn
    last_lsn: Lsn
    """The least and greatest commit_lsn."""
    footer_crc: int
    """The CRC-32 of the file's footer; its pages have their own."""
    problem: str | None = None
    """Set when a value could not be converted under its policy: the file then holds the server's text
    in every column, so that nothing is lost and another policy can still convert it."""
    is_shared: bool = False
    """Whether the file holds several tables' rows, as text: those that had only a few."""
    memory_bytes: int = 0
    """What its rows take as Arrow; not in logs that were written before this was counted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One segment."""

    sequence: int
    session: str
    """Which run of the receiver wrote it."""
    written_us: int
    """When, in microseconds since 1970, UTC."""
    is_complete: bool
    start_lsn: Lsn
    """Where the last complete entry before it ends: a reader notices a hole by it."""
    end_lsn: Lsn
    """Of a complete entry: every transaction that committed before this position is in the log."""
    transactions: int
    transactions_file: str | None
    files: tuple[DataFile, ...]
    truncates: tuple[Truncate, ...]

    @property
    def name(self) -> str:
        """The manifest file of this entry."""
        return entry_name(self.sequence)

    @property
    def folder(self) -> str:
        """Where its data files are."""
        return f"data/{data_name(self.sequence, self.session)}"

    @property
    def paths(self) -> list[str]:
        """Its data files, relative to the log."""
        listed = [] if self.transactions_file is None else [self.transactions_file]
        return [*dict.fromkeys(file.path for file in self.files), *listed]

    @property
    def size_bytes(self) -> int:
        """Bytes that the segment takes on disk, its entry included."""
        return _ENTRY_BYTES + sum(file.size_bytes for file in self.files)


def empty_entry(sequence: int, session: str, end_lsn: Lsn) -> Entry:
    """Return a complete entry that holds nothing and leaves the log's end where it is."""
    return Entry(
        sequence=sequence,
        session=session,
        written_us=time.time_ns() // 1000,
        is_complete=True,
        start_lsn=end_lsn,
        end_lsn=end_lsn,
        transactions=0,
        transactions_file=None,
        files=(),
        truncates=(),
    )


def entry_name(sequence: int) -> str:
    """Return the manifest file of an entry."""
    return f"{sequence:012d}.json"


def data_name(sequence: int, session: str) -> str:
    """Return the folder of an entry's data files: of two writers that take the same number, each has its own."""
    return f"{sequence:012d}-{session[:_SESSION_CHARACTERS]}"


def without_void(entries: Iterable[Entry]) -> list[Entry]:
    """Leave out what does not count: incomplete entries that an entry of another session follows.

    Their writer ended inside a transaction, which the source has sent again to the next one.
    """
    counted: list[Entry] = []
    for entry in entries:
        while counted and not counted[-1].is_complete and counted[-1].session != entry.session:
            counted.pop()
        counted.append(entry)
    return counted


def encode_entry(entry: Entry) -> bytes:
    """Return the entry as a line of JSON and a line with its checksum."""
    data = {
        "format": FORMAT,
        "sequence": entry.sequence,
        "session": entry.session,
        "written_us": entry.written_us,
        "is_complete": entry.is_complete,
        "start_lsn": str(entry.start_lsn),
        "end_lsn": str(entry.end_lsn),
        "transactions": entry.transactions,
        "transactions_file": entry.transactions_file,
        "files": [_file_to_json(file) for file in entry.files],
        "truncates": [_truncate_to_json(truncate) for truncate in entry.truncates],
    }
    return with_checksum(data)


def decode_entry(content: bytes, name: str) -> Entry:
    """Read an entry back, or raise `LogDamagedError` naming it."""
    data = without_checksum(content, name)
    return Entry(
        sequence=data["sequence"],
        session=data["session"],
        written_us=data["written_us"],
        is_complete=data["is_complete"],
        start_lsn=Lsn.parse(data["start_lsn"]),
        end_lsn=Lsn.parse(data["end_lsn"]),
        transactions=data["transactions"],
        transactions_file=data["transactions_file"],
        files=tuple(_file_from_json(file) for file in data["files"]),
        truncates=tuple(_truncate_from_json(truncate) for truncate in data["truncates"]),
    )


def with_checksum(data: Mapping[str, Any]) -> bytes:
    """Return plain data as a line of JSON and a line with its CRC-32."""
    body = json.dumps(data, separators=(",", ":")).encode()
    return body + f"\n{zlib.crc32(body):08x}\n".encode()


def without_checksum(content: bytes, name: str) -> dict[str, Any]:
    """Check and read what `with_checksum` wrote."""
    body, _, checksum = content.partition(b"\n")
    if checksum != f"{zlib.crc32(body):08x}\n".encode():
        raise LogDamagedError(f"change log: {name} fails its checksum")
    data: dict[str, Any] = json.loads(body)
    if data["format"] != FORMAT:
        raise LogDamagedError(
            f"change log: {name} has format {data['format']}, this version reads {FORMAT}",
            remedy="Run the version of Penstock that wrote the log, or a newer one.",
        )
    return data


def _file_to_json(file: DataFile) -> dict[str, Any]:
    return {**asdict(file), "table": int(file.table), "first_lsn": str(file.first_lsn), "last_lsn": str(file.last_lsn)}


def _file_from_json(data: dict[str, Any]) -> DataFile:
    parsed = {"first_lsn": Lsn.parse(data["first_lsn"]), "last_lsn": Lsn.parse(data["last_lsn"])}
    return DataFile(**{**data, **parsed, "table": TableId(data["table"])})


def _truncate_to_json(truncate: Truncate) -> dict[str, Any]:
    return {
        "commit_lsn": str(truncate.position.commit_lsn),
        "ordinal": truncate.position.ordinal,
        "tables": [int(table) for table in truncate.tables],
        "cascade": truncate.cascade,
        "restart_identity": truncate.restart_identity,
    }


def _truncate_from_json(data: Mapping[str, Any]) -> Truncate:
    tables: Sequence[int] = data["tables"]
    return Truncate(
        position=Position(Lsn.parse(data["commit_lsn"]), data["ordinal"]),
        tables=tuple(TableId(table) for table in tables),
        cascade=data["cascade"],
        restart_identity=data["restart_identity"],
    )
