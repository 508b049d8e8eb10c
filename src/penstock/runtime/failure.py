"""What happens to a table whose worker failed: it stops with a reason and a remedy, the others go on."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.model.phase import Errored, TimedRetry
from penstock.model.table import TableId
from penstock.replication.retry import policy_for
from penstock.runtime.tables import Tables
from penstock.telemetry.log import get_logger


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Turns errors into phases, and phases whose time has come back into work."""

    tables: Tables
    delay_ms: int
    max_attempts: int

    def fail(self, table: TableId, error: Exception) -> None:
        """Stop a table because of an error."""
        attempts = self.tables.count_failure(table)
        phase = policy_for(
            error,
            attempts,
            delay_ms=self.delay_ms,
            max_attempts=self.max_attempts,
            now=dt.datetime.now(dt.UTC),
            jitter=random.random(),  # noqa: S311  # spreads retries; nothing secret about it
        )
        self._tell(table, phase, error)
        self.tables.enter(table, phase)

    def due(self) -> list[TableId]:
        """Return the tables whose pause is over."""
        now = dt.datetime.now(dt.UTC)
        return [state.id for state in self.tables.in_phase(Errored) if _is_due(state.phase, now)]

    def _tell(self, table: TableId, phase: Errored, error: Exception) -> None:
        log = get_logger(table=str(self.tables.name(table)))
        retry = phase.retry_policy
        when = retry.next_retry.isoformat(timespec="seconds") if isinstance(retry, TimedRetry) else None
        log.error("table stopped", reason=phase.reason, solution=phase.solution, next_retry=when)
        if not isinstance(error, PenstockError):
            log.debug("table stopped by an unexpected error", exc_info=error)


def _is_due(phase: object, now: dt.datetime) -> bool:
    return (
        isinstance(phase, Errored)
        and isinstance(phase.retry_policy, TimedRetry)
        and phase.retry_policy.next_retry <= now
    )
