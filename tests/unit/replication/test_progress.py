"""The acknowledgement rule, as a property and as a machine that lives through copies, batches and errors."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.model.lsn import Lsn
from penstock.model.phase import DataSync, Errored, FinishedCopy, Init, ManualRetry, Phase, Ready
from penstock.replication.progress import Need, positions

ERRORED = Errored("broken", None, ManualRetry())
PHASES: list[Phase] = [Init(), DataSync(), FinishedCopy(), Ready(), ERRORED]
needs = st.builds(Need, st.sampled_from(PHASES), st.none() | st.builds(Lsn, st.integers(0, 100)))


@given(st.lists(needs, max_size=6), st.integers(0, 100), st.booleans(), st.booleans())
def test_nothing_is_acknowledged_that_is_not_durable_or_still_needed(
    tables: list[Need], durable: int, staged: bool, keeps: bool
) -> None:
    found = positions(tables, Lsn(durable), acknowledges_staged=staged, keeps_errored=keeps)
    assert found.acknowledge <= durable
    for need in tables:
        if need.watermark is None:
            continue
        if not isinstance(need.phase, Errored):
            assert found.trim <= need.watermark
            assert staged or found.acknowledge <= need.watermark
        elif keeps:
            assert found.trim <= need.watermark


@given(st.lists(needs, max_size=6), st.integers(0, 100), st.booleans())
def test_who_holds_the_log_back_is_named_exactly_when_it_is_held_back(
    tables: list[Need], durable: int, keeps: bool
) -> None:
    found = positions(tables, Lsn(durable), acknowledges_staged=False, keeps_errored=keeps)
    assert bool(found.held_by) == (found.trim < durable)
    counted = [need for need in tables if keeps or not isinstance(need.phase, Errored)]
    assert list(found.held_by) == [need for need in counted if need.watermark == found.trim < durable]


def test_an_idle_pipeline_acknowledges_all_that_is_durable() -> None:
    caught_up = [Need(Ready(), Lsn(50)), Need(ERRORED, Lsn(10)), Need(Init(), None)]
    found = positions(caught_up, Lsn(50), acknowledges_staged=False)
    assert (found.acknowledge, found.trim) == (50, 10)


class Acknowledgement(RuleBasedStateMachine):
    """Tables are copied, followed, broken and mended while the source commits; the slot must never run ahead.

    What the source could still send is what lies at or after the acknowledged position; what the log
    can still give is what lies at or after its start. No table may ever need anything from before both.
    """

    def __init__(self) -> None:
        super().__init__()
        self.source = self.durable = Lsn(1)
        self.acknowledged = self.log_start = Lsn(1)
        self.tables: dict[int, Need] = {}
        self.snapshots: dict[int, Lsn] = {}

    @rule(step=st.integers(1, 5))
    def source_commits(self, step: int) -> None:
        self.source = Lsn(self.source + step)

    @rule(step=st.integers(1, 5))
    def receiver_writes(self, step: int) -> None:
        self.durable = Lsn(min(self.source, self.durable + step))

    @rule(table=st.integers(0, 3))
    def table_joins(self, table: int) -> None:
        self.tables.setdefault(table, Need(Init(), None))

    @rule(table=st.integers(0, 3))
    def wave_begins(self, table: int) -> None:
        need = self.tables.get(table)
        if need is not None and isinstance(need.phase, Init) and need.watermark is None:
            self.tables[table] = Need(Init(), self.durable)
            self.snapshots[table] = self.source

    @rule(table=st.integers(0, 3))
    def copy_starts(self, table: int) -> None:
        """The worker may be free long after the snapshot was taken."""
        need = self.tables.get(table)
        if need is not None and isinstance(need.phase, Init) and need.watermark is not None:
            self.tables[table] = Need(DataSync(), self.snapshots[table])

    @rule(table=st.integers(0, 3))
    def copy_ends(self, table: int) -> None:
        need = self.tables.get(table)
        if need is not None and isinstance(need.phase, DataSync):
            self.tables[table] = Need(Ready(), need.watermark)

    @rule(table=st.integers(0, 3), step=st.integers(1, 9))
    def batch_commits(self, table: int, step: int) -> None:
        need = self.tables.get(table)
        if need is not None and isinstance(need.phase, Ready) and need.watermark is not None:
            assert need.watermark >= self.log_start, "the log has lost what a table needs"
            self.tables[table] = Need(Ready(), Lsn(max(need.watermark, min(self.durable, need.watermark + step))))

    @rule(table=st.integers(0, 3))
    def table_breaks(self, table: int) -> None:
        if table in self.tables and not isinstance(self.tables[table].phase, Init):
            self.tables[table] = Need(ERRORED, self.tables[table].watermark)

    @rule(table=st.integers(0, 3))
    def table_is_mended(self, table: int) -> None:
        need = self.tables.get(table)
        if need is not None and isinstance(need.phase, Errored):
            self.tables[table] = Need(Ready(), need.watermark)

    @precondition(lambda self: self.tables)
    @rule()
    def positions_are_sent(self) -> None:
        found = positions(self.tables.values(), self.durable, acknowledges_staged=False)
        self.acknowledged = max(self.acknowledged, found.acknowledge)
        self.log_start = max(self.log_start, found.trim)

    @rule()
    def everything_crashes(self) -> None:
        """Copies start anew; all else is stored."""
        for table, need in self.tables.items():
            if isinstance(need.phase, DataSync | Init):
                self.tables[table] = Need(Init(), None)

    @invariant()
    def acknowledged_is_durable(self) -> None:
        assert self.acknowledged <= self.durable

    @invariant()
    def no_table_needs_what_is_gone(self) -> None:
        for need in self.tables.values():
            if need.watermark is not None:
                assert need.watermark >= self.log_start


TestAcknowledgement = Acknowledgement.TestCase
TestAcknowledgement.settings = settings(max_examples=100, stateful_step_count=40)
