"""What work costs by process: our driver and receiver, Spark's JVMs, its Python workers, and the source's backends.

The kernel adds what an ended child has used to its parent once that has waited for it. So the accounts of a tree of
processes lose nothing, however short some of them lived.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import cpu_seconds, peak_memory_mib

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FORGET_PEAK = "5"  # proc(5), clear_refs
DRIVER, RECEIVER, JVM, WORKERS, BACKENDS = "driver", "receiver", "jvm", "workers", "backends"
CLIENT = (DRIVER, RECEIVER, JVM, WORKERS)


@dataclass
class Accounts:
    """What was used between two moments: CPU seconds by role, and the most memory that one process of it had."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    peak_mib: dict[str, float] = field(default_factory=dict)

    @property
    def client_cpu_s(self) -> float:
        """All that is not the source's."""
        return sum(self.cpu_s.get(role, 0.0) for role in CLIENT)


@contextlib.contextmanager
def accounted(postmaster: int) -> Iterator[Accounts]:
    """Account for what happens in the block; a source's backends are the children of its first process."""
    accounts = Accounts()
    for pid, _ in _ours():
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text(_FORGET_PEAK)
    before = _used(postmaster)
    yield accounts
    after = _used(postmaster)
    # A worker that was idle for long ends, and takes what it once used out of the accounts.
    accounts.cpu_s = {role: max(0.0, after[role] - before[role]) for role in after}
    accounts.peak_mib = _peaks()


def _used(postmaster: int) -> dict[str, float]:
    used: dict[str, float] = defaultdict(float)
    for pid, role in _ours():
        with contextlib.suppress(OSError):
            used[role] += cpu_seconds(pid) + (_children_seconds(pid) if role == WORKERS else 0.0)
    for pid in (postmaster, *_below(postmaster)):
        with contextlib.suppress(OSError):
            used[BACKENDS] += cpu_seconds(pid) + _children_seconds(pid)
    return used


def _peaks() -> dict[str, float]:
    peaks: dict[str, float] = defaultdict(float)
    for pid, role in _ours():
        with contextlib.suppress(OSError):
            peaks[role] = max(peaks[role], peak_memory_mib(pid))
    return dict(peaks)


def _ours() -> Iterator[tuple[int, str]]:
    """Yield this process, receivers and JVMs below it, and the Python processes below those."""
    yield os.getpid(), DRIVER
    for pid in _below(os.getpid()):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if name == "java":
                yield pid, JVM
                continue
            command = Path(f"/proc/{pid}/cmdline").read_text()
            if "penstock.receiver" in command:
                yield pid, RECEIVER
            elif "pyspark" in command:
                yield pid, WORKERS


def _below(pid: int) -> Iterator[int]:
    """Yield the processes that a process started, and theirs."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    for child in children:
        yield child
        yield from _below(child)


def _children_seconds(pid: int) -> float:
    """Return the CPU time of the children that a process has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / _TICKS_PER_S
