"""Whose turn it is to commit to a table: changes, or its upkeep."""

from __future__ import annotations

import threading
from collections import defaultdict

from penstock.model.table import TableId


class Turns:
    """A lock for each table. Upkeep holds it while it commits, and not while it reads and writes files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: defaultdict[TableId, threading.RLock] = defaultdict(threading.RLock)

    def of(self, table: TableId) -> threading.RLock:
        """Return a table's lock."""
        with self._lock:
            return self._turns[table]
