"""Phases survive JSON in the documented shape, and say whether a table is on its way."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.lsn import Lsn
from penstock.model.phase import (
    PHASES,
    STORED_PHASES,
    Catchup,
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    ManualRetry,
    NoRetry,
    Phase,
    Ready,
    SyncDone,
    SyncWait,
    TimedRetry,
    phase_from_json,
    phase_to_json,
)

_LSNS = st.integers(0, (1 << 64) - 1).map(Lsn)
_POLICIES = st.one_of(
    st.builds(TimedRetry, st.datetimes(timezones=st.just(dt.UTC)), st.integers(0, 100)),
    st.builds(ManualRetry),
    st.builds(NoRetry),
)
_PHASES: st.SearchStrategy[Phase] = st.one_of(
    *map(st.builds, (Init, DataSync, FinishedCopy, Ready)),
    *(st.builds(kind, _LSNS) for kind in (SyncWait, Catchup, SyncDone)),
    st.builds(Errored, st.text(), st.none() | st.text(), _POLICIES),
)


@given(_PHASES)
def test_a_phase_survives_json(phase: Phase) -> None:
    assert phase_from_json(json.loads(json.dumps(phase_to_json(phase)))) == phase


def test_the_shape_of_the_json_is_fixed() -> None:
    retry = TimedRetry(dt.datetime(2026, 7, 1, tzinfo=dt.UTC), 2)
    assert phase_to_json(Init()) == {"type": "init"}
    assert phase_to_json(SyncDone(Lsn(1 << 24))) == {"type": "sync_done", "lsn": "0/1000000"}
    assert phase_to_json(Errored("why", "what to do", retry)) == {
        "type": "errored",
        "reason": "why",
        "solution": "what to do",
        "retry_policy": {"type": "timed_retry", "next_retry": "2026-07-01T00:00:00+00:00", "attempts": 2},
    }


@pytest.mark.parametrize("data", [{}, {"type": "unheard_of"}, {"type": "errored"}, {"type": "sync_done", "lsn": "?"}])
def test_what_is_no_phase_is_refused(data: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        phase_from_json(data)


def test_kinds_are_distinct_and_stored_phases_are_phases() -> None:
    assert len({phase.kind for phase in PHASES}) == len(PHASES) == 8
    assert set(STORED_PHASES) == set(PHASES) - {SyncWait, Catchup}
