"""Where a pipeline's state is kept: one key per store, of which exactly one is given."""

from __future__ import annotations

from penstock.config.model import ConfigModel, LocalPath, OneOf


class SqliteStoreConfig(ConfigModel):
    """A SQLite file."""

    path: LocalPath | None = None
    """None puts it into `state_dir`, beside the log that it belongs to."""


class MemoryStoreConfig(ConfigModel):
    """Nothing is kept: every start copies anew."""


class StoreConfig(OneOf):
    """The chosen store."""

    sqlite: SqliteStoreConfig | None = None
    memory: MemoryStoreConfig | None = None
