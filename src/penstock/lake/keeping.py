"""Which rows a batch adds to a table that keeps the past, and which it has to know for it, whatever the format is."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from penstock.contract.batch import TableChanges
from penstock.lake.fold import changes_behind, number_changes
from penstock.lake.history import Recording
from penstock.lake.sought import Sought, copied_with_key
from penstock.lake.versions import Versioning
from penstock.model.lsn import Lsn
from penstock.model.mode import TableMode

Keeping: TypeAlias = Recording | Versioning


def keep(changes: TableChanges, mode: TableMode, since: Lsn, target: pa.Schema, place: str) -> Keeping:
    """Return what changes of transactions from a position on come to; `place` names the table in errors."""
    kind = Versioning if mode is TableMode.SCD2 else Recording
    return kind(changes, since, target, place)


def forgotten(changes: TableChanges, since: Lsn, copied_since: Lsn) -> Sought | None:
    """Return the rows of the copy under way that it must forget to be settled; None if there are none."""
    fresh = changes_behind(changes.arrow(), since, None)
    if not fresh:
        return None
    keys, _, _ = number_changes(pa.Table.from_batches(fresh), changes.schema)
    return copied_with_key(changes.schema, keys, copied_since)
