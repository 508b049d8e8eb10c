"""Named places where tests make the product fail: inert until armed.

`hit("module.moment")` stands at every step of the protocol whose interruption must be survivable.
A main arms them from the environment, `PENSTOCK_FAILPOINTS="a.b=kill,c.d=raise*2@3"`: kill the
process at once, hang for ever, or raise; `*n` only the first n times, `@m` from the m-th hit on.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from dataclasses import dataclass, field

ACTIONS = ("raise", "kill", "hang")
_SPEC = re.compile(r"(?P<name>[a-z_.]+)=(?P<action>[a-z]+)(?:\*(?P<times>\d+))?(?:@(?P<start>\d+))?\Z")


class FailpointError(Exception):
    """Raised by a failpoint armed with `raise`; deliberately outside our own error tree."""


@dataclass
class _Armed:
    action: str
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
    for item in filter(None, spec.split(",")):
        match = _SPEC.match(item)
        if match is None or match["action"] not in ACTIONS:
            raise ValueError(
                f"not a failpoint: {item!r}; expected name=raise|kill|hang, then *times and @start if wanted"
            )
        times = int(match["times"]) if match["times"] else None
        _armed[match["name"]] = _Armed(match["action"], times, int(match["start"] or 1))


def hit(name: str) -> None:
    """Pass this place, unless it is armed and due."""
    armed = _armed.get(name)
    if armed is None or not armed.is_due():
        return
    if armed.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if armed.action == "hang":
        threading.Event().wait()
    raise FailpointError(name)
