from __future__ import annotations

import datetime as dt
import struct
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.destinations.iceberg import CatalogSettings, IcebergDestination, validate
from penstock.destinations.iceberg.catalog import place_of, sql_name
from penstock.destinations.iceberg.fault import java_fault
from penstock.destinations.iceberg.rows import DataFolder, read_deletes
from penstock.destinations.iceberg.schema import (
    arrow_schema,
    bound,
    column_types,
    iceberg_schema,
    physical_names,
    with_ids,
)
from penstock.errors import DestinationError, ErrorKind, Retry
from penstock.lake.key import ordered_value
from penstock.lake.layout import Layout
from penstock.model.table import Column, Kind, PgType, PipelineId, TableId, TableName, TableSchema
from penstock.storage.local import LOCAL
from penstock.store.memory import MemoryStore
from penstock.testing.batch import no_spark
from penstock.testing.destination_suite import EVERYTHING, INT8, TEXT

names = st.builds(TableName, st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))


@given(names)
def test_a_tables_name_is_always_a_namespace_and_a_name(name: TableName) -> None:
    namespace, table = place_of(name).split(".")
    assert namespace
    assert table
    assert not set(place_of(name)) & set("/`'\" $%")


@given(names, names)
def test_different_tables_have_different_names(one: TableName, other: TableName) -> None:
    assert (place_of(one) == place_of(other)) == (one == other)


def test_ordinary_names_are_their_own() -> None:
    assert place_of(TableName("public", "Order_Items-2")) == "public.Order_Items-2"
    assert sql_name("lake", "public.a~20b") == "`lake`.`public`.`a~20b`"


@pytest.mark.parametrize("location", ["/lake/t", "file:/lake/t", "file:///lake/t"])
def test_a_local_location_is_a_path_however_it_is_written(location: str) -> None:
    assert LOCAL.path(location) == "/lake/t"


def test_folders_in_a_bucket_are_refused_as_a_catalog() -> None:
    settings = CatalogSettings("lake", {"type": "hadoop", "warehouse": "s3://bucket/lake"})
    with pytest.raises(DestinationError, match="s3://bucket/lake") as raised:
        IcebergDestination(settings, pipeline=PipelineId("p"), spark=no_spark, tables=MemoryStore())
    assert raised.value.kind is ErrorKind.DESTINATION_UNSUPPORTED


def test_every_type_has_an_iceberg_type() -> None:
    found = column_types(iceberg_schema(arrow_schema(EVERYTHING, Layout())))
    by_type = {column.type.name: found[column.name] for column in EVERYTHING.columns[1:]}
    assert by_type == {
        "boolean": "boolean",
        "smallint": "int",
        "integer": "int",
        "bigint": "long",
        "oid": "long",
        "real": "float",
        "double precision": "double",
        "numeric(38,10)": "decimal(38,10)",
        "numeric": "string",
        "text": "string",
        "bytea": "binary",
        "date": "date",
        "timestamp without time zone": "timestamp",
        "timestamp with time zone": "timestamptz",
        "text[]": "list<string>",
        "integer[]": "list<int>",
    }
    assert {name: found[name] for name in ("_CHANGE_TYPE", "_LSN", "_TIMESTAMP")} == {
        "_CHANGE_TYPE": "string",
        "_LSN": "long",
        "_TIMESTAMP": "timestamptz",
    }


def test_ids_are_given_once_and_reach_the_file_elements_included(tmp_path: Path) -> None:
    columns = arrow_schema(EVERYTHING, Layout())
    schema = iceberg_schema(columns)
    with_fields = with_ids(columns, schema)
    pq.write_table(with_fields.empty_table(), tmp_path / "f.parquet")
    written = pq.read_schema(tmp_path / "f.parquet")
    ids = [field["id"] for field in schema["fields"]]
    elements = [field["type"]["element-id"] for field in schema["fields"] if isinstance(field["type"], dict)]
    assert len({*ids, *elements}) == len(ids) + len(elements)
    assert physical_names(written, ids, ["?"] * len(ids)) == columns.names
    lists = [column for column in written if isinstance(column.type, pa.ListType)]
    assert [int(each.type.value_field.metadata[b"PARQUET:field_id"]) for each in lists] == elements


def test_a_file_without_ids_has_the_tables_names() -> None:
    assert physical_names(pa.schema([pa.field("x", pa.int64())]), [7], ["the key"]) == ["the key"]


def encoded(value: Any) -> bytes:
    """Return a value in Iceberg's binary form, written from its specification."""
    match value:
        case int():
            return struct.pack("<q", value)
        case str():
            return value.encode()
        case dt.datetime():
            epoch = dt.datetime(1970, 1, 1, tzinfo=value.tzinfo)
            return struct.pack("<q", (value - epoch) // dt.timedelta(microseconds=1))
        case dt.date():
            return struct.pack("<i", (value - dt.date(1970, 1, 1)).days)
        case _:
            unscaled = int(value.scaleb(10, DECIMALS))
            return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)


DECIMALS = Context(prec=50)
VALUES: list[tuple[st.SearchStrategy[Any], pa.DataType]] = [
    (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    (st.text(), pa.string()),
    (st.dates(), pa.date32()),
    (st.datetimes(), pa.timestamp("us")),
    (st.datetimes(timezones=st.just(dt.UTC)), pa.timestamp("us", "UTC")),
    (st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-10")), pa.decimal128(38, 10)),
]
bounded = st.one_of(*[st.tuples(values, st.just(type_)) for values, type_ in VALUES])


@given(bounded)
def test_a_bound_read_from_a_manifest_is_the_value(pair: tuple[Any, pa.DataType]) -> None:
    value, type_ = pair
    wanted = ordered_value(value, type_)
    assert bound(encoded(value), encoded(value), type_) == (wanted, wanted)


@pytest.mark.parametrize("type_", [pa.float64(), pa.binary(), pa.bool_()])
def test_types_without_a_safe_order_have_no_bounds(type_: pa.DataType) -> None:
    assert bound(b"\0" * 8, b"\0" * 8, type_) is None


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.sets(st.integers(0, 2**40), min_size=1)))
def test_deletes_are_read_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, gone: dict[str, set[int]]
) -> None:
    folder = DataFolder.of(str(tmp_path_factory.mktemp("t")))
    file = folder.write_deletes({name: np.array(list(places), np.int64) for name, places in gone.items()})
    assert {name: set(places.tolist()) for name, places in read_deletes(LOCAL, file.path)} == gone
    rows = pq.read_table(file.path).to_pylist()
    assert [(row["file_path"], row["pos"]) for row in rows] == sorted((n, p) for n in gone for p in gone[n])


def test_nothing_is_written_for_no_rows_and_statistics_survive_empty_pieces(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64())])
    folder = DataFolder.of(str(tmp_path))
    assert folder.write_rows([columns.empty_table()], columns) == []
    assert list((tmp_path / "data").iterdir()) == []
    [file] = folder.write_rows([columns.empty_table(), pa.table({"id": [3, 1]}), columns.empty_table()], columns)
    assert (file.rows, dict(file.minimums), dict(file.maximums)) == (2, {"id": 1}, {"id": 3})


def test_a_file_that_cannot_be_finished_is_removed(tmp_path: Path) -> None:
    def broken() -> Any:
        yield pa.table({"id": [1]})
        raise OSError("no more")

    folder = DataFolder.of(str(tmp_path))
    with pytest.raises(OSError, match="no more"):
        folder.write_rows(broken(), pa.schema([pa.field("id", pa.int64())]))
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize(
    ("class_name", "kind"),
    [
        ("org.apache.iceberg.exceptions.CommitFailedException", ErrorKind.DESTINATION_CONFLICT),
        ("org.apache.iceberg.exceptions.AlreadyExistsException", ErrorKind.DESTINATION_CONFLICT),
        ("org.apache.iceberg.exceptions.CommitStateUnknownException", ErrorKind.DESTINATION_UNAVAILABLE),
        ("org.apache.iceberg.exceptions.ForbiddenException", ErrorKind.DESTINATION_PERMISSION_DENIED),
        ("java.nio.file.AccessDeniedException", ErrorKind.DESTINATION_PERMISSION_DENIED),
        ("org.apache.iceberg.exceptions.ValidationException", ErrorKind.DESTINATION_ERROR),
    ],
)
def test_java_faults_are_told_by_their_class_alone(class_name: str, kind: ErrorKind) -> None:
    fault = java_fault("Applying", class_name)
    assert fault.kind is kind
    assert fault.retry is (Retry.MANUAL if kind is ErrorKind.DESTINATION_PERMISSION_DENIED else Retry.TIMED)


def table_of(*columns: Column) -> TableSchema:
    return TableSchema(TableId(1), TableName("public", "t"), columns)


TEXTS = PgType("text[]", Kind.ARRAY, element=TEXT)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (table_of(Column("id", INT8), Column("_lsn", TEXT)), "column _lsn"),
        (table_of(Column("id", INT8), Column("Id", INT8)), "id, Id"),
        (table_of(Column("a", TEXTS), Column("a.element", TEXT)), "a.element"),
    ],
)
def test_columns_that_iceberg_cannot_tell_apart_are_refused(schema: TableSchema, message: str) -> None:
    with pytest.raises(DestinationError, match=message) as raised:
        validate.check_columns(schema, Layout())
    assert raised.value.kind is ErrorKind.DESTINATION_UNSUPPORTED


def test_a_column_named_like_ours_is_accepted_if_ours_are_off() -> None:
    validate.check_columns(table_of(Column("_lsn", TEXT)), Layout(cdc_columns=False))


def test_a_table_without_columns_is_refused_if_ours_are_off() -> None:
    validate.check_columns(table_of(), Layout())
    with pytest.raises(DestinationError, match="no columns"):
        validate.check_columns(table_of(), Layout(cdc_columns=False))


def test_a_warehouse_that_cannot_be_written_is_named_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = CatalogSettings("lake", {"type": "hadoop", "warehouse": str(tmp_path / "file" / "lake")})
    destination = IcebergDestination(settings, pipeline=PipelineId("p"), spark=no_spark, tables=MemoryStore())
    with pytest.raises(DestinationError, match=str(tmp_path / "file" / "lake")) as raised:
        destination.startup()
    assert raised.value.kind is ErrorKind.DESTINATION_PERMISSION_DENIED


def test_properties_are_not_shown() -> None:
    assert "hunter2" not in repr(CatalogSettings("lake", {"type": "rest", "token": "hunter2"}))
