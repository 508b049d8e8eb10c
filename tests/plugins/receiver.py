"""One receiver process alone, without driver and Spark: told its settings, heard by its events, killed at will."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from plugins.s3 import Bucket

from penstock.changelog.folder import Folder
from penstock.changelog.visitor import open_log
from penstock.model.lsn import NOWHERE, Lsn
from penstock.postgres.slot import source_position
from penstock.receiver.settings import Command, ReceiverSettings
from penstock.runtime.source import SlotAndLog
from penstock.testing.capture import Captured, logged_changes, sent_changes
from penstock.testing.postgres import Database, wait_until

PUBLICATION = "test_pub"
PATIENCE_S = 60.0
"""A start takes seconds, and more on a busy machine."""
_PIPE_BYTES = 4096  # the least there is: a driver that stands still is soon felt


class ReceiverProcess:
    """A receiver that runs. Its events are heard on a thread, unless its driver is to stand still."""

    def __init__(self, settings: ReceiverSettings, *, is_heard: bool = True) -> None:
        self.events: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.receiver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        fcntl.fcntl(self._output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._input.write(settings.to_line())
        self._input.flush()
        self._ears = threading.Thread(target=self._hear, daemon=True)
        if is_heard:
            self._ears.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def is_unheard(self) -> bool:
        """Whether it has said so much to nobody that it can say no more."""
        size = bytearray(4)
        fcntl.ioctl(self._output, termios.FIONREAD, size)
        return int.from_bytes(size, sys.byteorder) > _PIPE_BYTES - 256

    def listen(self) -> None:
        """Begin to hear it."""
        self._ears.start()

    def send(self, acknowledge: Lsn, trim: Lsn) -> None:
        self._input.write(Command(acknowledge, trim).to_line())
        self._input.flush()

    def heard(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait until something was said so often, and return how it was said last."""
        wait_until(lambda: len(self.heard(event)) >= count or self._is_over, f"the event {event}", PATIENCE_S)
        assert len(self.heard(event)) >= count, f"the receiver ended without {event}: {self.events[-3:]}"
        return self.heard(event)[-1]

    def wait_for_end(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        code = self._process.wait(PATIENCE_S)
        if self._ears.ident is not None:
            self._ears.join()
        return code

    def stop(self) -> int:
        """Let it finish."""
        self._input.close()
        return self.wait_for_end()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait_for_end()

    def close(self) -> None:
        if self.is_running:
            self.kill()
        for pipe in (self._input, self._output):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    @property
    def _is_over(self) -> bool:
        return not self.is_running and not self._ears.is_alive()

    def _hear(self) -> None:
        for line in self._output:
            self.events.append(json.loads(line))


@dataclass
class Capture:
    """One slot, its log, and a consumer that reads the log up to a watermark, as a driver would."""

    database: Database
    root: Path
    spool: Path
    place: Folder | None = None
    """Where the log is if not in that folder."""
    watermark: Lsn = NOWHERE
    consumed: list[Captured] = field(default_factory=list)
    started: list[ReceiverProcess] = field(default_factory=list)

    @property
    def folder(self) -> Folder:
        return self.place or Folder.on_disk(self.root)

    def move_to(self, bucket: Bucket) -> None:
        """Let the log be in a bucket."""
        self.root, self.place = bucket.root / "log", Folder(f"s3://{bucket.name}/log", bucket.settings)

    @property
    def slot(self) -> str:
        return f"penstock_{self.database.name}"

    @property
    def _other_slot(self) -> str:
        return f"other_{self.database.name}"

    def publish(self, script: str) -> None:
        """Make tables, publish them, and create the slot and its log; and another slot, to compare with."""
        self.database.execute(f"{script}; create publication {PUBLICATION} for all tables")
        self.database.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", self._other_slot)
        self.watermark = SlotAndLog(self.database.address, self.slot, self.folder).open(may_create=True).end_lsn

    def settings(self, **changes: Any) -> ReceiverSettings:
        given: dict[str, Any] = {"address": self.database.address, "log": self.folder, "max_fill_ms": 50}
        given |= {"status_interval_s": 0.1, "spool": self.spool, **changes}
        return ReceiverSettings(slot=self.slot, publication=PUBLICATION, **given)

    def start(self, *, is_heard: bool = True, **changes: Any) -> ReceiverProcess:
        process = ReceiverProcess(self.settings(**changes), is_heard=is_heard)
        self.started.append(process)
        return process

    def consume(self) -> Lsn:
        """Take what is new in the log, and return up to where everything has been taken."""
        reader = open_log(self.folder)
        self.consumed += logged_changes(reader, self.watermark)
        self.watermark = reader.end_lsn
        return self.watermark

    def sent(self) -> list[Captured]:
        """What the source has sent since the log began."""
        return sent_changes(self.database, self._other_slot, PUBLICATION)

    def wait_until_captured(self) -> None:
        """Wait until the log has everything that has committed by now."""
        target = source_position(self.database.address)
        wait_until(lambda: open_log(self.folder).end_lsn >= target, f"the log to reach {target}", PATIENCE_S)

    def confirmed(self) -> Lsn:
        """How far the source believes that we are."""
        [(position,)] = self.database.execute(
            "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", self.slot
        )
        return Lsn.parse(position)

    def close(self) -> None:
        for process in self.started:
            process.close()


@pytest.fixture
def capture(database: Database, tmp_path: Path) -> Iterator[Capture]:
    made = Capture(database, tmp_path / "log", tmp_path / "spool")
    yield made
    made.close()
