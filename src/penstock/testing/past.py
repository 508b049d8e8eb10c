"""What tables that keep the past must have, change by change in plain Python: the measure for `history` and `scd2`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from penstock.model.cell import UNCHANGED, Cell, OldRow, OldRowKind
from penstock.model.event import Begin, Delete, Event, Insert, Truncate, Update
from penstock.model.lsn import Lsn, Position
from penstock.model.table import TableSchema

Values: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A row of a `history` table."""

    values: Values
    kind: str
    position: Position


@dataclass(frozen=True, slots=True)
class Version:
    """A row of an `scd2` table."""

    values: Values
    kind: str
    position: Position
    valid_from: dt.datetime
    valid_to: dt.datetime | None = None

    @property
    def is_current(self) -> bool:
        """Whether it still is what the source has."""
        return self.valid_to is None


@dataclass
class PastModel:
    """A table's past, from its copy on."""

    schema: TableSchema
    changes: list[Change] = field(default_factory=list)
    ended: list[Version] = field(default_factory=list)
    current: list[Version] = field(default_factory=list)

    @property
    def versions(self) -> list[Version]:
        """All versions."""
        return [*self.ended, *self.current]

    def copy(self, rows: Iterable[Sequence[Cell]], at: Lsn, now: dt.datetime, *, is_again: bool = False) -> None:
        """Take in a copy."""
        if is_again:
            self._truncate("RESYNC", Position(at, -1), now)
        for row in rows:
            self._begin(Version(tuple(row), "COPY", Position(at, 0), now))
            self.changes.append(Change(tuple(row), "COPY", Position(at, 0)))

    def apply(self, events: Iterable[Event]) -> None:
        """Take in whole transactions."""
        now = dt.datetime.min.replace(tzinfo=dt.UTC)
        for event in events:
            if isinstance(event, Begin):
                now = event.commit_time
            elif isinstance(event, Truncate):
                self._truncate("TRUNCATE", event.position, now)
            elif isinstance(event, Insert | Update | Delete) and event.table == self.schema.id:
                self._apply(event, now)

    def _apply(self, event: Insert | Update | Delete, now: dt.datetime) -> None:
        match event:
            case Insert(row=row):
                self._record(row.values, "INSERT", event.position, now)
            case Delete(old=old):
                self._end(old, now)
                self.changes.append(Change(self._known(old), "DELETE", event.position))
            case Update(row=row, old=old):
                former = self._end(old or self._key(row.values), now)
                if self._is_moved(old, row.values):
                    assert old is not None
                    self.changes.append(Change(self._known(old), "KEY_CHANGE", event.position))
                values = zip(row.values, former.values, strict=True)
                whole = tuple(then if new is UNCHANGED else new for new, then in values)
                self._record(whole, "UPDATE", event.position, now)

    def _record(self, values: Values, kind: str, position: Position, now: dt.datetime) -> None:
        self.changes.append(Change(values, kind, position))
        self._begin(Version(values, kind, position, now))

    def _begin(self, version: Version) -> None:
        self.current.append(version)

    def _end(self, old: OldRow, now: dt.datetime) -> Version:
        version = next(each for each in self.current if self._is_named(old, each.values))
        self.current.remove(version)
        self.ended.append(replace(version, valid_to=max(now, version.valid_from)))
        return version

    def _truncate(self, kind: str, position: Position, now: dt.datetime) -> None:
        self.changes.append(Change((None,) * len(self.schema.columns), kind, position))
        self.ended += [replace(each, valid_to=max(now, each.valid_from)) for each in self.current]
        self.current.clear()

    @property
    def _key_places(self) -> list[int]:
        return [self.schema.columns.index(column) for column in self.schema.key]

    def _key(self, values: Sequence[Any]) -> OldRow:
        return OldRow(OldRowKind.KEY, tuple(values[place] for place in self._key_places))

    def _is_named(self, old: OldRow, values: Values) -> bool:
        if not self._key_places:
            return old.values == values
        named = old if old.kind is OldRowKind.KEY else self._key(old.values)
        return named.values == self._key(values).values

    def _is_moved(self, old: OldRow | None, values: Sequence[Any]) -> bool:
        if old is None:
            return False
        named = old if old.kind is OldRowKind.KEY else self._key(old.values)
        return not self._key_places or named.values != self._key(values).values

    def _known(self, old: OldRow) -> Values:
        """Return what a row that is gone shows: all of it where it was logged, or else its key."""
        if old.kind is OldRowKind.FULL:
            return old.values
        key = dict(zip(self._key_places, old.values, strict=True))
        return tuple(key.get(place) for place in range(len(self.schema.columns)))
