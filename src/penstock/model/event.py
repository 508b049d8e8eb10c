"""The changes a destination receives, in the order the source committed them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TypeAlias

from penstock.model.cell import OldRow, TableRow, UpdatedRow
from penstock.model.lsn import Lsn, Position
from penstock.model.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class Begin:
    """Opens a transaction."""

    position: Position
    commit_time: dt.datetime
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Closes a transaction."""

    position: Position
    end_lsn: Lsn
    """First byte after the commit: the position to acknowledge."""
    commit_time: dt.datetime


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    position: Position
    table: TableId
    row: TableRow


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row. `old` is present when the key changed, or under REPLICA IDENTITY FULL."""

    position: Position
    table: TableId
    row: UpdatedRow
    old: OldRow | None


@dataclass(frozen=True, slots=True)
class Delete:
    """A removed row, named by what the replica identity logs of it."""

    position: Position
    table: TableId
    old: OldRow


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables emptied by one statement."""

    position: Position
    tables: tuple[TableId, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's columns, before the first change that uses them."""

    position: Position
    schema: TableSchema


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A message of the stream that Penstock knows of and passes over, e.g. a logical message."""

    position: Position
    what: str


Event: TypeAlias = Begin | Commit | Insert | Update | Delete | Truncate | Relation | Unsupported
