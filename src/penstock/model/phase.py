"""The phases of a replicated table. `penstock.replication.life` says how they follow each other."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from penstock.model.copying import CopyOutline
from penstock.model.lsn import Lsn


@dataclass(frozen=True, slots=True)
class TimedRetry:
    """Tried again by itself, at `next_retry`; `attempts` were made so far."""

    next_retry: dt.datetime
    attempts: int


@dataclass(frozen=True, slots=True)
class ManualRetry:
    """Waits for someone to mend the cause and roll the table back."""


@dataclass(frozen=True, slots=True)
class NoRetry:
    """Can only be copied anew."""


RetryPolicy: TypeAlias = TimedRetry | ManualRetry | NoRetry


@dataclass(frozen=True, slots=True)
class Init:
    """Known, and to be copied. Set by the pipeline when a table joins; stored."""

    kind: ClassVar[str] = "init"


@dataclass(frozen=True, slots=True)
class DataSync:
    """Being copied. Set by the table-sync worker; stored."""

    outline: CopyOutline | None = None
    """How another process can go on with it; None for a copy that starts again from nothing."""
    kind: ClassVar[str] = "data_sync"


@dataclass(frozen=True, slots=True)
class FinishedCopy:
    """Copied and durable, with its watermark at the snapshot. Set by the table-sync worker; stored."""

    kind: ClassVar[str] = "finished_copy"


@dataclass(frozen=True, slots=True)
class SyncWait:
    """Asking the apply worker for a hand-over position. Set by the table-sync worker; in memory only."""

    lsn: Lsn
    """The table's watermark."""
    kind: ClassVar[str] = "sync_wait"


@dataclass(frozen=True, slots=True)
class Catchup:
    """Given a hand-over position, applying up to it. Set by the apply worker; in memory only."""

    lsn: Lsn
    kind: ClassVar[str] = "catchup"


@dataclass(frozen=True, slots=True)
class SyncDone:
    """Caught up with the hand-over position. Set by the table-sync worker; stored."""

    lsn: Lsn
    kind: ClassVar[str] = "sync_done"


@dataclass(frozen=True, slots=True)
class Ready:
    """Followed by the apply worker. Set by it, once it has passed the hand-over; stored."""

    kind: ClassVar[str] = "ready"


@dataclass(frozen=True, slots=True)
class Errored:
    """Stopped, while the others go on. Set by whichever worker failed; stored."""

    reason: str
    solution: str | None
    retry_policy: RetryPolicy
    kind: ClassVar[str] = "errored"


Phase: TypeAlias = Init | DataSync | FinishedCopy | SyncWait | Catchup | SyncDone | Ready | Errored
PHASES: tuple[type[Phase], ...] = (Init, DataSync, FinishedCopy, SyncWait, Catchup, SyncDone, Ready, Errored)
STORED_PHASES = (Init, DataSync, FinishedCopy, SyncDone, Ready, Errored)


_PLAIN: dict[str, type[Init | FinishedCopy | Ready]] = {cls.kind: cls for cls in (Init, FinishedCopy, Ready)}


def phase_to_json(phase: Phase) -> dict[str, Any]:
    """Return the phase as plain data, tagged by `type`; `phase_from_json` reads it back."""
    match phase:
        case SyncWait(lsn) | Catchup(lsn) | SyncDone(lsn):
            return {"type": phase.kind, "lsn": str(lsn)}
        case DataSync(outline):
            return {"type": phase.kind} | ({"outline": outline.to_json()} if outline else {})
        case Errored(reason, solution, policy):
            return {"type": phase.kind, "reason": reason, "solution": solution, "retry_policy": _policy_to_json(policy)}
        case _:
            return {"type": phase.kind}


def phase_from_json(data: dict[str, Any]) -> Phase:
    """Rebuild what `phase_to_json` gave."""
    match data["type"]:
        case "errored":
            return Errored(data["reason"], data["solution"], _policy_from_json(data["retry_policy"]))
        case "data_sync":
            return DataSync(CopyOutline.from_json(data["outline"]) if "outline" in data else None)
        case "sync_wait":
            return SyncWait(Lsn.parse(data["lsn"]))
        case "catchup":
            return Catchup(Lsn.parse(data["lsn"]))
        case "sync_done":
            return SyncDone(Lsn.parse(data["lsn"]))
        case kind:
            return _PLAIN[kind]()


def _policy_to_json(policy: RetryPolicy) -> dict[str, Any]:
    match policy:
        case TimedRetry(next_retry, attempts):
            return {"type": "timed_retry", "next_retry": next_retry.isoformat(), "attempts": attempts}
        case ManualRetry():
            return {"type": "manual_retry"}
        case NoRetry():
            return {"type": "no_retry"}


def _policy_from_json(data: dict[str, Any]) -> RetryPolicy:
    match data["type"]:
        case "timed_retry":
            return TimedRetry(dt.datetime.fromisoformat(data["next_retry"]), data["attempts"])
        case "manual_retry":
            return ManualRetry()
        case _:
            return NoRetry()
