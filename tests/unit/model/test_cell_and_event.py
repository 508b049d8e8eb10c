"""Rows know what they lack; values and events survive the way to another process."""

from __future__ import annotations

import copy
import datetime as dt
import pickle
from dataclasses import FrozenInstanceError
from decimal import Decimal

import pytest

from penstock.model.cell import UNCHANGED, OldRow, OldRowKind, TableRow, UpdatedRow
from penstock.model.event import Begin, Commit, Delete, Event, Insert, Relation, Truncate, Unsupported, Update
from penstock.model.lsn import Lsn, Position
from penstock.model.table import TableId, TableName, TableSchema

AT = Position(Lsn(1), 0)
NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
TABLE = TableId(16384)
EVENTS: list[Event] = [
    Begin(AT, NOON, 7),
    Commit(AT, Lsn(2), NOON),
    Insert(AT, TABLE, TableRow((1, "a", Decimal("1.50"), None, [1, None]))),
    Update(AT, TABLE, UpdatedRow((1, UNCHANGED)), OldRow(OldRowKind.KEY, (2,))),
    Delete(AT, TABLE, OldRow(OldRowKind.FULL, (1, b"\x00"))),
    Truncate(AT, (TABLE,), cascade=False, restart_identity=True),
    Relation(AT, TableSchema(TABLE, TableName("public", "t"), ())),
    Unsupported(AT, "logical message"),
]


def test_an_update_is_full_unless_a_value_was_not_sent_again() -> None:
    assert UpdatedRow((1, None, "unchanged")).is_full
    assert not UpdatedRow((1, UNCHANGED)).is_full


def test_unchanged_is_one_object_wherever_it_goes() -> None:
    assert pickle.loads(pickle.dumps(UNCHANGED)) is UNCHANGED
    assert copy.deepcopy(UNCHANGED) is UNCHANGED
    assert repr(UNCHANGED) == "UNCHANGED"


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_a_frozen_value(event: Event) -> None:
    assert pickle.loads(pickle.dumps(event)) == event
    with pytest.raises(FrozenInstanceError):
        event.position = AT  # type: ignore[misc]
