"""The columns that the change log adds behind a table's own; destinations and readers meet them by these names."""

from __future__ import annotations

OP = "_op"
"""string: I, U or D."""
COMMIT_LSN = "_commit_lsn"
"""int64: the position of the transaction's commit record."""
ORDINAL = "_ordinal"
"""int64: the change's place in its transaction."""
COMMIT_TS = "_commit_ts"
"""timestamp(us, UTC): when the transaction committed."""
XID = "_xid"
"""int64: the transaction's id."""
KEY = "_key"
"""struct of the key's columns: the old key, where an update changed it. Absent from tables without a key."""
BEFORE = "_before"
"""struct of all columns: the old row. Present only under REPLICA IDENTITY FULL."""
UNCHANGED = "_unchanged"
"""list of string: the columns whose TOASTed value an update did not send again; NULL for none."""

ALL = (OP, COMMIT_LSN, ORDINAL, COMMIT_TS, XID, KEY, BEFORE, UNCHANGED)


def stored_name(name: str) -> str:
    """Return the name that a source column has in the log: its own, with `_` appended if ours has it."""
    return f"{name}_" if name.rstrip("_") in ALL else name
