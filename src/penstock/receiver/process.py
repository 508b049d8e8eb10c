"""The receiver's loop: one thread reads the stream, keeps the server informed and decides when to write.

Nothing here waits for the disk or for the driver. The recorder writes on its own thread; when it is
behind, or the log is full, reading pauses while status updates go on, and the WAL waits at the source.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from penstock import failpoint
from penstock.changelog.entry import Entry
from penstock.changelog.segment import Segment
from penstock.changelog.writer import LogWriter
from penstock.errors import REMEDIES, ErrorKind, PenstockError
from penstock.model.lsn import NOWHERE, Lsn
from penstock.postgres.connection import connect
from penstock.postgres.stream import ReplicationStream
from penstock.receiver.assembly import POSTGRES_EPOCH_US, Assembler
from penstock.receiver.recorder import Recorder
from penstock.receiver.relation import RelationDescriber
from penstock.receiver.settings import Command, ReceiverSettings
from penstock.wire.pgoutput import decode_message
from penstock.wire.stream import PrimaryKeepalive, decode_envelope, encode_status_update

_BUSY_WAIT_S = 0.02  # how soon to look again while reading is paused


class Receiver:
    """Runs until its input ends or it is told to stop."""

    def __init__(self, settings: ReceiverSettings, emit: Callable[..., None], clock: Callable[[], float]) -> None:
        self._settings = settings
        self._emit = emit
        self._clock = clock
        self._writer = LogWriter(settings.log, settings.policies)
        self._recorder = Recorder(self._writer, self._tell_entry)
        describer = RelationDescriber(settings.address, settings.policies, self._writer.version_of)
        self._assembler = Assembler(describer.describe, self._writer.end_lsn)
        self._acknowledged = NOWHERE
        self._received = self._writer.end_lsn
        self._offered = self._writer.end_lsn
        self._segment_since: float | None = None
        self._status_due = 0.0
        self._is_full = False
        self._is_chain_open = False
        self._idle_since = clock()
        self._input = b""
        self.stopping = threading.Event()
        self._stream = self._open_stream()

    def run(self) -> None:
        """Receive until told to stop; then write what is whole and say a last word to the server."""
        self._emit("started", end_lsn=str(self._writer.end_lsn))
        while not self.stopping.is_set():
            self._recorder.check()
            can_read = self._can_read()
            self._wait(can_read)
            if can_read:
                self._read()
            self._write_if_due()
            self._send_status_if_due()
        self._finish()

    def _open_stream(self) -> ReplicationStream:
        name = f"penstock receiver {self._settings.slot}"[:63]
        stream = ReplicationStream(connect(self._settings.address, application_name=name, replication=True))
        stream.start(self._settings.slot, self._settings.publication, self._writer.end_lsn)
        return stream

    def _can_read(self) -> bool:
        # Inside a transaction whose beginning is written there is no way but on: until its commit nothing can be freed.
        is_full = self._recorder.size_bytes >= self._settings.max_log_bytes and not self._is_chain_open
        if is_full != self._is_full:
            self._is_full = is_full
            self._emit("log_full" if is_full else "log_has_room", size_bytes=self._recorder.size_bytes)
        return not is_full and self._assembler.segment.size_bytes < 2 * self._settings.max_bytes

    def _wait(self, can_read: bool) -> None:
        sources: list[Any] = [sys.stdin.buffer, *([self._stream] if can_read else [])]
        deadline = self._status_due if self._segment_since is None else min(self._status_due, self._write_due())
        timeout = max(0.0, deadline - self._clock())
        if not (can_read and self._recorder.has_room):
            timeout = _BUSY_WAIT_S
        ready = select.select(sources, [], [], timeout)[0]
        if sys.stdin.buffer in ready:
            self._read_commands()

    def _read_commands(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            self.stopping.set()
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            command = Command.from_line(line)
            self._acknowledged = max(self._acknowledged, command.acknowledge)
            self._recorder.trim(command.trim)

    def _read(self) -> None:
        for data in self._stream.receive():
            envelope = decode_envelope(data)
            self._received = max(self._received, envelope.end_lsn)
            if isinstance(envelope, PrimaryKeepalive):
                self._keepalive(envelope)
            else:
                self._assembler.feed(decode_message(envelope.payload))
        if self._segment_since is None and self._has_something():
            self._segment_since = self._clock()

    def _has_something(self) -> bool:
        segment = self._assembler.segment
        return bool(segment.tables or segment.transactions or segment.truncates)

    def _keepalive(self, keepalive: PrimaryKeepalive) -> None:
        if keepalive.reply_requested:
            self._status_due = 0.0
        # A keepalive between transactions says that nothing of ours is before its position: so does the log, then.
        if not self._assembler.is_in_transaction:
            self._assembler.end_lsn = max(self._assembler.end_lsn, keepalive.end_lsn)

    def _write_due(self) -> float:
        assert self._segment_since is not None
        return self._segment_since + self._settings.max_fill_ms / 1000

    def _write_if_due(self) -> None:
        assembler = self._assembler
        if assembler.segment.size_bytes >= self._settings.max_bytes:
            self._write_large()
        elif self._segment_since is not None and self._clock() >= self._write_due():
            self._write_complete()
        elif self._segment_since is None and assembler.end_lsn > self._offered and not assembler.is_in_transaction:
            self._write_idle()

    def _write_idle(self) -> None:
        """Note how far the server has come without a change of ours, as seldom as a change would be."""
        if self._clock() >= self._idle_since + max(self._settings.max_fill_ms / 1000, self._settings.status_interval_s):
            self._offer(Segment(), self._assembler.end_lsn)

    def _write_complete(self) -> None:
        """Write the transactions that committed; the open one waits for its commit or for `max_bytes`."""
        assembler = self._assembler
        if not assembler.segment.transactions:
            self._segment_since = self._clock()
            return
        if not self._recorder.has_room:
            return
        segment = assembler.segment.take_complete() if assembler.is_in_transaction else assembler.take()
        self._offer(segment, assembler.end_lsn)
        self._segment_since = self._clock() if self._has_something() else None

    def _write_large(self) -> None:
        """Write all there is, a part of the open transaction too; committed transactions go first, on their own."""
        assembler = self._assembler
        if assembler.segment.transactions:
            self._write_complete()
        elif self._recorder.has_room:
            self._offer(assembler.take(), None)
            self._segment_since = None

    def _offer(self, segment: Segment, end_lsn: Lsn | None) -> None:
        if not self._recorder.offer(segment, end_lsn):
            return
        self._idle_since = self._clock()
        self._is_chain_open = end_lsn is None
        if end_lsn is not None:
            self._offered = end_lsn

    def _send_status_if_due(self) -> None:
        now = self._clock()
        if now < self._status_due:
            return
        self._status_due = now + self._settings.status_interval_s
        failpoint.hit("receiver.before_status")
        self._send_status(reply_requested=True)

    def _send_status(self, *, reply_requested: bool) -> None:
        durable = self._recorder.durable_lsn
        flush = durable if self._settings.acknowledges_staged else min(self._acknowledged, durable)
        now_us = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        self._stream.send(encode_status_update(self._received, flush, flush, now_us, reply_requested))

    def _tell_entry(self, entry: Entry) -> None:
        events = sum(file.rows for file in entry.files) + len(entry.truncates)
        self._emit("entry", sequence=entry.sequence, end_lsn=str(entry.end_lsn), events=events)

    def _finish(self) -> None:
        assembler = self._assembler
        while assembler.segment.transactions and self._recorder.is_alive:
            self._write_complete()
            time.sleep(0 if self._recorder.has_room else _BUSY_WAIT_S)
        self._recorder.close()
        self._send_status(reply_requested=False)
        self._stream.close()
        self._emit("stopped", end_lsn=str(self._recorder.durable_lsn))


def main() -> int:
    """Read the settings, run, and report how it ended; the exit code is 0 after a clean stop."""
    settings = ReceiverSettings.from_line(_read_line())
    failpoint.arm(settings.failpoints)
    emit = _Emitter()
    try:
        receiver = Receiver(settings, emit, time.monotonic)
        signal.signal(signal.SIGTERM, lambda *_: receiver.stopping.set())
        receiver.run()
    except PenstockError as error:
        emit("failed", kind=error.kind.value, message=error.message, remedy=error.remedy)
        return 1
    except Exception as error:  # noqa: BLE001  # the text of a foreign exception may quote a row: its class must do
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"internal error in the receiver: {type(error).__name__} in {place.name}, line {place.lineno}"
        emit("failed", kind=ErrorKind.INTERNAL.value, message=what, remedy=REMEDIES[ErrorKind.INTERNAL][1])
        return 1
    return 0


def _read_line() -> bytes:
    """Read the first line byte by byte: what follows stays in the pipe for the loop to wait on."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            raise SystemExit("this process is started by penstock, which tells it what to do")
        line += byte
    return line


class _Emitter:
    """Writes events to standard output, a line each, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, event: str, **fields: object) -> None:
        line = json.dumps({"event": event, **fields}).encode() + b"\n"
        # A driver that is gone is noticed by the end of our input.
        with self._lock, contextlib.suppress(BrokenPipeError):
            os.write(sys.stdout.fileno(), line)
