"""What a log captured, beside what its source would send: the two lists that must be equal.

The source is asked through a slot of its own and the server's SQL functions, and its answer is read by the
plain decoder; nothing of the receiver takes part.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.changelog.change import LoggedChange, Wanted, read_changes
from penstock.changelog.entry import entry_name
from penstock.changelog.folder import Folder
from penstock.changelog.reader import LogReader
from penstock.changelog.visitor import open_log
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.testing.postgres import Database
from penstock.wire.pgoutput import (
    BeginMessage,
    DeleteMessage,
    InsertMessage,
    TruncateMessage,
    TupleData,
    UpdateMessage,
    decode_message,
)


class Captured(NamedTuple):
    """One row's change: where it is, what it did, and to which row, by the table's first column."""

    commit_lsn: Lsn
    ordinal: int
    op: str
    key: str


def logged_changes(reader: LogReader, start: Lsn, policies: ValuePolicies | None = None) -> list[Captured]:
    """Return the changes from a position to the end that a reader sees."""
    wanted = Wanted(start, reader.end_lsn)
    found = read_changes(reader, wanted, policies or ValuePolicies())
    return [_logged(change) for change in found if isinstance(change, LoggedChange)]


def _logged(change: LoggedChange) -> Captured:
    key = str(next(iter(change.values.values())))
    return Captured(change.position.commit_lsn, change.position.ordinal, change.op, key)


def sent_changes(database: Database, slot: str, publication: str) -> list[Captured]:
    """Return what the source would send through another slot, which stays where it is."""
    rows = database.execute(
        "select data from pg_logical_slot_peek_binary_changes(%s, null, null, 'proto_version', '1',"
        " 'publication_names', %s)",
        slot,
        publication,
    )
    return list(_sent(data for (data,) in rows))


def _sent(messages: Iterator[bytes]) -> Iterator[Captured]:
    commit_lsn, ordinal = Lsn(0), 0
    for data in messages:
        message = decode_message(data)
        ordinal += 1
        match message:
            case BeginMessage():
                commit_lsn, ordinal = message.final_lsn, 0
            case InsertMessage():
                yield Captured(commit_lsn, ordinal, "I", _first(message.new))
            case UpdateMessage():
                yield Captured(commit_lsn, ordinal, "U", _first(message.new))
            case DeleteMessage():
                yield Captured(commit_lsn, ordinal, "D", _first(message.old))
            case TruncateMessage():
                pass
            case _:
                ordinal -= 1  # descriptions and the like have no place of their own


def _first(values: TupleData) -> str:
    value = values[0]
    assert isinstance(value, bytes)
    return value.decode()


def leftovers(root: Path, folder: Folder | None = None) -> set[str]:
    """Return the files of a log that no reader can see, relative to it: none, while nothing is being written.

    `root` is where they really are; that of a bucket is behind it.
    """
    reader = open_log(folder or Folder.on_disk(root))
    numbered = {f"entries/{entry_name(number)}" for number in range(reader.header.first_sequence, reader.free_sequence)}
    wanted = numbered | {entry.folder for entry in reader.entries} | {reader.header.name}
    found = {path for pattern in ("entries/*", "data/*", "LOG-*", "**/*.tmp") for path in root.glob(pattern)}
    return {path.relative_to(root).as_posix() for path in found} - wanted
