"""Retries grow, spread, stop, and never repeat what an exception said."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import REMEDIES, ConversionError, DestinationError, ErrorKind, LogDamagedError, Retry, SourceError
from penstock.model.phase import Errored, ManualRetry, NoRetry, TimedRetry
from penstock.replication.retry import MAX_DELAY_MS, next_retry, pause_ms, policy_for

NOW = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
JITTER = st.floats(0, 1, exclude_max=True)


def _policy_for(error: Exception, attempts: int = 1) -> Errored:
    return policy_for(error, attempts, delay_ms=1000, max_attempts=3, now=NOW, jitter=0.5)


def test_pauses_double_from_the_given_delay() -> None:
    assert [pause_ms(attempt, 1000, 0.0) for attempt in (1, 2, 3, 4)] == [500, 1000, 2000, 4000]


@given(st.integers(1, 10_000), st.integers(0, 10**9), JITTER)
def test_a_pause_is_at_least_half_of_its_interval_and_at_most_ten_minutes(
    attempt: int, delay_ms: int, jitter: float
) -> None:
    pause = pause_ms(attempt, delay_ms, jitter)
    assert min(delay_ms, MAX_DELAY_MS) / 2 <= pause <= MAX_DELAY_MS


@given(st.integers(1, 40), st.integers(0, 10**6), JITTER)
def test_a_later_pause_is_never_shorter_at_the_same_jitter(attempt: int, delay_ms: int, jitter: float) -> None:
    assert pause_ms(attempt + 1, delay_ms, jitter) >= pause_ms(attempt, delay_ms, jitter)


@given(st.integers(0, 20), JITTER)
def test_exactly_the_allowed_retries_happen_by_themselves(max_attempts: int, jitter: float) -> None:
    policies = [next_retry(attempt, 10, max_attempts, NOW, jitter) for attempt in range(1, max_attempts + 2)]
    assert [isinstance(policy, TimedRetry) for policy in policies] == [True] * max_attempts + [False]
    assert policies[-1] == ManualRetry()


def test_a_timed_retry_says_when_and_how_many_there_were() -> None:
    assert next_retry(2, 1000, 5, NOW, 0.5) == TimedRetry(NOW + dt.timedelta(milliseconds=1500), 2)


def test_the_kind_of_an_error_decides_its_policy() -> None:
    assert isinstance(_policy_for(DestinationError("away")).retry_policy, TimedRetry)
    assert _policy_for(DestinationError("away"), attempts=4).retry_policy == ManualRetry()
    assert _policy_for(ConversionError("infinity in public.orders.paid_at")).retry_policy == ManualRetry()
    assert _policy_for(LogDamagedError("gone", kind=ErrorKind.LOG_GAP)).retry_policy == NoRetry()


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_kind_becomes_an_error_with_its_remedy(kind: ErrorKind) -> None:
    errored = _policy_for(SourceError("what went wrong", kind=kind))
    assert (errored.reason, errored.solution) == ("what went wrong", REMEDIES[kind][1])
    expected = {Retry.TIMED: TimedRetry, Retry.MANUAL: ManualRetry, Retry.NEVER: NoRetry}[REMEDIES[kind][0]]
    assert isinstance(errored.retry_policy, expected)


def test_a_foreign_exception_tells_its_class_and_nothing_else() -> None:
    errored = _policy_for(ValueError("invalid literal: 'alice@example.com'"))
    assert errored == Errored("internal error: ValueError", REMEDIES[ErrorKind.INTERNAL][1], ManualRetry())
