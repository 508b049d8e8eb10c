"""The log's one writer: segments in, durable entries out; and the log's own care, recovery and trimming.

Nothing is ever overwritten, and no number is given twice. On a disk a lock keeps a second writer away. In a bucket
there is none: a writer that holds the source's slot *claims* the log by an entry of its own; an older one that is
still alive is refused at its next entry, or where it would move the log's start.
"""

from __future__ import annotations

import fcntl
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from penstock import failpoint
from penstock.changelog.entry import FORMAT, Entry, data_name, empty_entry, encode_entry, entry_name, with_checksum
from penstock.changelog.files import write_data
from penstock.changelog.folder import Folder, io_errors
from penstock.changelog.header import Header, header_names, header_number, last_header, put_header
from penstock.changelog.reader import LogReader, newest_schemas, schema_name
from penstock.changelog.retention import NOTHING_KEPT, Retention, Shelf
from penstock.changelog.segment import Segment
from penstock.changelog.visitor import open_log, read_entry
from penstock.errors import ErrorKind, LogDamagedError, StateError
from penstock.model.lsn import NOWHERE, Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableSchema
from penstock.storage.place import PROBE

_ONE_WRITER = "Stop the other replicator of this pipeline, or give this one its own state_dir and log."


def create_log(folder: Folder, *, slot: str, system_identifier: str, start_lsn: Lsn) -> None:
    """Make an empty log that starts at a slot's consistent point. One that is there already stays."""
    for name in ("", "schemas", "data", "entries"):
        folder.make(name)
    last = last_header(folder)
    if last is None or last.is_over:
        number, first = 1 if last is None else last.number + 1, _free_sequence(folder)
        # Refused, another was faster: that one's stays.
        put_header(folder, Header(slot, system_identifier, start_lsn, first_sequence=first, number=number))


def drop_log(folder: Folder) -> None:
    """Remove a log, damaged or not. What stays says that it is over, and refuses a writer that still runs."""
    if not (header_names(folder) or _sequences(folder)):
        return
    header = _put_last_header(folder)
    failpoint.hit("changelog.dropped")
    _remove_older(folder, replace(header, first_sequence=_put_last_entry(folder)))
    folder.remove_all(f"schemas/{name}" for name in folder.names("schemas", ""))
    for name in folder.folders("data"):
        folder.remove_folder(f"data/{name}")


def _put_last_header(folder: Folder) -> Header:
    """Say that the log is over: from here on nobody reads it."""
    number = max(map(header_number, header_names(folder)), default=0)
    while True:
        number += 1
        header = Header("", "", NOWHERE, is_over=True, number=number)
        if put_header(folder, header):
            return header


def _put_last_entry(folder: Folder) -> int:
    """Take the number that a writer would go on with, and return it."""
    while True:
        number = _free_sequence(folder)
        last = empty_entry(number, uuid.uuid4().hex, NOWHERE)
        if folder.put_if_absent(f"entries/{last.name}", encode_entry(last)):
            return number


def _sequences(folder: Folder) -> list[int]:
    return [int(name.removesuffix(".json")) for name in folder.names("entries", ".json")]


def _free_sequence(folder: Folder) -> int:
    return max(_sequences(folder), default=0) + 1


def _remove_older(folder: Folder, header: Header) -> None:
    """Remove the entries and headers that a header has taken the place of, and what was never finished."""
    found = [f"{place}{name}" for place in ("", "schemas/", "entries/") for name in folder.names(place, ".tmp")]
    # Of a pipeline that starts, beside a receiver that an earlier one left behind: it is about to be finished.
    unfinished = [name for name in found if PROBE not in name]
    trimmed = [number for number in _sequences(folder) if number < header.first_sequence]
    headers = [name for name in header_names(folder) if header_number(name) < header.number]
    folder.remove_all([*unfinished, *headers, *(f"entries/{entry_name(number)}" for number in trimmed)])


class LogWriter:
    """Appends to one log. On a disk it holds an exclusive lock until closed, or until its process ends."""

    def __init__(self, folder: Folder, policies: ValuePolicies) -> None:
        self._folder = folder
        self._policies = policies
        self._session = uuid.uuid4().hex
        self._shelf = Shelf()
        self._lock = self._take_lock()
        try:
            self._take_up(open_log(folder))
        except BaseException:
            self.close()
            raise

    def _take_up(self, reader: LogReader) -> None:
        """Go on where the log ends."""
        self._header = reader.header
        self._entries = list(reader.entries)
        self.size_bytes = reader.size_bytes
        """Bytes of data in the log; counted along, since a log that keeps a day for replay has 100,000 entries."""
        self._sequence = reader.free_sequence
        self.end_lsn = reader.end_lsn
        self._versions = newest_schemas(self._folder)
        self._require_no_hole()

    def close(self) -> None:
        """Let the lock go."""
        self._lock.close()

    def claim(self, timeline: int | None = None) -> Entry:
        """Become the log's writer; return the entry that says so.

        Called once, by the one who holds the source's slot. From then on an older writer is refused, so that
        what it left is nobody's. `timeline` is the source's that the next entries come from.
        """
        entry = empty_entry(self._sequence, self._session, self.end_lsn)
        self._put_entry(entry)
        failpoint.hit("changelog.after_claim")
        self._put_header(replace(self._header, timeline=timeline or self._header.timeline))
        return entry

    def drop_leftovers(self) -> None:
        """Remove what no reader can see: data without an entry or of an open transaction, and what was trimmed.

        Called once, behind the claim and before anything is written. Of a long log in a bucket it takes minutes, in
        which a newer writer may begin: what has a higher number than the claim is not from before it.
        """
        _remove_older(self._folder, self._header)
        kept, ours = {entry.folder for entry in self._entries}, data_name(self._sequence, "")
        for name in self._folder.folders("data"):
            if name < ours and f"data/{name}" not in kept:
                self._folder.remove_folder(f"data/{name}")

    @property
    def system_identifier(self) -> str:
        """Of the database cluster that the log belongs to."""
        return self._header.system_identifier

    @property
    def timeline(self) -> int | None:
        """The source's timeline that the log follows; None before the first connection."""
        return self._header.timeline

    def version_of(self, schema: TableSchema) -> int:
        """Return the version number of a table's columns, recording them durably if they are new."""
        known = self._versions.get(schema.id)
        if known is not None and known[1] == schema:
            return known[0]
        version = known[0] + 1 if known else 1
        content = with_checksum({"format": FORMAT, **schema.to_json()})
        while not self._folder.put_if_absent(schema_name(schema.id, version), content):
            version += 1  # an older writer's, of which nothing will be in the log
        failpoint.hit("changelog.after_schema")
        self._versions[schema.id] = (version, schema)
        return version

    def append(self, segment: Segment, *, end_lsn: Lsn | None) -> Entry:
        """Write a segment and return its entry, durable; `end_lsn` is None inside an open transaction."""
        entry = replace(
            empty_entry(self._sequence, self._session, self.end_lsn),
            is_complete=end_lsn is not None,
            end_lsn=self.end_lsn if end_lsn is None else end_lsn,
            transactions=segment.transaction_count,
            truncates=tuple(segment.truncates),
        )
        entry = write_data(self._folder, segment, entry, self._policies)
        failpoint.hit("changelog.before_entry")
        self._put_entry(entry)
        failpoint.hit("changelog.after_entry")
        return entry

    def trim(self, needed: Lsn, retention: Retention = NOTHING_KEPT, *, now_us: int = 0) -> None:
        """Remove the oldest entries: those that end at or before `needed` and that the retention does not keep.

        The last complete entry always stays, because it says where the log ends and how entries are numbered.
        """
        count = self._shelf.take(self._entries, needed, retention, now_us)
        if not count:
            return
        removed, self._entries = self._entries[:count], self._entries[count:]
        before, first = self._header, removed[-1].sequence + 1
        # The start moves first: a crash in between leaves entries below the start, which the next claim removes.
        self._put_header(replace(before, start_lsn=removed[-1].end_lsn, first_sequence=first))
        failpoint.hit("changelog.after_trim_header")
        trimmed = (f"entries/{entry_name(number)}" for number in range(before.first_sequence, first))
        self._folder.remove_all([before.name, *trimmed])
        failpoint.hit("changelog.after_trim_entry")
        self._remove_data(removed)
        self.size_bytes -= sum(entry.size_bytes for entry in removed)

    def _take_lock(self) -> ExitStack:
        """Keep a second writer of the same machine away at once, where there are locks."""
        with ExitStack() as held:
            if self._folder.is_local:
                path = self._folder.path("LOCK")
                with io_errors(path):
                    lock = held.enter_context(open(path, "ab"))  # noqa: PTH123
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise StateError(
                        f"change log: another process writes to {self._folder}",
                        kind=ErrorKind.SLOT_IN_USE,
                        remedy=_ONE_WRITER,
                    ) from None
            return held.pop_all()

    def _put_entry(self, entry: Entry) -> None:
        if not self._folder.put_if_absent(f"entries/{entry.name}", encode_entry(entry)):
            raise self._overtaken()
        self._sequence += 1
        self._entries.append(entry)
        self.size_bytes += entry.size_bytes
        self.end_lsn = entry.end_lsn

    def _put_header(self, header: Header) -> None:
        header = replace(header, number=header.number + 1, session=self._session)
        if not put_header(self._folder, header) or self._is_outnumbered(header):
            raise self._overtaken()
        self._header = header

    def _is_outnumbered(self, header: Header) -> bool:
        """Whether the number was free only because later ones have been given, and it was removed since."""
        return not self._folder.is_local and header_number(header_names(self._folder)[-1]) > header.number

    def _overtaken(self) -> StateError:
        return StateError(
            f"change log: another process has begun to write to {self._folder}",
            kind=ErrorKind.SLOT_IN_USE,
            remedy=_ONE_WRITER,
        )

    def _require_no_hole(self) -> None:
        """Refuse a log of which an entry was lost: readers stop before it, and what is behind is no leftover."""
        is_behind = any(number > self._sequence for number in _sequences(self._folder))
        # One that is there by now is another writer's, which the claim meets.
        if is_behind and read_entry(self._folder, self._sequence) is None:
            name = f"entries/{entry_name(self._sequence)}"
            raise LogDamagedError(f"change log: {name} is missing, but later ones are there")

    def _remove_data(self, entries: Sequence[Entry]) -> None:
        if self._folder.is_local:
            for entry in entries:
                self._folder.remove_folder(entry.folder)
        else:
            self._folder.remove_all(path for entry in entries for path in entry.paths)
