"""How other processes look at a log that is being written and trimmed under their eyes.

A visitor holds no lock, so what it is about to read may go: it then starts over where the log starts
now, or says what it missed. It never mistakes a trim for damage.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.changelog.entry import Entry, decode_entry, entry_name
from penstock.changelog.folder import Folder
from penstock.changelog.reader import LogReader, read_header, read_schema
from penstock.errors import ErrorKind, LogDamagedError, StateError
from penstock.model.lsn import Lsn
from penstock.model.table import TableId, TableName


def require_log(root: Path) -> None:
    """Refuse a folder that is not a log."""
    if not (root / "LOG.json").is_file():
        raise StateError(
            f"there is no change log in {root}",
            remedy="Run the pipeline first: penstock run; or name the folder that holds LOG.json: --log PATH",
        )


def open_log(root: Path) -> LogReader:
    """Return a reader that has seen all that is visible now."""
    require_log(root)
    while True:
        reader = LogReader(root)
        reader.poll()
        if not (is_overtaken(reader) or _has_missed_the_first(reader)):
            return reader


def is_overtaken(reader: LogReader) -> bool:
    """Whether the log was trimmed past the place where the reader would read on: it must be opened anew."""
    return read_header(Folder(reader.root)).start_lsn > reader.end_lsn


def _has_missed_the_first(reader: LogReader) -> bool:
    """Whether the first entry was trimmed between being listed and being read: the reader would wait for it."""
    names = [] if reader.entries else Folder(reader.root).names("entries", ".json")
    return bool(names) and names[0] > entry_name(reader.next_sequence)


def open_chain(reader: LogReader) -> list[Entry]:
    """Return the entries behind the visible ones: parts of a transaction that has not committed."""
    found: list[Entry] = []
    while (entry := read_entry(reader.root, reader.next_sequence + len(found))) is not None:
        found.append(entry)
    return found


def read_entry(root: Path, sequence: int) -> Entry | None:
    """Read one entry; None if it is not there, or not any more."""
    name = f"entries/{entry_name(sequence)}"
    try:
        content = (root / name).read_bytes()
    except FileNotFoundError:
        return None
    return decode_entry(content, name)


def require_untrimmed(root: Path, end_lsn: Lsn) -> None:
    """Explain why a file of a stretch that ends at a position is gone: it was trimmed. Else, return."""
    start = read_header(Folder(root)).start_lsn
    if start >= end_lsn:
        raise LogDamagedError(
            f"change log: what lies before {start} was trimmed while it was being read",
            kind=ErrorKind.LOG_GAP,
            remedy="Keep changes for longer: set pipeline.log.keep_ms or pipeline.log.keep_bytes.",
        )


def table_names(root: Path) -> dict[TableId, list[TableName]]:
    """Return the names of the tables that the log has ever described, each table's newest name last."""
    folder = Folder(root)
    versions = (name.removesuffix(".json").split("-") for name in folder.names("schemas", ".json"))
    found: dict[TableId, list[TableName]] = {}
    for table, version in sorted((int(table), int(version)) for table, version in versions):
        found.setdefault(TableId(table), []).append(read_schema(folder, TableId(table), version).name)
    return found


def find_table(names: Mapping[TableId, list[TableName]], wanted: str) -> TableId:
    """Return the one table that is or was called so: `schema.table`, `table`, or its oid."""
    found = [
        table
        for table, known in names.items()
        if wanted == str(int(table)) or any(wanted in {str(name), name.name} for name in known)
    ]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(sorted(str(known[-1]) for known in names.values())) or "none"
    what = f"several tables of the log are called {wanted}" if found else f"the log has no table {wanted}"
    raise StateError(f"{what}; it has: {listed}", remedy="Name one as schema.table, or by its oid.")
