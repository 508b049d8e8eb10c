"""How other processes look at a log that is being written and trimmed under their eyes.

A visitor holds no lock, so what it is about to read may go: it then starts over where the log starts
now, or says what it missed. It never mistakes a trim for damage.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.changelog.entry import Entry, decode_entry, entry_name
from penstock.changelog.folder import Folder
from penstock.changelog.header import read_header
from penstock.changelog.reader import LogReader, read_schemas, schema_versions
from penstock.errors import ErrorKind, LogDamagedError, StateError
from penstock.model.lsn import Lsn
from penstock.model.table import TableId, TableName


def open_log(folder: Folder) -> LogReader:
    """Return a reader that has seen all that is visible now."""
    while True:
        reader = LogReader(folder)
        reader.poll()
        if not is_overtaken(reader):
            return reader


def is_overtaken(reader: LogReader) -> bool:
    """Whether the log was trimmed past the place where the reader would read on: it must be opened anew."""
    return read_header(reader.folder).first_sequence > reader.next_sequence


def read_entry(folder: Folder, sequence: int) -> Entry | None:
    """Read one entry; None if it is not there, or not any more."""
    name = f"entries/{entry_name(sequence)}"
    content = folder.read_if_there(name)
    return None if content is None else decode_entry(content, name)


def require_untrimmed(folder: Folder, end_lsn: Lsn) -> None:
    """Explain why a file of a stretch that ends at a position is gone: it was trimmed. Else, return."""
    start = read_header(folder).start_lsn
    if start >= end_lsn:
        raise LogDamagedError(
            f"change log: what lies before {start} was trimmed while it was being read",
            kind=ErrorKind.LOG_GAP,
            remedy="Keep changes for longer: set pipeline.log.keep_ms or pipeline.log.keep_bytes.",
        )


def table_names(folder: Folder) -> dict[TableId, list[TableName]]:
    """Return the names of the tables that the log has ever described, each table's newest name last."""
    found: dict[TableId, list[TableName]] = {}
    for (table, _), schema in read_schemas(folder, schema_versions(folder)):
        found.setdefault(table, []).append(schema.name)
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
