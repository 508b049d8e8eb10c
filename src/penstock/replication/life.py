"""The life of one replicated table, as data.

Rule 1: every transition is a row of `TRANSITIONS`; code elsewhere asks, never decides.
Rule 2: this module knows neither workers nor stores, so tests can walk the whole graph.
Rule 3: a rollback is not a transition. It goes back along the stored history, which `enter` keeps such
that every step back is safe: to a phase of the same copy, and never to another error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

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
    Phase,
    Ready,
    SyncDone,
    SyncWait,
)


class Setter(StrEnum):
    """Who moves a table from one phase to the next."""

    PIPELINE = "pipeline"
    TABLE_SYNC = "table-sync worker"
    APPLY = "apply worker"


@dataclass(frozen=True, slots=True)
class Transition:
    """One legal step. `before` is None for a table that was not known."""

    before: type[Phase] | None
    after: type[Phase]
    by: frozenset[Setter]


_PIPELINE, _SYNC, _APPLY = (frozenset({setter}) for setter in Setter)

TRANSITIONS: tuple[Transition, ...] = (
    # The way of every table: joined, copied, handed over, followed.
    Transition(None, Init, _PIPELINE),
    Transition(Init, DataSync, _SYNC),
    Transition(DataSync, FinishedCopy, _SYNC),
    Transition(FinishedCopy, SyncWait, _SYNC),
    Transition(SyncWait, Catchup, _APPLY),
    Transition(Catchup, SyncDone, _SYNC),
    Transition(SyncDone, Ready, _APPLY),
    # Copied anew: asked for by a person, after a lost slot, or because a copy was interrupted.
    *(Transition(phase, Init, _PIPELINE) for phase in PHASES),
    # Whoever fails says so. An error may follow an error: two workers can fail on one table at once.
    *(Transition(phase, Errored, frozenset(Setter)) for phase in PHASES),
)

_ALLOWED = {(transition.before, transition.after): transition for transition in TRANSITIONS}

_RESUMES_AS: dict[type[Phase], type[FinishedCopy]] = {
    # The hand-over lives in memory; what is stored below it is the finished copy.
    SyncWait: FinishedCopy,
    Catchup: FinishedCopy,
}


def check_transition(before: Phase | None, after: Phase) -> None:
    """Raise `StateError` unless a table may go from one phase to the other."""
    kind = None if before is None else type(before)
    if (kind, type(after)) not in _ALLOWED:
        raise StateError(
            f"a table cannot go from {_name(kind)} to {_name(type(after))}; from there: {_choices(kind)}",
            remedy="Start the pipeline again; if it returns, report it with the log.",
        )
    _check_positions(before, after)


def setters(before: type[Phase] | None, after: type[Phase]) -> frozenset[Setter]:
    """Return who may make this step; nobody, if it is not one."""
    transition = _ALLOWED.get((before, after))
    return transition.by if transition else frozenset()


def after_restart(phase: Phase) -> Phase:
    """Return the phase that a table resumes in when its process starts anew."""
    # A copy's snapshot dies with its session: one that cannot go on with another starts from nothing.
    if isinstance(phase, DataSync) and phase.outline is None:
        return Init()
    resumed = _RESUMES_AS.get(type(phase))
    return resumed() if resumed else phase


def is_stored(phase: Phase) -> bool:
    """Whether the phase outlives the process."""
    return isinstance(phase, STORED_PHASES)


def enter(history: Sequence[Phase], phase: Phase) -> tuple[Phase, ...]:
    """Return a table's stored history, oldest first, after it entered a stored phase.

    Init begins a new life: the destination's table will be emptied, so nothing may lead back to a
    phase that vouched for its rows. An error after an error takes its place: going back from it must
    reach the phase that failed.
    """
    if isinstance(phase, Init):
        return (phase,)
    if history and isinstance(phase, Errored) and isinstance(history[-1], Errored):
        return (*history[:-1], phase)
    return (*history, phase)


def _check_positions(before: Phase | None, after: Phase) -> None:
    given, asked = _lsn(before), _lsn(after)
    if given is not None and asked is not None and asked < given:
        raise StateError(
            f"a table cannot be handed over at {asked}, before the position {given} that it has reached",
            remedy="Start the pipeline again; if it returns, report it with the log.",
        )


def _lsn(phase: Phase | None) -> Lsn | None:
    return phase.lsn if isinstance(phase, SyncWait | Catchup | SyncDone) else None


def _choices(before: type[Phase] | None) -> str:
    rows = [transition for transition in TRANSITIONS if transition.before is before]
    return ", ".join(f"{_name(row.after)} (set by {_setter_names(row.by)})" for row in rows)


def _setter_names(by: frozenset[Setter]) -> str:
    return "any" if len(by) == len(Setter) else " or ".join(sorted(by))


def _name(phase: type[Phase] | None) -> str:
    return phase.kind if phase else "unknown"
