"""When something that failed is tried again. Pure: clock and randomness are parameters."""

from __future__ import annotations

import datetime as dt

from penstock.errors import REMEDIES, ErrorKind, PenstockError, Retry
from penstock.model.phase import Errored, ManualRetry, NoRetry, RetryPolicy, TimedRetry

# Long enough to leave a struggling server alone, short enough that a mended one is noticed over a coffee.
MAX_DELAY_MS = 600_000
# 2**30 times any delay of at least a millisecond is past the cap; larger powers only cost time.
_MAX_DOUBLINGS = 30


def next_retry(attempt: int, delay_ms: int, max_attempts: int, now: dt.datetime, jitter: float) -> RetryPolicy:
    """Decide what follows the failure of attempt number `attempt`, counted from 1.

    The first `max_attempts` failures are each followed by a pause that doubles from `delay_ms`, up to
    ten minutes; the next one waits for a person. `jitter`, in [0, 1), places the pause in the upper
    half of its interval, so that tables that failed together do not return together.
    """
    if attempt > max_attempts:
        return ManualRetry()
    return TimedRetry(now + dt.timedelta(milliseconds=pause_ms(attempt, delay_ms, jitter)), attempt)


def pause_ms(attempt: int, delay_ms: int, jitter: float) -> float:
    """Return the pause after the failure of attempt number `attempt`, counted from 1."""
    whole = min(delay_ms << min(attempt - 1, _MAX_DOUBLINGS), MAX_DELAY_MS)
    return whole * (1 + jitter) / 2


def policy_for(
    error: Exception, attempts: int, *, delay_ms: int, max_attempts: int, now: dt.datetime, jitter: float
) -> Errored:
    """Return the phase of a table whose attempt number `attempts`, counted from 1, raised `error`."""
    if not isinstance(error, PenstockError):
        return _internal(error)
    match error.retry:
        case Retry.TIMED:
            policy = next_retry(attempts, delay_ms, max_attempts, now, jitter)
        case Retry.MANUAL:
            policy = ManualRetry()
        case Retry.NEVER:
            policy = NoRetry()
    return Errored(error.message, error.remedy, policy)


def _internal(error: Exception) -> Errored:
    # The text of a foreign exception may quote a row or a secret: only its class is told.
    return Errored(f"internal error: {type(error).__name__}", REMEDIES[ErrorKind.INTERNAL][1], ManualRetry())
