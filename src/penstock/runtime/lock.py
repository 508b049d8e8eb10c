"""One replicator per state folder, at most."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from penstock.errors import ErrorKind, PenstockError, StateError

LOCK_FILE_NAME = "replicator.lock"


def lock_state_dir(state_dir: Path) -> IO[str]:
    """Take the folder for this process until the returned file is closed, or the process ends."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        lock = (state_dir / LOCK_FILE_NAME).open("a+")
    except OSError as error:
        raise PenstockError(
            f"state_dir {state_dir}: {error.strerror}",
            kind=ErrorKind.LOG_IO,
            remedy="Give the process write access there, or set state_dir to another folder.",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise StateError(
            f"another replicator (process {holder}) works with state_dir {state_dir}",
            remedy="Stop it first, or give this pipeline its own state_dir.",
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
