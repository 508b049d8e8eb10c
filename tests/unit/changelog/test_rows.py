"""Data files: whatever form rows are stored in, they are read back as the same values."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changelog.entry import DataFile, empty_entry
from penstock.changelog.files import write_data
from penstock.changelog.folder import Folder
from penstock.changelog.rows import convert_rows, log_schema, pack_rows, read_rows, unpack_rows
from penstock.changelog.segment import Segment
from penstock.errors import LogDamagedError
from penstock.model.lsn import Lsn
from penstock.model.policy import DEFAULT_POLICIES, ValuePolicies
from penstock.model.special import SpecialValues
from penstock.model.table import Column, Kind, PgType, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.testing.assembly import Change, Text, Transaction, text_batch
from penstock.testing.changelog import make_segment, two_column_table
from penstock.testing.strategies import array_type, numeric_type, simple_type
from penstock.wire.text import UnconvertibleValueError

TEXTS: dict[PgType, list[Text]] = {
    simple_type(Kind.INT4): [None, b"1", b"-5"],
    simple_type(Kind.TEXT): [None, b"", "é\U0001f600".encode()],
    simple_type(Kind.BYTES): [None, rb"\x", rb"\x00ff"],
    simple_type(Kind.DATE): [None, b"2024-02-29"],
    numeric_type(9, 2): [None, b"0.00", b"-1234567.89"],
    array_type(simple_type(Kind.TEXT)): [None, b"{}", b'{NULL,"NULL",""}'],
}
NAMES = ("id", "v", "_op", "_values", "größe")


def make_schema(rng: random.Random, table: int) -> TableSchema:
    names = rng.sample(NAMES, rng.randint(0, len(NAMES)))
    keys = rng.sample(names, rng.randint(0, len(names)))
    columns = tuple(
        Column(name, rng.choice(list(TEXTS)), key_ordinal=keys.index(name) if name in keys else None) for name in names
    )
    identity = rng.choice(list(ReplicaIdentity))
    return TableSchema(TableId(table), TableName("public", f"t{table}"), columns, identity)


def make_row(rng: random.Random, columns: tuple[Column, ...]) -> tuple[Text, ...]:
    return tuple(rng.choice(TEXTS[column.type]) for column in columns)


def make_batch(rng: random.Random, schema: TableSchema) -> pa.RecordBatch:
    changes = [
        Change(
            rng.choice("IUD"),
            make_row(rng, schema.columns),
            Transaction(Lsn(10 + number), number, 7),
            number,
            rng.choice([None, make_row(rng, schema.key)]),
            rng.choice([None, make_row(rng, schema.columns)]),
            rng.choice([None, rng.sample(schema.column_names, rng.randint(0, len(schema.columns)))]),
        )
        for number in range(rng.randint(1, 5))
    ]
    return text_batch(schema, changes)


def assert_equal(actual: pa.Table, expected: pa.Table) -> None:
    actual.validate(full=True)
    assert actual.schema.equals(expected.schema)
    assert actual.combine_chunks().equals(expected.combine_chunks())


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32))
def test_packed_rows_are_unpacked_as_they_were_and_convert_to_the_same(seed: int) -> None:
    rng = random.Random(seed)
    tables = [make_schema(rng, table) for table in (1, 2)]
    parts = [(schema, version, make_batch(rng, schema)) for schema in tables for version in (1, 2)]
    shared = pa.concat_tables(
        pack_rows(pa.Table.from_batches([batch]), schema, version) for schema, version, batch in parts
    )
    for schema, version, batch in parts:
        text = unpack_rows(shared, schema, version)
        assert_equal(text, pa.Table.from_batches([batch]))
        [again] = text.combine_chunks().to_batches()
        assert convert_rows(again, schema, DEFAULT_POLICIES).equals(convert_rows(batch, schema, DEFAULT_POLICIES))


def with_dates(table: int, *texts_: Text) -> tuple[TableSchema, pa.RecordBatch]:
    columns = (Column("id", simple_type(Kind.INT4), key_ordinal=0), Column("day", simple_type(Kind.DATE)))
    schema = TableSchema(TableId(table), TableName("public", f"t{table}"), columns, ReplicaIdentity.FULL)
    transaction = Transaction(Lsn(10), 0, 7)
    changes = [
        Change("U", (str(number).encode(), text), transaction, number, (b"0",), (b"0", text))
        for number, text in enumerate(texts_, start=1)
    ]
    return schema, text_batch(schema, changes)


def write_files(root: Path, segment: Segment) -> tuple[DataFile, ...]:
    return write_data(Folder.on_disk(root), segment, empty_entry(1, "0" * 32, Lsn(1)), DEFAULT_POLICIES).files


def write(root: Path, tables: list[tuple[TableSchema, pa.RecordBatch]]) -> tuple[DataFile, ...]:
    segment = Segment()
    for schema, batch in tables:
        segment.add_rows(schema, 1, batch)
    return write_files(root, segment)


def test_typed_and_shared_files_give_equal_tables(tmp_path: Path) -> None:
    schema, batch = with_dates(1, b"2024-02-29", None, b"0001-01-01")
    [typed] = write(tmp_path / "typed", [(schema, batch)])
    shared, *_ = write(tmp_path / "shared", [(schema, batch), *(with_dates(table, None) for table in range(2, 40))])
    assert (typed.is_shared, shared.is_shared, typed.problem) == (False, True, None)
    expected = pa.Table.from_batches([convert_rows(batch, schema, DEFAULT_POLICIES)])
    assert_equal(read_rows(Folder.on_disk(tmp_path / "typed"), typed, schema, DEFAULT_POLICIES), expected)
    assert_equal(read_rows(Folder.on_disk(tmp_path / "shared"), shared, schema, DEFAULT_POLICIES), expected)


@pytest.mark.parametrize("policy", [SpecialValues.NULL, SpecialValues.CLAMP])
def test_a_file_of_text_is_converted_by_the_policy_of_its_reader(tmp_path: Path, policy: SpecialValues) -> None:
    schema, batch = with_dates(1, b"2024-02-29", b"infinity", b"4713-01-01 BC")
    [file] = write(tmp_path, [(schema, batch)])
    assert file.problem is not None
    assert "public.t1, column day" in file.problem
    with pytest.raises(UnconvertibleValueError):
        read_rows(Folder.on_disk(tmp_path), file, schema, DEFAULT_POLICIES)
    other = ValuePolicies(policy)
    expected = pa.Table.from_batches([convert_rows(batch, schema, other)])
    assert_equal(read_rows(Folder.on_disk(tmp_path), file, schema, other), expected)


def test_every_form_of_a_table_without_columns_is_read_back(tmp_path: Path) -> None:
    schema = TableSchema(TableId(1), TableName("public", "t"), (), ReplicaIdentity.FULL)
    batch = text_batch(schema, [Change("I", (), Transaction(Lsn(1), 0, 7), 1)])
    [own] = write(tmp_path / "own", [(schema, batch)])
    shared, *_ = write(tmp_path / "shared", [(schema, batch), *(with_dates(table, None) for table in range(2, 40))])
    expected = pa.Table.from_batches([batch])
    assert_equal(read_rows(Folder.on_disk(tmp_path / "own"), own, schema, DEFAULT_POLICIES), expected)
    assert_equal(read_rows(Folder.on_disk(tmp_path / "shared"), shared, schema, DEFAULT_POLICIES), expected)


def one_file(root: Path) -> DataFile:
    segment = make_segment(10, [(str(number).encode(), b"v" * number) for number in range(50)])
    [file] = write_files(root, segment)
    return file


def test_a_flipped_bit_in_the_data_is_found_and_the_file_is_named(tmp_path: Path) -> None:
    file = one_file(tmp_path)
    path, expected = (
        tmp_path / file.path,
        read_rows(Folder.on_disk(tmp_path), one_file(tmp_path), two_column_table(), DEFAULT_POLICIES),
    )
    written = path.read_bytes()
    footer = len(written) - 8 - int.from_bytes(written[-8:-4], "little")
    found = 0
    for place in range(4, footer, 3):
        path.write_bytes(written[:place] + bytes([written[place] ^ 0x10]) + written[place + 1 :])
        try:
            # Where it is not found it changes nothing: a page's header has more than a reader needs.
            assert_equal(read_rows(Folder.on_disk(tmp_path), file, two_column_table(), DEFAULT_POLICIES), expected)
        except LogDamagedError as error:
            assert file.path in error.message  # noqa: PT017
            found += 1
    assert found > 0.8 * footer / 3


def test_a_file_with_other_columns_or_rows_than_the_manifest_says_is_damaged(tmp_path: Path) -> None:
    file, schema = one_file(tmp_path), two_column_table()
    with pytest.raises(LogDamagedError, match=f"{file.path}.*50 rows instead of 49"):
        read_rows(Folder.on_disk(tmp_path), replace(file, rows=49), schema, DEFAULT_POLICIES)
    renamed = TableSchema(schema.id, schema.name, (schema.columns[0], Column("w", simple_type(Kind.TEXT))))
    assert log_schema(renamed) != log_schema(schema)
    with pytest.raises(LogDamagedError, match=f"{file.path}.*other columns"):
        read_rows(Folder.on_disk(tmp_path), file, renamed, DEFAULT_POLICIES)


@pytest.mark.parametrize("content", [None, b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_file_that_is_no_file_of_ours_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = one_file(tmp_path)
    (tmp_path / file.path).unlink()
    if content is not None:
        (tmp_path / file.path).write_bytes(content)
    with pytest.raises(LogDamagedError, match=file.path):
        read_rows(Folder.on_disk(tmp_path), file, two_column_table(), DEFAULT_POLICIES)
