"""Writes to several tables at an even pace: a process of its own, so that it takes nothing from whom it is to measure.

Every table has ten transactions a second, one after the other's; how large they are follows from the rate. The first
tables get inserts, updates and deletes, the last ones inserts only. Ends with a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg

INSERTS, UPDATES = 0.4, 0.45
"""Of the changes of a table that gets all kinds; the rest are deletes."""
_ROUNDS_PER_S = 10
_SLACK_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is written: to the tables `steady_1`, `steady_2` and so on."""

    conninfo: str
    changes_per_s: float
    seconds: float
    tables: int
    insert_only_tables: int


@dataclass(frozen=True, slots=True)
class Written:
    """How that went."""

    changes: int
    transactions: int
    seconds: float
    late_s: float
    """How far behind its pace the writer was at most."""


@dataclass
class _Table:
    """What is in one table, as far as its writer has to know."""

    name: str
    is_insert_only: bool
    first_id: int
    next_id: int
    owed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("inserts", "updates", "deletes"), 0.0))

    def due(self, changes: float) -> dict[str, int]:
        """Return what the next transaction has to do, so that in the long run all kinds get their share."""
        inserts, updates = (1.0, 0.0) if self.is_insert_only else (INSERTS, UPDATES)
        shares = {"inserts": inserts, "updates": updates, "deletes": 1 - inserts - updates}
        for kind, share in shares.items():
            self.owed[kind] += changes * share
        found = {kind: int(owed) for kind, owed in self.owed.items()}
        for kind, count in found.items():
            self.owed[kind] -= count
        return found

    def write(self, connection: psycopg.Connection[tuple[Any, ...]], changes: float, draw: int) -> int:
        """Commit one transaction, and return how many changes it made."""
        due = self.due(changes)
        if not any(due.values()):
            return 0
        connection.execute(
            "call write_steadily(%s, %s, %s, %s, %s, %s, %s)",
            [self.name, due["inserts"], due["updates"], due["deletes"], self.first_id, self.next_id, draw],
        )
        self.next_id += due["inserts"]
        self.first_id += due["deletes"]
        return sum(due.values())


def write(load: Load) -> Written:
    """Write in another process, and return when all is written."""
    command = [sys.executable, "-m", "bench.steady", json.dumps(asdict(load))]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=load.seconds * 3 + _SLACK_S)
    return Written(**json.loads(done.stdout))


def _write(load: Load) -> Written:
    with psycopg.connect(load.conninfo, autocommit=True) as connection:
        connection.execute("set plan_cache_mode = force_generic_plan")
        return _write_rounds(load, connection, _tables(load, connection))


def _tables(load: Load, connection: psycopg.Connection[tuple[Any, ...]]) -> list[_Table]:
    mixed = load.tables - load.insert_only_tables
    return [_table(connection, number + 1, is_insert_only=number >= mixed) for number in range(load.tables)]


def _table(connection: psycopg.Connection[tuple[Any, ...]], number: int, *, is_insert_only: bool) -> _Table:
    row = connection.execute(f"select min(id), max(id) + 1 from steady_{number}").fetchone()  # noqa: S608  # a number
    assert row is not None
    return _Table(f"steady_{number}", is_insert_only, first_id=row[0], next_id=row[1])


def _write_rounds(load: Load, connection: psycopg.Connection[tuple[Any, ...]], tables: list[_Table]) -> Written:
    began = time.monotonic()
    transactions = round(load.seconds * _ROUNDS_PER_S) * len(tables)
    pause_s = load.seconds / transactions
    changes, late_s = 0, 0.0
    for number in range(transactions):
        ahead_s = began + number * pause_s - time.monotonic()
        late_s = max(late_s, -ahead_s)
        time.sleep(max(0.0, ahead_s))
        changes += tables[number % len(tables)].write(connection, load.changes_per_s * pause_s, number)
    return Written(changes, transactions, time.monotonic() - began, late_s)


if __name__ == "__main__":
    print(json.dumps(asdict(_write(Load(**json.loads(sys.argv[1]))))))
