"""What a test does with streams of frames: make slots, wait, collect, and take apart."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from penstock.model.lsn import NOWHERE
from penstock.postgres.replication import ReplicationStream
from penstock.testing.postgres import Database

WAIT_S = 60.0


class ByteStream(Protocol):
    def fileno(self) -> int: ...
    @property
    def has_pending(self) -> bool: ...
    def receive_into(self, view: memoryview) -> int: ...


def collect(stream: ByteStream, until: Callable[[bytearray], bool], room: int = 1 << 20) -> bytearray:
    """Receive, as an event loop would, until the bytes so far are enough."""
    view, received = memoryview(bytearray(room)), bytearray()
    deadline = time.monotonic() + WAIT_S
    while not until(received):
        if not stream.has_pending:
            left = deadline - time.monotonic()
            assert left > 0, f"{len(received)} bytes arrived, and then nothing more"
            select.select([stream], [], [], left)
        received += view[: stream.receive_into(view)]
    return received


def frames_of(received: bytes | bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take whole frames apart; one that is not whole is left out."""
    at = 0
    while at + 5 <= len(received):
        end = at + 1 + int.from_bytes(received[at + 1 : at + 5])
        if end > len(received):
            return
        yield bytes(received[at : at + 1]), bytes(received[at + 5 : end])
        at = end


def make_slots(database: Database, *names: str) -> None:
    """Create a table, a publication of it, and slots that see everything from now on.

    No keepalive wakes a reader that missed something: it would wait in vain.
    """
    database.execute("create table t (id int primary key, v text); create publication p for table t")
    database.execute(f"alter database {database.name} set wal_sender_timeout = 0")
    for name in names:
        database.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", name)


def changes_of(received: bytes | bytearray) -> list[bytes]:
    """Return the messages with their places, without what differs each time: the server's clock and its end of WAL."""
    return [body[:9] + body[25:] for tag, body in frames_of(received) if tag == b"d" and body[:1] == b"w"]


def kind_of(change: bytes) -> bytes:
    """Return the letter that tells what a change is."""
    return change[9:10]


def stream_all(stream: ReplicationStream, slot: str, room: int = 1 << 20) -> list[bytes]:
    """Stream a slot until the row `last` and its commit have come."""

    def is_whole(received: bytearray) -> bool:
        return b"last" in received and kind_of(changes_of(received)[-1]) == b"C"

    stream.start(slot, "p", NOWHERE, proto_version=1, streaming=False)
    return changes_of(collect(stream, is_whole, room))
