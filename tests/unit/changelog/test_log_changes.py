"""A log's changes, read back in order: every kind of change, every form of file, every way to ask."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.written_log import COMMIT_TIME_US, XID, Did, WrittenLog, orders, row

from penstock.changelog.change import Logged, LoggedChange, LoggedTransaction, Wanted, _without_empty, read_changes
from penstock.changelog.visitor import open_log
from penstock.errors import ErrorKind, LogDamagedError
from penstock.model.cell import Cell
from penstock.model.event import Truncate
from penstock.model.lsn import Lsn, Position
from penstock.model.policy import ValuePolicies
from penstock.model.table import ReplicaIdentity, TableId

ORDERS = orders()
ITEMS = orders(16400, name="items")
FULL = orders(16500, ReplicaIdentity.FULL, name="audited")


def changes_in(
    log: WrittenLog, start: int | None = None, end: int | None = None, tables: set[TableId] | None = None
) -> list[Logged]:
    reader = open_log(log.folder)
    first = reader.start_lsn if start is None else Lsn(start)
    wanted = Wanted(first, reader.end_lsn if end is None else Lsn(end), tables)
    return list(read_changes(reader, wanted, ValuePolicies()))


def rows_of(found: list[Logged]) -> list[tuple[str, int]]:
    """Return each row's operation and key."""
    return [(each.op, each.values["id"]) for each in found if isinstance(each, LoggedChange)]  # type: ignore[misc]


def test_every_kind_of_change_is_told_whole(written_log: WrittenLog) -> None:
    commit = written_log.commit(
        Did(ORDERS, "I", row(1)),
        Did(ORDERS, "U", row(2, note=None), old_key=[b"1"], unchanged=["note"]),
        Did(ORDERS, "D", row(2, None, None, None)),
        Did(FULL, "U", row(3, "new"), before=row(3, "old")),
        Did(FULL, "D", row(3, None, None, None), before=row(3, "new")),
        Did(ORDERS, "T"),
    )
    whole: dict[str, Cell] = {"id": 1, "note": "x", "total": Decimal("12.50"), "paid_on": dt.date(2024, 2, 29)}
    audited: dict[str, Cell] = {**whole, "id": 3, "note": "new"}
    assert changes_in(written_log) == [
        LoggedTransaction(
            commit, Lsn(commit + 8), dt.datetime(2023, 11, 14, 22, 13, 20, COMMIT_TIME_US % 10**6, dt.UTC), XID, 6
        ),
        LoggedChange(Position(commit, 1), ORDERS.name, "I", whole),
        LoggedChange(
            Position(commit, 2),
            ORDERS.name,
            "U",
            {"id": 2, "total": Decimal("12.50"), "paid_on": dt.date(2024, 2, 29)},
            ("note",),
            {"id": 1},
        ),
        LoggedChange(Position(commit, 3), ORDERS.name, "D", {"id": 2}),
        LoggedChange(Position(commit, 4), FULL.name, "U", audited, before={**audited, "note": "old"}),
        LoggedChange(Position(commit, 5), FULL.name, "D", {"id": 3}, before=audited),
        Truncate(Position(commit, 6), (ORDERS.id,), cascade=True, restart_identity=False),
    ]


@pytest.mark.parametrize("tables", [2, 40], ids=["files of their own", "one shared file"])
def test_changes_of_many_tables_come_in_the_order_they_were_made(written_log: WrittenLog, tables: int) -> None:
    schemas = [orders(16385 + number, name=f"t{number}") for number in range(tables)]
    written_log.commit(*(Did(schemas[key % tables], "I", row(key)) for key in range(100)))
    assert [file.is_shared for file in written_log.entries[0].files] == [tables > 16] * tables
    assert rows_of(changes_in(written_log)) == [("I", key) for key in range(100)]


def test_a_transaction_in_parts_is_told_as_one(written_log: WrittenLog) -> None:
    written_log.commit(Did(ORDERS, "I", row(0)))
    written_log.commit(Did(ORDERS, "I", row(1)), Did(ORDERS, "T"), is_complete=False)
    written_log.commit(Did(ITEMS, "I", row(2)), is_complete=False)
    assert rows_of(changes_in(written_log)) == [("I", 0)]
    written_log.commit(Did(ORDERS, "I", row(3)))
    found = changes_in(written_log)
    assert [type(each).__name__ for each in found] == [
        *("LoggedTransaction", "LoggedChange"),
        *("LoggedTransaction", "LoggedChange", "Truncate", "LoggedChange", "LoggedChange"),
    ]
    assert isinstance(found[2], LoggedTransaction)
    assert found[2].changes == 4


def test_ranges_hold_what_commits_from_their_start_to_before_their_end(written_log: WrittenLog) -> None:
    commits = [written_log.commit(Did(ORDERS, "I", row(key))) for key in range(4)]
    written_log.idle()
    assert rows_of(changes_in(written_log, commits[1], commits[3])) == [("I", 1), ("I", 2)]
    assert rows_of(changes_in(written_log, commits[1] + 1, commits[2])) == []


def test_one_table_is_told_with_the_transactions_that_touched_it(written_log: WrittenLog) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)))
    both = written_log.commit(Did(ORDERS, "I", row(2)), Did(ITEMS, "I", row(3)))
    emptied = written_log.commit(Did(ITEMS, "T"))
    found = changes_in(written_log, tables={ITEMS.id})
    assert [each.commit_lsn for each in found if isinstance(each, LoggedTransaction)] == [both, emptied]
    assert rows_of(found) == [("I", 3)]


def test_a_value_that_policies_refuse_is_told_as_the_server_printed_it(written_log: WrittenLog) -> None:
    written_log.commit(Did(ORDERS, "I", row(1, paid_on="infinity")), Did(ORDERS, "I", row(2)))
    assert written_log.entries[0].files[0].problem
    values = [each.values for each in changes_in(written_log) if isinstance(each, LoggedChange)]
    assert [each["paid_on"] for each in values] == ["infinity", "2024-02-29"]


def test_such_a_value_is_told_among_many_tables_too(written_log: WrittenLog) -> None:
    schemas = [orders(16385 + number, name=f"t{number}") for number in range(40)]
    written_log.commit(*(Did(schema, "I", row(1, paid_on="infinity")) for schema in schemas))
    values = [each.values for each in changes_in(written_log) if isinstance(each, LoggedChange)]
    assert [each["paid_on"] for each in values] == ["infinity"] * 40


def test_long_files_are_told_to_the_last_row(written_log: WrittenLog) -> None:
    """Rows become objects some at a time; old keys must stay with their own."""
    written_log.commit(*(Did(ORDERS, "U", row(key), old_key=[str(-key).encode()]) for key in range(3000)))
    found = [each for each in changes_in(written_log) if isinstance(each, LoggedChange)]
    assert [(each.values["id"], each.old_key) for each in found] == [(key, {"id": -key}) for key in range(3000)]


def test_a_renamed_table_has_the_name_of_the_time(written_log: WrittenLog) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)))
    written_log.commit(Did(orders(name="purchases"), "I", row(2)))
    names = [str(each.table) for each in changes_in(written_log) if isinstance(each, LoggedChange)]
    assert names == ["public.orders", "public.purchases"]


def test_what_is_trimmed_under_the_reader_is_a_gap_and_no_damage(written_log: WrittenLog) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)))
    last = written_log.commit(Did(ORDERS, "I", row(2)))
    reader = open_log(written_log.folder)
    found = read_changes(reader, Wanted(reader.start_lsn, reader.end_lsn), ValuePolicies())
    written_log.trim(last)
    with pytest.raises(LogDamagedError, match="was trimmed while it was being read") as raised:
        list(found)
    assert raised.value.kind is ErrorKind.LOG_GAP
    assert "keep_ms" in raised.value.remedy


def test_a_file_that_is_missing_otherwise_is_damage(written_log: WrittenLog) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)))
    (written_log.root / written_log.entries[0].files[0].path).unlink()
    with pytest.raises(LogDamagedError, match="is missing") as raised:
        changes_in(written_log)
    assert raised.value.kind is ErrorKind.LOG_DAMAGED


@given(st.lists(st.booleans()))
def test_transactions_without_a_change_are_left_out_and_nothing_else_is(is_change: list[bool]) -> None:
    moment = dt.datetime.fromtimestamp(0, dt.UTC)
    stream: list[Logged] = [
        LoggedChange(Position(Lsn(index), 1), ORDERS.name, "I", {})
        if each
        else LoggedTransaction(Lsn(index), Lsn(index), moment, 1, 1)
        for index, each in enumerate(is_change)
    ]
    kept = list(_without_empty(iter(stream)))
    assert [each for each in kept if isinstance(each, LoggedChange)] == [
        each for each in stream if isinstance(each, LoggedChange)
    ]
    expected = [
        each
        for each, following in pairwise(stream)
        if isinstance(each, LoggedTransaction) and isinstance(following, LoggedChange)
    ]
    assert [each for each in kept if isinstance(each, LoggedTransaction)] == expected
