"""Those who drain a backlog: the receiver as it runs in production, and `pg_recvlogical`, the source's own client.

The clock of both runs from the moment the server starts to stream, so that neither a connection nor an
interpreter's start counts, to the moment the last transaction is there: for `pg_recvlogical` in memory
and discarded, for the receiver decoded, written and fsynced.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import psycopg
from psycopg.conninfo import make_conninfo

from bench.measure import ProcessWatch, cpu_seconds, memory_mib, peak_memory_mib
from bench.source import PUBLICATION, Backlog
from penstock.changelog.folder import Folder
from penstock.errors import ErrorKind, PenstockError, SourceError
from penstock.model.lsn import Lsn
from penstock.postgres.connection import SourceAddress
from penstock.receiver.settings import ReceiverSettings

FAILURES = (PenstockError, TimeoutError, psycopg.Error)
"""What ends one measurement, and not the run."""
RECEIVER = (sys.executable, "-m", "penstock.receiver")
_TIMEOUT_S = 900.0
_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Drain:
    """One backlog, drained once."""

    seconds: float
    client_cpu_s: float
    walsender_cpu_s: float
    peak_mib: float
    events: int | None = None
    """The changes that arrived; None from a client that does not count."""
    entries: int | None = None
    startup_s: float | None = None
    """From the start of the process to the start of the stream: imports, compilation, connection."""
    startup_mib: float | None = None


def drain_with_pg_recvlogical(backlog: Backlog, *, tls: bool) -> Drain:
    """Write the stream to nowhere."""
    with backlog.slot() as slot:
        command = _pg_recvlogical(backlog, slot, backlog.source.address(backlog.database, tls=tls))
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        client = ProcessWatch(process.pid)
        with _killed_in_time(process), _stderr(process) as lines, client.running():
            said = _wait_for_line(lines, "streaming initiated", "")
            started = time.monotonic()
            with ProcessWatch(backlog.walsender_pid(slot)).running() as walsender:
                said = _wait_for_line(lines, "end position", said)
                seconds = time.monotonic() - started
                walsender.look()
            said += lines.read()
        client_cpu_s = _wait(process, said)
    return Drain(seconds, client_cpu_s, walsender.cpu_s, client.peak_mib)


def _pg_recvlogical(backlog: Backlog, slot: str, address: SourceAddress) -> list[str]:
    conninfo = make_conninfo(
        host=address.host,
        hostaddr=address.hostaddr or address.host,
        port=address.port,
        dbname=address.dbname,
        user=address.user,
        sslmode=address.sslmode,
        sslrootcert=address.sslrootcert,
    )
    options = ["-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}"]
    program = backlog.source.program("pg_recvlogical")
    # It says on stderr, when verbose, that the stream has started and that its end is reached; nothing per message.
    command = [program, "-d", conninfo, "-S", slot, "--start", "-f", "/dev/null", "--no-loop", "--verbose"]
    return [*command, *options, f"--endpos={backlog.end_lsn}"]


@contextlib.contextmanager
def _stderr(process: subprocess.Popen[str]) -> Iterator[IO[str]]:
    assert process.stderr is not None
    with process.stderr:
        yield process.stderr


@contextlib.contextmanager
def _killed_in_time(process: subprocess.Popen[Any]) -> Iterator[None]:
    """End a process that takes much too long, so that whoever reads from it reads an end."""
    timer = threading.Timer(_TIMEOUT_S, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _wait_for_line(lines: IO[str], wanted: str, said: str) -> str:
    """Read on to a line that holds some words; return all that was said."""
    for line in lines:
        said += line
        if wanted in line:
            return said
    raise SourceError(f"pg_recvlogical ended without {wanted!r}; it said: {said.strip()}")


def _wait(process: subprocess.Popen[str], said: str) -> float:
    """Wait for its end and return the CPU time that it used."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SourceError(f"pg_recvlogical ended with code {process.returncode}; it said: {said.strip()}")
    return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True, slots=True)
class Heard:
    """Something that the receiver said, and when."""

    at: float
    event: dict[str, Any]


class ReceiverProcess:
    """A receiver that is told nothing but its settings; it acknowledges what it has written."""

    def __init__(self, settings: ReceiverSettings, command: Sequence[str] = RECEIVER) -> None:
        self._spawned = time.monotonic()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._heard: queue.Queue[Heard | None] = queue.Queue()
        self._ears = threading.Thread(target=self._listen, name="receiver-events", daemon=True)
        self._ears.start()
        self._tell(settings.to_line())
        self.events = 0
        self.entries = 0
        self.started_at = self._wait_for_start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def startup_s(self) -> float:
        """How long it took until the stream began."""
        return self.started_at - self._spawned

    def wait_for(self, lsn: Lsn, timeout_s: float = _TIMEOUT_S) -> float:
        """Wait until everything up to a position is durable; return when it was."""
        deadline = time.monotonic() + timeout_s
        while True:
            heard = self._next(deadline - time.monotonic())
            if heard.event["event"] != "entry":
                continue
            self.entries += 1
            self.events += heard.event["events"]
            if Lsn.parse(heard.event["end_lsn"]) >= lsn:
                return heard.at

    def finish(self) -> None:
        """Let it finish as when its driver ends, and make sure that it is gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ears.join()

    def _wait_for_start(self) -> float:
        try:
            while (heard := self._next(_TIMEOUT_S)).event["event"] != "started":
                pass
        except BaseException:
            self.finish()
            raise
        return heard.at

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._heard.put(Heard(time.monotonic(), json.loads(line)))
        self._heard.put(None)

    def _next(self, timeout_s: float) -> Heard:
        try:
            heard = self._heard.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            raise TimeoutError("the receiver did not get there in time") from None
        if heard is None:
            raise SourceError(f"the receiver ended with code {self._process.wait()}")
        if heard.event["event"] == "failed":
            raise SourceError(heard.event["message"], kind=ErrorKind(heard.event["kind"]))
        return heard


@dataclass(frozen=True, slots=True)
class ReceiverDrains:
    """How receivers are run: what all drains of a benchmark have in common."""

    max_fill_ms: int | None = None
    failpoints: str = ""
    command: Sequence[str] = RECEIVER

    @contextlib.contextmanager
    def receiver(self, backlog: Backlog, slot: str, log: Path, *, tls: bool) -> Iterator[ReceiverProcess]:
        """Run a receiver until the block ends."""
        receiver = ReceiverProcess(self._settings(backlog, slot, log, tls=tls), self.command)
        try:
            yield receiver
        finally:
            receiver.finish()

    def drain(self, backlog: Backlog, *, tls: bool = False, examine: Callable[[Path], None] | None = None) -> Drain:
        """Write the stream to a change log; let the log be examined before it goes."""
        with backlog.slot() as slot, backlog.log(slot) as log:
            with self.receiver(backlog, slot, log, tls=tls) as receiver:
                cpu_s, startup_mib = cpu_seconds(receiver.pid), memory_mib(receiver.pid)
                with ProcessWatch(backlog.walsender_pid(slot)).running() as walsender:
                    ended_at = receiver.wait_for(backlog.end_lsn)
                    client_cpu_s = cpu_seconds(receiver.pid) - cpu_s
                    walsender.look()
                drain = Drain(
                    seconds=ended_at - receiver.started_at,
                    client_cpu_s=client_cpu_s,
                    walsender_cpu_s=walsender.cpu_s,
                    peak_mib=peak_memory_mib(receiver.pid),
                    events=receiver.events,
                    entries=receiver.entries,
                    startup_s=receiver.startup_s,
                    startup_mib=startup_mib,
                )
            if examine is not None:
                examine(log)
        _require_all(drain, backlog)
        return drain

    def _settings(self, backlog: Backlog, slot: str, log: Path, *, tls: bool) -> ReceiverSettings:
        settings = ReceiverSettings(
            address=backlog.source.address(backlog.database, tls=tls),
            slot=slot,
            publication=PUBLICATION,
            log=Folder.on_disk(log),
            spool=log / "spool",
            acknowledges_staged=True,
            failpoints=self.failpoints,
        )
        return settings if self.max_fill_ms is None else replace(settings, max_fill_ms=self.max_fill_ms)


def _require_all(drain: Drain, backlog: Backlog) -> None:
    if drain.events != backlog.changes:
        raise SourceError(f"the log has {drain.events} changes of {backlog.changes} that were made")
