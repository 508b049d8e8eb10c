"""Lakes in buckets of S3, through the suite of every destination, and against failures and faster writers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from plugins.interrupted import Interrupted
from plugins.s3 import Bucket
from pyspark.sql import SparkSession

from penstock import failpoint
from penstock.contract import Destination, Positioned
from penstock.destinations.delta import DeltaDestination
from penstock.destinations.iceberg import CatalogSettings, IcebergDestination
from penstock.model.cell import UNCHANGED
from penstock.model.lsn import Lsn
from penstock.model.table import PipelineId, TableSchema
from penstock.storage.place import files_at
from penstock.store.memory import MemoryStore
from penstock.testing.batch import ArrowEvents, no_spark, transaction
from penstock.testing.destination_suite import COPIED, ITEMS, START, DestinationSuite, Harness, delete, insert, update

pytestmark = pytest.mark.spark

P = PipelineId("p")
Open = Callable[[], Harness]
"""Opens the lake, as every process of one pipeline would."""


@pytest.fixture
def delta(bucket: Bucket) -> Open:
    store, path = MemoryStore(), f"s3://{bucket.name}/lake"

    def read(schema: TableSchema) -> Sequence[Sequence[Any]]:
        place = f"{path}/{store.get_table_mapping(schema.id)}"
        table = DeltaTable(place, storage_options=bucket.settings.options)
        rows = pa.table(QueryBuilder().register("t", table).execute("select * from t").read_all())
        return [tuple(row.values()) for row in rows.select(schema.column_names).to_pylist()]

    def opened() -> Harness:
        destination = DeltaDestination(path, pipeline=P, spark=no_spark, tables=store, s3=bucket.settings)
        destination.startup()
        return Harness(destination, read)

    return opened


@pytest.fixture
def iceberg(spark: SparkSession, bucket_catalog: CatalogSettings) -> Iterator[Open]:
    store, made = MemoryStore(), list[IcebergDestination]()

    def read(schema: TableSchema) -> Sequence[Sequence[Any]]:
        rows = spark.read.table(str(made[0].table_name(schema.id))).toArrow()
        return [tuple(row.values()) for row in rows.select(schema.column_names).to_pylist()]

    def opened() -> Harness:
        destination = IcebergDestination(bucket_catalog, pipeline=P, spark=lambda: spark, tables=store)
        destination.startup()
        made.append(destination)
        return Harness(destination, read, lambda: spark)

    yield opened
    for each in made:
        each.shutdown()


class TestDelta(DestinationSuite):
    @pytest.fixture
    def harness(self, delta: Open) -> Harness:
        return delta()


@pytest.mark.long  # what follows has a copy and a batch of every kind into Iceberg too
class TestIceberg(DestinationSuite):
    @pytest.fixture
    def harness(self, iceberg: Open) -> Harness:
        return iceberg()


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest) -> Open:
    opened: Open = request.getfixturevalue(request.param)
    return opened


CHANGES = [update(ITEMS, 1, "uno", UNCHANGED), delete(ITEMS, 2), insert(ITEMS, 4, "four", None)]
CHANGED = [(1, "uno", "body one"), (3, "three", None), (4, "four", None)]


def watermark(destination: Destination) -> Lsn | None:
    assert isinstance(destination, Positioned)
    return destination.watermark(ITEMS.id)


def test_the_late_commit_of_another_process_is_seen_and_not_repeated(lake: Open) -> None:
    ours, theirs = lake(), lake()
    ours.copy(ITEMS, COPIED)
    events = ArrowEvents([ITEMS], transaction(START, *CHANGES), Lsn(110), ours.spark)
    ours.destination.write_events(Interrupted(events, lambda: theirs.apply(ITEMS, CHANGES)))
    ours.holds(ITEMS, *CHANGED)
    assert watermark(ours.destination) == Lsn(110)


@pytest.mark.parametrize("moment", ["files_written", "commit", "committed"])
def test_a_failure_between_files_and_commit_is_made_good_by_trying_again(lake: Open, moment: str) -> None:
    first = lake()
    first.copy(ITEMS, COPIED)
    failpoint.arm(f"{first.destination.name}.{moment}=raise*1")
    try:
        with pytest.raises(failpoint.FailpointError):
            first.apply(ITEMS, CHANGES)
    finally:
        failpoint.arm("")
    again = lake()
    assert watermark(again.destination) == (Lsn(110) if moment == "committed" else START)
    again.apply(ITEMS, CHANGES, [insert(ITEMS, 9, "nine", None)])
    again.holds(ITEMS, *CHANGED, (9, "nine", None))


def test_a_foreign_commit_in_between_costs_another_look(delta: Open, bucket: Bucket) -> None:
    lake = delta()
    lake.copy(ITEMS, COPIED)
    lake.apply(ITEMS, [insert(ITEMS, 4, "four", None)])

    def compact() -> None:
        place = f"s3://{bucket.name}/lake/public/items"
        DeltaTable(place, storage_options=bucket.settings.options).optimize.compact()

    last = [update(ITEMS, 4, "vier", UNCHANGED), delete(ITEMS, 1)]
    lake.destination.write_events(Interrupted(ArrowEvents([ITEMS], transaction(200, *last), Lsn(210)), compact))
    lake.holds(ITEMS, COPIED[1], COPIED[2], (4, "vier", None))


def test_vectors_in_files_and_checkpoints_are_read_from_the_bucket(delta: Open, bucket: Bucket) -> None:
    rows = [(number, "n", None) for number in range(4000)]
    lake = delta()
    lake.copy(ITEMS, rows)
    chosen = random.Random(1).sample(range(4000), 2000)
    lake.apply(ITEMS, [delete(ITEMS, number) for number in chosen[:1000]])
    place = f"s3://{bucket.name}/lake/public/items"
    names = files_at(place, bucket.settings).names("lake/public/items")
    assert any(name.startswith("deletion_vector_") for name in names)
    DeltaTable(place, storage_options=bucket.settings.options).create_checkpoint()
    again = delta()
    again.apply(ITEMS, [delete(ITEMS, number) for number in chosen[1000:]], start=200)
    gone = set(chosen)
    again.holds(ITEMS, *(row for row in rows if row[0] not in gone))
