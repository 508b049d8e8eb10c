"""The receiver's loop: one thread reads the stream, keeps the server informed and decides when to write.

Nothing here waits for the disk, for decoding or for the driver. The recorder works on its own thread;
when it is behind, or the log is full, reading pauses while status updates go on, and the WAL waits at the source.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import queue
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from enum import Enum, auto
from typing import Any

from penstock import failpoint
from penstock.changelog.entry import Entry
from penstock.changelog.writer import LogWriter
from penstock.errors import REMEDIES, ErrorKind, LogDamagedError, PenstockError, SourceError
from penstock.model.lsn import NOWHERE, Lsn
from penstock.postgres.connection import Connection, connect, connection_error, error_from_response, source_errors
from penstock.postgres.replication import STREAMING_SINCE, Identity, ReplicationStream, open_replication_stream
from penstock.postgres.slot import SlotState, read_slot
from penstock.receiver.decoder import Decoder
from penstock.receiver.heartbeat import Heartbeat
from penstock.receiver.intake import BLOCK_BYTES, Intake
from penstock.receiver.recorder import Recorder
from penstock.receiver.relation import RelationDescriber
from penstock.receiver.settings import Command, ReceiverSettings
from penstock.receiver.spool import Spools
from penstock.wire.scan import warm_up
from penstock.wire.stream import POSTGRES_EPOCH_US, encode_status_update

_BUSY_WAIT_S = 0.02  # how soon to look again while reading is paused
_COLLECT_S = 0.02  # a server sends message by message: waiting a moment makes one large read of many small ones
_BURST_BYTES = 1 << 20
_LULL_S = 0.05
_LEAST_DATA_BYTES = 64 << 20
_LEAST_BLOCK_BYTES = 64 << 10
_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 4 << 20  # of mallopt(3)
_TRIM_PAUSE_S = 5.0  # in a bucket, where a trim is three requests however much goes with it
_OWN_BYTES = 48 << 20  # what the process may grow by its own, beside the data
_UPLOAD_BYTES = 48 << 20  # what is on its way into a bucket, and the connections to it
_PUBLICATION_NOT_LOADED = b"RLoadPublications\0"  # where the server says so: its words may be in any language
_WAL_SENDER_TIMEOUT = "select setting::int from pg_catalog.pg_settings where name = 'wal_sender_timeout'"  # in ms


class _Handed(Enum):
    """What the recorder has been given since the last seal."""

    NOTHING = auto()
    WHOLE = auto()
    """Whole transactions."""
    PART = auto()
    """The beginning of one too."""


class Receiver:
    """Runs until its input ends or it is told to stop."""

    def __init__(self, settings: ReceiverSettings, emit: Callable[..., None], clock: Callable[[], float]) -> None:
        self._settings = settings
        self._emit = emit
        self._clock = clock
        # Of a long log in a bucket this takes minutes; to connect does not.
        emit("opening_log")
        writer = LogWriter(settings.log, settings.policies)
        emit("connecting")
        self._sealed = writer.end_lsn
        self._stream, timeline = self._open_stream(writer)
        self._silence_limit_s = self._check_slot()
        emit("connected")
        # Who holds the slot writes the log: another that still does is refused from here on.
        self._claimed = writer.claim(timeline)
        describer = RelationDescriber(settings.address, settings.policies, writer.version_of)
        decoder = Decoder(describer.describe, writer.end_lsn, Spools(settings.spool))
        own_bytes = _OWN_BYTES if settings.log.is_local else _OWN_BYTES + _UPLOAD_BYTES
        data_bytes = max(_LEAST_DATA_BYTES, settings.max_memory_bytes - _resident_bytes() - own_bytes)
        self._max_bytes = min(settings.max_bytes, data_bytes // 4)
        self._recorder = Recorder(
            writer,
            decoder,
            self._tell_entry,
            max_blocks_bytes=data_bytes // 4,
            # Text takes a little more than the bytes it came in.
            max_rows_bytes=min(2 * self._max_bytes, data_bytes // 6),
            retention=settings.retention,
            trim_pause_s=0.0 if settings.log.is_local else _TRIM_PAUSE_S,
        )
        block_bytes = min(BLOCK_BYTES, max(_LEAST_BLOCK_BYTES, self._max_bytes))
        self._intake = Intake(writer.end_lsn, self._meet_other_frame, block_bytes)
        self._acknowledged = NOWHERE
        self._handed = _Handed.NOTHING
        self._handed_bytes = 0
        self._segment_since: float | None = None
        self._read_at = 0.0
        self._status_due = 0.0
        self._is_full = False
        self._is_flushing = False
        self._idle_since = clock()
        self._last_seal = -math.inf
        self._input = b""
        self.stopping = threading.Event()
        self._heard_at = clock()
        self._heartbeat = Heartbeat(settings.address, settings.heartbeat_s, emit)
        if settings.heartbeat_s:
            self._heartbeat.start()

    def run(self) -> None:
        """Receive until told to stop; then write what is whole and say a last word to the server."""
        self._emit("started", end_lsn=str(self._sealed), fallback=self._stream.fallback_reason)
        self._tell_entry(self._claimed)
        while not self.stopping.is_set():
            self._recorder.check()
            can_read = self._can_read()
            if self._wait(can_read):
                self._read()
            self._require_answers(can_read)
            self._hand_over_if_due()
            self._send_status_if_due()
        self._finish()

    def _open_stream(self, writer: LogWriter) -> tuple[ReplicationStream, int]:
        name = f"penstock receiver {self._settings.slot}"[:63]
        stream = open_replication_stream(self._settings.address, application_name=name)
        source = stream.identify()
        _require_same_source(source, writer.system_identifier)
        if writer.timeline not in (None, source.timeline):
            source = source._replace(lsn=stream.forks(source.timeline).get(writer.timeline, NOWHERE))
        _require_same_history(source, self._sealed)
        # Where the server can, it sends large transactions as they grow, instead of spilling them to its disk.
        can_stream = stream.server_version >= STREAMING_SINCE
        stream.start(
            self._settings.slot,
            self._settings.publication,
            self._sealed,
            proto_version=2 if can_stream else 1,
            streaming=can_stream,
        )
        return stream, source.timeline

    def _check_slot(self) -> float:
        """Refuse a slot that is past the log, and return how long its server may be silent.

        Only now is the answer final: from the start of the stream on, nobody else can move the slot.
        """
        with closing(connect(self._settings.address, application_name="penstock receiver check")) as connection:
            _require_no_gap(read_slot(connection, self._settings.slot), self._sealed)
            return _silence_limit_s(connection)

    def _meet_other_frame(self, tag: bytes, body: bytes) -> None:
        if tag == b"E":
            raise error_from_response(body)
        if tag == b"N":
            self._meet_notice(body)
        elif tag != b"S":  # a setting that changed
            raise SourceError("the source ended the replication stream", kind=ErrorKind.SOURCE_CONNECTION_FAILED)

    def _meet_notice(self, body: bytes) -> None:
        """From 18 on a server goes on without a publication that it does not find, and only warns."""
        if _PUBLICATION_NOT_LOADED in body:
            raise SourceError(
                f"publication {self._settings.publication} did not exist when changes were made that should now be"
                " sent: the source leaves them out",
                kind=ErrorKind.PUBLICATION_MISSING,
                remedy="Create the publication; then drop the slot and the state to copy anew.",
            )

    def _can_read(self) -> bool:
        is_full = self._recorder.size_bytes >= self._settings.max_log_bytes and self._recorder.can_shrink
        if is_full != self._is_full:
            self._is_full = is_full
            self._emit("log_full" if is_full else "log_has_room", size_bytes=self._recorder.size_bytes)
        return not (is_full or self._intake.is_full)

    def _wait(self, can_read: bool) -> bool:
        """Wait for something to do, and say whether there is something to read."""
        if can_read and self._stream.has_pending:
            return True
        sources: list[Any] = [sys.stdin.buffer, *([self._stream] if can_read else [])]
        sinks = [self._stream] if self._stream.wants_write else []
        ready, writable, _ = select.select(sources, sinks, [], self._patience(can_read))
        if sys.stdin.buffer in ready:
            self._read_commands()
        if writable:
            self._stream.flush()
        return self._stream in ready

    def _patience(self, can_read: bool) -> float:
        deadline = self._status_due
        if self._can_seal and self._segment_since is not None:
            deadline = min(deadline, self._seal_due())
        patience = max(0.0, deadline - self._clock())
        is_waiting = not can_read or (self._can_seal and not self._recorder.has_room(self._intake.capacity))
        return _BUSY_WAIT_S if is_waiting else patience

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
        intake = self._intake
        count = self._stream.receive_into(intake.room)
        intake.advance(count)
        self._read_at = self._clock()
        if count:
            self._heard_at = self._read_at
        if intake.take_reply_requested():
            self._status_due = 0.0
        elif count and not intake.is_full:
            time.sleep(_COLLECT_S)
        if self._segment_since is None and (intake.commits or intake.is_in_transaction):
            self._segment_since = self._clock()

    # Handing over: blocks when the buffer is full, a seal when the segment is due.

    @property
    def _can_seal(self) -> bool:
        """Whether what the recorder would have then is whole transactions, and some."""
        if self._intake.whole_bytes:
            return self._intake.commits > 0 or self._handed is not _Handed.NOTHING
        return self._handed is _Handed.WHOLE

    def _seal_due(self) -> float:
        assert self._segment_since is not None
        size_bytes = self._handed_bytes + self._intake.whole_bytes
        if size_bytes >= self._max_bytes:
            return 0.0
        fill_s = self._settings.max_fill_ms / 1000
        lull = self._read_at + _LULL_S
        # The end of a burst is not kept waiting for company, nor is what follows a pause: segments are still as seldom.
        early = lull if size_bytes >= _BURST_BYTES else max(lull, self._last_seal + fill_s)
        return min(self._segment_since + fill_s, early)

    def _hand_over_if_due(self) -> None:
        intake, recorder = self._intake, self._recorder
        if intake.wanted_bytes:
            self._grow_if_possible()
        elif not recorder.has_room(intake.capacity):
            return
        elif self._segment_since is not None and self._can_seal and self._clock() >= self._seal_due():
            self._seal()
        elif intake.is_full:
            self._hand_over_block()
        elif self._segment_since is None and intake.end_lsn > self._sealed and not intake.is_in_transaction:
            self._seal_idle()

    def _hand_over_block(self) -> None:
        intake = self._intake
        if intake.whole_bytes:
            self._give_whole()
            return
        if self._handed is _Handed.WHOLE:
            self._seal()
        self._give(intake.capacity, intake.cut_all())
        self._handed = _Handed.PART

    def _give_whole(self) -> None:
        self._give(self._intake.capacity, self._intake.cut_whole())
        self._handed = _Handed.WHOLE

    def _give(self, size_bytes: int, block: Any) -> None:
        self._handed_bytes += len(block)
        self._recorder.give(block, size_bytes)

    def _seal(self) -> None:
        """Let the recorder write the whole transactions; an open one's part stays here."""
        intake = self._intake
        if intake.whole_bytes:
            self._give_whole()
        self._sealed = intake.end_lsn
        self._recorder.seal(self._sealed)
        self._handed, self._handed_bytes = _Handed.NOTHING, 0
        intake.forget_commits()
        self._idle_since = self._clock()
        if self._segment_since is not None:
            self._last_seal = self._idle_since
        self._segment_since = self._clock() if intake.is_in_transaction else None

    def _seal_idle(self) -> None:
        """Note how far the server has come without a change of ours, as seldom as a change would be."""
        if self._clock() >= self._idle_since + max(self._settings.max_fill_ms / 1000, self._settings.status_interval_s):
            self._seal()

    def _grow_if_possible(self) -> None:
        """Make room for a message larger than a block, once nothing else takes memory."""
        if self._recorder.held_bytes == 0:
            self._is_flushing = False
            self._intake.grow()
        elif not self._is_flushing:
            self._is_flushing = True
            self._recorder.seal(None)

    # The server.

    def _send_status_if_due(self) -> None:
        now = self._clock()
        if now < self._status_due:
            return
        self._status_due = now + self._settings.status_interval_s
        failpoint.hit("receiver.before_status")
        self._send_status(reply_requested=True)
        failpoint.hit("receiver.after_status")

    def _require_answers(self, can_read: bool) -> None:
        """Give up a server that leaves our questions unanswered: the network may accept them for ever."""
        if not can_read:
            self._heard_at = self._clock()
        elif self._clock() - self._heard_at > self._silence_limit_s:
            raise connection_error(f"the server has not answered for {self._silence_limit_s:g} s")

    def _send_status(self, *, reply_requested: bool) -> None:
        durable = self._recorder.durable_lsn
        flush = durable if self._settings.acknowledges_staged else min(self._acknowledged, durable)
        now_us = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        self._stream.send(encode_status_update(self._intake.received, flush, flush, now_us, reply_requested))

    def _tell_entry(self, entry: Entry) -> None:
        events = sum(file.rows for file in entry.files) + len(entry.truncates)
        self._emit(
            "entry",
            sequence=entry.sequence,
            is_complete=entry.is_complete,
            end_lsn=str(entry.end_lsn),
            events=events,
        )

    def _finish(self) -> None:
        self._heartbeat.stop()
        if self._can_seal:
            self._seal()
        self._recorder.close()
        self._send_status(reply_requested=False)
        self._stream.close()
        self._emit("stopped", end_lsn=str(self._recorder.durable_lsn))


def _require_same_source(source: Identity, system_identifier: str) -> None:
    """Refuse a server that has nothing to do with the log."""
    if source.system_identifier != system_identifier:
        raise LogDamagedError(
            "the change log belongs to another database cluster than the one that answers now",
            kind=ErrorKind.LOG_GAP,
            remedy="Point pg_connection at the cluster it came from, or give this pipeline another state_dir.",
        )


def _require_same_history(source: Identity, end_lsn: Lsn) -> None:
    """Refuse a server that does not have everything the log has: following it would mix two histories.

    Of a server on another timeline, only what is before the fork counts, however far it has come since.
    """
    if source.lsn < end_lsn:
        raise LogDamagedError(
            f"the source shares the log's history up to {source.lsn}, but the change log has changes up to {end_lsn}:"
            " the source was restored, or failed over to a standby that had not received them",
            kind=ErrorKind.LOG_GAP,
            remedy="Changes that the source lost are in the log and perhaps in the destination. Let the old primary"
            " take over again, or drop the slot and the state to copy anew; from Postgres 17 on,"
            " synchronized_standby_slots keeps this from happening.",
        )


def _require_no_gap(slot: SlotState, end_lsn: Lsn) -> None:
    """Refuse a slot that would skip what the log does not have: the server starts where the slot stands, silently."""
    if slot.confirmed_flush_lsn is not None and slot.confirmed_flush_lsn > end_lsn:
        raise LogDamagedError(
            f"the source's slot {slot.name} stands at {slot.confirmed_flush_lsn}, but the change log ends at"
            f" {end_lsn}: what is in between is lost",
            kind=ErrorKind.LOG_GAP,
            remedy="Restore the newest state of the log's folder, or drop the slot and the state to copy anew.",
        )


def _silence_limit_s(connection: Connection) -> float:
    """Return twice the time after which the server would take a silent client for dead; it is asked far more often."""
    with source_errors("asking for wal_sender_timeout"):
        row = connection.execute(_WAL_SENDER_TIMEOUT).fetchone()
    assert row is not None
    return 2 * row[0] / 1000 or math.inf


def _return_memory_eagerly() -> None:
    """Let large pieces of memory go back to the system when they are freed, instead of staying for a next time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * resource.getpagesize()


def main() -> int:
    """Read the settings, run, and report how it ended; the exit code is 0 after a clean stop."""
    settings = ReceiverSettings.from_line(_read_line())
    failpoint.arm(settings.failpoints)
    emit = _Emitter()
    try:
        _return_memory_eagerly()
        warm_up()
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
    finally:
        emit.close()
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
    """Writes events to standard output, a line each, on a thread of its own: a driver that stands still delays nothing.

    Its queue is bounded by what the log may hold: when that is full, there are no more events.
    """

    _CLOSE_S = 1.0

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="emitter", daemon=True)
        self._thread.start()

    def __call__(self, event: str, **fields: object) -> None:
        self._lines.put(json.dumps({"event": event, **fields}).encode() + b"\n")

    def close(self) -> None:
        """Write what is left, if anyone reads it."""
        self._lines.put(None)
        self._thread.join(self._CLOSE_S)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                os.write(sys.stdout.fileno(), line)
            except BrokenPipeError:
                return  # a driver that is gone is noticed by the end of our input
