"""A process that keeps a snapshot open for a data frame, whose tasks read it when and where they like.

Spark asks for a frame's partitions once, in a process that it ends after a minute, and keeps them for every later
action; it tells nobody when the frame is gone. So the snapshot is kept by a process of its own: while somebody
reads it, and for a time after, but never longer than the Spark application lives. Who comes too late is told so.
"""

from __future__ import annotations

import os
import pickle
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from penstock.errors import ErrorKind, PenstockError
from penstock.postgres.connection import SourceAddress
from penstock.postgres.snapshot import SessionSnapshot

MAX_UNREAD = 8
"""How many snapshots that nobody reads an application keeps: a loop over many tables must not use up connections."""
_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Errand:
    """What a keeper is asked to do."""

    address: SourceAddress
    readers: str
    """The application name of the sessions that read."""
    keep_s: float
    """How long to go on when nobody reads."""
    lifeline_pid: int
    """The process to end with."""


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """A snapshot that a keeper holds."""

    name: str
    readers: str
    """The application name that readers must bear."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An error of the keeper's on its way back."""

    kind: ErrorKind
    message: str
    remedy: str


def keep_snapshot(address: SourceAddress, keep_s: float, lifeline_pid: int) -> KeptSnapshot:
    """Take a snapshot and start a process that keeps it; returns when the snapshot is there."""
    errand = Errand(address, f"penstock read {secrets.token_hex(8)}", keep_s, lifeline_pid)
    answer = _start(errand)
    if isinstance(answer, _Refusal):
        raise PenstockError(answer.message, kind=answer.kind, remedy=answer.remedy)
    return KeptSnapshot(answer, errand.readers)


def _start(errand: Errand) -> str | _Refusal:
    # Secrets go through the pipe: arguments and environment can be seen by others. It must not keep open any output
    # that somebody waits to see closed, and signals for Spark's processes are not for it.
    keeper = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    said, _ = keeper.communicate(pickle.dumps(errand))
    if not said:
        raise PenstockError("the process that keeps the snapshot ended before it had one")
    answer: str | _Refusal = pickle.loads(said)  # noqa: S301  # of our own process
    return answer


def main() -> None:
    """Run an errand that is given on the standard input; answer on the standard output, then close it."""
    errand: Errand = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  # of the process that started us
    if os.fork():
        os._exit(0)  # so that who started us need not wait for our end
    own_name = f"penstock snapshot {socket.gethostname()[:20]} {errand.lifeline_pid}"
    try:
        with SessionSnapshot(errand.address, application_name=own_name) as snapshot:
            _answer(sys.stdout.buffer, snapshot.name)
            _keep(snapshot, errand, Lifeline(errand.lifeline_pid).ends_within)
    except PenstockError as error:
        if not sys.stdout.buffer.closed:
            _answer(sys.stdout.buffer, _Refusal(error.kind, error.message, error.remedy))


def _answer(output: IO[bytes], answer: str | _Refusal) -> None:
    output.write(pickle.dumps(answer))
    output.close()
    os.close(1)


def _keep(snapshot: SessionSnapshot, errand: Errand, is_over: Callable[[float], bool]) -> None:
    """Return when nobody needs the snapshot any more; raise when its session has ended."""
    read_at = time.monotonic()
    while not is_over(_POLL_S):
        sessions = snapshot.sessions(errand.readers)
        now = time.monotonic()
        if sessions.named:
            read_at = now
        elif now - read_at > errand.keep_s or sessions.newer >= MAX_UNREAD:
            return


class Lifeline:
    """Another process, which we end with."""

    def __init__(self, pid: int) -> None:
        self._poll = select.poll()
        self._has_ended = False
        try:
            self._poll.register(os.pidfd_open(pid), select.POLLIN)
        except ProcessLookupError:
            self._has_ended = True

    def ends_within(self, timeout_s: float) -> bool:
        """Wait for the process to end; say whether it has."""
        return self._has_ended or bool(self._poll.poll(timeout_s * 1000))
