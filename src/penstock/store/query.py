"""The SQL we send to SQLite: one statement per file below `sql/sqlite/`, read once."""

from __future__ import annotations

import functools
from importlib import resources


@functools.cache
def load(name: str) -> str:
    """Return the statement of `sql/sqlite/<name>.sql`."""
    return (resources.files("penstock.store") / "sql" / "sqlite" / f"{name}.sql").read_text(encoding="utf-8")
