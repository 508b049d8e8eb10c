"""The receiver with a witness: a thread that asks again and again which function each thread is in.

Every look adds the CPU time that a thread has used since the last one, by the kernel's account, to the
function of ours that it is in. So a thread that waits weighs nothing, and what compiled code does while
it holds no lock counts for the line that called it. What threads without Python use, Arrow's among them,
is the remainder.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import penstock.receiver.__main__  # noqa: F401  # as the process starts: it keeps pandas away
from penstock.receiver.process import main as run_receiver
from penstock.wire.scan import warm_up

_LOOK_S = 0.002
_PACKAGE = "penstock."


class Witness:
    """Samples all threads but its own."""

    def __init__(self) -> None:
        self._cpu_s: defaultdict[tuple[str, str, int], float] = defaultdict(float)
        # What a thread used before, for imports, is nobody's; a thread that starts later begins at nothing.
        self._last = {thread.ident or 0: _cpu_s(thread) for thread in threading.enumerate()}
        self._unwitnessed_s = time.process_time()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="witness", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> dict[str, Any]:
        """End, and return the CPU seconds by thread, function and line, and those that nobody saw."""
        own_cpu_s = _cpu_s(self._thread)
        self._ended.set()
        self._thread.join()
        places = [
            {"thread": thread, "function": function, "line": line, "cpu_s": seconds}
            for (thread, function, line), seconds in sorted(self._cpu_s.items(), key=lambda item: -item[1])
        ]
        used_s = time.process_time() - self._unwitnessed_s
        unseen_s = used_s - sum(self._cpu_s.values()) - own_cpu_s
        return {"places": places, "unseen_cpu_s": max(0.0, unseen_s)}

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            frames = sys._current_frames()  # noqa: SLF001  # the documented way, despite its name
            for thread in threading.enumerate():
                frame = frames.get(thread.ident or 0)
                if frame is not None and thread is not self._thread:
                    self._account(thread, frame)

    def _account(self, thread: threading.Thread, frame: FrameType) -> None:
        now = _cpu_s(thread)
        used = now - self._last.get(thread.ident or 0, 0.0)
        self._last[thread.ident or 0] = now
        if used > 0:
            self._cpu_s[thread.name, *_place(frame)] += used


def _cpu_s(thread: threading.Thread) -> float:
    """Return the CPU time of a thread; none once it has ended."""
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


def _place(frame: FrameType) -> tuple[str, int]:
    """Return the innermost function of ours, and its line; outside of ours, the innermost of all."""
    ours: FrameType | None = frame
    while ours is not None and not ours.f_globals.get("__name__", "").startswith(_PACKAGE):
        ours = ours.f_back
    chosen = ours or frame
    module = chosen.f_globals.get("__name__", "").removeprefix(_PACKAGE)
    return f"{module}.{chosen.f_code.co_qualname}", chosen.f_lineno


def main() -> int:
    """Run the receiver, and write where its time went to the file that is named on the command line."""
    warm_up()
    witness = Witness()
    witness.start()
    try:
        return run_receiver()
    finally:
        Path(sys.argv[1]).write_text(json.dumps(witness.stop()))


if __name__ == "__main__":
    raise SystemExit(main())
