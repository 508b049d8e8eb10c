"""A file is written in row groups of bounded bytes, and what is repetitive in it is written once."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.model.table import Column, Kind, PgType, TableId, TableName, TableSchema
from penstock.spark import parquet
from penstock.spark.parquet import FileWriter, packed_encodings, repetitive_columns
from penstock.wire.column import arrow_schema

CONSTANTS = {
    "_op": pa.scalar("INSERT"),
    "_at": pa.scalar(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
}


def write(path: Path, batches: list[pa.RecordBatch], constants: dict[str, Any] | None = None) -> Any:
    writer = FileWriter(str(path), batches[0].schema, constants or {})
    for batch in batches:
        writer.write(batch)
    return writer.finish()


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12).filter(any),
    values=st.sampled_from([lambda n: n, lambda n: n % 3, lambda _: None]),
    limit=st.sampled_from([1, 1000, 1 << 20]),
)
def test_what_was_written_is_read_back_whatever_the_batches_and_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], values: Any, limit: int
) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", limit)
    numbers = iter(range(10_000))
    batches = [
        pa.record_batch({"n": pa.array([values(next(numbers)) for _ in range(size)], pa.int64())}) for size in sizes
    ]
    file = write(tmp_path / "f.parquet", batches, CONSTANTS)
    table = pq.read_table(tmp_path / "f.parquet")
    assert table.column("n").to_pylist() == pa.Table.from_batches(batches).column("n").to_pylist()
    assert file.rows == sum(sizes) == table.column("_op").to_pylist().count("INSERT")


def test_a_row_group_ends_when_its_bytes_are_many_however_few_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 100_000)
    wide = pa.record_batch({"v": ["x" * 60_000]})
    narrow = pa.record_batch({"v": ["y"] * 100})
    file = write(tmp_path / "f.parquet", [wide] * 4 + [narrow] * 30)
    metadata = pq.read_metadata(tmp_path / "f.parquet")
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [2, 2, 3000]
    assert file.size_bytes == (tmp_path / "f.parquet").stat().st_size


def test_a_file_without_rows_is_none(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64())])
    assert FileWriter(str(tmp_path / "f.parquet"), schema, CONSTANTS).finish() is None
    assert write(tmp_path / "f.parquet", [pa.RecordBatch.from_pylist([], schema)], CONSTANTS) is None
    assert list(tmp_path.iterdir()) == []


def test_rows_without_columns_have_their_constants(tmp_path: Path) -> None:
    nothing: Any = pa.Array.from_buffers(pa.struct([]), 7, [None])
    file = write(tmp_path / "f.parquet", [pa.RecordBatch.from_struct_array(nothing)] * 2, CONSTANTS)
    assert (file.rows, pq.read_table(tmp_path / "f.parquet").column_names) == (14, ["_op", "_at"])


def test_a_discarded_file_is_gone_whether_or_not_something_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in (1, 1 << 20):
        monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", limit)
        batch = pa.record_batch({"n": [1, 2, 3]})
        writer = FileWriter(str(tmp_path / "f.parquet"), batch.schema, {})
        writer.write(batch)
        writer._wait()
        assert (tmp_path / "f.parquet").exists() == (limit == 1)
        writer.discard()
        assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_an_error_of_whoever_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 1)
    batch = pa.record_batch({"n": [1, 2, 3]})
    writer = FileWriter(str(tmp_path / "missing" / "f.parquet"), batch.schema, {})
    writer.write(batch)
    with pytest.raises(FileNotFoundError):
        writer.write(batch)
    with pytest.raises(FileNotFoundError):
        writer.finish()
    writer.discard()


def test_packed_numbers_and_uuids_are_read_back(tmp_path: Path) -> None:
    table = TableSchema(
        TableId(1),
        TableName("public", "t"),
        (
            Column("a.b", PgType("bigint", Kind.INT8), key_ordinal=0),
            Column("small", PgType("smallint", Kind.INT2)),
            Column("few", PgType("integer", Kind.INT4)),
            Column("at", PgType("timestamp with time zone", Kind.TIMESTAMPTZ)),
            Column("day", PgType("date", Kind.DATE)),
            Column("price", PgType("numeric(9,2)", Kind.NUMERIC, 9, 2)),
            Column("rate", PgType("numeric(18,6)", Kind.NUMERIC, 18, 6)),
            Column("sum", PgType("numeric(19,0)", Kind.NUMERIC, 19, 0)),
            Column("u", PgType("uuid", Kind.TEXT)),
            Column("v", PgType("text", Kind.TEXT)),
        ),
    )
    start = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    rows = [
        {
            "a.b": (-1) ** n * (2**63 - 1 - n),
            "small": None if n % 3 else (n * 7919) % 65536 - 32768,
            "few": n % 2,
            "at": None if n == 5 else start + dt.timedelta(days=n * 700, microseconds=n),
            "day": (start + dt.timedelta(days=n * 700)).date(),
            "price": None if n == 6 else Decimal((-1) ** n * (10**9 - 1 - n)).scaleb(-2),
            "rate": Decimal((-1) ** n * (10**18 - 1 - n)).scaleb(-6),
            "sum": Decimal((-1) ** n * (10**19 - 1 - n)),
            "u": None if n == 7 else str(uuid.UUID(int=n * 7919**8 % 2**128)),
            "v": None if n == 9 else str(n),
        }
        for n in range(5000)
    ]
    batch = pa.RecordBatch.from_pylist(rows, arrow_schema(table))
    writer = FileWriter(str(tmp_path / "f.parquet"), batch.schema, CONSTANTS, packed_encodings(table))
    writer.write(batch)
    writer.finish()
    assert pq.read_table(tmp_path / "f.parquet").select(batch.schema.names).to_pylist() == rows
    group = pq.read_metadata(tmp_path / "f.parquet").row_group(0)
    encodings = {group.column(n).path_in_schema: group.column(n).encodings for n in range(group.num_columns)}
    packed = {name for name, used in encodings.items() if any(each.startswith("DELTA") for each in used)}
    assert packed == {"a.b", "small", "at", "day", "price", "rate", "u"}
    with duckdb.connect() as connection:
        statement = f"select count(u), min(\"a.b\"), min(price), max(rate) from '{tmp_path}/f.parquet'"
        found = connection.execute(statement).fetchall()
    assert found == [(4999, -(2**63) + 2, Decimal("-9999999.98"), Decimal("999999999999.999999"))]


def test_only_columns_with_few_different_values_have_a_dictionary(tmp_path: Path) -> None:
    rows = range(5000)
    batch = pa.record_batch(
        {
            "key": list(rows),
            "state": [f"state {n % 5}" for n in rows],
            "missing": pa.nulls(len(rows), pa.string()),
            "token": [f"{n * 7919:036}" for n in rows],
            "tags": [["a"] for _ in rows],
        }
    )
    assert repetitive_columns(pa.Table.from_batches([batch])) == ["state", "missing"]
    write(tmp_path / "f.parquet", [batch], CONSTANTS)
    group = pq.read_metadata(tmp_path / "f.parquet").row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    dictionaries = {column.path_in_schema for column in columns if column.has_dictionary_page}
    assert dictionaries == {"state", "missing", "_op", "_at"}
    assert {column.compression for column in columns} == {"ZSTD"}


def test_large_values_have_neither_dictionary_nor_bounds_and_others_keep_theirs(tmp_path: Path) -> None:
    batch = pa.record_batch({"id": list(range(50)), "body": ["x" * 5000] * 50, "kind": ["a"] * 50})
    file = write(tmp_path / "f.parquet", [batch])
    group = pq.read_metadata(tmp_path / "f.parquet").row_group(0)
    assert [group.column(index).has_dictionary_page for index in range(3)] == [False, False, True]
    assert (file.minimums, file.null_counts) == ({"id": 0, "kind": "a"}, {"id": 0, "kind": 0})
    assert pq.read_table(tmp_path / "f.parquet").to_batches()[0].equals(batch)
