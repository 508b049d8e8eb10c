"""Two writers of one log: the older is refused at its next step, whatever that is, and leaves nothing behind.

On a disk a lock keeps them apart; without it the disk has to hold what a bucket does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from plugins.written_log import PLACES, LogPlace, make_place

from penstock import failpoint
from penstock.changelog.folder import Folder
from penstock.changelog.header import read_header
from penstock.changelog.reader import LogReader
from penstock.changelog.verification import Verification
from penstock.changelog.visitor import open_log
from penstock.changelog.writer import LogWriter, create_log, drop_log
from penstock.errors import ErrorKind, StateError
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.testing.capture import leftovers, logged_changes
from penstock.testing.changelog import make_segment, two_column_table

START = Lsn(100)
Step = Callable[[LogWriter], object]


@pytest.fixture(params=PLACES)
def log_place(request: pytest.FixtureRequest) -> LogPlace:
    return make_place(request)


@pytest.fixture
def log(log_place: LogPlace, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogPlace]:
    """A log without its lock."""
    monkeypatch.setattr(LogWriter, "_take_lock", lambda _: ExitStack())
    begin(log_place.folder)
    yield log_place
    claim(log_place.folder)
    assert Verification(log_place.folder).run() == []
    assert leftovers(log_place.root, log_place.folder) == set()


def begin(folder: Folder, start: Lsn = START) -> None:
    create_log(folder, slot="s", system_identifier="1", start_lsn=start)


def claim(folder: Folder) -> LogWriter:
    writer = LogWriter(folder, ValuePolicies())
    writer.claim()
    writer.drop_leftovers()
    return writer


def append(writer: LogWriter, commit: int, *, is_committed: bool = True) -> None:
    writer.version_of(two_column_table())
    segment = make_segment(commit, [(str(commit).encode(), b"x")], is_committed=is_committed)
    writer.append(segment, end_lsn=Lsn(commit + 1) if is_committed else None)


def append_part(writer: LogWriter, commit: int) -> None:
    append(writer, commit, is_committed=False)


def keys(reader: LogReader) -> list[str]:
    return [change.key for change in logged_changes(reader, reader.start_lsn)]


def require_refused(step: Step, writer: LogWriter) -> None:
    with pytest.raises(StateError, match="another process has begun to write") as refused:
        step(writer)
    assert refused.value.kind is ErrorKind.SLOT_IN_USE


@pytest.mark.parametrize(
    "step",
    [lambda writer: append(writer, 120), lambda writer: append_part(writer, 120), lambda writer: writer.trim(Lsn(112))],
    ids=["entry", "part", "trim"],
)
def test_an_older_writer_is_refused_at_its_next_step(log: LogPlace, step: Step) -> None:
    older = claim(log.folder)
    append(older, 110)
    append(older, 111)
    newer = claim(log.folder)
    require_refused(step, older)
    append(newer, 120)
    assert keys(open_log(log.folder)) == ["110", "111", "120"]


def test_an_older_writer_that_is_still_clearing_up_leaves_a_newer_ones_data_alone(log: LogPlace) -> None:
    append_part(claim(log.folder), 110)
    older = LogWriter(log.folder, ValuePolicies())
    older.claim()
    append(claim(log.folder), 120)
    older.drop_leftovers()
    assert keys(open_log(log.folder)) == ["120"]
    assert Verification(log.folder).run() == []


@pytest.mark.parametrize("log_place", PLACES[1:], indirect=True)
@pytest.mark.parametrize("moment", ["changelog.after_file", "changelog.after_data", "changelog.before_entry"])
def test_an_older_writer_that_is_overtaken_inside_a_step_is_refused_at_its_end(
    log: LogPlace, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = claim(log.folder)
    append(older, 110)

    def overtake(name: str) -> None:
        if name == moment:
            monkeypatch.undo()
            monkeypatch.setattr(LogWriter, "_take_lock", lambda _: ExitStack())
            append(claim(log.folder), 120)

    monkeypatch.setattr(failpoint, "hit", overtake)
    require_refused(lambda writer: append(writer, 120), older)
    assert keys(open_log(log.folder)) == ["110", "120"]


def test_an_open_transaction_of_an_older_writer_does_not_count(log: LogPlace) -> None:
    older = claim(log.folder)
    append(older, 110)
    append_part(older, 120)
    append_part(older, 120)
    waiting = open_log(log.folder)
    newer = claim(log.folder)
    require_refused(lambda writer: append(writer, 120), older)
    append_part(newer, 120)
    assert [len(reader.open_chain) for reader in (waiting, open_log(log.folder))] == [2, 1]
    append(newer, 120)
    assert waiting.poll()
    assert keys(waiting) == keys(open_log(log.folder)) == ["110", "120", "120"]


def test_a_claim_that_comes_too_late_is_refused_and_the_next_one_has_everything(log: LogPlace) -> None:
    older, late = claim(log.folder), LogWriter(log.folder, ValuePolicies())
    append(older, 110)
    require_refused(LogWriter.claim, late)
    append(older, 120)
    newer = claim(log.folder)
    assert newer.end_lsn == 121
    assert keys(open_log(log.folder)) == ["110", "120"]


def test_a_claim_that_meets_a_trim_is_refused_and_the_next_one_heeds_it(log: LogPlace) -> None:
    older = claim(log.folder)
    append(older, 110)
    append(older, 120)
    late = LogWriter(log.folder, ValuePolicies())
    older.trim(Lsn(111))
    require_refused(LogWriter.claim, late)
    claim(log.folder)
    assert keys(open_log(log.folder)) == ["120"]


@pytest.mark.parametrize("log_place", PLACES[1:], indirect=True)
def test_a_trim_long_after_is_refused_though_its_number_is_free_again(log: LogPlace) -> None:
    older = claim(log.folder)
    append(older, 110)
    append(older, 120)
    newer = claim(log.folder)
    for commit in (130, 140):
        append(newer, commit)
        newer.trim(Lsn(111) if commit == 130 else Lsn(121))
    assert read_header(log.folder).number > older._header.number + 1
    require_refused(lambda writer: writer.trim(Lsn(111)), older)
    assert keys(open_log(log.folder)) == ["130", "140"]


def test_columns_that_two_writers_record_at_once_are_told_apart(log: LogPlace) -> None:
    older, schema = claim(log.folder), two_column_table()
    newer = claim(log.folder)
    assert older.version_of(schema) == 1
    narrow = replace(schema, columns=schema.columns[:1])
    version = newer.version_of(narrow)
    assert version == 2
    assert open_log(log.folder).schema(schema.id, version) == narrow


def test_a_log_that_was_dropped_refuses_its_writer_and_the_next_one_begins_behind_it(log: LogPlace) -> None:
    older = claim(log.folder)
    append(older, 110)
    append(older, 111)
    drop_log(log.folder)
    with pytest.raises(StateError, match="there is no change log in"):
        open_log(log.folder)
    require_refused(lambda writer: append(writer, 120), older)
    require_refused(lambda writer: writer.trim(Lsn(111)), older)
    begin(log.folder, Lsn(500))
    newer = claim(log.folder)
    append(older, 120)  # under a number that is free again, before the log's first: nobody looks there
    append(newer, 510)
    reader = open_log(log.folder)
    assert (reader.start_lsn, keys(reader)) == (500, ["510"])
    assert reader.entries[0].sequence > 3


def test_a_drop_that_was_cut_off_is_finished_by_the_next(log: LogPlace) -> None:
    append(claim(log.folder), 110)
    failpoint.arm("changelog.dropped=raise")
    try:
        with pytest.raises(failpoint.FailpointError):
            drop_log(log.folder)
    finally:
        failpoint.arm("")
    drop_log(log.folder)
    begin(log.folder)
    assert keys(open_log(log.folder)) == []
