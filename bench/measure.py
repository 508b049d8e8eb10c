"""What processes cost, from the kernel's own accounts, and how figures are shown: a table, then one line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_WATCH_S = 0.02
_KIB_PER_MIB = 1024


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, its threads included, in user and kernel mode."""
    # The command, in parentheses, may hold anything; the fields behind it are counted from 3 in proc(5).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def peak_memory_mib(pid: int) -> float:
    """Return the most memory that a process ever had resident."""
    return _status_mib(pid, "VmHWM")


def memory_mib(pid: int) -> float:
    """Return the memory that a process has resident."""
    return _status_mib(pid, "VmRSS")


def _status_mib(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / _KIB_PER_MIB
    raise ProcessLookupError(f"process {pid} has ended: the kernel no longer accounts for its memory")


class ProcessWatch:
    """Follows the accounts of a process that may end before it can be asked.

    What `wait4` tells of an ended process would not do: its peak is never less than the memory of
    the process that started it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="process-watch", daemon=True)
        self.cpu_s = 0.0
        """The CPU time when it was last seen."""
        self.peak_mib = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[ProcessWatch]:
        """Follow the process until the block ends."""
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()

    def look(self) -> None:
        """Look now, if it is still there."""
        with contextlib.suppress(OSError):
            self.cpu_s = cpu_seconds(self._pid)
            self.peak_mib = peak_memory_mib(self._pid)

    def _watch(self) -> None:
        self.look()
        while not self._ended.wait(_WATCH_S):
            self.look()


def per_million(seconds: float, count: int) -> float:
    """Return seconds for each million of something."""
    return seconds * 1_000_000 / count


def median(values: Sequence[float]) -> float:
    """Return the middle value: one disturbed run out of three does not move it."""
    return statistics.median(values)


def describe_machine() -> dict[str, Any]:
    """Return what the figures depend on besides the code."""
    libraries = ("penstock", "numba", "numpy", "pyarrow", "psycopg")
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{library: version(library) for library in libraries},
    }


def say(line: str) -> None:
    """Tell how the run goes on; results alone go to standard output."""
    print(line, file=sys.stderr, flush=True)


def print_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows that have the same keys as a table of aligned columns."""
    if not rows:
        return
    lines = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{title}")
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "ok" if value else "NOT OK"
        case float():
            return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"  # noqa: PLR2004  # decimals help small ones
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def print_json(figures: Mapping[str, object]) -> None:
    """Print everything as the last line."""
    print(json.dumps(_rounded(figures)), flush=True)


def _rounded(value: Any) -> Any:
    """Leave out digits that mean nothing."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
