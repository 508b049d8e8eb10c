"""Tables that we and Spark's Delta change in turns: each must see exactly what the other left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.contract.batch import TableChanges
from penstock.destinations.delta import DeltaDestination
from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.log import TableLog
from penstock.lake.key import KeySet
from penstock.lake.locate import LakeFiles
from penstock.lake.search import Search, SearchedFile
from penstock.model.cell import UNCHANGED, Cell
from penstock.model.lsn import Lsn
from penstock.model.mode import TableMode, TableModes
from penstock.model.table import Column, Kind, PipelineId, TableId, TableName, TableSchema
from penstock.storage.local import LOCAL
from penstock.store.memory import MemoryStore
from penstock.testing.batch import ArrowEvents, no_spark, table_schema, transaction
from penstock.testing.destination_suite import ITEMS, TEXT, TYPES, Harness, delete, insert, truncate, update

pytestmark = pytest.mark.spark

ROWS: list[tuple[Cell, ...]] = [(number, f"n{number}", f"b{number}") for number in range(5000)]
KEYS = {type_: pair for type_, pair in TYPES.items() if type_.kind is not Kind.ARRAY}


class Lake:
    """A destination that has no Spark, and Spark beside it."""

    def __init__(self, spark: SparkSession, path: Path, mode: TableMode = TableMode.CURRENT) -> None:
        self.spark, self.path, self.mode, self.store = spark, path, mode, MemoryStore()
        self.restart()

    def restart(self) -> None:
        self.destination = DeltaDestination(
            str(self.path), pipeline=PipelineId("p"), spark=no_spark, tables=self.store, modes=TableModes(self.mode)
        )
        self.harness = Harness(self.destination, self.read)

    def location(self, schema: TableSchema = ITEMS) -> str:
        return f"{self.path}/{self.store.get_table_mapping(schema.id)}"

    def read(self, schema: TableSchema) -> list[tuple[Any, ...]]:
        found = self.spark.read.format("delta").load(self.location(schema)).select(*schema.column_names).toArrow()
        return [tuple(row.values()) for row in found.to_pylist()]

    def sql(self, statement: str, schema: TableSchema = ITEMS) -> None:
        self.spark.sql(statement.format(t=f"delta.`{self.location(schema)}`")).collect()

    def is_checksum_right(self) -> bool:
        """Whether Spark finds the newest version's checksum, and all of the log says the same."""
        delta: Any = self.spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
        delta.clearCache()
        snapshot = delta.forTable(self.spark._jsparkSession, self.location()).unsafeVolatileSnapshot()
        no_context = getattr(snapshot, "validateChecksum$default$1")()
        return bool(snapshot.checksumOpt().isDefined() and snapshot.validateChecksum(no_context))

    def vectors(self) -> list[str]:
        state = TableLog(TableFolder(self.location())).refresh()
        assert state is not None
        return sorted(str(each.vector["storageType"]) for each in state.members.values() if each.vector)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def test_rows_that_spark_marked_as_gone_stay_gone_and_those_that_it_changed_are_found(lake: Lake) -> None:
    lake.harness.copy(ITEMS, ROWS)
    lake.sql("delete from {t} where id % 2 = 0")
    lake.sql("update {t} set name = 'by spark' where id = 11")
    assert lake.vectors() == ["u"]
    lake.harness.apply(ITEMS, [update(ITEMS, 11, "ours", UNCHANGED), delete(ITEMS, 13), insert(ITEMS, 4, "new", None)])
    odd = [row for row in ROWS if int(str(row[0])) % 2 and row[0] not in {11, 13}]
    lake.harness.holds(ITEMS, *odd, (11, "ours", "b11"), (4, "new", None))


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(500, id="vectors in the log"),
        # Others look after these in every run.
        pytest.param(2, id="vectors in a file", marks=pytest.mark.long),
    ],
)
def test_spark_merges_compacts_and_vacuums_what_we_wrote_and_we_go_on(lake: Lake, step: int) -> None:
    lake.harness.copy(ITEMS, ROWS)
    gone = {*range(0, 4000, step), *range(4100, 4500)}
    lake.harness.apply(ITEMS, [delete(ITEMS, number) for number in gone])
    lake.harness.apply(ITEMS, [update(ITEMS, 4001, "ours", UNCHANGED)], start=200)
    assert lake.vectors() == ["i" if step > 2 else "u"]
    rows = {int(str(row[0])): row for row in ROWS if row[0] not in gone}
    rows[4001] = (4001, "ours", "b4001")
    lake.harness.holds(ITEMS, *rows.values())
    lake.sql(
        "merge into {t} t using (select 4003L id union all select 9000L) s on t.id = s.id"
        " when matched then update set name = 'merged' when not matched then insert (id, name) values (s.id, 'new')"
    )
    rows |= {4003: (4003, "merged", "b4003"), 9000: (9000, "new", None)}
    lake.harness.holds(ITEMS, *rows.values())
    lake.sql("optimize {t}")
    lake.sql("set spark.databricks.delta.retentionDurationCheck.enabled = false")
    lake.sql("vacuum {t} retain 0 hours")
    lake.harness.holds(ITEMS, *rows.values())
    changes = [update(ITEMS, 4003, "again", UNCHANGED), delete(ITEMS, 9000), delete(ITEMS, 4001)]
    lake.harness.apply(ITEMS, changes, start=300)
    rows[4003] = (4003, "again", "b4003")
    del rows[9000], rows[4001]
    lake.harness.holds(ITEMS, *rows.values())


def test_vectors_in_files_that_are_in_use_survive_a_vacuum(lake: Lake) -> None:
    lake.harness.copy(ITEMS, ROWS)
    for number in range(3):
        changes = [delete(ITEMS, each) for each in range(number, 4000, 4)]
        lake.harness.apply(ITEMS, changes, start=200 + 10 * number)
    lake.sql("set spark.databricks.delta.retentionDurationCheck.enabled = false")
    assert len(list(Path(lake.location()).glob("deletion_vector_*.bin"))) == 3
    lake.sql("vacuum {t} retain 0 hours")
    assert len(list(Path(lake.location()).glob("deletion_vector_*.bin"))) == 1
    rest = [row for row in ROWS if int(str(row[0])) >= 4000 or int(str(row[0])) % 4 == 3]
    lake.harness.holds(ITEMS, *rest)
    lake.harness.apply(ITEMS, [delete(ITEMS, 3)], start=300)
    lake.harness.holds(ITEMS, *[row for row in rest if row[0] != 3])


def test_keys_of_every_type_are_found_in_files_that_spark_wrote(lake: Lake) -> None:
    columns = tuple(Column(f"k{number}", type_, key_ordinal=number) for number, type_ in enumerate(KEYS))
    schema = TableSchema(TableId(8), TableName("public", "keys"), (*columns, Column("body", TEXT)))
    low, high = (tuple(pair[side] for pair in KEYS.values()) for side in (0, 1))
    lake.harness.copy(schema, [(*low, "low")])
    lake.harness.apply(schema, [insert(schema, *high, "high")])
    lake.sql("optimize {t}", schema)
    lake.harness.apply(schema, [update(schema, *low, UNCHANGED), update(schema, *high, "new")], start=200)
    lake.harness.holds(schema, (*low, "low"), (*high, "new"))
    lake.sql("optimize {t}", schema)
    lake.harness.apply(schema, [delete(schema, *low)], start=300)
    lake.harness.holds(schema, (*high, "new"))


def test_a_checkpoint_of_sparks_is_where_we_go_on(lake: Lake) -> None:
    lake.harness.copy(ITEMS, ROWS)
    lake.sql("alter table {t} set tblproperties ('delta.checkpointInterval' = '2')")
    lake.sql("delete from {t} where id = 0")
    lake.sql("delete from {t} where id < 3")
    folder = Path(lake.location()) / "_delta_log"
    newest = max(int(path.name[:20]) for path in folder.glob("*.checkpoint*.parquet"))
    for version in range(newest + 1):
        (folder / f"{version:020d}.json").unlink(missing_ok=True)
    lake.harness.apply(ITEMS, [delete(ITEMS, 0), delete(ITEMS, 3), update(ITEMS, 4, "ours", UNCHANGED)])
    lake.harness.holds(ITEMS, *ROWS[5:], (4, "ours", "b4"))


@pytest.mark.parametrize("mode", TableMode)
def test_every_version_of_ours_has_the_checksum_that_spark_would_compute(
    spark: SparkSession, tmp_path: Path, mode: TableMode
) -> None:
    lake = Lake(spark, tmp_path, mode)
    lake.harness.copy(ITEMS, ROWS)
    lake.harness.apply(ITEMS, [insert(ITEMS, 7000, "x", "y")])
    assert lake.is_checksum_right()
    for start in range(200, 240, 10):
        changed = [update(ITEMS, each, "changed", UNCHANGED) for each in range(start, 4000, 50)]
        lake.harness.apply(ITEMS, [*changed, delete(ITEMS, start + 1)], start=start)
    assert lake.is_checksum_right()
    assert lake.destination.upkeep(ITEMS, lambda: False).written_files
    assert lake.is_checksum_right()
    lake.harness.apply(ITEMS, [truncate(ITEMS), insert(ITEMS, 1, "a", "b")], start=300)
    assert lake.is_checksum_right()


def test_checksums_are_right_beside_another_writer_and_after_restarts(lake: Lake) -> None:
    lake.harness.copy(ITEMS, ROWS)
    lake.harness.apply(ITEMS, [insert(ITEMS, 7000, "x", "y"), delete(ITEMS, 2)])
    lake.sql("optimize {t}")
    lake.sql("alter table {t} set tblproperties ('delta.checkpointInterval' = '2', 'note' = 'theirs')")
    # Checkpoints are what we know the table from after a restart: the Delta library's, and here Spark's too.
    for start in (300, 400, 500):
        lake.restart()
        lake.harness.apply(ITEMS, [update(ITEMS, 3, f"at {start}", UNCHANGED)], start=start)
        assert lake.is_checksum_right()
    lake.sql("delete from {t} where id = 1")
    lake.restart()
    lake.harness.apply(ITEMS, [delete(ITEMS, 5)], start=600)
    assert lake.is_checksum_right()
    log = Path(lake.location()) / "_delta_log"
    assert sorted(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")) == [4, 6, 8]


def test_a_table_that_was_rolled_back_by_hand_has_no_checksum_of_its_former_versions(lake: Lake) -> None:
    lake.harness.copy(ITEMS, ROWS)
    lake.harness.apply(ITEMS, [delete(ITEMS, 1)], start=200)
    lake.sql("alter table {t} set tblproperties ('note' = 'soon gone')")
    log = Path(lake.location()) / "_delta_log"
    for entry in log.glob(f"*{2:020d}.json*"):
        entry.unlink()
    assert (log / f"{2:020d}.crc").exists()
    lake.restart()
    lake.harness.apply(ITEMS, [delete(ITEMS, 2)], start=300)
    assert not (log / f"{2:020d}.crc").exists()
    lake.harness.apply(ITEMS, [delete(ITEMS, 3)], start=400)
    assert lake.is_checksum_right()


class Meanwhile:
    """One table's changes, during whose reading something else happens, once."""

    def __init__(self, batch: ArrowEvents, happens: Callable[[], None]) -> None:
        [(self._id, self._changes)] = batch.tables().items()
        self._happens: Callable[[], None] | None = happens
        self.end_lsn = batch.end_lsn

    def tables(self) -> dict[TableId, TableChanges]:
        return {self._id: self}

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._changes, name)

    def arrow(self) -> Iterator[pa.RecordBatch]:
        yield from self._changes.arrow()
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()


def test_a_compaction_of_sparks_that_commits_first_only_costs_another_look(lake: Lake) -> None:
    lake.harness.copy(ITEMS, ROWS)
    lake.harness.apply(ITEMS, [delete(ITEMS, 1), insert(ITEMS, 7000, "x", "y")])
    events = transaction(200, update(ITEMS, 7000, "found", UNCHANGED), delete(ITEMS, 2), delete(ITEMS, 1))
    batch = ArrowEvents([ITEMS], events, Lsn(210))
    lake.destination.write_events(Meanwhile(batch, lambda: lake.sql("optimize {t}")))
    lake.destination.write_events(batch)
    lake.harness.holds(ITEMS, *(row for row in ROWS if row[0] not in {1, 2}), (7000, "found", "y"))
    operations = lake.spark.sql(f"describe history delta.`{lake.location()}`").toArrow().to_pylist()
    assert [each["operation"] for each in operations[:2]] == ["MERGE", "OPTIMIZE"]


@pytest.mark.cluster
def test_sparks_tasks_find_what_threads_find(spark: SparkSession, tmp_path: Path) -> None:
    key = table_schema(ITEMS).remove(2)
    searched = []
    for number in range(5):
        ids = np.arange(2000) + number * 1500
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"id": ids, "name": [f"n{each % 3}" for each in ids]}), path)
        searched.append(SearchedFile(str(path), 2000))
    keys = KeySet((pa.array([10, 1700, 1700, 99_999]), pa.array(["n1", "n2", "n0", "n0"])))
    files = LakeFiles(LOCAL, key)
    with_spark, without = Search(lambda: spark, spark_bytes=0), Search(no_spark)
    expected, found = (search.find(files, searched, keys) for search in (without, with_spark))
    assert [each.places.tolist() for each in expected] == [[10, 1700], [200], [], [], []]
    for one, other in zip(found, expected, strict=True):
        assert (one.places.tolist(), one.numbers.tolist()) == (other.places.tolist(), other.numbers.tolist())
    with_spark.close()
    without.close()
