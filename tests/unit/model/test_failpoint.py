"""Failpoints are inert until armed, and then fail exactly where and as often as asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.errors import PenstockError
from penstock.failpoint import FailpointError, arm, hit


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    arm("")
    yield
    arm("")


def _outcomes(name: str, hits: int) -> list[bool]:
    """Whether each hit raised."""

    def raises() -> bool:
        try:
            hit(name)
        except FailpointError:
            return True
        return False

    return [raises() for _ in range(hits)]


def test_an_unarmed_failpoint_does_nothing() -> None:
    arm("other.place=raise")
    assert _outcomes("some.place", 3) == [False] * 3


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("a.b=raise", [True, True, True, True]),
        ("a.b=raise*2", [True, True, False, False]),
        ("a.b=raise@3", [False, False, True, True]),
        ("a.b=raise*1@2", [False, True, False, False]),
        ("c.d=raise,a.b=raise@4", [False, False, False, True]),
    ],
)
def test_a_failpoint_raises_when_it_is_due(spec: str, expected: list[bool]) -> None:
    arm(spec)
    assert _outcomes("a.b", 4) == expected


def test_arming_replaces_what_was_armed() -> None:
    arm("a.b=raise")
    arm("c.d=raise")
    assert _outcomes("a.b", 1) == [False]
    arm("")
    assert _outcomes("c.d", 1) == [False]


@pytest.mark.parametrize(
    "spec",
    [
        "a.b",
        "a.b=",
        "a.b=explode",
        "A.B=raise",
        "a.b=raise*",
        "a.b=raise@x",
        "a=raise b",
        "a.b=slow:",
        "a.b=slow:x",
        "a.b=slow*1:5",
        "a.b=raise:5",
        "a.b=hang:5",
    ],
)
def test_a_wrong_specification_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="not a failpoint"):
        arm(spec)


def test_a_failpoint_is_not_one_of_our_errors() -> None:
    assert not issubclass(FailpointError, PenstockError)


def test_kill_ends_the_process_at_once() -> None:
    program = "from penstock.failpoint import arm, hit\narm('a.b=kill')\ntry: hit('a.b')\nfinally: print('cleaned up')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_stop_halts_the_process_until_it_is_continued() -> None:
    program = "from penstock.failpoint import arm, hit\narm('a.b=stop')\nhit('a.b')\nprint('passed')"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        process.send_signal(signal.SIGCONT)
        assert process.communicate() == (b"passed\n", b"failpoint a.b strikes: stop\n")


_STOPPED_IN_A_THREAD = """
import os, threading
from penstock.failpoint import arm, hit

arm("a.b=stop")

def strike():
    for _ in range(10):
        hit("a.b")
        os.write(1, b".")

thread = threading.Thread(target=strike)
thread.start()
while thread.is_alive():
    sum(range(1000))
"""


def test_the_thread_that_is_stopped_does_not_go_on_while_others_are_busy() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STOPPED_IN_A_THREAD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        passed = []
        for _ in range(10):
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            passed.append(process.stdout.read())
            process.send_signal(signal.SIGCONT)
        process.wait()
        assert passed == [None, *[b"."] * 9]


def test_a_failpoint_that_strikes_says_so_unless_it_is_only_slow(capfd: pytest.CaptureFixture[str]) -> None:
    arm("a.b=raise*1,c.d=slow:1")
    assert _outcomes("a.b", 2) == [True, False]
    hit("c.d")
    assert capfd.readouterr().err == "failpoint a.b strikes: raise\n"


class WaitedError(Exception):
    """Raised in place of waiting, with how long the wait would have been."""


@pytest.fixture
def instead_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        def wait(self, timeout: float | None = None) -> None:
            raise WaitedError(timeout)

    monkeypatch.setattr("penstock.failpoint.threading.Event", Event)


@pytest.mark.usefixtures("instead_of_waiting")
@pytest.mark.parametrize(
    ("action", "waited_s"), [("hang", None), ("slow", 0.2), ("slow:1500", 1.5), ("slow:0", 0.0), ("slow:40*3@1", 0.04)]
)
def test_hang_waits_without_an_end_and_slow_as_long_as_told(action: str, waited_s: float | None) -> None:
    arm(f"a.b={action}")
    with pytest.raises(WaitedError) as waited:
        hit("a.b")
    assert waited.value.args == (waited_s,)


@pytest.mark.usefixtures("instead_of_waiting")
def test_slow_is_due_as_any_other_action_is() -> None:
    arm("a.b=slow*1@2")
    hit("a.b")
    with pytest.raises(WaitedError):
        hit("a.b")
    hit("a.b")


def test_a_slow_place_is_passed_in_the_end() -> None:
    arm("a.b=slow:1")
    assert _outcomes("a.b", 3) == [False] * 3
