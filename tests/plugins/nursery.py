"""Receivers forked from a process that has loaded what they need, which otherwise takes each of them seconds.

A receiver is a process as it always is, with the same main and pipes; only how it came into the world differs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from types import SimpleNamespace
from typing import IO, NoReturn

from penstock.runtime import supervisor

TELL = signal.SIGUSR1
"""What makes a receiver write down where each of its threads is, and go on."""
_FILES = 4096
"""More than a process of a test ever opens."""


class ForkedReceiver:
    """What the supervisor knows of a process."""

    def __init__(self, stdin: int, stdout: int, minder: int) -> None:
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb", buffering=0)
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb")
        self._minder = os.fdopen(minder, "rb", buffering=0)
        self.pid = int(self._minder.readline())
        self._code: int | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self._minder], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("receiver", timeout or 0)
        with self._lock:
            if self._code is None:
                self._code = int(self._minder.readline())
        return self._code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Nursery:
    """A process that does nothing but fork; to be made before there are threads."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair()
        if os.fork() == 0:
            self._orders.close()
            _serve(theirs)
        theirs.close()

    def install(self) -> None:
        """Let every receiver of this process come from here."""
        own = SimpleNamespace(Popen=self._fork, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
        setattr(supervisor, "subprocess", own)  # noqa: B010  # the supervisor's name, not the module's content

    def _fork(self, *_: object, **__: object) -> ForkedReceiver:
        stdin, stdout, minder = os.pipe(), os.pipe(), os.pipe()
        theirs = [stdin[0], stdout[1], minder[1]]
        socket.send_fds(self._orders, [b"."], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        return ForkedReceiver(stdin[1], stdout[0], minder[0])


def _serve(orders: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for minders
    while True:
        order, descriptors, *_ = socket.recv_fds(orders, 1, 3)
        if not order:  # the driver is gone
            os._exit(0)
        if os.fork() == 0:
            _mind(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _mind(stdin: int, stdout: int, report: int) -> NoReturn:
    """Start a receiver, and say who it is and how it ended, which only its parent learns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _receive(stdin, stdout)
    os.close(stdin)
    os.close(stdout)
    os.write(report, b"%d\n" % pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(report, b"%d\n" % code)
    os._exit(0)


def _receive(stdin: int, stdout: int) -> NoReturn:
    from penstock.receiver.process import main

    os.setsid()
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    os.closerange(3, _FILES)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    faulthandler.register(TELL)
    try:
        os._exit(main())
    except BaseException:  # noqa: BLE001  # there is nobody above
        traceback.print_exc()
        os._exit(1)
