"""All that a replicator needs: the whole of a configuration file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from penstock.config.destination import DestinationConfig
from penstock.config.load import load
from penstock.config.metrics import MetricsConfig
from penstock.config.model import ConfigModel, LocalPath
from penstock.config.pipeline import PipelineConfig
from penstock.config.spark import SparkConfig
from penstock.config.store import SqliteStoreConfig, StoreConfig

SQLITE_FILE_NAME = "state.sqlite"


class ReplicatorConfig(ConfigModel):
    """One pipeline with its destination, its store and its Spark."""

    pipeline: PipelineConfig
    """What is replicated, and how."""
    destination: DestinationConfig
    """Where the data goes."""
    store: StoreConfig = StoreConfig(sqlite=SqliteStoreConfig())
    """SQLite by default: durable, and nothing to install."""
    state_dir: LocalPath = Field(default=Path(".penstock"), validate_default=True)
    """Log, SQLite store and locks; beside the configuration file, so that the two are found together."""
    spark: SparkConfig = SparkConfig()
    metrics: MetricsConfig = MetricsConfig()

    @property
    def sqlite_path(self) -> Path | None:
        """The SQLite store's file; None if another store is configured."""
        if self.store.sqlite is None:
            return None
        return self.store.sqlite.path or self.state_dir / SQLITE_FILE_NAME

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> ReplicatorConfig:
        """Read a file, the environment and overrides, each over the one before.

        Raises `ConfigError` with everything that is wrong. See `penstock.config.load`.
        """
        return load(cls, path, overrides=overrides, environ=environ)
