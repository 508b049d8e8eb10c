"""The SQL we send: one statement per file below `sql/`, read once."""

from __future__ import annotations

import functools
from importlib import resources


@functools.cache
def load(name: str) -> str:
    """Return the statement of `sql/<name>.sql`."""
    return (resources.files("penstock.postgres") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
