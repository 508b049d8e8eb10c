"""Changes applied to Delta tables without Spark, read back by a library that shares no code with us."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import failpoint
from penstock.contract.batch import TableChanges
from penstock.destinations.delta import DeltaDestination
from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.log import TableLog
from penstock.destinations.memory import MemoryDestination
from penstock.errors import DestinationError, ErrorKind
from penstock.failpoint import FailpointError
from penstock.model.cell import UNCHANGED, Cell
from penstock.model.event import Event
from penstock.model.lsn import Lsn
from penstock.model.table import Column, Kind, PgType, PipelineId, TableId, TableName, TableSchema
from penstock.store.memory import MemoryStore
from penstock.testing.batch import ArrowEvents, ArrowRows, no_spark, transaction
from penstock.testing.destination_suite import (
    COPIED,
    INT8,
    ITEMS,
    START,
    TEXT,
    TYPES,
    Harness,
    Make,
    delete,
    insert,
    truncate,
    update,
)

MOMENTS = ("delta.files_written", "delta.commit", "delta.committed")


class Lake:
    """A lake without Spark."""

    def __init__(self, path: Path, store: MemoryStore | None = None) -> None:
        self.path, self.store = path, store or MemoryStore()
        self.destination = DeltaDestination(str(path), pipeline=PipelineId("p"), spark=no_spark, tables=self.store)
        self.harness = Harness(self.destination, self.read)

    def restarted(self) -> Lake:
        return Lake(self.path, self.store)

    def location(self, schema: TableSchema) -> str:
        return f"{self.path}/{self.store.get_table_mapping(schema.id)}"

    def table(self, schema: TableSchema) -> DeltaTable:
        return DeltaTable(self.location(schema))

    def read(self, schema: TableSchema) -> list[tuple[Any, ...]]:
        found = QueryBuilder().register("t", self.table(schema)).execute("select * from t").read_all()
        return [tuple(row.values()) for row in pa.table(found).select(schema.column_names).to_pylist()]

    def log(self, schema: TableSchema) -> TableLog:
        return TableLog(TableFolder(self.location(schema)))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint.arm("")


steps = st.lists(
    st.tuples(
        st.sampled_from(["change", "change", "keep", "move", "move and keep", "delete", "truncate"]),
        st.integers(0, 8),
        st.integers(0, 8),
        st.sampled_from([None, "a", "b" * 40]),
        st.integers(0, 9),
    ),
    max_size=30,
)


@dataclass
class Source:
    """A table that is changed step by step; `makes` are its changes, cut into batches."""

    rows: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    batches: list[list[Make]] = field(default_factory=lambda: [[]])

    def step(self, kind: str, key: int, other: int, body: str | None, cut: int) -> None:
        self.batches[-1].append(self._change(kind, key, other, body))
        if cut == 0:
            self.batches.append([])

    def _change(self, kind: str, key: int, other: int, body: str | None) -> Make:
        if kind == "truncate" and key == 0:
            self.rows.clear()
            return truncate(ITEMS)
        if key not in self.rows:
            self.rows[key] = ("new", body)
            return insert(ITEMS, key, "new", body)
        if kind == "delete":
            del self.rows[key]
            return delete(ITEMS, key)
        _name, former = self.rows.pop(key)
        new = other if kind.startswith("move") and other not in self.rows else key
        is_kept = kind.endswith("keep")
        self.rows[new] = (f"{kind} {body}", former if is_kept else body)
        given_body = UNCHANGED if is_kept else body
        return update(ITEMS, new, self.rows[new][0], given_body, old=None if new == key else [key])

    def table(self) -> list[tuple[Cell, ...]]:
        return sorted((key, *row) for key, row in self.rows.items())


def events_of(batches: Sequence[Sequence[Make]]) -> list[list[Event]]:
    """Return each batch's changes in transactions of up to three."""
    lsn, result = int(START), list[list[Event]]()
    for makes in batches:
        events: list[Event] = []
        for start in range(0, len(makes), 3):
            lsn += 10
            events += transaction(lsn, *makes[start : start + 3])
        lsn += 10
        result.append([*events, *transaction(lsn)])
    return result


@settings(max_examples=60)
@given(steps)
def test_random_histories_in_random_batches_give_the_sources_rows(
    tmp_path_factory: pytest.TempPathFactory, history: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("lake")
    lake, source, memory = Lake(path), Source(), MemoryDestination()
    lake.harness.copy(ITEMS, [])
    memory.write_table_rows(ITEMS, ArrowRows(ITEMS, [], START))
    for step in history:
        source.step(*step)
    held: list[Event] = []
    for events in events_of(source.batches):
        # Every batch comes again with the next one, as after a lost answer.
        end = Lsn(events[-1].position.commit_lsn + 1)
        batch = ArrowEvents([ITEMS], [*held, *events], end)
        lake.destination.write_events(batch)
        memory.write_events(ArrowEvents([ITEMS], events, end))
        held = events
    assert sorted(lake.read(ITEMS)) == source.table()
    assert sorted(row.values for row in memory.current_rows(ITEMS)) == source.table()
    lake.destination.shutdown()
    shutil.rmtree(path)


def one_key(type_: PgType) -> TableSchema:
    columns = (Column("k", type_, nullable=False, key_ordinal=0), Column("v", TEXT), Column("body", TEXT))
    return TableSchema(TableId(77), TableName("public", f"by {type_.name}"), columns)


@pytest.mark.parametrize("type_", TYPES, ids=lambda type_: type_.name)
def test_keys_of_every_type_are_found_again(lake: Lake, type_: PgType) -> None:
    schema, (one, other) = one_key(type_), TYPES[type_]
    lake.harness.copy(schema, [(one, "1", "b1"), (other, "2", "b2")])
    lake.harness.apply(schema, [update(schema, one, "one", UNCHANGED), update(schema, other, "other", "new")])
    lake.harness.holds(schema, (one, "one", "b1"), (other, "other", "new"))
    lake.harness.apply(schema, [delete(schema, one), update(schema, one, "moved", UNCHANGED, old=[other])], start=200)
    lake.harness.holds(schema, (one, "moved", "new"))


def test_floats_are_keys_as_postgres_takes_them(lake: Lake) -> None:
    schema = one_key(PgType("double precision", Kind.FLOAT8))
    lake.harness.copy(schema, [(0.0, "zero", None), (float("nan"), "nan", None), (1.5, "x", None)])
    lake.harness.apply(schema, [delete(schema, -0.0), update(schema, float("nan"), "found", UNCHANGED)])
    lake.harness.holds(schema, (float("nan"), "found", None), (1.5, "x", None))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    "changes",
    [
        [insert(ITEMS, 9, "appended", None)],
        [update(ITEMS, 1, "x", UNCHANGED), delete(ITEMS, 2), insert(ITEMS, 9, "n", None)],
        [truncate(ITEMS), insert(ITEMS, 1, "x", None), update(ITEMS, 1, "y", UNCHANGED)],
        [truncate(ITEMS), insert(ITEMS, 9, "only", None)],
    ],
    ids=["append", "rewrite", "replace", "replace by inserts"],
)
def test_a_batch_interrupted_at_any_step_is_applied_once(lake: Lake, moment: str, changes: list[Make]) -> None:
    expected = MemoryDestination()
    other = Harness(expected, lambda schema: [row.values for row in expected.current_rows(schema)])
    for harness in (lake.harness, other):
        harness.copy(ITEMS, COPIED)
    other.apply(ITEMS, changes)
    failpoint.arm(f"{moment}=raise*1")
    with pytest.raises(FailpointError):
        lake.harness.apply(ITEMS, changes)
    assert lake.destination.watermark(ITEMS.id) == (Lsn(110) if moment == "delta.committed" else START)
    again = lake.restarted()
    again.harness.apply(ITEMS, changes, [insert(ITEMS, 77, "later", None)])
    again.harness.holds(ITEMS, *(tuple(row) for row in other.read(ITEMS)), (77, "later", None))
    lake.harness.apply(ITEMS, changes, [insert(ITEMS, 77, "later", None)])
    again.harness.holds(ITEMS, *(tuple(row) for row in other.read(ITEMS)), (77, "later", None))


class Meanwhile(ArrowEvents):
    """A batch during whose reading something else happens to the lake, once."""

    def __init__(self, events: ArrowEvents, happens: Callable[[], None]) -> None:
        self._inner = events
        self._happens: Callable[[], None] | None = happens

    @property
    def end_lsn(self) -> Lsn:
        return self._inner.end_lsn

    def tables(self) -> dict[TableId, TableChanges]:
        return {id_: Disturbed(self, changes) for id_, changes in self._inner.tables().items()}

    def happen(self) -> None:
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()


class Disturbed:
    """One table's changes of such a batch."""

    def __init__(self, batch: Meanwhile, changes: TableChanges) -> None:
        self._batch, self._changes = batch, changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._changes, name)

    def arrow(self) -> Iterator[pa.RecordBatch]:
        yield from self._changes.arrow()
        self._batch.happen()


def batch_of(*changes: Make, start: int = START) -> ArrowEvents:
    return ArrowEvents([ITEMS], transaction(start, *changes), Lsn(start + 10))


MIXED = (update(ITEMS, 1, "uno", UNCHANGED), delete(ITEMS, 2), insert(ITEMS, 4, "four", "x"))


def compact(lake: Lake) -> None:
    lake.table(ITEMS).optimize.compact()


@pytest.mark.parametrize("changes", [MIXED, (insert(ITEMS, 4, "four", "x"),)], ids=["rewrite", "append"])
def test_a_compaction_that_commits_first_only_costs_another_look(lake: Lake, changes: tuple[Make, ...]) -> None:
    lake.harness.copy(ITEMS, COPIED)
    for number in range(5, 9):
        lake.harness.apply(ITEMS, [insert(ITEMS, number, "n", "b")], start=100 + 10 * number)
    batch = batch_of(*changes, start=300)
    lake.destination.write_events(Meanwhile(batch, lambda: compact(lake)))
    lake.destination.write_events(batch)
    rest = [(number, "n", "b") for number in range(5, 9)]
    rows = [(1, "uno", "body one"), COPIED[2]] if changes is MIXED else list(COPIED)
    lake.harness.holds(ITEMS, *rows, *rest, (4, "four", "x"))
    assert [entry["operation"] for entry in lake.table(ITEMS).history(2)][1] == "OPTIMIZE"


def test_a_lost_race_leaves_no_file_that_nobody_refers_to(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    before = set(Path(lake.location(ITEMS)).glob("*.*"))
    elsewhere = lake.restarted()
    lost = Meanwhile(batch_of(*MIXED), lambda: elsewhere.destination.write_events(batch_of(*MIXED)))
    lake.destination.write_events(lost)
    lake.harness.holds(ITEMS, (1, "uno", "body one"), COPIED[2], (4, "four", "x"))
    assert len(set(Path(lake.location(ITEMS)).glob("*.*")) - before) == 1


def test_a_batch_that_overlaps_a_dead_drivers_is_refused_and_then_right(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    first, second = transaction(100, *MIXED), transaction(110, update(ITEMS, 4, "vier", UNCHANGED))
    elsewhere = lake.restarted()
    both = ArrowEvents([ITEMS], [*first, *second], Lsn(120))

    def dead_driver() -> None:
        elsewhere.destination.write_events(ArrowEvents([ITEMS], first, Lsn(110)))

    with pytest.raises(DestinationError) as raised:
        lake.destination.write_events(Meanwhile(both, dead_driver))
    assert raised.value.kind is ErrorKind.DESTINATION_CONFLICT
    lake.destination.write_events(both)
    lake.harness.holds(ITEMS, (1, "uno", "body one"), COPIED[2], (4, "vier", "x"))


def test_a_writer_that_never_lets_us_win_is_an_error_in_the_end(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    log = lake.log(ITEMS)

    def commit_for_ever() -> None:
        put = TableFolder.put_if_absent

        def outrun(folder: TableFolder, name: str, content: bytes) -> bool:
            put(folder, name, b'{"commitInfo":{}}')
            return False

        patch.setattr(TableFolder, "put_if_absent", outrun)

    with pytest.MonkeyPatch.context() as patch:
        with pytest.raises(DestinationError, match="other writers' commits") as raised:
            lake.destination.write_events(Meanwhile(batch_of(*MIXED), commit_for_ever))
        assert raised.value.kind is ErrorKind.DESTINATION_CONFLICT
    state = log.refresh()
    assert state is not None
    assert state.version == 10
    lake.harness.apply(ITEMS, MIXED)
    lake.harness.holds(ITEMS, (1, "uno", "body one"), COPIED[2], (4, "four", "x"))


def test_a_table_emptied_meanwhile_is_not_written(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    elsewhere = lake.restarted()
    with pytest.raises(DestinationError) as raised:
        lake.destination.write_events(
            Meanwhile(batch_of(*MIXED), lambda: elsewhere.destination.truncate_table(ITEMS.id))
        )
    assert raised.value.kind is ErrorKind.DESTINATION_CONFLICT
    lake.harness.holds(ITEMS)


def test_a_file_that_loses_its_last_row_leaves_the_table(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    lake.harness.apply(ITEMS, [delete(ITEMS, 1)])
    lake.harness.apply(ITEMS, [delete(ITEMS, 2), delete(ITEMS, 3)], start=200)
    state = lake.log(ITEMS).refresh()
    assert state is not None
    assert not state.members
    lake.harness.holds(ITEMS)


def test_deletes_of_rows_that_are_gone_move_the_position_and_nothing_else(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    lake.harness.apply(ITEMS, [delete(ITEMS, 1)])
    before = lake.log(ITEMS).refresh()
    lake.harness.apply(ITEMS, [delete(ITEMS, 1), delete(ITEMS, 55)], start=200)
    after = lake.log(ITEMS).refresh()
    assert before is not None
    assert after is not None
    assert after.members.keys() == before.members.keys()
    assert lake.destination.watermark(ITEMS.id) == Lsn(210)


def test_files_that_cannot_have_a_key_are_not_opened(lake: Lake) -> None:
    lake.harness.copy(ITEMS, [(number, "n", None) for number in range(10)])
    lake.harness.apply(ITEMS, [insert(ITEMS, 100, "far away", None)])
    state = lake.log(ITEMS).refresh()
    assert state is not None
    first, _second = sorted(state.members.values(), key=lambda member: -(member.rows or 0))
    Path(lake.location(ITEMS), first.add["path"]).rename(lake.path / "moved away")
    lake.harness.apply(ITEMS, [update(ITEMS, 100, "changed", UNCHANGED)], start=200)
    assert lake.destination.watermark(ITEMS.id) == Lsn(210)


def test_inserts_are_applied_without_a_look_at_what_the_table_has(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    [file] = Path(lake.location(ITEMS)).glob("*.parquet")
    away = file.rename(lake.path / "moved away")
    lake.harness.apply(ITEMS, [insert(ITEMS, 4, "four", None)])
    with pytest.raises(DestinationError):  # an update has to look
        lake.harness.apply(ITEMS, [update(ITEMS, 1, "uno", UNCHANGED)], start=200)
    away.rename(file)
    lake.harness.holds(ITEMS, *COPIED, (4, "four", None))


def test_files_without_statistics_are_searched_and_counted(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    log = lake.log(ITEMS)
    state = log.refresh()
    assert state is not None
    [member] = state.members.values()
    bare = {name: value for name, value in member.add.items() if name != "stats"}
    assert log.commit(state, [{"commitInfo": {}}, {"remove": {**bare, "deletionTimestamp": 1}}])
    assert log.commit(state, [{"commitInfo": {}}, {"add": bare}])
    lake.harness.apply(ITEMS, [delete(ITEMS, 2)])
    lake.harness.holds(ITEMS, COPIED[0], COPIED[2])
    lake.harness.apply(ITEMS, [delete(ITEMS, 1), delete(ITEMS, 3)], start=200)
    lake.harness.holds(ITEMS)


def test_a_hundred_commits_make_a_checkpoint_that_a_new_reader_starts_from(lake: Lake) -> None:
    lake.harness.copy(ITEMS, [(number, "n", f"b{number}") for number in range(100)])
    for number in range(105):
        change = update(ITEMS, number % 100, f"r{number}", UNCHANGED)
        lake.harness.apply(ITEMS, [change], start=200 + 10 * number)
    folder = Path(lake.location(ITEMS)) / "_delta_log"
    [checkpoint] = folder.glob("*.checkpoint.parquet")
    for version in range(int(checkpoint.name[:20]) + 1):
        (folder / f"{version:020d}.json").unlink(missing_ok=True)
    expected = [(number, f"r{number if number >= 5 else number + 100}", f"b{number}") for number in range(100)]
    lake.harness.holds(ITEMS, *expected)
    again = lake.restarted()
    again.harness.apply(ITEMS, [delete(ITEMS, number) for number in range(50)], start=5000)
    again.harness.holds(ITEMS, *expected[50:])


@pytest.mark.parametrize(
    ("settings_", "said"),
    [
        ({"delta.enableDeletionVectors": "false"}, "delta.enableDeletionVectors"),
        ({"delta.appendOnly": "true"}, "delta.appendOnly"),
        ({"delta.enableChangeDataFeed": "true"}, "delta.enableChangeDataFeed"),
        ({"delta.columnMapping.mode": "name"}, "delta.columnMapping.mode"),
        ({"delta.constraints.positive": "id > 0"}, "delta.constraints.positive"),
    ],
)
def test_a_table_that_asks_more_of_its_writers_is_refused(lake: Lake, settings_: dict[str, str], said: str) -> None:
    lake.harness.copy(ITEMS, COPIED)
    log = lake.log(ITEMS)
    state = log.refresh()
    assert state is not None
    configuration = {**state.metadata["configuration"], **settings_}
    log.commit(state, [{"metaData": {**state.metadata, "configuration": configuration}}])
    with pytest.raises(DestinationError, match=said) as raised:
        lake.harness.apply(ITEMS, MIXED)
    assert raised.value.kind is ErrorKind.DESTINATION_UNSUPPORTED


def test_a_table_with_an_unknown_feature_is_refused_by_its_name(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    log = lake.log(ITEMS)
    state = log.refresh()
    assert state is not None
    features = [*state.protocol["writerFeatures"], "rowTracking"]
    log.commit(state, [{"protocol": {**state.protocol, "writerFeatures": features}}])
    with pytest.raises(DestinationError, match="rowTracking"):
        lake.harness.apply(ITEMS, MIXED)


def test_a_damaged_vector_is_named_and_nothing_is_applied(lake: Lake) -> None:
    rows = [(number, "n", None) for number in range(4000)]
    lake.harness.copy(ITEMS, rows)
    lake.harness.apply(ITEMS, [delete(ITEMS, number) for number in range(0, 4000, 2)])
    [stored] = Path(lake.location(ITEMS)).glob("deletion_vector_*.bin")
    content = bytearray(stored.read_bytes())
    content[50] ^= 1
    stored.write_bytes(content)
    with pytest.raises(DestinationError, match=r"deletion vector of part-.* checksum"):
        lake.harness.apply(ITEMS, [delete(ITEMS, 1)], start=200)
    stored.unlink()
    with pytest.raises(DestinationError, match="missing"):
        lake.harness.apply(ITEMS, [delete(ITEMS, 1)], start=200)
    assert lake.destination.watermark(ITEMS.id) == Lsn(110)


def test_a_batch_of_thousands_of_changes_is_exact(lake: Lake) -> None:
    rows = [(number, "n", f"b{number}") for number in range(5000)]
    lake.harness.copy(ITEMS, rows)
    changes = [
        delete(ITEMS, number) if number % 3 == 0 else update(ITEMS, number, "u", UNCHANGED)
        for number in range(0, 5000, 2)
    ]
    lake.harness.apply(ITEMS, changes)
    lake.harness.holds(
        ITEMS,
        *[row for row in rows if row[0] % 2],
        *[(number, "u", f"b{number}") for number in range(0, 5000, 2) if number % 3],
    )


def test_what_the_delta_library_removes_is_gone_for_us_too(lake: Lake) -> None:
    for position in (100, 500):
        lake.harness.copy(ITEMS, COPIED, at=Lsn(position))
        lake.harness.apply(ITEMS, [delete(ITEMS, 1), update(ITEMS, 2, "x", "y")], start=position)
    lake.destination.truncate_table(ITEMS.id)
    state = lake.log(ITEMS).refresh()
    assert state is not None
    assert not state.members
    lake.harness.copy(ITEMS, COPIED, at=Lsn(900))
    lake.harness.apply(ITEMS, [update(ITEMS, 3, "found once", UNCHANGED)], start=900)
    lake.harness.holds(ITEMS, *COPIED[:2], (3, "found once", None))


def test_a_table_may_ask_for_checkpoints_more_often(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    log = lake.log(ITEMS)
    state = log.refresh()
    assert state is not None
    configuration = {**state.metadata["configuration"], "delta.checkpointInterval": "2"}
    log.commit(state, [{"metaData": {**state.metadata, "configuration": configuration}}])
    lake.harness.apply(ITEMS, [delete(ITEMS, 1)])
    assert list((Path(lake.location(ITEMS)) / "_delta_log").glob(f"{2:020d}.checkpoint.parquet"))


@pytest.mark.parametrize("type_", TYPES, ids=lambda type_: type_.name)
def test_unchanged_values_of_every_type_are_kept(lake: Lake, type_: PgType) -> None:
    columns = (Column("id", INT8, nullable=False, key_ordinal=0), Column("large", type_), Column("v", TEXT))
    schema = TableSchema(TableId(78), TableName("public", "kept"), columns)
    rows = [(number, value, "old") for number, value in enumerate((*TYPES[type_], None))]
    lake.harness.copy(schema, rows)
    lake.harness.apply(schema, [update(schema, number, UNCHANGED, "new") for number, _value, _old in rows])
    lake.harness.holds(schema, *[(number, value, "new") for number, value, _old in rows])


def test_rows_completed_one_by_one_share_a_row_group(lake: Lake) -> None:
    rows = [(number, "n", f"b{number}") for number in range(20_000)]
    lake.harness.copy(ITEMS, rows)
    lake.harness.apply(ITEMS, [update(ITEMS, number, "u", UNCHANGED) for number in range(0, 20_000, 1000)])
    state = lake.log(ITEMS).refresh()
    assert state is not None
    [written] = [member for member in state.members.values() if member.vector is None]
    metadata = pq.read_metadata(f"{lake.location(ITEMS)}/{written.add['path']}")
    assert (metadata.num_rows, metadata.num_row_groups) == (20, 1)


def test_a_data_file_that_cannot_be_read_is_an_error_without_its_content(lake: Lake) -> None:
    lake.harness.copy(ITEMS, COPIED)
    [file] = Path(lake.location(ITEMS)).glob("*.parquet")
    file.write_bytes(b"PAR1" + b"secret" * 20 + b"PAR1")
    with pytest.raises(DestinationError, match=r"public\.items .* Parquet file") as raised:
        lake.harness.apply(ITEMS, MIXED)
    assert "secret" not in str(raised.value)
    assert lake.destination.watermark(ITEMS.id) == START
