"""Decodes and writes on a thread of its own, so that neither a slow disk nor a large block delays a keepalive.

Rule: everything it holds (blocks given to it, rows decoded, rows being written) is counted, and whoever
reads the stream waits when that is too much.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.changelog.entry import Entry
from penstock.changelog.retention import Retention
from penstock.changelog.segment import Segment
from penstock.changelog.writer import LogWriter
from penstock.model.lsn import NOWHERE, Lsn
from penstock.receiver.decoder import Decoder
from penstock.wire.scan import Bytes

_TRIM_POLL_S = 0.1  # how soon a trim is done while nothing is being written


@dataclass(frozen=True, slots=True)
class _Block:
    """Whole frames of the stream."""

    data: Bytes
    size_bytes: int
    """Of the memory that it keeps from being freed."""


@dataclass(frozen=True, slots=True)
class _Seal:
    """Everything before it belongs into the log; the entry is complete up to a position, or part of a chain."""

    end_lsn: Lsn | None


class _Close:
    pass


class Recorder:
    """Takes the stream's blocks, and the word when to write them."""

    def __init__(
        self,
        writer: LogWriter,
        decoder: Decoder,
        on_entry: Callable[[Entry], None],
        *,
        max_blocks_bytes: int,
        max_rows_bytes: int,
        retention: Retention,
        trim_pause_s: float = 0.0,
    ) -> None:
        self._writer = writer
        self._decoder = decoder
        self._on_entry = on_entry
        self._max_blocks_bytes = max_blocks_bytes
        self._max_rows_bytes = max_rows_bytes
        self._queue: queue.SimpleQueue[_Block | _Seal | _Close] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._blocks_bytes = 0
        self._rows_bytes = 0
        self._retention = retention
        self._trim_pause_s = trim_pause_s
        self._trim_due = 0.0
        self._needed = NOWHERE
        self._error: BaseException | None = None
        self.durable_lsn = writer.end_lsn
        self.size_bytes = writer.size_bytes
        self.is_chain_open = False
        decoder.on_segment = self._write_if_large
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @property
    def held_bytes(self) -> int:
        """Bytes of blocks and rows in memory."""
        return self._blocks_bytes + self._rows_bytes

    @property
    def can_shrink(self) -> bool:
        """Whether waiting can make the log smaller.

        It cannot inside a transaction whose beginning is written, nor once all of the log may go: its last
        entry stays until another follows, however large it is.
        """
        return not self.is_chain_open and self._needed < self.durable_lsn

    def has_room(self, size_bytes: int) -> bool:
        """Whether a block of this size can be given now; one that is too large for any room needs all of it."""
        return self._blocks_bytes + size_bytes <= self._max_blocks_bytes or self._blocks_bytes == 0

    def give(self, block: Bytes, size_bytes: int) -> None:
        """Hand over whole frames, and with them the memory that they lie in."""
        self.check()
        with self._lock:
            self._blocks_bytes += size_bytes
        self._queue.put(_Block(block, size_bytes))

    def seal(self, end_lsn: Lsn | None) -> None:
        """Write what was given: whole transactions up to a position or, with None, whatever there is."""
        self._queue.put(_Seal(end_lsn))

    def trim(self, needed: Lsn) -> None:
        """Let the log forget what ends before a position and is not kept, as soon as there is time for it."""
        self._needed = max(self._needed, needed)

    def check(self) -> None:
        """Raise what stopped the writing, if anything did."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Write what was sealed, then stop."""
        self._queue.put(_Close())
        self._thread.join()
        self._decoder.spools.close()
        self._writer.close()
        self.check()

    def _run(self) -> None:
        try:
            # Here, since it may take minutes, and the server wants answers meanwhile.
            self._writer.drop_leftovers()
            while self._step():
                pass
        except BaseException as error:  # noqa: BLE001  # handed to the main thread, which raises it
            self._error = error

    def _step(self) -> bool:
        self._trim()
        try:
            item = self._queue.get(timeout=_TRIM_POLL_S)
        except queue.Empty:
            return True
        match item:
            case _Block():
                self._decode(item)
                del item  # its memory is wanted for what was made of it
                self._write_if_large()
            case _Seal():
                self._write(item.end_lsn)
            case _Close():
                return False
        return True

    def _decode(self, block: _Block) -> None:
        self._decoder.feed(block.data)
        self._rows_bytes = self._decoder.segment.size_bytes
        with self._lock:
            self._blocks_bytes -= block.size_bytes

    def _write_if_large(self) -> None:
        self._rows_bytes = self._decoder.segment.size_bytes
        if self._rows_bytes >= self._max_rows_bytes:
            self._write(None)

    def _write(self, end_lsn: Lsn | None) -> None:
        segment = self._decoder.take()
        if segment.is_empty and end_lsn in (None, self._writer.end_lsn):
            return
        self._append(segment, end_lsn)
        self._rows_bytes = 0

    def _append(self, segment: Segment, end_lsn: Lsn | None) -> None:
        entry = self._writer.append(segment, end_lsn=end_lsn)
        self.is_chain_open = end_lsn is None
        self.durable_lsn = self._writer.end_lsn
        # Trimmed before the size is told: what is only kept for replay gives way before the log is full.
        self._trim()
        self.size_bytes = self._writer.size_bytes
        self._on_entry(entry)

    def _trim(self) -> None:
        """Remove what is neither needed nor kept; asked often, since time alone makes entries go."""
        now, max_bytes = time.monotonic(), self._retention.max_bytes
        if now < self._trim_due and (max_bytes is None or self._writer.size_bytes < max_bytes // 2):
            return
        self._trim_due = now + self._trim_pause_s
        self._writer.trim(self._needed, self._retention, now_us=time.time_ns() // 1000)
        self.size_bytes = self._writer.size_bytes
