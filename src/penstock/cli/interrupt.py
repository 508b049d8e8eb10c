"""What SIGINT and SIGTERM mean: the first asks a command to end in order, the next one ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType

INTERRUPTED = 130
"""As shells have it: 128 and SIGINT's number."""
_ECHO_S = 0.5
"""Some senders signal the process and then its group, which is us again: that is one signal."""


def draining(drain: Callable[[], None], leave: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `drain` at the first signal; `leave`, and end the process, at the second."""
    return _handling(drain, leave)


def ending() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt at the first signal, so that everything is put away; end the process at the second."""
    return _handling(_interrupt, lambda: None)


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _handling(first: Callable[[], None], second: Callable[[], None]) -> Iterator[None]:
    first_s: float | None = None

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal first_s
        if first_s is None:
            first_s = time.monotonic()
            first()
        elif time.monotonic() - first_s > _ECHO_S:
            second()
            # Not an exception: finally clauses and the pools' threads would be waited for.
            os._exit(INTERRUPTED)

    numbers = (signal.SIGINT, signal.SIGTERM)
    former = [signal.signal(number, handle) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, former, strict=True):
            signal.signal(number, handler)
