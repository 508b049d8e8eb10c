"""Whatever happens to a file of the log is found and named; what the writer does meanwhile is not damage."""

from __future__ import annotations

import shutil
from typing import Any

import pyarrow.parquet as pq
import pytest
from plugins.written_log import PLACES, Did, LogPlace, WrittenLog, make_place, orders, row

from penstock.changelog.entry import decode_entry, encode_entry, entry_name
from penstock.changelog.verification import Damage, Verification
from penstock.errors import LogDamagedError
from penstock.model.lsn import Lsn

ORDERS = orders()
FIRST_ENTRY = "entries/000000000001.json"


@pytest.fixture(params=PLACES)
def log_place(request: pytest.FixtureRequest) -> LogPlace:
    return make_place(request)


@pytest.fixture
def log(written_log: WrittenLog) -> WrittenLog:
    """Three transactions, the second in parts."""
    written_log.commit(Did(ORDERS, "I", row(1)), Did(ORDERS, "I", row(2)))
    written_log.commit(Did(ORDERS, "U", row(2), old_key=[b"1"]), is_complete=False)
    written_log.commit(Did(ORDERS, "D", row(2, None, None, None)))
    written_log.idle()
    written_log.commit(Did(ORDERS, "T"))
    return written_log


def damages(log: WrittenLog) -> dict[str, str]:
    return {damage.path: damage.what for damage in Verification(log.folder).run()}


def test_a_sound_log_has_no_damage_and_every_entry_is_read(log: WrittenLog) -> None:
    verification = Verification(log.folder)
    seen: list[int] = []
    assert verification.run(lambda entry: seen.append(entry.sequence)) == []
    assert seen == [1, 2, 3, 4, 5]
    assert verification.size_bytes == sum(entry.size_bytes for entry in log.entries)


def test_a_shared_file_is_sound_too(written_log: WrittenLog) -> None:
    written_log.commit(*(Did(orders(16385 + n, name=f"t{n}"), "I", row(n)) for n in range(40)))
    assert damages(written_log) == {}


def test_an_empty_log_is_sound(written_log: WrittenLog) -> None:
    assert damages(written_log) == {}


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("first file", "is missing"),
        ("first list", "is missing"),
        ("entries/000000000003.json", "is missing"),
        ("schemas/16385-1.json", "is missing, or fails its checksum"),
    ],
)
def test_a_missing_file_is_named(log: WrittenLog, path: str, what: str) -> None:
    path = {"first file": log.entries[0].paths[0], "first list": log.entries[0].paths[1]}.get(path, path)
    (log.root / path).unlink()
    assert damages(log) == {path: what}


def test_a_damaged_entry_is_named_and_the_others_are_still_read(log: WrittenLog) -> None:
    (log.root / FIRST_ENTRY).write_bytes(b"{}\n00000000\n")
    path = log.entries[2].files[0].path
    (log.root / path).write_bytes(b"no parquet")
    assert damages(log) == {
        FIRST_ENTRY: "fails its checksum",
        path: "cannot be read as it was written",
    }


def test_a_damaged_header_is_an_error_that_names_it(log: WrittenLog) -> None:
    (log.root / "LOG-000000000001.json").write_bytes(b"{}\n00000000\n")
    with pytest.raises(LogDamagedError, match=r"LOG-000000000001\.json fails its checksum"):
        Verification(log.folder)


def test_an_entry_under_another_name_is_named(log: WrittenLog) -> None:
    shutil.copy(log.root / "entries" / entry_name(5), log.root / "entries" / entry_name(6))
    assert damages(log) == {"entries/000000000006.json": "is entry 5 under another name"}


@pytest.mark.parametrize("shift", [-1, 1], ids=["overlap", "hole"])
def test_an_entry_that_does_not_begin_where_the_one_before_ends_is_named(log: WrittenLog, shift: int) -> None:
    path = log.root / "entries" / entry_name(4)
    entry = decode_entry(path.read_bytes(), "x")
    moved = type(entry)(**{**fields(entry), "start_lsn": Lsn(entry.start_lsn + shift)})
    path.write_bytes(encode_entry(moved))
    assert list(damages(log)) == ["entries/000000000004.json"]


def fields(entry: Any) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__slots__}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"rows": 3, "inserts": 3}, "has 2 rows, the entry says 3"),
        ({"inserts": 1, "updates": 1}, "has other operations of public.orders than the entry says"),
        ({"first_lsn": Lsn(1)}, "has changes of public.orders at other positions than the entry says"),
        ({"size_bytes": 7}, "bytes, the entry says 7"),
        ({"problem": "made up"}, "does not have the columns of public.orders at version 1"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_a_file_that_differs_from_its_entry_is_named(log: WrittenLog, change: dict[str, Any], what: str) -> None:
    path = log.root / FIRST_ENTRY
    entry = decode_entry(path.read_bytes(), "x")
    [file] = entry.files
    other = type(file)(**{**fields(file), **change})
    path.write_bytes(encode_entry(type(entry)(**{**fields(entry), "files": (other,)})))
    found = damages(log)
    assert list(found) == [file.path]
    assert found[file.path].endswith(what)


def test_a_list_of_other_transactions_is_named(log: WrittenLog) -> None:
    file, listed = log.entries[0].paths
    shutil.copy(log.root / file, log.root / listed)
    assert damages(log) == {listed: "does not have the columns of a list of transactions"}


@pytest.mark.slow
@pytest.mark.parametrize("log_place", ["disk"], indirect=True)
def test_any_damaged_byte_of_a_data_file_is_found_or_changes_no_row(written_log: WrittenLog) -> None:
    written_log.commit(Did(ORDERS, "U", row(1), old_key=[b"2"], unchanged=["note"]))
    path = written_log.root / written_log.entries[0].paths[0]
    content, rows = path.read_bytes(), pq.read_table(path, partitioning=None)
    unnoticed = []
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        if not damages(written_log) and not pq.read_table(path, partitioning=None).equals(rows):
            unnoticed.append(position)
    assert unnoticed == []


def test_what_is_trimmed_meanwhile_is_not_damage(log: WrittenLog) -> None:
    verification = Verification(log.folder)
    log.trim(log.entries[3].end_lsn)
    assert verification.run() == []


def test_an_open_transaction_that_is_replaced_meanwhile_is_not_damage(log: WrittenLog) -> None:
    log.commit(Did(ORDERS, "I", row(7)), is_complete=False)
    verification = Verification(log.folder)
    log.close()
    log.entries.pop()
    log.changes = 0
    log.commit(Did(ORDERS, "I", row(7)), Did(ORDERS, "I", row(8)))
    assert verification.run() == []
    assert damages(log) == {}


def test_what_a_trim_left_over_when_it_was_cut_off_is_not_damage(log: WrittenLog) -> None:
    """After a power cut entries below the start may be there without their data."""
    kept = log.root.with_name("copy")
    shutil.copytree(log.root / "entries", kept)
    log.trim(log.entries[2].end_lsn)
    shutil.copytree(kept, log.root / "entries", dirs_exist_ok=True)
    verification = Verification(log.folder)
    assert verification.run() == []
    assert [entry.sequence for entry in verification.entries] == [4, 5]


def test_the_same_damage_is_told_once(log: WrittenLog) -> None:
    (log.root / "schemas/16385-1.json").unlink()
    assert Verification(log.folder).run() == [Damage("schemas/16385-1.json", "is missing, or fails its checksum")]
