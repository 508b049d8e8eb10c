"""Whether a replicator is at work in a state folder, asked from another process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from penstock.runtime.lock import LOCK_FILE_NAME


def replicator_pid(state_dir: Path) -> int | None:
    """Return the process that works in the folder, or None.

    The lock is only tried when its last holder is alive: trying takes it for a moment if it is free,
    and a replicator that starts just then must not be refused.
    """
    with contextlib.suppress(OSError, ValueError), (state_dir / LOCK_FILE_NAME).open() as file:
        pid = int(file.read())
        if _is_alive(pid) and _is_locked(file.fileno()):
            return pid
    return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
