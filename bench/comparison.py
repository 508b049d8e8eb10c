"""Whether a change log ends where its source stands: the last change of each row against the row itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.changelog.folder import Folder
from penstock.changelog.reader import LogReader
from penstock.changelog.rows import read_rows
from penstock.contract import columns as log
from penstock.errors import SourceError
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableId
from penstock.testing.postgres import Database

_ROWS_COMPARED = 2000
"""Spread over all keys: enough to meet every transaction size and every segment, and cheap."""
_COLUMNS = ["id", "quantity", "name", "price", "ratio", "changed_at", "is_active", "note", "detail", "token"]
_QUERY = """
    select id, quantity, name, price, ratio, changed_at, is_active, note, detail::text, token::text
    from changes where id = any(%s)
"""


def compare_last_values(database: Database, root: Path) -> None:
    """Raise if some of the rows of `changes` differ from what the log says of them last."""
    last = {row["id"]: row for row in _last_changes(_read(database, root)).to_pylist()}
    there = {row[0]: row for row in database.execute(_QUERY, list(last))}
    wrong = [id_ for id_, row in last.items() if _expected(row) != there.get(id_)]
    if wrong:
        raise SourceError(
            f"the log and the source differ in {len(wrong)} of {len(last)} rows, the first with id {wrong[0]}"
        )


def _read(database: Database, root: Path) -> pa.Table:
    reader = LogReader(Folder.on_disk(root))
    reader.poll()
    [(oid,)] = database.execute("select 'changes'::regclass::oid::bigint")
    table = TableId(oid)
    files = reader.files(table, reader.start_lsn, reader.end_lsn)
    policies = ValuePolicies()
    return pa.concat_tables(
        read_rows(reader.folder, file, reader.schema(table, file.version), policies) for file in files
    )


def _last_changes(changes: pa.Table) -> pa.Table:
    """Return the last change of some of the rows."""
    ordered = changes.sort_by([("id", "ascending"), (log.COMMIT_LSN, "ascending"), (log.ORDINAL, "ascending")])
    ids = ordered.column("id").to_numpy()
    last = np.flatnonzero(np.append(ids[1:] != ids[:-1], [True]))
    return ordered.take(last[:: max(1, len(last) // _ROWS_COMPARED)])


def _expected(change: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return the row as the source should have it; None where it should have none."""
    return None if change[log.OP] == "D" else tuple(change[name] for name in _COLUMNS)
