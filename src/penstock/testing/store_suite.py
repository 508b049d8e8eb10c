"""What every store must do, as tests: a suite of examples, and a model that random histories are compared with.

Subclass `StoreSuite` with a `store` fixture and `reopen`; subclass `StoreMachine` with `open_store` and `reopen`, and
run it in a test with hypothesis's `run_state_machine_as_test`.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.contract import CleanupStore, SchemaStore, StateStore, Store
from penstock.errors import StateError
from penstock.model.lsn import Lsn
from penstock.model.phase import (
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
)
from penstock.model.table import Column, Kind, PgType, ReplicaIdentity, TableId, TableName, TableSchema

ORDERS, USERS = TableId(16384), TableId(4294967295)
LAST_LSN = Lsn((1 << 64) - 1)
BROKEN = Errored("the destination did not answer", "Wait.", TimedRetry(dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), 2))


def schema_of(table: TableId, name: str = "orders") -> TableSchema:
    """Return a schema that uses everything a schema can hold."""
    text = PgType("text", Kind.TEXT)
    columns = (
        Column("id", PgType("bigint", Kind.INT8), nullable=False, key_ordinal=0, attnum=1),
        Column("Größe", PgType("numeric(12,2)", Kind.NUMERIC, 12, 2), attnum=2),
        Column("tags", PgType("text[]", Kind.ARRAY, element=text)),
    )
    return TableSchema(table, TableName("public", name), columns, ReplicaIdentity.FULL)


class StoreSuite:
    """Examples of every promise in `penstock.contract.store`."""

    @pytest.fixture
    def store(self) -> Store:
        """Give an empty store."""
        raise NotImplementedError

    def reopen(self, store: Store) -> Store:
        """Return a new store on what the old one stored, after closing it; the same one if none can be."""
        raise NotImplementedError

    def test_it_implements_every_store_protocol(self, store: Store) -> None:
        """One object, three contracts."""
        assert all(isinstance(store, protocol) for protocol in (Store, SchemaStore, StateStore, CleanupStore))

    def test_an_empty_store_knows_nothing(self, store: Store) -> None:
        """Absent is None or empty, not an error."""
        assert store.get_table_schema(ORDERS) is None
        assert store.get_table_replication_state(ORDERS) is None
        assert store.get_table_mapping(ORDERS) is None
        assert not store.get_table_schemas()
        assert not store.get_table_replication_states()
        assert not store.get_table_mappings()
        assert not store.get_replication_progress()
        assert store.load_table_schemas() + store.load_table_replication_states() + store.load_table_mappings() == 0

    def test_the_latest_schema_replaces_the_former(self, store: Store) -> None:
        """One version per table."""
        renamed = replace(schema_of(ORDERS), name=TableName("sales", "orders"))
        for schema in (schema_of(ORDERS), schema_of(USERS, "users"), renamed):
            store.store_table_schema(schema)
        assert store.get_table_schema(ORDERS) == renamed
        assert sorted(store.get_table_schemas(), key=lambda schema: schema.id) == [renamed, schema_of(USERS, "users")]
        assert store.load_table_schemas() == len([ORDERS, USERS])
        assert store.get_table_schema(ORDERS) == renamed

    @pytest.mark.parametrize(
        "phase",
        [
            Init(),
            DataSync(),
            FinishedCopy(),
            SyncDone(LAST_LSN),
            Ready(),
            BROKEN,
            Errored("a value does not fit", None, ManualRetry()),
            Errored("the log has a gap", "Resync.", NoRetry()),
        ],
    )
    def test_a_stored_phase_is_read_back_equal(self, store: Store, phase: Phase) -> None:
        """From memory, and from what is stored."""
        store.update_table_replication_state(ORDERS, phase)
        assert store.get_table_replication_state(ORDERS) == phase
        assert store.load_table_replication_states() == 1
        assert store.get_table_replication_states() == {ORDERS: phase}

    @pytest.mark.parametrize("phase", [SyncWait(Lsn(7)), Catchup(Lsn(8))])
    def test_a_phase_that_lives_in_memory_is_never_stored(self, store: Store, phase: Phase) -> None:
        """Loading forgets it."""
        store.update_table_replication_state(ORDERS, FinishedCopy())
        store.update_table_replication_state(ORDERS, phase)
        assert store.get_table_replication_state(ORDERS) == phase
        store.load_table_replication_states()
        assert store.get_table_replication_state(ORDERS) == FinishedCopy()

    def test_rollback_retraces_the_stored_phases_one_by_one(self, store: Store) -> None:
        """And stops at the first."""
        way: Sequence[Phase] = (Init(), DataSync(), FinishedCopy(), SyncDone(Lsn(9)), Ready())
        for phase in way:
            store.update_table_replication_state(ORDERS, phase)
        for phase in reversed(way[:-1]):
            assert store.rollback_table_replication_state(ORDERS) == phase
            assert store.get_table_replication_state(ORDERS) == phase
        with pytest.raises(StateError, match=str(int(ORDERS))):
            store.rollback_table_replication_state(ORDERS)
        assert store.get_table_replication_state(ORDERS) == Init()

    def test_rollback_of_an_unknown_table_is_refused(self, store: Store) -> None:
        """There is nothing to return to."""
        with pytest.raises(StateError, match="no earlier phase"):
            store.rollback_table_replication_state(ORDERS)
        assert store.get_table_replication_state(ORDERS) is None

    def test_rollback_from_an_error_returns_to_the_phase_that_failed(self, store: Store) -> None:
        """However many errors there were."""
        for phase in (Init(), DataSync(), FinishedCopy(), SyncWait(Lsn(1)), Catchup(Lsn(2))):
            store.update_table_replication_state(ORDERS, phase)
        store.update_table_replication_state(ORDERS, BROKEN)
        store.update_table_replication_state(ORDERS, replace(BROKEN, retry_policy=ManualRetry()))
        assert store.rollback_table_replication_state(ORDERS) == FinishedCopy()

    def test_rollback_drops_a_phase_in_memory_before_a_stored_one(self, store: Store) -> None:
        """The stored phase below it is the one before."""
        for phase in (Init(), FinishedCopy(), SyncWait(Lsn(1)), Catchup(Lsn(2))):
            store.update_table_replication_state(ORDERS, phase)
        assert store.rollback_table_replication_state(ORDERS) == FinishedCopy()
        assert store.rollback_table_replication_state(ORDERS) == Init()

    def test_no_rollback_leads_back_past_a_new_copy(self, store: Store) -> None:
        """Ready vouched for rows that the new copy removes."""
        for phase in (Init(), DataSync(), Ready(), Init()):
            store.update_table_replication_state(ORDERS, phase)
        with pytest.raises(StateError):
            store.rollback_table_replication_state(ORDERS)

    def test_a_mapping_is_kept_and_replaced(self, store: Store) -> None:
        """By table."""
        store.store_table_mapping(ORDERS, "public_orders")
        store.store_table_mapping(ORDERS, "sales_örders")
        store.store_table_mapping(USERS, "users")
        assert store.get_table_mapping(ORDERS) == "sales_örders"
        assert store.load_table_mappings() == len([ORDERS, USERS])
        assert store.get_table_mappings() == {ORDERS: "sales_örders", USERS: "users"}

    def test_a_watermark_never_moves_backwards(self, store: Store) -> None:
        """Also across the sign bit of 64 bits, and beside one that does move."""
        store.store_replication_progress({ORDERS: Lsn(1 << 63), USERS: Lsn(5)})
        store.store_replication_progress({ORDERS: Lsn((1 << 63) - 1), USERS: Lsn(1 << 33)})
        assert store.get_replication_progress() == {ORDERS: Lsn(1 << 63), USERS: Lsn(1 << 33)}
        store.store_replication_progress({ORDERS: LAST_LSN})
        assert store.get_replication_progress()[ORDERS] == LAST_LSN

    def test_a_watermark_can_start_lower_after_a_reset(self, store: Store) -> None:
        """A new copy has a new position; resetting twice is as good as once."""
        store.store_replication_progress({ORDERS: Lsn(50), USERS: Lsn(60)})
        store.reset_replication_progress(ORDERS)
        store.reset_replication_progress(ORDERS)
        assert store.get_replication_progress() == {USERS: Lsn(60)}
        store.store_replication_progress({ORDERS: Lsn(10)})
        assert store.get_replication_progress() == {ORDERS: Lsn(10), USERS: Lsn(60)}

    def test_cleanup_forgets_one_table_entirely_and_no_other(self, store: Store) -> None:
        """Twice is as good as once, and the table may join again."""
        for table in (ORDERS, USERS):
            _fill(store, table)
        store.cleanup_table_state(ORDERS)
        store.cleanup_table_state(ORDERS)
        assert _known(store) == ({USERS}, {USERS}, {USERS}, {USERS})
        assert store.load_table_schemas() == store.load_table_replication_states() == store.load_table_mappings() == 1
        store.update_table_replication_state(ORDERS, Init())
        with pytest.raises(StateError):
            store.rollback_table_replication_state(ORDERS)

    def test_what_was_read_does_not_change_afterwards(self, store: Store) -> None:
        """A reader keeps a consistent view while others write."""
        store.update_table_replication_state(ORDERS, Init())
        before = store.get_table_replication_states()
        store.update_table_replication_state(ORDERS, DataSync())
        store.update_table_replication_state(USERS, Init())
        assert before == {ORDERS: Init()}

    def test_everything_outlives_the_store(self, store: Store) -> None:
        """All but the phases that live in memory."""
        _fill(store, ORDERS)
        store.update_table_replication_state(ORDERS, FinishedCopy())
        store.update_table_replication_state(ORDERS, SyncWait(Lsn(3)))
        again = self.reopen(store)
        again.load_table_schemas()
        again.load_table_replication_states()
        again.load_table_mappings()
        assert again.get_table_schema(ORDERS) == schema_of(ORDERS)
        assert again.get_table_replication_state(ORDERS) == FinishedCopy()
        assert again.get_table_mapping(ORDERS) == "lake.orders"
        assert again.get_replication_progress() == {ORDERS: Lsn(77)}
        assert again.rollback_table_replication_state(ORDERS) == DataSync()

    def test_writes_of_many_threads_are_all_kept(self, store: Store) -> None:
        """And readers meet only whole states."""
        tables = [TableId(number) for number in range(1, 9)]
        start = threading.Barrier(len(tables), timeout=30)

        def live(table: TableId) -> None:
            start.wait()
            _fill(store, table)
            assert store.get_table_replication_state(table) == DataSync()
            assert store.rollback_table_replication_state(table) == Init()

        with ThreadPoolExecutor(len(tables)) as pool:
            list(pool.map(live, tables))
        assert store.get_table_replication_states() == dict.fromkeys(tables, Init())
        assert _known(store) == (set(tables),) * 4


def _fill(store: Store, table: TableId) -> None:
    store.store_table_schema(schema_of(table))
    store.update_table_replication_state(table, Init())
    store.update_table_replication_state(table, DataSync())
    store.store_table_mapping(table, "lake.orders")
    store.store_replication_progress({table: Lsn(77)})


def _known(store: Store) -> tuple[set[TableId], ...]:
    return (
        {schema.id for schema in store.get_table_schemas()},
        set(store.get_table_replication_states()),
        set(store.get_table_mappings()),
        set(store.get_replication_progress()),
    )


@dataclass
class _Model:
    """A store as a child would write it: the whole history in a list, a copy of nothing."""

    stored: dict[TableId, list[Phase]] = field(default_factory=dict)
    passing: dict[TableId, Phase] = field(default_factory=dict)
    schemas: dict[TableId, TableSchema] = field(default_factory=dict)
    mappings: dict[TableId, str] = field(default_factory=dict)
    watermarks: dict[TableId, Lsn] = field(default_factory=dict)

    def phases(self) -> dict[TableId, Phase]:
        return {**{table: history[-1] for table, history in self.stored.items()}, **self.passing}

    def update(self, table: TableId, phase: Phase) -> None:
        self.passing.pop(table, None)
        if not isinstance(phase, STORED_PHASES):
            self.passing[table] = phase
            return
        history = self.stored.setdefault(table, [])
        if isinstance(phase, Init):
            history.clear()
        elif history and isinstance(phase, Errored) and isinstance(history[-1], Errored):
            history.pop()
        history.append(phase)

    def rollback(self, table: TableId) -> Phase | None:
        history = self.stored.get(table, [])
        left = history if table in self.passing else history[:-1]
        if not left:
            return None
        self.passing.pop(table, None)
        self.stored[table] = list(left)
        return left[-1]

    def forget(self, table: TableId) -> None:
        for kept in (self.stored, self.passing, self.schemas, self.mappings, self.watermarks):
            kept.pop(table, None)


_TABLES = st.sampled_from([ORDERS, USERS, TableId(3)])
_LSNS = st.integers(0, (1 << 64) - 1).map(Lsn)
_POLICIES = st.one_of(
    st.builds(TimedRetry, st.datetimes(timezones=st.just(dt.UTC)), st.integers(1, 9)),
    st.builds(ManualRetry),
    st.builds(NoRetry),
)
_WORDS = st.text(max_size=20)
_PHASES: st.SearchStrategy[Phase] = st.one_of(
    *map(st.builds, (Init, DataSync, FinishedCopy, Ready)),
    *(st.builds(kind, _LSNS) for kind in (SyncWait, Catchup, SyncDone)),
    st.builds(Errored, _WORDS, st.none() | _WORDS, _POLICIES),
)


class StoreMachine(RuleBasedStateMachine):
    """Random histories of a store and of a plain model, side by side."""

    def open_store(self) -> Store:
        """Return an empty store."""
        raise NotImplementedError

    def reopen(self, store: Store) -> Store:
        """Return a new store on what the old one stored, after closing it; the same one if none can be."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        """Start both empty."""
        self.store = self.open_store()
        self.model = _Model()

    def teardown(self) -> None:
        """Close the store, where it can be."""
        close = getattr(self.store, "close", None)
        if close is not None:
            close()

    @rule(table=_TABLES, phase=_PHASES)
    def update(self, table: TableId, phase: Phase) -> None:
        """Enter any phase, legal or not: a store does not judge."""
        self.store.update_table_replication_state(table, phase)
        self.model.update(table, phase)

    @rule(table=_TABLES)
    def rollback(self, table: TableId) -> None:
        """Step back, or be refused, as the model is."""
        expected = self.model.rollback(table)
        if expected is not None:
            assert self.store.rollback_table_replication_state(table) == expected
            return
        with pytest.raises(StateError):
            self.store.rollback_table_replication_state(table)

    @rule(table=_TABLES, name=_WORDS)
    def describe(self, table: TableId, name: str) -> None:
        """Store a schema."""
        self.store.store_table_schema(schema_of(table, name))
        self.model.schemas[table] = schema_of(table, name)

    @rule(table=_TABLES, name=_WORDS)
    def name(self, table: TableId, name: str) -> None:
        """Store a name at the destination."""
        self.store.store_table_mapping(table, name)
        self.model.mappings[table] = name

    @rule(watermarks=st.dictionaries(_TABLES, _LSNS))
    def advance(self, watermarks: dict[TableId, Lsn]) -> None:
        """Store watermarks, many of which would move backwards."""
        self.store.store_replication_progress(watermarks)
        for table, lsn in watermarks.items():
            self.model.watermarks[table] = max(lsn, self.model.watermarks.get(table, Lsn(0)))

    @rule(table=_TABLES)
    def reset(self, table: TableId) -> None:
        """Forget a watermark."""
        self.store.reset_replication_progress(table)
        self.model.watermarks.pop(table, None)

    @rule(table=_TABLES)
    def cleanup(self, table: TableId) -> None:
        """Forget a table."""
        self.store.cleanup_table_state(table)
        self.model.forget(table)

    @rule()
    def restart(self) -> None:
        """Go on with a store that knows only what was stored."""
        self.store = self.reopen(self.store)
        self.model.passing.clear()
        assert self.store.load_table_replication_states() == len(self.model.stored)
        assert self.store.load_table_schemas() == len(self.model.schemas)
        assert self.store.load_table_mappings() == len(self.model.mappings)

    @invariant()
    def reads_equal_the_model(self) -> None:
        """Compare everything that can be read."""
        assert self.store.get_table_replication_states() == self.model.phases()
        assert {schema.id: schema for schema in self.store.get_table_schemas()} == self.model.schemas
        assert self.store.get_table_mappings() == self.model.mappings
        assert self.store.get_replication_progress() == self.model.watermarks
