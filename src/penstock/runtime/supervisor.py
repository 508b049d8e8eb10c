"""Keeps a receiver process running: starts it, talks with it, and starts it again when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from penstock.errors import ErrorKind, PenstockError, Retry, SourceError
from penstock.model.lsn import NOWHERE
from penstock.receiver.settings import Command, ReceiverSettings
from penstock.telemetry.log import get_logger

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 15.0
_STOP_TIMEOUT_S = 20.0
# Ten times what each of a start's steps takes on an ordinary machine, besides the connections that it makes.
_START_TIMEOUT_S = 60.0
_CONNECTIONS = 3  # for the stream, another one where libpq has to make it, and to look at the slot
# Long enough for a dead predecessor's walsender to notice that its socket is gone, whatever its timeouts.
_PATIENCE_S = 300.0


class _StartLimit:
    """Ends a process that does not get on with its start: what it waits for, the next one may not need."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._timer: threading.Timer | None = None
        self.missed: str | None = None
        """What the process did not do in time."""

    def set(self, seconds: float, step: str) -> None:
        """Allow the process so long for a step of its start, from now on."""
        self.lift()
        self._timer = threading.Timer(seconds, self._end, [f"did not {step} within {seconds:g} s"])
        self._timer.daemon = True
        self._timer.start()

    def lift(self) -> None:
        """Let it take as long as it likes."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, missed: str) -> None:
        self.missed = missed
        self._process.kill()


class ReceiverSupervisor:
    """Owns the receiver. Its failures are survived as long as they may pass by themselves."""

    def __init__(
        self,
        settings: ReceiverSettings,
        *,
        on_entry: Callable[[int, int], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._settings = settings
        self._on_entry = on_entry
        self._on_failure = on_failure
        self._log = get_logger(worker="receiver")
        self._process: subprocess.Popen[bytes] | None = None
        self._command = Command(NOWHERE, NOWHERE)
        self._is_told = False
        self._started_at: float | None = None
        self._opening_since: float | None = None
        self._opening_s = 0.0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="receiver-supervisor", daemon=True)
        self.is_log_full = False
        self.last_error: PenstockError | None = None
        self.restarts = 0

    def start(self) -> None:
        """Start the receiver and the watch over it."""
        self._thread.start()

    def stop(self) -> None:
        """Let the receiver finish, then make sure that it is gone."""
        self._stopping.set()
        process = self._process
        if process is not None:
            self._close_input(process)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._log.warning("receiver did not stop in time")
                process.kill()
        if self._thread.ident is not None:
            self._thread.join()

    def send(self, command: Command) -> None:
        """Tell the receiver how far to acknowledge and what the log may forget."""
        with self._lock:
            if command == self._command and self._is_told:
                return
            self._command = command
            self._tell(self._process)

    @property
    def pid(self) -> int | None:
        """The receiver's process, while there is one."""
        return self._process.pid if self._process is not None else None

    def _watch(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001  # without a receiver there is no pipeline
            self._on_failure(error)

    def _run(self) -> None:
        pause, healthy_since = _FIRST_PAUSE_S, time.monotonic()
        while not self._stopping.is_set():
            error = self._run_once()
            if self._stopping.is_set():
                return
            # However long a log takes to open, a start may fail as often as elsewhere.
            healthy_since += self._opening_s
            # A start that takes its time to fail is no sign of health.
            if self._started_at is not None and time.monotonic() - self._started_at > _LONGEST_PAUSE_S:
                pause, healthy_since = _FIRST_PAUSE_S, time.monotonic()
            self.last_error = error
            if error.retry is not Retry.TIMED or time.monotonic() - healthy_since > _PATIENCE_S:
                self._on_failure(error)
                return
            self._log.warning("receiver ended, starting it again", kind=error.kind, reason=error.message, pause_s=pause)
            self.restarts += 1
            self._stopping.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _run_once(self) -> PenstockError:
        self._started_at, self._opening_since, self._opening_s = None, None, 0.0
        try:
            # A session of its own keeps the terminal's Ctrl-C away: the driver decides when the receiver stops.
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock.receiver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as failure:
            return PenstockError(f"the receiver cannot be started: {failure.strerror}", kind=ErrorKind.LOG_IO)
        limit = _StartLimit(process)
        limit.set(_START_TIMEOUT_S, "start")
        error: PenstockError | None = None
        assert process.stdout is not None
        with contextlib.closing(process.stdout):
            self._introduce(process)
            for line in process.stdout:
                error = self._hear(json.loads(line), limit) or error
        limit.lift()
        self._end_opening()
        code = process.wait()
        self._close_input(process)
        how = limit.missed or f"ended with code {code}"
        return error or SourceError(f"the receiver process {how}", kind=ErrorKind.SOURCE_CONNECTION_FAILED)

    def _introduce(self, process: subprocess.Popen[bytes]) -> None:
        """Tell a new receiver its settings, which it waits for, and then what the last one knew."""
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(self._settings.to_line())
            process.stdin.flush()
        os.set_blocking(process.stdin.fileno(), False)
        with self._lock:
            self._process = process
            self._tell(process)
        if self._stopping.is_set():
            # It has done nothing yet, and may not look at its input for long.
            process.kill()

    def _hear(self, event: dict[str, Any], limit: _StartLimit) -> PenstockError | None:
        match event["event"]:
            case "opening_log":
                limit.lift()
                self._opening_since = time.monotonic()
            case "connecting":
                self._end_opening()
                connect_s = _CONNECTIONS * self._settings.address.connect_timeout_s
                limit.set(_START_TIMEOUT_S + connect_s, "connect to the source")
            case "connected":
                # What is left is to claim the log, and a bucket may be slow.
                limit.lift()
            case "entry":
                # Of a part of a transaction there is nothing to see yet.
                self._on_entry(event["sequence"] if event["is_complete"] else 0, event["events"])
            case "log_full" | "log_has_room":
                self.is_log_full = event["event"] == "log_full"
                self._log.warning("change log is full" if self.is_log_full else "change log has room again")
            case "heartbeat_failed":
                self._log.warning("heartbeat failed", message=event["message"])
            case "failed":
                return SourceError(event["message"], kind=ErrorKind(event["kind"]), remedy=event["remedy"])
            case name:
                limit.lift()
                self.last_error = None
                self._started_at = self._started_at or time.monotonic()
                if event.get("fallback"):
                    self._log.warning("libpq reads the stream, which is slower", reason=event["fallback"])
                self._log.info("receiver " + name, end_lsn=event["end_lsn"])
        return None

    def _end_opening(self) -> None:
        """Note how long the log took to open, whether it came to that or not."""
        if self._opening_since is not None:
            self._opening_s, self._opening_since = time.monotonic() - self._opening_since, None

    def _tell(self, process: subprocess.Popen[bytes] | None) -> None:
        """Say the command without waiting: one that a stuck receiver's pipe does not take is said again later."""
        self._is_told = process is not None and self._write(process.stdin, self._command.to_line())

    @staticmethod
    def _write(pipe: IO[bytes] | None, line: bytes) -> bool:
        assert pipe is not None
        # It died or is being stopped: whoever starts it next tells it all again. A pipe takes short lines whole or not.
        with contextlib.suppress(BrokenPipeError, BlockingIOError, ValueError):
            os.write(pipe.fileno(), line)
            return True
        return False

    def _close_input(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
