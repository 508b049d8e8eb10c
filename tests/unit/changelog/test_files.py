"""How a segment is spread over files: few of them, bounded memory, and a manifest that tells the truth."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.changelog import files as files_module
from penstock.changelog.entry import DataFile, empty_entry
from penstock.changelog.files import write_data
from penstock.changelog.folder import Folder
from penstock.changelog.rows import read_rows
from penstock.changelog.segment import TRANSACTIONS_SCHEMA, Segment
from penstock.model.lsn import Lsn
from penstock.model.policy import DEFAULT_POLICIES
from penstock.testing.changelog import make_segment, two_column_table

ENTRY = empty_entry(1, "0123456789abcdef", Lsn(1))
PLACE = "000000000001-01234567"


def write_files(root: Path, segment: Segment) -> tuple[DataFile, ...]:
    return write_data(Folder.on_disk(root), segment, ENTRY, DEFAULT_POLICIES).files


def many_tables(sizes: list[int]) -> Segment:
    """Return a segment in which each table has one row with a text of a size."""
    segment = Segment()
    for table, size in enumerate(sizes, start=1):
        for rows in make_segment(10 + table, [(b"1", b"x" * size)], table=table).tables.values():
            segment.add_rows(rows.schema, rows.version, rows.batches[0])
    return segment


@pytest.mark.parametrize(("small", "large"), [(1, 0), (0, 1), (16, 2), (17, 2), (60, 0)])
def test_files_are_few_whatever_the_number_of_tables_and_every_table_is_read_back(
    tmp_path: Path, small: int, large: int
) -> None:
    segment = many_tables([10] * small + [300_000] * large)
    files = write_files(tmp_path, segment)
    paths = {file.path for file in files}
    assert len(paths) == large + (small if small <= 16 else 1)
    assert [file.table for file in files if file.is_shared] == ([] if small <= 16 else list(range(1, small + 1)))
    assert sum(file.size_bytes for file in files) == sum((tmp_path / path).stat().st_size for path in paths)
    for file in files:
        table = read_rows(Folder.on_disk(tmp_path), file, two_column_table(file.table), DEFAULT_POLICIES)
        assert table.column("_commit_lsn").to_pylist() == [10 + file.table]
        assert table.column("id").to_pylist() == [1]


def test_rows_are_encoded_in_groups_of_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = Segment()
    for number in range(10):
        for rows in make_segment(10 + number, [(b"%d" % number, b"x" * 1000)]).tables.values():
            segment.add_rows(rows.schema, rows.version, rows.batches[0])
    [table] = segment.tables.values()
    monkeypatch.setattr(files_module, "_ROW_GROUP_BYTES", 3 * table.batches[0].nbytes)
    [file] = write_files(tmp_path, segment)
    metadata = pq.read_metadata(tmp_path / file.path)
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [3, 3, 3, 1]
    read = read_rows(Folder.on_disk(tmp_path), file, two_column_table(), DEFAULT_POLICIES)
    assert read.column("id").to_pylist() == list(range(10))
    assert (file.rows, file.inserts, file.first_lsn, file.last_lsn) == (10, 10, 10, 19)


def test_a_table_and_each_of_its_versions_have_files_of_their_own(tmp_path: Path) -> None:
    segment = Segment()
    for version in (1, 2):
        for rows in make_segment(10 + version, [(b"1", b"v")]).tables.values():
            segment.add_rows(rows.schema, version, rows.batches[0])
    files = write_files(tmp_path, segment)
    assert [file.path for file in files] == [f"data/{PLACE}/1-1.parquet", f"data/{PLACE}/1-2.parquet"]
    assert [file.first_lsn for file in files] == [11, 12]


def test_transactions_are_listed_in_their_order(tmp_path: Path) -> None:
    segment = Segment()
    for number in range(3):
        for batch in make_segment(10 + number, []).transactions:
            segment.add_transactions(batch)
    written = write_data(Folder.on_disk(tmp_path), segment, ENTRY, DEFAULT_POLICIES)
    assert (written.files, written.paths) == ((), [f"data/{PLACE}/transactions.parquet"])
    read = pq.read_table(tmp_path / written.paths[0])
    assert read.equals(pa.Table.from_batches(segment.transactions, TRANSACTIONS_SCHEMA))
    assert read.column("commit_lsn").to_pylist() == [10, 11, 12]
