from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.key import KeySet, comparable, number_keys
from penstock.lake.locate import Found, LakeFiles
from penstock.lake.search import KeyCache, Search, SearchedFile
from penstock.storage.local import LOCAL
from penstock.testing.batch import no_spark

ID = pa.schema([("id", pa.int64())])


def files_of(key: pa.Schema) -> LakeFiles:
    return LakeFiles(LOCAL, key)


def found(result: Found) -> list[tuple[int, int]]:
    return list(zip(result.places.tolist(), result.numbers.tolist(), strict=True))


@given(st.lists(st.integers(0, 20), max_size=40), st.sets(st.integers(0, 20), min_size=1), st.integers(1, 7))
def test_every_place_of_a_key_is_found_whatever_the_row_groups(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], keys: set[int], group: int
) -> None:
    path = str(tmp_path_factory.mktemp("file") / "f.parquet")
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "x": ["v"] * len(ids)}), path, row_group_size=group)
    wanted = sorted(keys)
    held = KeySet((pa.array(wanted, pa.int64()),))
    expected = [(place, wanted.index(id_)) for place, id_ in enumerate(ids) if id_ in keys]
    assert found(files_of(ID).find(path, held)) == expected
    kept = files_of(ID).keys(path, 1 << 20)
    assert kept is not None
    assert kept[0].to_pylist() == ids


def test_a_key_of_several_columns_with_any_names_is_found(tmp_path: Path) -> None:
    path = str(tmp_path / "f.parquet")
    key = pa.schema([("b.c", pa.string()), ("a", pa.list_(pa.float64()))])
    rows = pa.table({"b": [{"c": "not this"}] * 3, "a": pa.array([[0.0], [None], [-0.0]], key.field("a").type)})
    pq.write_table(rows.append_column("b.c", pa.array(["x", "x", "x"])), path)
    _numbers, keys = number_keys([pa.array(["x"]), pa.array([[0.0]], key.field("a").type)])
    assert found(files_of(key).find(path, keys)) == [(0, 0), (2, 0)]


def test_timestamps_as_spark_writes_them_are_found_in_every_year(tmp_path: Path) -> None:
    path = str(tmp_path / "f.parquet")
    moments = [dt.datetime(1, 1, 1, 0, 0, 0, 1, dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, dt.UTC)]
    column = pa.array(moments, pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"at": column}), path, use_deprecated_int96_timestamps=True)
    key = pa.schema([("at", pa.timestamp("us", "UTC"))])
    assert found(files_of(key).find(path, KeySet((column,)))) == [(0, 0), (1, 1)]


def test_row_groups_outside_the_keys_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"id": np.arange(1000)}), path, row_group_size=100, compression="none")
    start = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    damaged = bytearray(path.read_bytes())
    damaged[start : start + 20] = b"\xff" * 20
    path.write_bytes(damaged)
    assert found(files_of(ID).find(str(path), KeySet((pa.array([555, 999]),)))) == [(555, 0), (999, 1)]
    with pytest.raises(OSError, match=r".*"):
        files_of(ID).find(str(path), KeySet((pa.array([5]),)))


@given(st.sets(st.integers(0, 9_999)), st.integers(1, 5_000))
def test_values_come_from_the_places_asked_for_in_order(
    tmp_path_factory: pytest.TempPathFactory, places: set[int], group: int
) -> None:
    path = str(tmp_path_factory.getbasetemp() / f"values-{group}.parquet")
    if not Path(path).exists():
        pq.write_table(pa.table({"id": np.arange(10_000), "v": np.arange(10_000) * 2}), path, row_group_size=group)
    at = np.array(sorted(places), np.int64)
    tables = list(files_of(ID).values(path, pa.schema([("v", pa.int32())]), at))
    assert [value for table in tables for value in table.column("v").to_pylist()] == (at * 2).tolist()
    assert files_of(ID).rows(path) == 10_000


@pytest.fixture
def three_files(tmp_path: Path) -> list[SearchedFile]:
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"id": np.arange(10) + number * 5}), path)
    return [SearchedFile(str(path), 10) for path in paths]


def test_what_is_kept_in_memory_finds_what_the_files_find(three_files: list[SearchedFile]) -> None:
    search = Search(no_spark)
    keys = KeySet((pa.array([14, 7, 100]),))
    expected: list[list[tuple[int, int]]] = [[(7, 1)], [(2, 1), (9, 0)], [(4, 0)]]
    first = [found(each) for each in search.find(files_of(ID), three_files[:2], keys)]
    assert first == expected[:2]
    for file in three_files[:2]:
        Path(file.path).unlink()
    again = [found(each) for each in search.find(files_of(ID), three_files, keys)]
    assert again == expected
    assert search.find(files_of(ID), [], keys) == []
    search.close()


def test_large_files_are_read_a_batch_at_a_time_and_not_kept(three_files: list[SearchedFile]) -> None:
    search = Search(no_spark)
    keys = KeySet((pa.array([14]),))
    large = [SearchedFile(file.path, 1 << 20) for file in three_files]
    assert [found(each) for each in search.find(files_of(ID), large, keys)] == [[], [(9, 0)], [(4, 0)]]
    Path(large[0].path).unlink()
    with pytest.raises(FileNotFoundError):
        search.find(files_of(ID), large, keys)
    search.close()


def test_keys_that_are_too_large_are_not_read_at_once(three_files: list[SearchedFile]) -> None:
    assert files_of(ID).keys(three_files[0].path, 10) is None


def test_the_cache_stays_within_its_bound_and_keeps_what_was_used_last() -> None:
    columns = [comparable(pa.array(range(10), pa.int64()))]
    cache = KeyCache(3 * 80)
    for name in "abc":
        cache.put(files_of(ID), name, columns)
    assert cache.get(files_of(ID), "a") is columns
    cache.put(files_of(ID), "d", columns)
    assert [name for name in "abcd" if cache.get(files_of(ID), name)] == ["a", "c", "d"]
    cache.put(files_of(ID), "d", columns)
    assert cache.get(files_of(ID), "a") is columns


def test_a_table_whose_key_changed_is_not_searched_by_its_former_key(three_files: list[SearchedFile]) -> None:
    cache = KeyCache(1 << 20)
    cache.put(files_of(ID), three_files[0].path, [pa.array([1])])
    other: Any = pa.schema([("name", pa.string())])
    assert cache.get(files_of(other), three_files[0].path) is None
