"""Upkeep of Delta tables, read back by a library that shares no code with us."""

from __future__ import annotations

import datetime as dt
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.destinations.delta import DeltaDestination, action
from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.log import TableLog
from penstock.lake import upkeep
from penstock.lake.upkeep import UpkeepPolicy
from penstock.model.cell import UNCHANGED
from penstock.model.lsn import Lsn
from penstock.model.mode import TableMode, TableModes
from penstock.model.table import PipelineId, TableSchema
from penstock.store.memory import MemoryStore
from penstock.testing.batch import ArrowRows, no_spark
from penstock.testing.destination_suite import ITEMS, START, Make, delete, insert, update
from penstock.testing.upkeep_suite import BATCHES, LATER, KeptLake, MakeLake, UpkeepSuite

POLICY = UpkeepPolicy(keep_s=3600, rest_s=0, pause_s=math.inf)
BEGAN = dt.datetime.now(dt.UTC)


class Lake:
    """A lake without Spark, and with a clock of its own."""

    def __init__(self, path: Path, mode: TableMode, policy: UpkeepPolicy = POLICY) -> None:
        self.path, self.mode, self.policy, self.store = path, mode, policy, MemoryStore()
        self.later = dt.timedelta()

    def now(self) -> dt.datetime:
        return BEGAN + self.later

    def open(self) -> DeltaDestination:
        return DeltaDestination(
            str(self.path),
            pipeline=PipelineId("p"),
            spark=no_spark,
            tables=self.store,
            modes=TableModes(self.mode),
            upkeep=self.policy,
            clock=self.now,
        )

    @property
    def location(self) -> Path:
        return self.path / "public" / "items"

    def table(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.location, version=version)

    def rows(self, _schema: TableSchema = ITEMS, version: int | None = None) -> list[dict[str, Any]]:
        found = QueryBuilder().register("t", self.table(version)).execute("select * from t").read_all()
        return pa.table(found).to_pylist()

    def stored(self, pattern: str = "*.parquet") -> set[str]:
        return {path.name for path in self.location.glob(pattern)}

    def kept(self) -> KeptLake:
        return KeptLake(
            self.open(),
            self.rows,
            lambda _schema: len(self.table().file_uris()),
            lambda _schema: self.table().optimize.compact(),
            self.open,
        )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake", TableMode.CURRENT)


class TestDelta(UpkeepSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> MakeLake:
        numbers = iter(range(100))
        return lambda mode: Lake(tmp_path / str(next(numbers)), mode).kept()

    @pytest.fixture
    def moments(self) -> Sequence[str]:
        return "delta.upkeep_written", "delta.commit", "delta.committed"


steps = st.lists(
    st.tuples(
        st.sampled_from(["apply", "apply", "upkeep", "upkeep meanwhile", "compact meanwhile", "restart"]),
        st.lists(
            st.tuples(st.sampled_from(["put", "put", "move", "delete"]), st.integers(0, 9)), min_size=1, max_size=4
        ),
    ),
    max_size=24,
)


@settings(max_examples=40)
@given(steps)
def test_random_histories_with_upkeep_at_any_time_give_the_sources_rows(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, list[tuple[str, int]]]]
) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"), TableMode.CURRENT)
    kept, rows = lake.kept(), dict[int, str]()
    kept.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, [], START))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep, "_MIN_FILES", 2)
        for number, (kind, changes) in enumerate(history):
            batch = [change_row(rows, each, key, f"v{number}") for each, key in changes]
            match kind:
                case "upkeep meanwhile":
                    kept.upkeep(partial(kept.apply, batch))
                case "compact meanwhile":
                    kept.apply(batch)
                    kept.upkeep(partial(kept.compact, ITEMS))
                case _:
                    kept.apply(batch)
            if kind == "upkeep":
                kept.upkeep()
            if kind == "restart":
                kept.destination = lake.open()
    assert {row["id"]: row["name"] for row in lake.rows()} == rows
    assert len(lake.rows()) == len(rows)
    assert kept.position() == (Lsn(kept.at), 1)
    shutil.rmtree(lake.path)


def change_row(rows: dict[int, str], kind: str, key: int, name: str) -> Make:
    """Change a row of the model, and return the same for the lake."""
    if key not in rows:
        rows[key] = name
        return insert(ITEMS, key, name, "body")
    if kind == "delete":
        del rows[key]
        return delete(ITEMS, key)
    former = rows.pop(key)
    new = key + 10 if kind == "move" and key + 10 not in rows else key
    rows[new] = f"{former[:9]} {name}"
    return update(ITEMS, new, rows[new], UNCHANGED, old=None if new == key else [key])


def test_rows_of_a_rewritten_file_are_in_the_order_of_their_keys(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    kept.upkeep()
    [file] = lake.table().file_uris()
    ids: list[Any] = pq.read_table(file).column("id").to_pylist()
    assert ids == sorted(ids)
    assert len(ids) >= len(BATCHES)


def test_a_worn_file_is_rewritten_without_the_rows_that_are_gone(lake: Lake) -> None:
    kept = lake.kept()
    rows = [(number, "n", f"b{number}") for number in range(5000)]
    kept.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, rows, START))
    kept.apply([delete(ITEMS, number) for number in range(0, 5000, 10)])
    assert kept.upkeep().rewritten_files == 0
    kept.apply([delete(ITEMS, number) for number in range(1, 5000, 10)])
    # While it is rewritten it loses more rows than a vector in the log itself can tell of.
    done = kept.upkeep(lambda: kept.apply([delete(ITEMS, number) for number in range(2, 5000, 5)]))
    assert (done.rewritten_files, done.written_files) == (1, 1)
    expected = {number for number in range(5000) if number % 10 > 1 and number % 5 != 2}
    assert {row["id"] for row in lake.rows()} == expected
    kept.apply([delete(ITEMS, 4), update(ITEMS, 3, "found", UNCHANGED)])
    assert {row["id"]: row["name"] for row in lake.rows()}[3] == "found"
    assert len(lake.rows()) == len(expected) - 1


def test_a_table_taken_back_to_an_older_version_meanwhile_keeps_its_rows(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    version = lake.table().version()
    before = kept.content()
    kept.apply([delete(ITEMS, 10), delete(ITEMS, 1)])
    # Files that are rewritten have rows again that they had lost when that began.
    assert kept.upkeep(lambda: lake.table().restore(version)).rewritten_files == 0
    assert kept.content() == before


def test_replaced_files_stay_for_their_readers_and_go_when_those_are_out_of_time(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    version, content, replaced = lake.table().version(), kept.content(), lake.stored()
    kept.upkeep()
    assert replaced < lake.stored()
    lake.later = dt.timedelta(seconds=POLICY.keep_s - 60)
    assert kept.upkeep().removed_files == 0
    assert sorted(map(repr, lake.rows(version=version))) == sorted(map(repr, lake.rows()))
    lake.later = dt.timedelta(seconds=3 * POLICY.keep_s)
    done = kept.upkeep()
    assert done.removed_files >= len(replaced)
    assert len(lake.stored()) == 1
    assert kept.content() == content


def test_a_brief_upkeep_removes_nothing(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    kept.upkeep()
    lake.later = dt.timedelta(seconds=3 * POLICY.keep_s)
    assert kept.upkeep(is_brief=True).removed_files == 0
    assert kept.upkeep().removed_files > 0


def test_a_brief_upkeep_makes_a_checkpoint_where_readers_have_many_entries_to_read(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    kept.upkeep()
    log = TableLog(TableFolder(str(lake.location)))
    first = log.checkpointed_version()
    for number in range(23):
        kept.apply([insert(ITEMS, 100 + number, "n", None)])
    assert kept.upkeep(is_brief=True).written_files == 1
    assert (log.checkpointed_version(), lake.table().version()) == (first, first + 24)
    kept.apply([insert(ITEMS, 200, "n", None)])
    kept.upkeep(is_brief=True)
    assert log.checkpointed_version() == lake.table().version() == first + 25
    assert [path.name for path in (lake.location / "_delta_log").glob("*.crc")] == [f"{first + 25:020d}.crc"]


def test_a_restart_knows_from_a_checkpoint_when_files_were_replaced(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    kept.upkeep()
    lake.table().create_checkpoint()
    for entry in (lake.location / "_delta_log").glob("*.json"):
        entry.unlink()
    kept.destination = lake.open()
    # Their own age is no reason to remove them: it is when they were replaced that counts.
    for file in lake.location.glob("*.parquet"):
        os.utime(file, (0, 0))
    assert kept.upkeep().removed_files == 0
    lake.later = dt.timedelta(seconds=3 * POLICY.keep_s)
    assert kept.upkeep().removed_files
    assert len(lake.stored()) == 1
    kept.apply(*LATER)


def test_a_restart_dates_a_file_by_the_last_of_its_removals(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = lake.kept()
    began_ms = round(BEGAN.timestamp() * 1000)
    rows = [(number, "n", None) for number in range(20)]
    kept.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, rows, START))
    replaced = lake.stored()
    # Each time the file is taken out and added again with another deletion vector; at last it is rewritten.
    for number, minute in enumerate((0, 25, 40, 45, 50)):
        monkeypatch.setattr(action, "_now_ms", lambda at=began_ms + minute * 60_000: at)
        kept.apply([delete(ITEMS, number)])
    monkeypatch.setattr(action, "_now_ms", lambda: began_ms + 55 * 60_000)
    assert kept.upkeep().rewritten_files == 1
    lake.table().create_checkpoint()
    kept.destination = lake.open()
    lake.later = dt.timedelta(minutes=110)
    kept.upkeep()
    assert replaced < lake.stored(), "it was part of the table until 55 minutes ago"
    lake.later = dt.timedelta(minutes=116)
    kept.upkeep()
    assert not replaced & lake.stored()


def test_readers_find_a_checkpoint_behind_every_upkeep_of_a_table_that_changed(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    kept.upkeep()
    log = TableLog(TableFolder(str(lake.location)))
    version = log.checkpointed_version()
    assert version == lake.table().version()
    kept.apply(*LATER)
    kept.upkeep()
    assert log.checkpointed_version() == version
    for entry in (lake.location / "_delta_log").glob("*.json"):
        if int(entry.name[:20]) <= version:
            entry.unlink()
    assert lake.open().watermark(ITEMS.id) == Lsn(kept.at)


def test_deletion_vectors_in_use_are_kept_and_others_go(lake: Lake) -> None:
    kept = lake.kept()
    rows = [(number, "n", None) for number in range(40_000)]
    kept.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, rows, START))
    for batch in range(3):
        kept.apply([delete(ITEMS, number) for number in range(batch, 20_000, 17)])
    assert len(lake.stored("*.bin")) == 3
    lake.later = dt.timedelta(seconds=3 * POLICY.keep_s)
    assert kept.upkeep().removed_files == 2
    assert len(lake.stored("*.bin")) == 1
    assert len(lake.rows()) == 40_000 - sum(len(range(batch, 20_000, 17)) for batch in range(3))


def test_what_a_killed_writer_left_goes_after_a_day(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    left = [lake.location / name for name in ("part-x.parquet", "deletion_vector_x.bin", "_delta_log/.0.json.x.tmp")]
    others = [lake.location / "notes.txt", lake.location / "_delta_log" / "0.crc"]
    for path in [*left, *others]:
        path.write_bytes(b"")
    lake.later = dt.timedelta(hours=23)
    kept.upkeep()
    assert all(path.exists() for path in [*left, *others])
    lake.later = dt.timedelta(hours=30)
    kept.upkeep()
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)


def test_the_log_loses_its_old_entries_and_keeps_the_position(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    kept.upkeep()
    log = lake.location / "_delta_log"
    lake.table().create_checkpoint()
    for entry in log.iterdir():
        os.utime(entry, (0, 0))
    for number in range(100, 200):
        kept.apply([insert(ITEMS, number, "n", None)])
    # Entries within the retention, and what is needed to read them.
    assert len(list(log.glob("*.json"))) <= 101
    kept.destination = lake.open()
    assert kept.position() == (Lsn(kept.at), 1)
    content = kept.content()
    assert kept.upkeep().rewritten_files
    assert kept.content() == content


@pytest.mark.parametrize(
    ("mode", "keep_s", "log_s"),
    [
        (TableMode.CURRENT, 3600, 600),
        (TableMode.SCD2, 3600, 600),
        (TableMode.CURRENT, 300, 300),
        (TableMode.CURRENT, 86_400, 86_400),
        (TableMode.HISTORY, 3600, 3600),
    ],
)
def test_versions_are_forgotten_before_their_files_unless_somebody_wants_them(
    tmp_path: Path, mode: TableMode, keep_s: int, log_s: int
) -> None:
    lake = Lake(tmp_path, mode, replace(POLICY, keep_s=keep_s))
    kept = lake.kept()
    kept.fill()
    kept.upkeep()
    settings = lake.table().metadata().configuration
    assert settings["delta.logRetentionDuration"] == f"interval {log_s} seconds"
    assert settings["delta.deletedFileRetentionDuration"] == f"interval {keep_s} seconds"


def test_files_outlive_the_entries_that_replaced_them(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    replaced = lake.stored()
    kept.upkeep()
    log = lake.location / "_delta_log"
    made_at = (BEGAN - dt.timedelta(seconds=POLICY.all_versions_s + 60)).timestamp()
    for entry in log.iterdir():
        os.utime(entry, (made_at, made_at))
    old = lake.table().version()
    for number in range(100, 110):
        kept.apply([insert(ITEMS, number, "n", None)])
    kept.upkeep()
    assert min(int(entry.name[:20]) for entry in log.glob("*.json")) == old
    kept.destination = lake.open()
    assert kept.upkeep().removed_files == 0
    assert replaced < lake.stored()
    # A log dates removals by the time of day: what is later than they are counts from now.
    lake.later = dt.datetime.now(dt.UTC) - BEGAN + dt.timedelta(seconds=POLICY.keep_s)
    kept.upkeep()
    assert not replaced & lake.stored()


def test_a_pause_is_enough_to_put_a_small_table_in_order(tmp_path: Path) -> None:
    lake = Lake(tmp_path, TableMode.CURRENT, replace(POLICY, rest_s=math.inf, pause_s=5))
    kept = lake.kept()
    kept.destination.write_table_rows(ITEMS, ArrowRows(ITEMS, [(id_, "n", None) for id_ in range(50)], START))
    lake.later = dt.timedelta(seconds=60)
    kept.upkeep()
    kept.apply([delete(ITEMS, 7), insert(ITEMS, 90, "n", None)])
    content = kept.content()
    lake.later += dt.timedelta(seconds=4)
    assert kept.upkeep().rewritten_files == 0
    lake.later += dt.timedelta(seconds=1)
    assert kept.upkeep().rewritten_files == 2
    (member,) = TableLog(TableFolder(str(lake.location))).refresh().members.values()  # type: ignore[union-attr]
    assert (member.rows, member.vector) == (50, None)
    assert kept.content() == content
    assert kept.upkeep().is_idle


def test_files_of_unknown_length_are_left_alone(lake: Lake) -> None:
    kept = lake.kept()
    kept.fill()
    log = TableLog(TableFolder(str(lake.location)))
    state = log.refresh()
    assert state is not None
    bare = [{name: value for name, value in each.add.items() if name != "stats"} for each in state.members.values()]
    assert log.commit(state, [{"commitInfo": {}}, *({"add": each} for each in bare)])
    content = kept.content()
    assert kept.upkeep().rewritten_files == 0
    assert kept.content() == content
