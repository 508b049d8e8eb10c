"""The first signal drains, the second ends; one that arrives twice at once is one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from penstock.cli.interrupt import INTERRUPTED, draining, ending

PROGRAM = """
import os, sys, threading
from penstock.cli import interrupt
interrupt._ECHO_S = float(sys.argv[1])
drained = threading.Event()
def say(word):  # not print: a signal may arrive inside one, and printing is not reentrant
    os.write(1, word + b"\\n")
with interrupt.draining(lambda: say(b"draining"), lambda: say(b"leaving")):
    say(b"ready")
    while True:
        drained.wait(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_drains_and_the_handlers_are_put_back(number: signal.Signals) -> None:
    before, calls = signal.getsignal(number), []
    with draining(lambda: calls.append("drain"), lambda: calls.append("leave")):
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    assert calls == ["drain"]
    assert signal.getsignal(number) is before


def test_ending_interrupts_once() -> None:
    with pytest.raises(KeyboardInterrupt), ending():
        os.kill(os.getpid(), signal.SIGTERM)


def test_the_second_signal_ends_the_process_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "draining\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "leaving\n"
        assert process.wait(30) == INTERRUPTED
