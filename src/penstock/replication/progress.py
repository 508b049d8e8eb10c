"""How far the source may be told that we are, and what the log may forget.

Rule 1: nothing is acknowledged that is not durable in the log.
Rule 2: under `applied`, nothing is acknowledged that a followed or syncing table still needs.
Rule 3: the log keeps what any table may still need; one that stopped with an error only while there is room.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.model.lsn import Lsn
from penstock.model.phase import Errored, Phase
from penstock.model.table import TableName


@dataclass(frozen=True, slots=True)
class Need:
    """From which position on a table needs the log."""

    phase: Phase
    watermark: Lsn | None
    """None while it waits for a snapshot: that will be later than anything received so far, so the
    table holds nothing back. From just before its snapshot is taken it has one."""
    table: TableName | None = None
    """Whose need it is, where that is to be told."""


@dataclass(frozen=True, slots=True)
class Positions:
    """What follows from all tables' needs."""

    acknowledge: Lsn
    trim: Lsn
    held_by: tuple[Need, ...] = ()
    """Those whose need keeps `trim` from moving to the end of the log."""


def positions(
    needs: Iterable[Need], durable: Lsn, *, acknowledges_staged: bool, keeps_errored: bool = True
) -> Positions:
    """Return how far to acknowledge and to trim, with the log durable up to `durable`."""
    followed = kept = durable
    held_by: list[Need] = []
    for need in needs:
        if need.watermark is None or (isinstance(need.phase, Errored) and not keeps_errored):
            continue
        if not isinstance(need.phase, Errored):
            followed = min(followed, need.watermark)
        if need.watermark < kept:
            kept, held_by = need.watermark, []
        if need.watermark == kept < durable:
            held_by.append(need)
    return Positions(durable if acknowledges_staged else followed, kept, tuple(held_by))
