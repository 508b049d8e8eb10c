"""What only a file can do: be shared, missing, damaged, full, locked, or newer than we are."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import penstock.store.sqlite as sqlite_module
from penstock.cli.wiring import open_stored_state
from penstock.config import ReplicatorConfig
from penstock.errors import ErrorKind, StateError
from penstock.model.lsn import Lsn
from penstock.model.phase import DataSync, Errored, FinishedCopy, Init, ManualRetry, Ready, SyncWait
from penstock.model.table import PipelineId, TableId
from penstock.store import SQLiteStore
from penstock.store.migration import Migration, read_migrations
from penstock.store.sqlite import NothingStoredError

SHOP, BANK = PipelineId("shop"), PipelineId("bank")
ORDERS = TableId(16384)

OpenStore = Callable[..., SQLiteStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


@pytest.fixture
def opened(path: Path) -> Iterator[OpenStore]:
    stores: list[SQLiteStore] = []

    def open_store(pipeline: PipelineId = SHOP, *, readonly: bool = False) -> SQLiteStore:
        stores.append(SQLiteStore(path, pipeline, readonly=readonly))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def _query(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def _execute(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


def _run(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)


def test_a_commit_waits_for_the_disk(opened: OpenStore) -> None:
    connection = opened()._backing._connection  # type: ignore[attr-defined]
    assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    assert connection.execute("pragma synchronous").fetchone() == (2,), "2 is FULL"


def test_what_was_written_survives_the_death_of_its_process(path: Path, opened: OpenStore) -> None:
    program = """
import os, signal, sys
from penstock.model.lsn import Lsn
from penstock.model.phase import Init
from penstock.model.table import PipelineId, TableId
from penstock.store import SQLiteStore
store = SQLiteStore(sys.argv[1], PipelineId("shop"))
store.update_table_replication_state(TableId(16384), Init())
store.store_replication_progress({TableId(16384): Lsn(9)})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert _run(program, path).returncode == -9
    store = opened()
    assert store.get_table_replication_states() == {ORDERS: Init()}
    assert store.get_replication_progress() == {ORDERS: Lsn(9)}


def test_another_process_reads_while_a_write_is_under_way(path: Path, opened: OpenStore) -> None:
    program = """
import sys
from penstock.model.table import PipelineId, TableId
from penstock.store import SQLiteStore
with SQLiteStore.open_readonly(sys.argv[1], PipelineId("shop")) as store:
    print(store.get_table_replication_state(TableId(16384)).kind)
"""
    store = opened()
    store.update_table_replication_state(ORDERS, Ready())
    with store._backing.transaction():
        store._backing.append_phase(ORDERS, Init())
        reader = _run(program, path)
    assert (reader.returncode, reader.stdout) == (0, "ready\n"), reader.stderr


def test_phases_are_linked_rows_with_one_current(path: Path, opened: OpenStore) -> None:
    store = opened()
    for phase in (Init(), DataSync(), SyncWait(Lsn(1)), Errored("reason", None, ManualRetry())):
        store.update_table_replication_state(ORDERS, phase)
    rows = _query(path, "select id, prev, is_current, json_extract(phase, '$.type') from table_phase order by id")
    assert rows == [(1, None, 0, "init"), (2, 1, 0, "data_sync"), (3, 2, 1, "errored")]
    store.rollback_table_replication_state(ORDERS)
    rows = _query(path, "select id, prev, is_current from table_phase order by id")
    assert rows == [(1, None, 0), (2, 1, 1)]


def test_pipelines_in_one_file_do_not_meet(opened: OpenStore) -> None:
    shop, bank = opened(SHOP), opened(BANK)
    for store in (shop, bank):
        store.update_table_replication_state(ORDERS, Init())
        store.update_table_replication_state(ORDERS, DataSync())
        store.store_table_mapping(ORDERS, "orders")
        store.store_replication_progress({ORDERS: Lsn(1)})
    shop.rollback_table_replication_state(ORDERS)
    shop.cleanup_table_state(ORDERS)
    assert bank.load_table_replication_states() == bank.load_table_mappings() == 1
    assert bank.get_replication_progress() == {ORDERS: Lsn(1)}
    assert bank.rollback_table_replication_state(ORDERS) == Init()
    assert shop.load_table_replication_states() == shop.load_table_mappings() == len(shop.get_replication_progress())


def test_a_change_by_another_writer_is_built_upon_not_overwritten(opened: OpenStore) -> None:
    first, second = opened(), opened()
    for phase in (Init(), DataSync()):
        first.update_table_replication_state(ORDERS, phase)
    second.update_table_replication_state(ORDERS, FinishedCopy())
    first.update_table_replication_state(ORDERS, Errored("reason", None, ManualRetry()))
    assert first.rollback_table_replication_state(ORDERS) == FinishedCopy()


def test_a_read_only_store_sees_what_others_commit_and_writes_nothing(opened: OpenStore) -> None:
    writer = opened()
    reader = opened(readonly=True)
    writer.update_table_replication_state(ORDERS, Init())
    writer.store_replication_progress({ORDERS: Lsn(4)})
    assert reader.load_table_replication_states() == 1
    assert reader.get_table_replication_state(ORDERS) == Init()
    assert reader.get_replication_progress() == {ORDERS: Lsn(4)}
    with pytest.raises(StateError, match="read-only"):
        reader.update_table_replication_state(ORDERS, Ready())
    assert reader.get_table_replication_state(ORDERS) == Init()


def test_a_read_only_store_never_creates_its_file(path: Path) -> None:
    with pytest.raises(StateError, match=r"state\.sqlite does not exist") as caught:
        SQLiteStore.open_readonly(path, SHOP)
    assert "state_dir" in caught.value.remedy
    assert not path.exists()


def test_a_read_only_store_never_migrates(path: Path) -> None:
    path.touch()
    with pytest.raises(NothingStoredError, match="empty or from an older version"):
        SQLiteStore.open_readonly(path, SHOP)
    assert path.stat().st_size == 0


def test_a_file_that_a_replicator_has_just_begun_is_nothing_yet(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma journal_mode = wal")
    config = ReplicatorConfig.model_validate(
        {
            "pipeline": {
                "id": "shop",
                "publication_name": "p",
                "pg_connection": {"host": "localhost", "name": "shop", "username": "u"},
            },
            "destination": {"memory": {}},
            "store": {"sqlite": {"path": str(path)}},
        }
    )
    assert open_stored_state(config) is None


def test_a_file_of_a_newer_version_is_refused_untouched(path: Path, opened: OpenStore) -> None:
    opened().close()
    _execute(path, "insert into migration_history (version, name) values (9999, 'from_the_future')")
    before = _query(path, "select * from migration_history")
    for readonly in (False, True):
        with pytest.raises(StateError, match=r"newer Penstock.*9999"):
            opened(readonly=readonly)
    assert _query(path, "select * from migration_history") == before


def test_a_failed_migration_leaves_the_file_as_it_was(
    path: Path, opened: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().close()
    before = _query(path, "select sql from sqlite_master order by name")
    broken = Migration(2, "break_things", "create table half (a);\ncreate table half (a);\n", "drop table half;")
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_module, "read_migrations", lambda dialect: (*read_migrations(dialect), broken))
        with pytest.raises(StateError, match=r"state\.sqlite cannot be used"):
            opened()
    assert _query(path, "select sql from sqlite_master order by name") == before
    opened().update_table_replication_state(ORDERS, Init())


@pytest.mark.parametrize("readonly", [False, True])
def test_a_file_that_is_no_database_is_named_with_a_remedy(path: Path, opened: OpenStore, readonly: bool) -> None:
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StateError, match=r"state\.sqlite is not a SQLite database") as caught:
        opened(readonly=readonly)
    assert "Restore" in caught.value.remedy


def test_a_damaged_page_is_named_with_a_remedy(path: Path, opened: OpenStore) -> None:
    store = opened()
    for number in range(1, 200):
        store.update_table_replication_state(TableId(number), Init())
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StateError, match=r"state\.sqlite is damaged") as caught:
        opened()
    assert "Restore" in caught.value.remedy


@pytest.mark.parametrize("text", ["{", "{}", '{"type": "unheard_of"}', '"init"', '{"type": "sync_done", "lsn": "x"}'])
def test_an_unreadable_entry_is_an_error_not_a_guess(path: Path, opened: OpenStore, text: str) -> None:
    store = opened()
    store.update_table_replication_state(ORDERS, Init())
    store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update table_phase set phase = ?", (text,))
    with pytest.raises(StateError, match="an entry that cannot be read"):
        opened()


def test_a_path_that_cannot_be_a_file_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be opened") as caught:
        SQLiteStore(tmp_path, SHOP)
    assert "access" in caught.value.remedy
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"file/state\.sqlite cannot be opened"):
        SQLiteStore(tmp_path / "file" / "state.sqlite", SHOP)


def test_a_folder_that_is_missing_is_created(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a" / "b" / "state.sqlite", SHOP) as store:
        assert store.path.is_file()


def test_a_failed_write_changes_neither_memory_nor_file(opened: OpenStore) -> None:
    store = opened()
    store.update_table_replication_state(ORDERS, Init())
    # The smallest real disk: no page more than there are.
    store._backing._connection.execute("pragma max_page_count = 1")  # type: ignore[attr-defined]
    with pytest.raises(StateError, match="no space is left") as caught:
        store.store_table_mapping(ORDERS, "x" * 100_000)
    assert caught.value.kind is ErrorKind.LOG_IO
    assert store.get_table_mapping(ORDERS) is None
    assert store.load_table_mappings() == 0
    store.update_table_replication_state(ORDERS, DataSync())
    assert store.rollback_table_replication_state(ORDERS) == Init()


def test_a_writer_that_never_lets_go_is_reported(
    path: Path, opened: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "_BUSY_TIMEOUT_S", 0.0)
    store = opened()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(StateError, match=r"state\.sqlite is locked"):
            store.update_table_replication_state(ORDERS, Init())
    assert store.get_table_replication_state(ORDERS) is None


def test_a_closed_store_refuses_to_write_and_can_be_closed_again(opened: OpenStore) -> None:
    store = opened()
    store.update_table_replication_state(ORDERS, Init())
    store.close()
    store.close()
    with pytest.raises(StateError, match="is closed"):
        store.update_table_replication_state(ORDERS, DataSync())
    assert store.get_table_replication_state(ORDERS) == Init()
