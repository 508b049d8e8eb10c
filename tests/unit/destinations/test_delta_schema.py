from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from penstock.contract.batch import CopiedFile
from penstock.destinations.delta import DeltaDestination
from penstock.destinations.delta.fault import spark_fault
from penstock.destinations.delta.schema import bounds_of, folder_name, statistics
from penstock.errors import DestinationError, ErrorKind, Retry
from penstock.lake.key import ordered_value
from penstock.model.lsn import Lsn
from penstock.model.table import Column, Kind, PgType, PipelineId, TableId, TableName, TableSchema
from penstock.store.memory import MemoryStore
from penstock.testing.batch import ArrowRows, no_spark
from penstock.testing.destination_suite import COPIED, INT8, ITEMS, START, TEXT, Harness, insert, renamed
from penstock.testing.strategies import printed, simple_type
from penstock.wire.arrow import arrow_type

names = st.builds(TableName, st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))


def make(path: Path, store: MemoryStore | None = None, pipeline: str = "p", *, cdc: bool = True) -> DeltaDestination:
    tables = store or MemoryStore()
    return DeltaDestination(str(path), pipeline=PipelineId(pipeline), spark=no_spark, tables=tables, cdc_columns=cdc)


@given(names)
def test_a_tables_folder_is_always_two_below_the_lake(name: TableName) -> None:
    path = PurePosixPath("/lake") / folder_name(name)
    assert len(path.parts) == 4
    assert not {"..", "."} & set(path.parts)
    assert "%" not in str(path)


@given(names, names)
def test_different_tables_have_different_folders(one: TableName, other: TableName) -> None:
    assert (folder_name(one) == folder_name(other)) == (one == other)


def test_ordinary_names_are_their_own_folder() -> None:
    assert folder_name(TableName("public", "Order_Items-2.v1")) == "public/Order_Items-2.v1"


def stats_of(low: Any, high: Any) -> tuple[Any, Any]:
    found = json.loads(statistics(CopiedFile("f", 2, 10, {"c": low}, {"c": high}, {"c": 1})))
    assert found["numRecords"] == 2
    assert found["nullCount"] == {"c": 1}
    return found["minValues"].get("c"), found["maxValues"].get("c")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, 2**63 - 1, (1, 2**63 - 1)),
        ("a", "b", ("a", "b")),
        ("a", "b" * 40, (None, None)),
        (dt.date(1, 1, 1), dt.date(2026, 1, 1), ("0001-01-01", "2026-01-01")),
        (0.5, float("nan"), (None, None)),
        (Decimal(1), Decimal(2), (None, None)),
        (b"a", b"b", (None, None)),
        (False, True, (None, None)),
    ],
)
def test_only_bounds_that_are_safe_to_skip_by_are_written(low: Any, high: Any, expected: tuple[Any, Any]) -> None:
    assert stats_of(low, high) == expected


@given(st.datetimes(min_value=dt.datetime(1, 1, 2), max_value=dt.datetime(9999, 12, 30)))  # noqa: DTZ001
def test_timestamp_bounds_in_milliseconds_still_enclose_the_value(value: dt.datetime) -> None:
    low, high = stats_of(value, value)
    assert dt.datetime.fromisoformat(low) <= value <= dt.datetime.fromisoformat(high)
    zoned = stats_of(value.replace(tzinfo=dt.UTC), value.replace(tzinfo=dt.UTC))
    assert zoned == (f"{low}Z", f"{high}Z")


ORDERED = [simple_type(kind) for kind in (Kind.INT2, Kind.INT8, Kind.OID, Kind.TEXT, Kind.DATE, Kind.TIMESTAMP)]


@given(st.sampled_from([*ORDERED, simple_type(Kind.TIMESTAMPTZ)]), st.data())
def test_bounds_in_the_log_never_exclude_a_value_of_the_file(type_: PgType, data: st.DataObject) -> None:
    values: list[Any] = data.draw(st.lists(printed(type_).map(lambda pair: pair[1]), min_size=1))
    file = CopiedFile("f", len(values), 1, {"k": min(values)}, {"k": max(values)}, {})
    key = pa.schema([pa.field("k", arrow_type(type_))])
    bounds = bounds_of(json.loads(statistics(file)), key)
    for value in values:
        ordered = ordered_value(value, arrow_type(type_))
        assert all(low <= ordered <= high for low, high in bounds.values())


def test_bounds_that_others_cut_to_milliseconds_still_enclose_the_value() -> None:
    key = pa.schema([pa.field("k", pa.timestamp("us", "UTC"))])
    text = "2026-01-01T00:00:00.123Z"
    [(low, high)] = bounds_of({"minValues": {"k": text}, "maxValues": {"k": text}}, key).values()
    moment = dt.datetime(2026, 1, 1, 0, 0, 0, 123_999, dt.UTC)
    assert low <= ordered_value(moment, key.field("k").type) <= high


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        ("+10000-01-01", pa.date32()),
        ("+10000-01-01T00:00:00.000Z", pa.timestamp("us", "UTC")),
        (1.5, pa.decimal128(5, 2)),
        ("NaN", pa.float64()),
        (True, pa.bool_()),
    ],
)
def test_bounds_that_cannot_be_trusted_or_read_are_none(value: Any, type_: Any) -> None:
    key: Any = pa.schema([("k", type_)])
    assert not bounds_of({"minValues": {"k": value}, "maxValues": {"k": value}}, key)
    assert not bounds_of({}, key)


def test_spark_faults_keep_the_condition_and_no_row_value() -> None:
    fault = spark_fault("Applying", "[CAST_INVALID_INPUT] The value 'secret' of the type ...")
    assert "CAST_INVALID_INPUT" in fault.message
    assert "secret" not in fault.message
    assert spark_fault("Applying", "io.delta.exceptions.ConcurrentAppendException: x").retry is Retry.TIMED
    assert spark_fault("Applying", "[DELTA_CONCURRENT_WRITE]").kind is ErrorKind.DESTINATION_CONFLICT


def refused(destination: DeltaDestination, schema: TableSchema) -> DestinationError:
    with pytest.raises(DestinationError) as raised:
        destination.write_table_rows(schema, ArrowRows(schema, [], START))
    assert raised.value.kind is ErrorKind.DESTINATION_UNSUPPORTED
    return raised.value


def test_a_column_named_like_ours_is_refused_unless_ours_are_off(tmp_path: Path) -> None:
    schema = TableSchema(TableId(1), TableName("public", "t"), (Column("id", INT8), Column("_lsn", TEXT)))
    assert "cdc_columns" in refused(make(tmp_path), schema).remedy
    make(tmp_path, cdc=False).write_table_rows(schema, ArrowRows(schema, [(1, "x")], START))


def test_columns_that_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    schema = TableSchema(TableId(1), TableName("public", "t"), (Column("id", INT8), Column("ID", TEXT)))
    assert "id, ID" in refused(make(tmp_path), schema).message


def test_a_lake_that_cannot_be_written_is_named_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DestinationError) as raised:
        make(tmp_path / "file" / "lake").startup()
    assert raised.value.kind is ErrorKind.DESTINATION_PERMISSION_DENIED
    assert str(tmp_path / "file" / "lake") in raised.value.message


def test_a_table_that_another_pipeline_made_is_not_replaced(tmp_path: Path) -> None:
    make(tmp_path, pipeline="one").write_table_rows(ITEMS, ArrowRows(ITEMS, COPIED, START))
    other = make(tmp_path, pipeline="two")
    assert "did not make" in refused(other, ITEMS).message
    other.truncate_table(ITEMS.id)
    assert "did not make" in refused(other, ITEMS).message
    assert DeltaTable(tmp_path / "public/items").file_uris()


def test_a_later_part_of_a_copy_whose_table_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match="no copy of"):
        make(tmp_path).write_table_rows(ITEMS, ArrowRows(ITEMS, COPIED, START, part=1))


def test_a_new_table_with_a_renamed_ones_name_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    store = MemoryStore()
    lake = make(tmp_path, store)
    lake.write_table_rows(ITEMS, ArrowRows(ITEMS, COPIED, START))
    newcomer = renamed(ITEMS, ITEMS.name, TableId(7))
    lake.write_table_rows(newcomer, ArrowRows(newcomer, [], Lsn(5)))
    lake.write_table_rows(renamed(ITEMS, TableName("public", "old")), ArrowRows(ITEMS, COPIED, START))
    assert store.get_table_mapping(ITEMS.id) == "public/items"
    assert store.get_table_mapping(TableId(7)) == "public/items~7"
    assert (lake.watermark(ITEMS.id), lake.watermark(TableId(7))) == (START, Lsn(5))


def test_an_emptied_table_stands_at_no_position(tmp_path: Path) -> None:
    lake = make(tmp_path)
    lake.write_table_rows(ITEMS, ArrowRows(ITEMS, COPIED, START))
    lake.truncate_table(ITEMS.id)
    assert lake.watermark(ITEMS.id) == Lsn(0)


def test_changes_of_a_table_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match=r"no copy of public\.items"):
        Harness(make(tmp_path), lambda _schema: []).apply(ITEMS, [insert(ITEMS, 1, "a", "b")])


@pytest.mark.parametrize("then", [True, False])
def test_a_table_that_was_made_with_other_cdc_columns_says_so_until_it_is_copied_again(
    tmp_path: Path, *, then: bool
) -> None:
    store = MemoryStore()
    Harness(make(tmp_path, store, cdc=then), lambda _schema: []).copy(ITEMS, COPIED)
    harness = Harness(make(tmp_path, store, cdc=not then), lambda _schema: [])
    with pytest.raises(DestinationError, match=f"made with cdc_columns: {str(then).lower()}, and now") as raised:
        harness.apply(ITEMS, [insert(ITEMS, 4, "a", "b")])
    assert (
        raised.value.remedy == f"Set destination.delta.cdc_columns to {str(then).lower()} again, or resync the table."
    )
    harness.copy(ITEMS, COPIED)
    harness.apply(ITEMS, [insert(ITEMS, 4, "a", "b")])


def test_changes_with_other_columns_are_refused_and_named(tmp_path: Path) -> None:
    store = MemoryStore()
    harness = Harness(make(tmp_path, store), lambda _schema: [])
    harness.copy(ITEMS, COPIED)
    wider = TableSchema(ITEMS.id, ITEMS.name, (*ITEMS.columns, Column("extra", TEXT)))
    with pytest.raises(DestinationError, match="extra") as raised:
        harness.apply(wider, [insert(wider, 1, "a", "b", "c")])
    assert raised.value.kind is ErrorKind.SCHEMA_CHANGED
