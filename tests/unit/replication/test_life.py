"""Walks the graph of phases: complete, reachable, recoverable."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StateError
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
    Phase,
    Ready,
    SyncDone,
    SyncWait,
)
from penstock.replication import life
from penstock.replication.life import TRANSITIONS, Setter, after_restart, check_transition, enter

EXAMPLES: dict[type[Phase], Phase] = {
    Init: Init(),
    DataSync: DataSync(),
    FinishedCopy: FinishedCopy(),
    SyncWait: SyncWait(Lsn(10)),
    Catchup: Catchup(Lsn(20)),
    SyncDone: SyncDone(Lsn(30)),
    Ready: Ready(),
    Errored: Errored("reason", None, ManualRetry()),
}
WAY = (Init, DataSync, FinishedCopy, SyncWait, Catchup, SyncDone, Ready)


def _reachable(start: type[Phase] | None) -> set[type[Phase]]:
    found: set[type[Phase]] = set()
    waiting = [row.after for row in TRANSITIONS if row.before is start]
    while waiting:
        phase = waiting.pop()
        if phase not in found:
            found.add(phase)
            waiting += [row.after for row in TRANSITIONS if row.before is phase]
    return found


def _is_legal(before: Phase | None, after: Phase) -> bool:
    try:
        check_transition(before, after)
    except StateError:
        return False
    return True


def test_the_table_knows_every_phase_and_no_row_stands_twice() -> None:
    assert {row.before for row in TRANSITIONS} == {None, *PHASES}
    assert {row.after for row in TRANSITIONS} == set(PHASES)
    assert set(EXAMPLES) == set(PHASES)
    pairs = [(row.before, row.after) for row in TRANSITIONS]
    assert len(pairs) == len(set(pairs))


def test_every_phase_is_reachable_and_can_still_reach_ready() -> None:
    assert _reachable(None) == set(PHASES)
    assert all(Ready in _reachable(phase) for phase in PHASES)


def test_a_table_only_ever_joins_at_the_beginning() -> None:
    assert [row.after for row in TRANSITIONS if row.before is None] == [Init]


def test_any_phase_can_fail_and_any_can_start_anew() -> None:
    assert all(_is_legal(phase, EXAMPLES[Errored]) and _is_legal(phase, Init()) for phase in EXAMPLES.values())


def test_besides_failing_and_starting_anew_there_is_one_way_only() -> None:
    onward = {
        (type(before), type(after))
        for before, after in itertools.product(EXAMPLES.values(), repeat=2)
        if _is_legal(before, after) and not isinstance(after, Init | Errored)
    }
    assert onward == set(itertools.pairwise(WAY))


def test_an_error_is_left_by_rollback_or_a_new_copy_only() -> None:
    assert {row.after for row in TRANSITIONS if row.before is Errored} == {Init, Errored}


def test_whoever_the_phases_name_sets_them() -> None:
    assert {phase: life.setters(before, phase) for before, phase in zip((None, *WAY), WAY, strict=False)} == {
        Init: {Setter.PIPELINE},
        DataSync: {Setter.TABLE_SYNC},
        FinishedCopy: {Setter.TABLE_SYNC},
        SyncWait: {Setter.TABLE_SYNC},
        Catchup: {Setter.APPLY},
        SyncDone: {Setter.TABLE_SYNC},
        Ready: {Setter.APPLY},
    }
    assert life.setters(Ready, Errored) == set(Setter)
    assert life.setters(Init, Ready) == set()


def test_an_illegal_step_is_refused_with_the_legal_ones() -> None:
    with pytest.raises(StateError, match=r"from data_sync to ready; from there: finished_copy \(set by table-sync"):
        check_transition(DataSync(), Ready())
    with pytest.raises(StateError, match="from unknown to ready"):
        check_transition(None, Ready())


@pytest.mark.parametrize(
    ("before", "after"), [(SyncWait(Lsn(10)), Catchup(Lsn(9))), (Catchup(Lsn(10)), SyncDone(Lsn(9)))]
)
def test_a_hand_over_never_lies_before_what_was_reached(before: Phase, after: Phase) -> None:
    with pytest.raises(StateError, match="0/9, before the position 0/A"):
        check_transition(before, after)


@pytest.mark.parametrize(
    ("before", "after"), [(SyncWait(Lsn(10)), Catchup(Lsn(10))), (Catchup(Lsn(10)), SyncDone(Lsn(10)))]
)
def test_a_hand_over_may_lie_where_the_table_already_is(before: Phase, after: Phase) -> None:
    check_transition(before, after)


def test_a_restart_resumes_in_a_phase_that_can_go_on_alone() -> None:
    resumed = {kind: type(after_restart(phase)) for kind, phase in EXAMPLES.items()}
    assert resumed == {
        Init: Init,
        DataSync: Init,
        FinishedCopy: FinishedCopy,
        SyncWait: FinishedCopy,
        Catchup: FinishedCopy,
        SyncDone: SyncDone,
        Ready: Ready,
        Errored: Errored,
    }
    assert all(kind in STORED_PHASES for kind in resumed.values())


def test_a_restart_of_a_restart_changes_nothing_more() -> None:
    assert all(after_restart(after_restart(phase)) == after_restart(phase) for phase in EXAMPLES.values())


def test_stored_phases_are_those_that_are_not_in_memory_only() -> None:
    assert {kind for kind, phase in EXAMPLES.items() if not life.is_stored(phase)} == {SyncWait, Catchup}


@given(st.lists(st.sampled_from([EXAMPLES[kind] for kind in STORED_PHASES]), min_size=1))
def test_every_step_back_stays_in_the_same_copy_and_never_meets_another_error(phases: list[Phase]) -> None:
    history: tuple[Phase, ...] = ()
    for phase in phases:
        history = enter(history, phase)
    assert history[-1] == phases[-1]
    assert Init() not in history[1:]
    assert not any(isinstance(a, Errored) and isinstance(b, Errored) for a, b in itertools.pairwise(history))


@given(st.lists(st.sampled_from(sorted(PHASES, key=lambda kind: kind.kind)), max_size=30))
def test_a_rollback_from_an_error_can_always_go_on(kinds: list[type[Phase]]) -> None:
    """Whatever legal life a table had, the phase below its error leads on to Ready, after a restart too."""
    current, history = EXAMPLES[Init], enter((), EXAMPLES[Init])
    for kind in kinds:
        if _is_legal(current, EXAMPLES[kind]):
            current = EXAMPLES[kind]
            history = enter(history, current) if life.is_stored(current) else history
    history = enter(history, EXAMPLES[Errored])
    target = history[-2]
    assert not isinstance(target, Errored)
    assert isinstance(after_restart(target), Ready) or Ready in _reachable(type(after_restart(target)))
