"""Writes segments to the log on a thread of its own, so that a slow disk never delays a keepalive."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from penstock.changelog.entry import Entry
from penstock.changelog.segment import Segment
from penstock.changelog.writer import LogWriter
from penstock.model.lsn import NOWHERE, Lsn

_TRIM_POLL_S = 0.1  # how soon a trim is done while nothing is being written


class Recorder:
    """Takes one segment ahead of the one being written; that is all the memory it may hold."""

    def __init__(self, writer: LogWriter, on_entry: Callable[[Entry], None]) -> None:
        self._writer = writer
        self._on_entry = on_entry
        self._queue: queue.Queue[tuple[Segment, Lsn | None] | None] = queue.Queue(maxsize=1)
        self._trim = self._trimmed = NOWHERE
        self._error: BaseException | None = None
        self.durable_lsn = writer.end_lsn
        self.size_bytes = writer.size_bytes
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether another segment can be given now."""
        return not self._queue.full()

    @property
    def is_alive(self) -> bool:
        """Whether the writing goes on."""
        return self._error is None

    def offer(self, segment: Segment, end_lsn: Lsn | None) -> bool:
        """Give a segment to be written, or return False if there is no room yet."""
        self.check()
        try:
            self._queue.put_nowait((segment, end_lsn))
        except queue.Full:
            return False
        return True

    def trim(self, before: Lsn) -> None:
        """Let the log forget what ends before a position, as soon as there is time for it."""
        self._trim = max(self._trim, before)

    def check(self) -> None:
        """Raise what stopped the writing, if anything did."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Write what was given, then stop."""
        if self._error is None:
            self._queue.put(None)
            self._thread.join()
        self._writer.close()
        self.check()

    def _run(self) -> None:
        try:
            while True:
                self._trim_if_wanted()
                try:
                    item = self._queue.get(timeout=_TRIM_POLL_S)
                except queue.Empty:
                    continue
                if item is None:
                    return
                self._write(*item)
        except BaseException as error:  # noqa: BLE001  # handed to the main thread, which raises it
            self._error = error

    def _trim_if_wanted(self) -> None:
        wanted = self._trim
        if wanted > self._trimmed:
            self._writer.trim(wanted)
            self._trimmed = wanted
            self.size_bytes = self._writer.size_bytes

    def _write(self, segment: Segment, end_lsn: Lsn | None) -> None:
        entry = self._writer.append(segment, end_lsn=end_lsn)
        self.durable_lsn = self._writer.end_lsn
        self.size_bytes = self._writer.size_bytes
        self._on_entry(entry)
