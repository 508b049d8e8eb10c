"""What the apply worker says of the log: who holds it back, and that what is only kept is nobody's claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plugins.written_log import Did, WrittenLog, orders, row

from penstock.changelog.folder import Folder
from penstock.changelog.retention import Retention
from penstock.changelog.visitor import open_log
from penstock.destinations.memory import MemoryDestination
from penstock.model.lsn import Lsn
from penstock.model.phase import Errored, ManualRetry, Phase, Ready
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableId, TableName
from penstock.postgres.connection import SourceAddress
from penstock.receiver.settings import Command, ReceiverSettings
from penstock.runtime.apply import Applier, ApplyWorker
from penstock.runtime.failure import FailurePolicy
from penstock.runtime.report import HeldBack, held_back
from penstock.runtime.tables import Tables
from penstock.spark.changes import LogView
from penstock.store.memory import MemoryStore

ORDERS = orders()
ERRORED = Errored("broken", None, ManualRetry())


class Worker:
    """An apply worker over a log, which does nothing but tell its positions."""

    def __init__(self, log: WrittenLog, max_log_bytes: int) -> None:
        self.sent: list[Command] = []
        self.tables = Tables(MemoryStore())
        view = LogView(open_log(log.folder), ValuePolicies(), no_spark)
        self._worker = ApplyWorker(
            Applier(view, self.tables, MemoryDestination()),
            FailurePolicy(self.tables, delay_ms=1, max_attempts=1),
            send=self.sent.append,
            max_bytes=1,
            max_log_bytes=max_log_bytes,
            parallel_tables=1,
            acknowledges_staged=False,
        )

    def add(self, table: int, name: str, phase: Phase, watermark: Lsn) -> None:
        self.tables.add(TableId(table), TableName("public", name), phase, watermark)

    def tell(self) -> tuple[Command, HeldBack | None]:
        """Let it tell the receiver, and return what it told and what it reports."""
        self._worker._acknowledge()
        return self.sent[-1], held_back(self._worker.held_by)


def no_spark() -> Any:
    raise AssertionError("nothing is applied here")


def filled(log: WrittenLog) -> list[Lsn]:
    """Write four transactions, and return where each ends."""
    for key in range(4):
        log.commit(Did(ORDERS, "I", row(key)))
    return [entry.end_lsn for entry in log.entries]


def test_the_table_with_the_least_watermark_holds_the_log_and_is_named(written_log: WrittenLog) -> None:
    ends = filled(written_log)
    worker = Worker(written_log, 1 << 40)
    worker.add(1, "slow", Ready(), ends[1])
    worker.add(2, "done", Ready(), ends[3])
    worker.add(3, "broken", ERRORED, ends[0])
    command, held = worker.tell()
    assert command == Command(acknowledge=ends[1], trim=ends[0])
    assert held == HeldBack("public.broken", "errored", str(ends[0]))


def test_tables_at_the_same_position_are_counted(written_log: WrittenLog) -> None:
    ends = filled(written_log)
    worker = Worker(written_log, 1 << 40)
    for number in (3, 1, 2):
        worker.add(number, f"t{number}", Ready(), ends[1])
    assert worker.tell()[1] == HeldBack("public.t1", "ready", str(ends[1]), others=2)


def test_nobody_holds_a_log_that_every_table_has(written_log: WrittenLog) -> None:
    ends = filled(written_log)
    worker = Worker(written_log, 1 << 40)
    worker.add(1, "done", Ready(), ends[3])
    assert worker.tell() == (Command(ends[3], ends[3]), None)


def test_a_stopped_table_does_not_lose_its_claim_to_what_is_kept_for_replay(written_log: WrittenLog) -> None:
    """After a restart the log is seen whole: half of it may be kept for replay, which is no claim of the table's."""
    ends = filled(written_log)
    size = sum(entry.size_bytes for entry in written_log.entries)
    worker = Worker(written_log, size)
    worker.add(1, "broken", ERRORED, ends[2])
    command, held = worker.tell()
    assert command.trim == ends[2]
    assert held == HeldBack("public.broken", "errored", str(ends[2]))


def test_a_stopped_table_that_claims_half_of_the_log_is_passed_over(written_log: WrittenLog) -> None:
    ends = filled(written_log)
    size = sum(entry.size_bytes for entry in written_log.entries)
    worker = Worker(written_log, size)
    worker.add(1, "broken", ERRORED, ends[0])
    assert worker.tell() == (Command(ends[3], ends[3]), None)


def test_the_receiver_is_told_what_to_keep(tmp_path: Path) -> None:
    address = SourceAddress(host="localhost", port=5432, dbname="d", user="u")
    settings = ReceiverSettings(
        address, "s", "p", Folder.on_disk(tmp_path), tmp_path, keep_ms=5, keep_bytes=6, max_log_bytes=7
    )
    told = ReceiverSettings.from_line(settings.to_line())
    assert told.retention == Retention(keep_ms=5, keep_bytes=6, max_bytes=7)
