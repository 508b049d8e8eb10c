"""Every store against the suite that we ship."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.contract import Store
from penstock.model.table import PipelineId
from penstock.store import MemoryStore, SQLiteStore
from penstock.testing.store_suite import StoreMachine, StoreSuite

SHOP = PipelineId("shop")


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        return store


class TestSQLiteStore(StoreSuite):
    opened: list[SQLiteStore]

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        self.opened = [SQLiteStore(tmp_path / "state.sqlite", SHOP)]
        yield self.opened[0]
        for store in self.opened:
            store.close()

    def reopen(self, store: Store) -> Store:
        assert isinstance(store, SQLiteStore)
        store.close()
        self.opened.append(SQLiteStore(store.path, SHOP))
        return self.opened[-1]


class MemoryMachine(StoreMachine):
    def open_store(self) -> Store:
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        return store


class SQLiteMachine(StoreMachine):
    folder: ClassVar[Path]
    numbers: ClassVar = itertools.count()

    def open_store(self) -> Store:
        return SQLiteStore(self.folder / f"{next(self.numbers)}.sqlite", SHOP)

    def reopen(self, store: Store) -> Store:
        assert isinstance(store, SQLiteStore)
        store.close()
        return SQLiteStore(store.path, SHOP)


_SETTINGS = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_every_history_of_a_memory_store_equals_its_model() -> None:
    run_state_machine_as_test(MemoryMachine, settings=_SETTINGS)


def test_every_history_of_a_sqlite_store_equals_its_model_across_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SQLiteMachine, "folder", tmp_path, raising=False)
    run_state_machine_as_test(SQLiteMachine, settings=_SETTINGS)
