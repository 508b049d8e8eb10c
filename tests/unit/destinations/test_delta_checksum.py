"""What is written beside each version of a Delta table; that Spark finds it right is tested with Spark."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.destinations.delta.checksum import remove_checksums, write_checksum
from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.log import Member, TableState

STATE = TableState(
    7,
    {(name, None): Member({"path": name, "size": size}) for name, size in (("a", 10), ("b", 32))},
    metadata={"id": "x", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [], "configuration": {}},
    protocol={"minReaderVersion": 3},
)
CHECKSUM = f"_delta_log/{7:020d}.crc"


@pytest.fixture
def folder(tmp_path: Path) -> TableFolder:
    (tmp_path / "_delta_log").mkdir()
    return TableFolder(str(tmp_path))


def names(folder: TableFolder) -> list[str]:
    return sorted(folder.names("_delta_log"))


def test_a_checksum_counts_the_files_of_its_version(folder: TableFolder) -> None:
    write_checksum(folder, STATE)
    [found] = (json.loads(line) for line in (folder.read(CHECKSUM) or b"").splitlines())
    assert (found["numFiles"], found["tableSizeBytes"]) == (2, 42)
    assert (found["metadata"], found["protocol"]) == (STATE.metadata, STATE.protocol)


def test_what_an_entry_left_whose_number_is_given_again_is_removed(folder: TableFolder) -> None:
    folder.put_if_absent(CHECKSUM, b"of another history")
    write_checksum(folder, STATE)
    assert names(folder) == []


@pytest.mark.parametrize(
    "lacking",
    [
        {"format": {"provider": "parquet"}},
        {"configuration": None},
        {"configuration": {"a": None}},
        {"partitionColumns": None},
    ],
    ids=str,
)
def test_metadata_that_says_less_than_it_should_gets_none(folder: TableFolder, lacking: dict[str, Any]) -> None:
    write_checksum(folder, replace(STATE, metadata={**STATE.metadata, **lacking}))
    assert names(folder) == []


def test_a_checksum_that_cannot_be_written_is_told_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        write_checksum(TableFolder(str(tmp_path / "gone")), STATE)
    assert "got no checksum" in caplog.text


def test_only_checksums_of_earlier_versions_are_removed(folder: TableFolder) -> None:
    kept = [f"{5:020d}.json", f"{7:020d}.crc", f"{8:020d}.crc"]
    for name in (*kept, f"{0:020d}.crc", f"{6:020d}.crc"):
        folder.put_if_absent(f"_delta_log/{name}", b"")
    remove_checksums(folder, 7)
    assert names(folder) == kept


def test_checksums_that_cannot_be_removed_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / CHECKSUM).mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        remove_checksums(TableFolder(str(tmp_path)), 8)
    assert "were not removed" in caplog.text
