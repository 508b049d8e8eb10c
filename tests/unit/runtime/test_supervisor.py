"""The watch over the receiver process, with other processes in its place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.changelog.folder import Folder
from penstock.errors import PenstockError
from penstock.postgres.connection import SourceAddress
from penstock.receiver.settings import ReceiverSettings
from penstock.runtime import supervisor
from penstock.runtime.supervisor import ReceiverSupervisor
from penstock.testing.postgres import wait_until

SILENT = "import time; time.sleep(600)"
STARTS = """
import sys
print('{"event": "started", "end_lsn": "0/0"}', flush=True)
sys.stdin.read()
"""
OPENS_ITS_LOG_FOR_LONG = """
import time
print('{"event": "opening_log"}', flush=True)
time.sleep(3)
print('{"event": "connecting"}', flush=True)
"""
FAILS_TO_OPEN_ITS_LOG_AFTER_LONG = """
import time
print('{"event": "opening_log"}', flush=True)
time.sleep(3)
print('{"event": "failed", "kind": "log_io", "message": "the object store is away", "remedy": null}', flush=True)
raise SystemExit(1)
"""
CONNECTS_AND_CLAIMS_ITS_LOG_FOR_LONG = """
import time
print('{"event": "connecting"}', flush=True)
print('{"event": "connected"}', flush=True)
time.sleep(3)
"""
LIMIT_S = 2.0

Supervise = Callable[..., tuple[ReceiverSupervisor, SimpleQueue[Exception]]]


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervise]:
    """Start the watch over processes that run these programs, one after the other, the last again and again."""
    supervisors: list[ReceiverSupervisor] = []
    monkeypatch.setattr(supervisor, "_START_TIMEOUT_S", LIMIT_S)

    def start(
        *programs: str, connect_timeout_s: int = 0, publication: str = "publication"
    ) -> tuple[ReceiverSupervisor, SimpleQueue[Exception]]:
        address = SourceAddress("localhost", 5432, "shop", "penstock", connect_timeout_s=connect_timeout_s)
        settings = ReceiverSettings(address, "slot", publication, Folder(str(tmp_path)), tmp_path)
        left = list(programs)

        def popen(_command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
            program = left.pop(0) if len(left) > 1 else left[0]
            return subprocess.Popen([sys.executable, "-c", program], **options)

        own = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
        monkeypatch.setattr(supervisor, "subprocess", own)
        failures: SimpleQueue[Exception] = SimpleQueue()
        watched = ReceiverSupervisor(settings, on_entry=lambda *_: None, on_failure=failures.put)
        supervisors.append(watched)
        watched.start()
        return watched, failures

    yield start
    for each in supervisors:
        each.stop()


def test_a_receiver_that_never_starts_makes_room_for_another(supervise: Supervise) -> None:
    watched, failures = supervise(SILENT, STARTS)
    wait_until(lambda: watched._started_at is not None, "the other one to start", timeout_s=30)
    assert watched.restarts == 1
    assert failures.empty()


def test_it_says_so_if_none_ever_starts(supervise: Supervise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_PATIENCE_S", 0.0)
    _, failures = supervise(SILENT)
    error = failures.get(timeout=30)
    assert isinstance(error, PenstockError)
    assert error.message == "the receiver process did not start within 2 s"


def test_one_that_does_not_take_its_settings_has_no_longer(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_PATIENCE_S", 0.0)
    _, failures = supervise(SILENT, publication="more than a pipe takes" * 10_000)
    error = failures.get(timeout=30)
    assert isinstance(error, PenstockError)
    assert error.message == "the receiver process did not start within 2 s"


def test_a_log_may_take_long_to_open_but_not_a_connection(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_PATIENCE_S", 0.0)
    _, failures = supervise(f"{OPENS_ITS_LOG_FOR_LONG}{SILENT}")
    error = failures.get(timeout=30)
    assert isinstance(error, PenstockError)
    assert error.message == "the receiver process did not connect to the source within 2 s"


def test_each_connection_may_take_the_time_that_is_configured(supervise: Supervise) -> None:
    watched, _ = supervise(f"{OPENS_ITS_LOG_FOR_LONG}time.sleep(1.4 * {LIMIT_S})\n{STARTS}", connect_timeout_s=1)
    wait_until(lambda: watched._started_at is not None, "the receiver to start", timeout_s=30)
    assert watched.restarts == 0


def test_a_log_may_take_long_to_claim(supervise: Supervise) -> None:
    watched, failures = supervise(f"{CONNECTS_AND_CLAIMS_ITS_LOG_FOR_LONG}{STARTS}")
    wait_until(lambda: watched._started_at is not None or not failures.empty(), "the receiver to start", timeout_s=30)
    assert (watched.restarts, failures.empty()) == (0, True)


@pytest.mark.parametrize("program", [OPENS_ITS_LOG_FOR_LONG, FAILS_TO_OPEN_ITS_LOG_AFTER_LONG])
def test_what_fails_in_or_behind_a_log_that_took_long_is_tried_again(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(supervisor, "_PATIENCE_S", LIMIT_S)
    watched, failures = supervise(program, STARTS)
    wait_until(lambda: watched._started_at is not None or not failures.empty(), "the other one to start", timeout_s=30)
    assert failures.empty()


def test_one_that_is_born_after_the_end_has_no_time_to_open_its_log(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    introduce = ReceiverSupervisor._introduce

    def introduce_late(watched: ReceiverSupervisor, process: subprocess.Popen[bytes]) -> None:
        watched._stopping.set()
        introduce(watched, process)

    monkeypatch.setattr(ReceiverSupervisor, "_introduce", introduce_late)
    watched, _ = supervise(SILENT)
    watched._thread.join(timeout=LIMIT_S / 2)
    assert not watched._thread.is_alive()


def test_a_receiver_that_has_started_may_be_silent_for_long(supervise: Supervise) -> None:
    watched, _ = supervise(STARTS)
    wait_until(lambda: watched._started_at is not None, "the receiver to start", timeout_s=30)
    pid = watched.pid
    watched._stopping.wait(1.5 * LIMIT_S)
    assert (watched.pid, watched.restarts) == (pid, 0)


def test_a_receiver_that_ends_before_its_time_is_no_late_one(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_PATIENCE_S", 0.0)
    _, failures = supervise("raise SystemExit(3)")
    error = failures.get(timeout=30)
    assert isinstance(error, PenstockError)
    assert error.message == "the receiver process ended with code 3"
