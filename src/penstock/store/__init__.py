"""Where Penstock remembers across restarts: in memory, or in a SQLite file."""

from penstock.store.memory import MemoryStore
from penstock.store.sqlite import SQLiteStore

__all__ = ["MemoryStore", "SQLiteStore"]
