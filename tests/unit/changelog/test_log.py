"""The change log on a real disk: what is visible, what survives, what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from plugins.written_log import PLACES, LogPlace, make_place

from penstock import failpoint
from penstock.changelog.entry import decode_entry, encode_entry, entry_name
from penstock.changelog.reader import LogReader
from penstock.changelog.rows import read_parquet
from penstock.changelog.segment import Segment
from penstock.changelog.writer import LogWriter, create_log
from penstock.errors import ErrorKind, LogDamagedError, StateError
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableId
from penstock.testing.changelog import make_segment, two_column_table

START = Lsn(100)


@pytest.fixture(params=PLACES)
def log_place(request: pytest.FixtureRequest) -> LogPlace:
    return make_place(request)


@pytest.fixture
def log(log_place: LogPlace) -> LogPlace:
    create_log(log_place.folder, slot="s", system_identifier="1", start_lsn=START)
    return log_place


@contextmanager
def open_writer(log: LogPlace) -> Iterator[LogWriter]:
    writer = LogWriter(log.folder, ValuePolicies())
    try:
        writer.version_of(two_column_table())
        yield writer
    finally:
        writer.close()


def write(log: LogPlace, *commits: int) -> None:
    with open_writer(log) as writer:
        for commit in commits:
            writer.append(make_segment(commit, [(b"1", b"x")]), end_lsn=Lsn(commit + 1))


def read(log: LogPlace) -> LogReader:
    reader = LogReader(log.folder)
    reader.poll()
    return reader


def commits_in(reader: LogReader, start: int = 0, end: int = 1 << 40) -> list[int]:
    files = reader.files(TableId(1), max(Lsn(start), reader.start_lsn), Lsn(end))
    columns: list[Any] = [read_parquet(reader.folder, file.path).column("_commit_lsn").to_pylist() for file in files]
    return [lsn for column in columns for lsn in column]


def test_an_empty_log_ends_where_it_starts(log: LogPlace) -> None:
    reader = read(log)
    assert (reader.start_lsn, reader.end_lsn, reader.entries) == (START, START, ())


def test_what_is_appended_is_read_in_order(log: LogPlace) -> None:
    write(log, 110, 120, 130)
    reader = read(log)
    assert reader.end_lsn == 131
    assert commits_in(reader) == [110, 120, 130]
    assert commits_in(reader, 111, 130) == [120]


def test_a_reader_sees_what_is_appended_after_it_opened(log: LogPlace) -> None:
    reader = read(log)
    write(log, 110)
    assert reader.poll()
    assert not reader.poll()
    assert reader.end_lsn == 111


def test_an_open_transaction_is_invisible_until_its_commit(log: LogPlace) -> None:
    with open_writer(log) as writer:
        writer.append(make_segment(110, [(b"1", b"x")]), end_lsn=Lsn(111))
        writer.append(make_segment(120, [(b"2", b"x")], is_committed=False), end_lsn=None)
        reader = read(log)
        assert (reader.end_lsn, commits_in(reader)) == (111, [110])
        writer.append(make_segment(120, [(b"3", b"x")]), end_lsn=Lsn(121))
        reader.poll()
        assert (reader.end_lsn, commits_in(reader, 111)) == (121, [120, 120])


def test_a_restart_drops_the_open_transaction_and_takes_its_place(log: LogPlace) -> None:
    with open_writer(log) as writer:
        writer.append(make_segment(110, [(b"1", b"x")]), end_lsn=Lsn(111))
        writer.append(make_segment(120, [(b"2", b"x")], is_committed=False), end_lsn=None)
        writer.append(make_segment(120, [(b"3", b"x")], is_committed=False), end_lsn=None)
    waiting = read(log)
    with open_writer(log) as writer:
        assert writer.end_lsn == 111
        writer.claim()
        writer.drop_leftovers()
        writer.append(make_segment(120, [(b"2", b"x"), (b"3", b"x")]), end_lsn=Lsn(121))
    waiting.poll()
    assert commits_in(waiting) == [110, 120, 120]
    assert len(list((log.root / "data").iterdir())) == 2


def test_an_idle_entry_moves_the_end_without_files(log: LogPlace) -> None:
    with open_writer(log) as writer:
        writer.append(Segment(), end_lsn=Lsn(500))
    reader = read(log)
    assert reader.end_lsn == 500
    assert not log.folder.folders("data")


@pytest.mark.parametrize("log_place", ["disk"], indirect=True)
def test_a_log_on_a_disk_has_one_writer(log: LogPlace) -> None:
    with open_writer(log), pytest.raises(StateError) as raised:
        LogWriter(log.folder, ValuePolicies())
    assert raised.value.kind is ErrorKind.SLOT_IN_USE


@pytest.mark.parametrize("log_place", ["disk"], indirect=True)
def test_a_writer_removes_what_was_never_finished_but_not_what_a_starting_pipeline_is_about_to(log: LogPlace) -> None:
    cut_off, probe = log.root / ".LOG-2.abc.tmp", log.root / "..penstock-probe-1.abc.tmp"
    for file in (cut_off, probe):
        file.touch()
    with open_writer(log) as writer:
        writer.claim()
        writer.drop_leftovers()
    assert (cut_off.exists(), probe.exists()) == (False, True)


def test_trimming_keeps_what_is_needed_and_where_the_log_ends(log: LogPlace) -> None:
    write(log, 110, 120, 130)
    with open_writer(log) as writer:
        writer.trim(Lsn(121))
        assert commits_in(read(log)) == [130]
        writer.trim(Lsn(500))
    reader = read(log)
    assert (reader.start_lsn, reader.end_lsn) == (121, 131)
    assert commits_in(reader) == [130]
    with open_writer(log) as writer:
        entry = writer.append(make_segment(140, [(b"1", b"x")]), end_lsn=Lsn(141))
        assert entry.sequence == 4


def test_trimming_never_cuts_into_a_chain(log: LogPlace) -> None:
    write(log, 110)
    with open_writer(log) as writer:
        writer.append(make_segment(120, [(b"2", b"x")], is_committed=False), end_lsn=None)
        writer.append(make_segment(120, [(b"3", b"x")]), end_lsn=Lsn(121))
        writer.append(make_segment(130, [(b"4", b"x")]), end_lsn=Lsn(131))
        writer.trim(Lsn(111))
    assert commits_in(read(log)) == [120, 120, 130]
    with open_writer(log) as writer:
        assert commits_in(read(log)) == [120, 120, 130]
        writer.trim(Lsn(121))
    assert commits_in(read(log)) == [130]


def test_numbers_go_on_when_only_an_open_transaction_is_left(log: LogPlace) -> None:
    """A driver's reader waits for the next number: were it given again, entries would go unread."""
    write(log, 110, 120)
    driver = read(log)
    with open_writer(log) as writer:
        writer.append(make_segment(999, [(b"1", b"x")], is_committed=False), end_lsn=None)
        writer.trim(Lsn(121))
        driver.forget(Lsn(121))
    for _ in range(2):  # killed, started, killed before it writes, started
        with open_writer(log):
            pass
    write(log, 130, 140)
    driver.poll()
    assert (driver.end_lsn, commits_in(driver)) == (141, [130, 140])


def test_a_hole_between_entries_is_found_and_named(log: LogPlace) -> None:
    write(log, 110, 120, 130)
    shutil.copy(log.root / "entries" / "000000000003.json", log.root / "entries" / "000000000002.json")
    with pytest.raises(LogDamagedError, match=r"000000000003\.json begins at 0/79") as raised:
        read(log)
    assert raised.value.kind is ErrorKind.LOG_GAP


def test_forgetting_inside_an_entry_keeps_all_of_it(log: LogPlace) -> None:
    with open_writer(log) as writer:
        writer.append(make_segment(110, [(b"1", b"x")]), end_lsn=Lsn(111))
        writer.append(make_segment(120, [(b"1", b"x")]), end_lsn=Lsn(150))
        writer.append(make_segment(160, [(b"1", b"x")]), end_lsn=Lsn(161))
    reader = read(log)
    reader.forget(Lsn(140))
    assert (reader.start_lsn, commits_in(reader)) == (111, [120, 160])


def test_a_trim_that_was_cut_off_leaves_nothing_to_stumble_over(log: LogPlace) -> None:
    write(log, 110, 120, 130)
    failpoint.arm("changelog.after_trim_header=raise")
    try:
        with open_writer(log) as writer, pytest.raises(failpoint.FailpointError):
            writer.trim(Lsn(121))
    finally:
        failpoint.arm("")
    assert commits_in(read(log)) == [130]
    with open_writer(log) as writer:
        assert writer.end_lsn == 131
        writer.claim()
        writer.drop_leftovers()
    assert sorted(path.name for path in (log.root / "entries").iterdir()) == [entry_name(3), entry_name(4)]
    assert len(list((log.root / "data").iterdir())) == 1


@pytest.mark.parametrize("moment", ["changelog.after_data", "changelog.before_entry"])
def test_data_without_an_entry_was_never_written(log: LogPlace, moment: str) -> None:
    write(log, 110)
    failpoint.arm(f"{moment}=raise")
    try:
        with open_writer(log) as writer, pytest.raises(failpoint.FailpointError):
            writer.append(make_segment(120, [(b"1", b"x")]), end_lsn=Lsn(121))
    finally:
        failpoint.arm("")
    assert read(log).end_lsn == 111
    write(log, 120)
    assert commits_in(read(log)) == [110, 120]


def test_a_position_before_the_start_is_a_gap(log: LogPlace) -> None:
    write(log, 110, 120, 130)
    with open_writer(log) as writer:
        writer.trim(Lsn(121))
    with pytest.raises(LogDamagedError, match="starts at 0/79") as raised:
        read(log).files(TableId(1), Lsn(110), Lsn(200))
    assert raised.value.kind is ErrorKind.LOG_GAP


def test_any_flipped_bit_of_an_entry_is_found_and_named(log: LogPlace) -> None:
    write(log, 110, 120)
    path = log.root / "entries" / "000000000001.json"
    content = path.read_bytes()
    for position, bit in product(range(len(content)), range(8)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        with pytest.raises(LogDamagedError, match="entry 1"):
            decode_entry(bytes(damaged), "entry 1")
    path.write_bytes(content[:-9])
    with pytest.raises(LogDamagedError, match=r"000000000001\.json"):
        read(log)


def test_entries_survive_encoding(log: LogPlace) -> None:
    write(log, 110)
    [entry] = read(log).entries
    assert decode_entry(encode_entry(entry), "x") == entry


def test_batches_are_bounded_by_bytes_of_their_tables_at_whole_entries(log: LogPlace) -> None:
    write(log, 110, 120, 130)
    reader = read(log)
    [table] = {file.table for entry in reader.entries for file in entry.files}
    sizes = [file.memory_bytes for entry in reader.entries for file in entry.files]
    assert min(sizes) > 0
    assert reader.bounded_end([table], Lsn(100), 1) == 111
    assert reader.bounded_end([table], Lsn(111), 1) == 121
    assert reader.bounded_end([table], Lsn(100), sum(sizes[:2])) == 121
    assert reader.bounded_end([table], Lsn(100), sum(sizes[:2]) - 1) == 111
    assert reader.bounded_end([table], Lsn(100), 1 << 40) == 131
    assert reader.bounded_end([TableId(table + 1)], Lsn(100), 1) == 131


def test_a_new_version_is_recorded_when_columns_change(log: LogPlace) -> None:
    first = two_column_table()
    second = replace(first, columns=first.columns[:1])
    with open_writer(log) as writer:
        assert [writer.version_of(schema) for schema in (first, first, second, second)] == [1, 1, 2, 2]
    with open_writer(log) as writer:
        assert writer.version_of(first) == 3
    assert read(log).schema(first.id, 2) == second
