"""Files on a disk and in a bucket keep one contract: what is written is there whole or not at all, and once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plugins.s3 import Bucket

from penstock.changelog.folder import Folder, require_place
from penstock.contract.files import Files
from penstock.destinations.delta.validate import check_lake
from penstock.errors import ConfigError, DestinationError, ErrorKind, PenstockError
from penstock.storage.local import LOCAL, LocalFiles, new_file
from penstock.storage.place import files_at
from penstock.storage.s3 import S3Files

pytestmark = pytest.mark.spark  # whose Java the store runs on

LARGE = 25_000_000
"""More than is uploaded in one piece."""


@pytest.fixture(params=["disk", "bucket"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    """Files, and a folder among them."""
    if request.param == "disk":
        return LOCAL, str(tmp_path)
    bucket: Bucket = request.getfixturevalue("bucket")
    return files_at(f"s3://{bucket.name}/lake", bucket.settings), "a/lake"


def put(files: Files, path: str, content: bytes) -> None:
    with new_file(files, path) as new:
        new.file.write(content)


def fail_behind(files: Files, path: str, size: int) -> None:
    with new_file(files, path) as new:
        new.file.write(bytes(size))
        raise ZeroDivisionError


def test_a_file_is_read_whole_in_part_and_by_name(lake: tuple[Files, str]) -> None:
    files, folder = lake
    files.make_folder(f"{folder}/log")
    put(files, f"{folder}/log/one", b"0123456789")
    put(files, f"{folder}/two", b"")
    assert files.read(f"{folder}/log/one") == b"0123456789"
    assert files.read(f"{folder}/log/one", 3, 4) == b"3456"
    assert files.read(f"{folder}/none") is None
    assert (files.names(f"{folder}/log"), files.names(f"{folder}/none")) == (["one"], [])
    files.remove(f"{folder}/log/one")
    files.remove(f"{folder}/log/one")
    assert files.read(f"{folder}/log/one") is None


def test_a_file_that_fails_half_way_leaves_nothing(lake: tuple[Files, str]) -> None:
    files, folder = lake
    for size in (10, LARGE):
        with pytest.raises(ZeroDivisionError):
            fail_behind(files, f"{folder}/x", size)
        assert files.names(folder) == []


def test_a_finished_file_can_still_be_discarded(lake: tuple[Files, str]) -> None:
    files, folder = lake
    new = files.create(f"{folder}/x")
    new.file.write(b"123")
    new.finish()
    assert (new.size, files.read(f"{folder}/x")) == (3, b"123")
    new.discard()
    assert files.names(folder) == []


@pytest.mark.parametrize("rows", [10, LARGE // 8])
def test_parquet_of_any_size_is_written_and_read_where_it_is(lake: tuple[Files, str], rows: int) -> None:
    files, folder = lake
    table = pa.table({"id": np.random.default_rng(1).integers(0, 1 << 60, rows), "n": pa.nulls(rows, pa.int8())})
    with new_file(files, f"{folder}/t.parquet") as new:
        pq.write_table(table, new.file, compression="none", use_dictionary=False)
    same = pickle.loads(pickle.dumps(files))
    read = pq.ParquetFile(same.open(f"{folder}/t.parquet"))
    assert read.read(["n", "id"]).select(["id", "n"]).equals(table)
    with pytest.raises(FileNotFoundError):
        files.open(f"{folder}/none")


def test_of_writers_at_once_one_makes_the_file(lake: tuple[Files, str]) -> None:
    files, folder = lake
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            place = f"{folder}/{number:020d}.json"
            contents = [f"writer {writer}".encode() for writer in range(8)]
            made = list(pool.map(lambda content, to=place: files.put_if_absent(to, content), contents))
            assert made.count(True) == 1
            assert files.read(place) == contents[made.index(True)]
    assert len(files.names(folder)) == 20


def test_what_changes_with_a_file_is_its_identity(lake: tuple[Files, str]) -> None:
    files, folder = lake
    assert files.identity(f"{folder}/x") is None
    put(files, f"{folder}/x", b"1")
    first = files.identity(f"{folder}/x")
    assert first == files.identity(f"{folder}/x")
    files.remove(f"{folder}/x")
    put(files, f"{folder}/x", b"2")
    assert files.identity(f"{folder}/x") != first


def test_a_refusal_by_what_an_attempt_of_ours_left_is_none(bucket: Bucket) -> None:
    files = S3Files(bucket.name, bucket.settings)
    assert files.put_if_absent("entry", b"ours")
    assert files.put_if_absent("entry", b"ours")
    assert not files.put_if_absent("entry", b"theirs")


def denied(bucket: Bucket) -> Files:
    return S3Files(bucket.name, replace(bucket.settings, secret_access_key="wrong"))


def missing(bucket: Bucket) -> Files:
    return S3Files("no-such-bucket", bucket.settings)


@pytest.mark.parametrize("files_of", [denied, missing])
def test_a_store_that_cannot_be_written_is_named_without_its_secret(
    bucket: Bucket, files_of: Callable[[Bucket], S3Files]
) -> None:
    files = files_of(bucket)
    place = f"s3://{files.bucket}/lake"
    with pytest.raises(DestinationError, match=rf"{place} .*: (there is no bucket|the object store denies)") as raised:
        check_lake(place, files)
    assert raised.value.kind is ErrorKind.DESTINATION_PERMISSION_DENIED
    assert "wrong" not in f"{raised.value!r} {raised.value.__cause__!r} {files!r}"


def test_another_bucket_is_not_taken_for_ours(bucket: Bucket) -> None:
    with pytest.raises(OSError, match="not in the bucket"):
        S3Files(bucket.name, bucket.settings).path("s3://another/lake/t")


class Careless(LocalFiles):
    """A store that ignores the condition of a PUT, as some do."""

    def put_if_absent(self, path: str, content: bytes) -> bool:
        Path(path).write_bytes(content)
        return True


def test_a_store_that_lets_writers_overwrite_each_other_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match="overwrite") as raised:
        check_lake(str(tmp_path), Careless())
    assert raised.value.kind is ErrorKind.DESTINATION_UNSUPPORTED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "secret", "what"),
    [("no-such-bucket", None, "there is no bucket no-such-bucket"), (None, "wrong", "the object store denies access")],
)
def test_a_place_where_no_log_can_be_written_is_named_without_its_secret(
    bucket: Bucket, name: str | None, secret: str | None, what: str
) -> None:
    settings = replace(bucket.settings, secret_access_key=secret) if secret else bucket.settings
    place = f"s3://{name or bucket.name}/log"
    with pytest.raises(PenstockError, match=f"{what}: {place}") as raised:
        require_place(Folder(place, settings))
    assert raised.value.kind is ErrorKind.LOG_IO
    assert "pipeline.log.location" in raised.value.remedy
    assert "wrong" not in f"{raised.value!r} {raised.value.__cause__!r}"


def test_a_log_is_not_put_where_writers_overwrite_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalFiles, "put_if_absent", Careless.put_if_absent)
    with pytest.raises(ConfigError, match=f"at {tmp_path} one writer can overwrite"):
        require_place(Folder.on_disk(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_folders_and_files_are_listed_and_removed_together(lake: tuple[Files, str]) -> None:
    files, folder = lake
    for name in ("one/a", "one/b", "two/c"):
        files.make_folder(f"{folder}/{name[:3]}")
        put(files, f"{folder}/{name}", b"1")
    assert sorted(files.folders(folder)) == ["one", "two"]
    files.remove_all([f"{folder}/one/a", f"{folder}/one/none"])
    assert files.names(f"{folder}/one") == ["b"]
    files.remove_folder(f"{folder}/two")
    files.remove_folder(f"{folder}/none")
    assert (files.folders(folder), files.folders(f"{folder}/none")) == (["one"], [])
    files.sync(folder)
