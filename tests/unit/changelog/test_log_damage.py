"""A damaged file of the log is named by whoever opens the log, and nothing is removed or passed over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from plugins.written_log import PLACES, Did, LogPlace, WrittenLog, make_place, orders, row

from penstock.changelog.folder import Folder
from penstock.changelog.reader import LogReader
from penstock.changelog.writer import LogWriter
from penstock.errors import ErrorKind, LogDamagedError
from penstock.model.policy import ValuePolicies
from penstock.testing.capture import leftovers, logged_changes

ENTRIES = 4
LAST = f"entries/{ENTRIES:012d}.json"


@pytest.fixture(params=PLACES)
def log_place(request: pytest.FixtureRequest) -> LogPlace:
    return make_place(request)


@pytest.fixture
def log(written_log: WrittenLog) -> WrittenLog:
    for key in range(ENTRIES):
        written_log.commit(Did(orders(), "I", row(key)))
    return written_log


def claim(folder: Folder) -> None:
    writer = LogWriter(folder, ValuePolicies())
    writer.claim()
    writer.drop_leftovers()
    writer.close()


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def shorten(content: bytes) -> bytes:
    return content[: len(content) // 2]


def empty(_: bytes) -> bytes:
    return b""


def drop_checksum(content: bytes) -> bytes:
    return content.splitlines(keepends=True)[0]


def files_of(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "LOCK"}


@pytest.mark.parametrize("harm", [flip, shorten, empty, drop_checksum])
@pytest.mark.parametrize("name", [LAST, "entries/000000000002.json", "LOG-000000000001.json", "schemas/16385-1.json"])
def test_a_damaged_file_stops_the_writer_by_its_name_and_stays(
    log: WrittenLog, name: str, harm: Callable[[bytes], bytes]
) -> None:
    (log.root / name).write_bytes(harm((log.root / name).read_bytes()))
    before = files_of(log.root)
    with pytest.raises(LogDamagedError, match=name):
        LogWriter(log.folder, ValuePolicies())
    assert files_of(log.root) == before


@pytest.mark.parametrize("missing", [2, 3])
def test_an_entry_that_is_missing_stops_the_writer_by_its_name_and_the_later_ones_stay(
    log: WrittenLog, missing: int
) -> None:
    name = f"entries/{missing:012d}.json"
    (log.root / name).unlink()
    before = files_of(log.root)
    with pytest.raises(LogDamagedError, match=f"{name} is missing"):
        LogWriter(log.folder, ValuePolicies())
    assert files_of(log.root) == before


@pytest.mark.parametrize("harm", [shorten, empty])
def test_a_damaged_data_file_is_named_when_it_is_read(log: WrittenLog, harm: Callable[[bytes], bytes]) -> None:
    [name] = [file.path for file in log.entries[1].files]
    (log.root / name).write_bytes(harm((log.root / name).read_bytes()))
    reader = LogReader(log.folder)
    reader.poll()
    with pytest.raises(LogDamagedError, match=name):
        logged_changes(reader, reader.start_lsn)


def test_a_trim_cut_off_inside_a_chain_hides_nothing_behind_it(written_log: WrittenLog) -> None:
    """The names that a trim removes may vanish in any order when the power fails."""
    written_log.commit(Did(orders(), "I", row(1)), is_complete=False)
    written_log.commit(Did(orders(), "I", row(2)))
    written_log.commit(Did(orders(), "I", row(3)))
    first = written_log.root / "entries/000000000001.json"
    content = first.read_bytes()
    written_log.trim(written_log.entries[1].end_lsn)
    first.write_bytes(content)
    claim(written_log.folder)
    reader = LogReader(written_log.folder)
    reader.poll()
    assert [change.key for change in logged_changes(reader, reader.start_lsn)] == ["3"]
    assert leftovers(written_log.root) == set()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=f"No such file or directory: {tmp_path}") as caught:
        LogWriter(Folder.on_disk(tmp_path / "gone"), ValuePolicies())
    assert getattr(caught.value, "kind", None) is ErrorKind.LOG_IO
