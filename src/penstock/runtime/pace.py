"""How fast a copy reads, told so that it neither sags nor jumps while a range is under way.

A range is counted when all of it is there, seconds after the one before. An average up to now would fall in
between and leap at every range; so the pace is that of the last growth, and the time left runs down from there. Only
when that time is up without growth was it wrong: then the pace falls, and nobody knows the time left.

What is long past counts less, by the square of the time since the start: the seconds that Spark takes to start
fade from the pace. Ranges end in clusters, as tasks of one size do that started together; what is told therefore
follows what is measured with some delay.
"""

from __future__ import annotations

import math
import threading

from penstock.postgres.ranges import Copied

_DELAY_SHARE = 0.05  # of the time left: nobody minds a minute when an hour is left
_MIN_DELAY_S = 3.0


class Pace:
    """What was read when, by one process. Noted by whoever asks, from any thread."""

    def __init__(self, started_s: float) -> None:
        self.rows_per_second = 0.0
        """As of the last note."""
        self.seconds_left: float | None = None
        """As of the last note; None before there is a pace, and after it proved wrong."""
        self._started_s = self._grown_s = self._noted_s = started_s
        self._read = Copied()
        self._rows, self._blocks, self._seconds = 0.0, 0.0, 0.0  # weighted
        self._lock = threading.Lock()

    def note(self, now_s: float, read: Copied, blocks_left: int) -> None:
        """Take in how much is read by now, and what is left."""
        with self._lock:
            if read != self._read and now_s > self._grown_s:
                self._add(now_s, read)
            self._tell(now_s, blocks_left)

    def _add(self, now_s: float, read: Copied) -> None:
        weight = ((self._grown_s - self._started_s) / (now_s - self._started_s)) ** 2
        # A part that failed and is read again counts as less than before: no pace of its own.
        rows, blocks = max(read.rows - self._read.rows, 0), max(read.blocks - self._read.blocks, 0)
        self._rows = self._rows * weight + rows
        self._blocks = self._blocks * weight + blocks
        self._seconds = self._seconds * weight + now_s - self._grown_s
        self._grown_s, self._read = now_s, read

    def _tell(self, now_s: float, blocks_left: int) -> None:
        left_s, passed_s = self._measured_left_s(now_s, blocks_left), max(now_s - self._noted_s, 0.0)
        share = 1 - math.exp(-passed_s / max(_MIN_DELAY_S, _DELAY_SHARE * (left_s or 0.0)))
        waited_s = now_s - self._grown_s if left_s is None else 0.0
        seconds = self._seconds + waited_s
        rate = self._rows / seconds if seconds > 0 else 0.0
        self.rows_per_second = _approach(self.rows_per_second or rate, rate, share)
        if left_s is None or self.seconds_left is None or blocks_left <= 0:
            self.seconds_left = left_s
        else:
            self.seconds_left = _approach(max(self.seconds_left - passed_s, 0.0), left_s, share)
        self._noted_s = now_s

    def _measured_left_s(self, now_s: float, blocks_left: int) -> float | None:
        if self._blocks <= 0:
            return None
        if blocks_left <= 0:
            return 0.0
        left_s = self._seconds * blocks_left / self._blocks - (now_s - self._grown_s)
        return left_s if left_s >= 0 else None


def _approach(told: float, measured: float, share: float) -> float:
    return told + (measured - told) * share
