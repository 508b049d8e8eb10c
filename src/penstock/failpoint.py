"""Named places where tests make the product fail: inert until armed.

`hit("module.moment")` stands at every step of the protocol whose interruption must be survivable.
A main arms them from the environment, `PENSTOCK_FAILPOINTS="a.b=kill,c.d=raise*2@3"`: kill the
process at once, hang for ever, or raise; `stop` halts the process until somebody continues it; `slow`
passes after 0.2 s, `slow:1500` after 1500 ms, as on a busy disk. `*n` only the first n times, `@m` from
the m-th hit on. One that strikes says so on standard error, so that a test knows; a slow one is silent.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from dataclasses import dataclass, field

ACTIONS = ("raise", "kill", "hang", "stop", "slow")
SLOW_MS = 200
"""How long `slow` takes when it is not told: enough to be noticed, short enough for every write of a test."""
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_SPEC = re.compile(
    r"(?P<name>[a-z_.]+)=(?P<action>[a-z]+)(?::(?P<pause_ms>\d+))?(?:\*(?P<times>\d+))?(?:@(?P<start>\d+))?\Z"
)


class FailpointError(Exception):
    """Raised by a failpoint armed with `raise`; deliberately outside our own error tree."""


@dataclass
class _Armed:
    action: str
    pause_s: float | None
    """How long to wait; None is without end."""
    times: int | None
    start: int
    hits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_due(self) -> bool:
        with self.lock:
            self.hits += 1
            done = self.times is not None and self.hits >= self.start + self.times
            return self.hits >= self.start and not done


_armed: dict[str, _Armed] = {}


def arm(spec: str) -> None:
    """Arm failpoints from a comma-separated specification; an empty one disarms all."""
    _armed.clear()
    _armed.update(_parse(item) for item in spec.split(",") if item)


def _parse(item: str) -> tuple[str, _Armed]:
    match = _SPEC.match(item)
    if match is None or match["action"] not in ACTIONS or (match["pause_ms"] and match["action"] != "slow"):
        raise ValueError(
            f"not a failpoint: {item!r}; expected name=raise|kill|hang|stop|slow|slow:milliseconds,"
            " then *times and @start if wanted"
        )
    pause_s = int(match["pause_ms"] or SLOW_MS) / 1000 if match["action"] == "slow" else None
    times = int(match["times"]) if match["times"] else None
    return match["name"], _Armed(match["action"], pause_s, times, int(match["start"] or 1))


def hit(name: str) -> None:
    """Pass this place, unless it is armed and due."""
    armed = _armed.get(name)
    if armed is None or not armed.is_due():
        return
    if armed.action != "slow":
        # Not through a stream: its lock may be held by a thread that is stopped with the process.
        os.write(2, f"failpoint {name} strikes: {armed.action}\n".encode())
    if armed.action in _SIGNALS:
        # To this thread: sent to the process, another one may be interrupted first, and this one goes on meanwhile.
        signal.pthread_kill(threading.get_ident(), _SIGNALS[armed.action])
    elif armed.action == "raise":
        raise FailpointError(name)
    else:
        threading.Event().wait(armed.pause_s)
