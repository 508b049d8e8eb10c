"""Entries of the change log's manifest for tests that look at them alone: nothing is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.changelog.entry import DataFile
from penstock.model.lsn import NOWHERE
from penstock.model.table import TableId

_PLAIN = DataFile(
    table=TableId(1),
    version=1,
    path="x",
    rows=1,
    size_bytes=1,
    inserts=1,
    updates=0,
    deletes=0,
    has_unchanged=False,
    has_key_changes=False,
    first_lsn=NOWHERE,
    last_lsn=NOWHERE,
    footer_crc=0,
)


def data_file(**different: Any) -> DataFile:
    """Return a file with one insert, but for what is said."""
    return replace(_PLAIN, **different)
