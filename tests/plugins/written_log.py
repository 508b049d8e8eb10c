"""Change logs written by the log's own writer, a transaction at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from plugins.s3 import Bucket

from penstock.changelog.entry import Entry
from penstock.changelog.folder import Folder
from penstock.changelog.segment import Segment
from penstock.changelog.writer import LogWriter, create_log
from penstock.model.event import Truncate
from penstock.model.lsn import Lsn, Position
from penstock.model.policy import ValuePolicies
from penstock.model.table import Column, Kind, PgType, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.testing.assembly import Change, Text, Transaction, text_batch, transactions_batch

START = Lsn(0x100)
COMMIT_TIME_US = 1_700_000_000_123_456
XID = 742


def orders(
    table: int = 16385, identity: ReplicaIdentity = ReplicaIdentity.DEFAULT, name: str = "orders"
) -> TableSchema:
    """Return a table with a key, a text, a number and a date."""
    columns = (
        Column("id", PgType("bigint", Kind.INT8), nullable=False, key_ordinal=0),
        Column("note", PgType("text", Kind.TEXT)),
        Column("total", PgType("numeric(12,2)", Kind.NUMERIC, 12, 2)),
        Column("paid_on", PgType("date", Kind.DATE)),
    )
    return TableSchema(TableId(table), TableName("public", name), columns, identity)


def row(
    key: int, note: str | None = "x", total: str | None = "12.50", paid_on: str | None = "2024-02-29"
) -> list[Text]:
    """Return a row of `orders` as the server prints it."""
    return [None if each is None else each.encode() for each in (str(key), note, total, paid_on)]


@dataclass(frozen=True, slots=True)
class Did:
    """One thing that a transaction did."""

    schema: TableSchema
    op: str
    values: Sequence[Text] = ()
    old_key: Sequence[Text] | None = None
    before: Sequence[Text] | None = None
    unchanged: list[str] | None = None


@dataclass
class WrittenLog:
    """A log that a test writes; it holds the writer's lock only while it writes."""

    root: Path
    """Where its files really are."""
    folder: Folder
    position: int = int(START)
    changes: int = 0
    """Of the open transaction so far."""
    entries: list[Entry] = field(default_factory=list)

    def commit(self, *things: Did, is_complete: bool = True) -> Lsn:
        """Write a transaction in an entry of its own; or, incomplete, a part that the next call goes on with."""
        commit_lsn = Lsn(self.position + 0x10)
        transaction = Transaction(commit_lsn, COMMIT_TIME_US, XID, Lsn(commit_lsn + 8), self.changes + len(things))
        with self.writing() as writer:
            segment = self._segment(writer, transaction, things)
            if is_complete:
                segment.add_transactions(transactions_batch([transaction]))
            self.entries.append(writer.append(segment, end_lsn=transaction.end_lsn if is_complete else None))
        self.changes = 0 if is_complete else transaction.changes
        self.position = int(transaction.end_lsn) if is_complete else self.position
        return commit_lsn

    def idle(self) -> None:
        """Write an entry that only moves the end."""
        self.position += 0x10
        with self.writing() as writer:
            self.entries.append(writer.append(Segment(), end_lsn=Lsn(self.position)))

    def trim(self, needed: Lsn) -> None:
        """Remove what ends at or before a position."""
        with self.writing() as writer:
            writer.trim(needed)

    @contextmanager
    def writing(self) -> Iterator[LogWriter]:
        """Lend the writer; the one of a transaction in parts stays open, since a new one would drop the parts."""
        writer = self._writer or LogWriter(self.folder, ValuePolicies())
        self._writer = writer
        yield writer
        if not self.entries or self.entries[-1].is_complete:
            self.close()

    def close(self) -> None:
        """Let the writer go, and with it an open transaction."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    _writer: LogWriter | None = None

    def _segment(self, writer: LogWriter, transaction: Transaction, things: Sequence[Did]) -> Segment:
        segment = Segment()
        rows: dict[tuple[int, int], list[Change]] = defaultdict(list)
        schemas: dict[tuple[int, int], TableSchema] = {}
        for ordinal, did in enumerate(things, start=self.changes + 1):
            if did.op == "T":
                position = Position(transaction.commit_lsn, ordinal)
                segment.truncates.append(Truncate(position, (did.schema.id,), cascade=True, restart_identity=False))
                continue
            key = (int(did.schema.id), writer.version_of(did.schema))
            schemas[key] = did.schema
            change = Change(did.op, did.values, transaction, ordinal, did.old_key, did.before, did.unchanged)
            rows[key].append(change)
        for key, changes in rows.items():
            segment.add_rows(schemas[key], key[1], text_batch(schemas[key], changes))
        return segment


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a test's log is, and where its files really are: behind a bucket is a folder too."""

    root: Path
    folder: Folder


PLACES = ("disk", pytest.param("bucket", marks=pytest.mark.spark))
"""What a module names that runs on both: for the store there is a JVM."""


def make_place(request: pytest.FixtureRequest) -> LogPlace:
    """Return the place that a fixture with `PLACES` as its parameters is asked for."""
    if request.param == "disk":
        return _on_disk(request.getfixturevalue("tmp_path"))
    bucket: Bucket = request.getfixturevalue("bucket")
    return LogPlace(bucket.root / "a/log", Folder(f"s3://{bucket.name}/a/log", bucket.settings))


def _on_disk(folder: Path) -> LogPlace:
    root = folder / ".penstock" / "log"
    return LogPlace(root, Folder.on_disk(root))


@pytest.fixture
def log_place(tmp_path: Path) -> LogPlace:
    """Overridden where a test runs in a bucket too."""
    return _on_disk(tmp_path)


@pytest.fixture
def written_log(log_place: LogPlace) -> Iterator[WrittenLog]:
    create_log(log_place.folder, slot="s", system_identifier="1", start_lsn=START)
    made = WrittenLog(log_place.root, log_place.folder)
    yield made
    made.close()
