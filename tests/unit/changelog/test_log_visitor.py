"""Looking at a log that is being trimmed: nothing is waited for that is gone, no table is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugins.written_log import PLACES, Did, LogPlace, WrittenLog, make_place, orders, row

from penstock.changelog import visitor
from penstock.changelog.folder import Folder
from penstock.changelog.reader import LogReader
from penstock.changelog.visitor import find_table, is_overtaken, open_log, table_names
from penstock.errors import StateError
from penstock.model.table import TableId, TableName

ORDERS = orders()


@pytest.fixture(params=PLACES)
def log_place(request: pytest.FixtureRequest) -> LogPlace:
    return make_place(request)


def test_a_folder_without_a_log_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="there is no change log in") as raised:
        open_log(Folder.on_disk(tmp_path / "nowhere"))
    assert "penstock run" in raised.value.remedy
    assert "--log" in raised.value.remedy


def test_a_reader_is_overtaken_when_what_it_would_read_next_is_gone(written_log: WrittenLog) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)))
    reader = open_log(written_log.folder)
    written_log.commit(Did(ORDERS, "I", row(2)))
    assert not is_overtaken(reader)
    last = written_log.commit(Did(ORDERS, "I", row(3)))
    written_log.trim(last)
    assert is_overtaken(reader)
    assert [entry.sequence for entry in open_log(written_log.folder).entries] == [3]


def test_a_reader_that_has_seen_and_forgotten_all_is_not_overtaken(written_log: WrittenLog) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)))
    reader = open_log(written_log.folder)
    reader.forget(reader.end_lsn)
    written_log.commit(Did(ORDERS, "I", row(2)))
    written_log.trim(written_log.entries[0].end_lsn)
    assert not is_overtaken(reader)
    assert reader.poll()


def test_a_trim_between_listing_and_reading_is_noticed(
    written_log: WrittenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)))
    last = written_log.commit(Did(ORDERS, "I", row(2)))

    class Trimmed(LogReader):
        """Its first reader finds the first entry's number, and the entry gone."""

        is_first = True

        def poll(self, last_number: int | None = None) -> bool:
            if Trimmed.is_first:
                Trimmed.is_first = False
                written_log.trim(last)
            return super().poll(last_number)

    monkeypatch.setattr(visitor, "LogReader", Trimmed)
    assert [entry.sequence for entry in open_log(written_log.folder).entries] == [2]


def test_the_parts_of_an_open_transaction_can_be_looked_at(written_log: WrittenLog) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)))
    written_log.commit(Did(ORDERS, "I", row(2)), is_complete=False)
    written_log.commit(Did(ORDERS, "I", row(3)), is_complete=False)
    reader = open_log(written_log.folder)
    assert [entry.sequence for entry in reader.entries] == [1]
    assert [entry.sequence for entry in reader.open_chain] == [2, 3]


def test_a_table_keeps_its_names_with_the_newest_last(written_log: WrittenLog) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)))
    written_log.commit(Did(orders(name="purchases"), "I", row(2)))
    names = table_names(written_log.folder)
    assert names == {ORDERS.id: [TableName("public", "orders"), TableName("public", "purchases")]}


NAMES = {
    TableId(1): [TableName("public", "a"), TableName("public", "b")],
    TableId(2): [TableName("public", "c")],
    TableId(3): [TableName("other", "c")],
}


@pytest.mark.parametrize(
    ("wanted", "found"), [("public.a", 1), ("public.b", 1), ("b", 1), ("2", 2), ("other.c", 3), ("public.c", 2)]
)
def test_a_table_is_found_by_any_name_it_ever_had(wanted: str, found: int) -> None:
    assert find_table(NAMES, wanted) == found


@pytest.mark.parametrize(
    ("wanted", "what"), [("c", "several tables of the log are called c"), ("nope", "the log has no table nope")]
)
def test_a_table_that_is_not_clear_is_refused_with_those_there_are(wanted: str, what: str) -> None:
    with pytest.raises(StateError, match=what) as raised:
        find_table(NAMES, wanted)
    assert raised.value.message.endswith("it has: other.c, public.b, public.c")
