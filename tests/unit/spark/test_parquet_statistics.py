from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.contract.batch import CopiedFile
from penstock.spark.parquet import describe_file


def describe(path: Path, table: pa.Table) -> CopiedFile:
    pq.write_table(table, path, row_group_size=2)
    return describe_file(str(path), path.stat().st_size, pq.read_metadata(path))


def test_bounds_span_all_row_groups_and_nulls_are_counted(tmp_path: Path) -> None:
    found = describe(tmp_path / "f", pa.table({"n": pa.array([3, None, None, None, 7, 1], pa.int64())}))
    assert (found.rows, found.minimums, found.maximums, found.null_counts) == (6, {"n": 1}, {"n": 7}, {"n": 3})


def test_one_row_group_without_bounds_leaves_the_column_without(tmp_path: Path) -> None:
    # Parquet leaves out bounds of several kilobytes; skipping files by the others would lose rows.
    found = describe(tmp_path / "f", pa.table({"s": ["z" * 5000, "y", "a", "b"]}))
    assert (found.minimums, found.maximums, found.null_counts) == ({}, {}, {"s": 0})


def test_elements_of_lists_are_not_taken_for_the_column(tmp_path: Path) -> None:
    found = describe(tmp_path / "f", pa.table({"l": pa.array([[1], [2]], pa.list_(pa.int64()))}))
    assert (found.minimums, found.null_counts) == ({}, {})
