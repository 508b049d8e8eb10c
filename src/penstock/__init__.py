"""Penstock: Postgres logical replication into lakehouse tables, exactly once, on Spark.

This is the public API. What needs a heavy library, or starts something, is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.contract import (
    CleanupStore,
    CopiedFile,
    Destination,
    EventBatch,
    Maintained,
    Positioned,
    RowBatch,
    SchemaStore,
    StateStore,
    Store,
    TableChanges,
    Upkeep,
)
from penstock.errors import (
    ConfigError,
    ConversionError,
    DestinationError,
    ErrorKind,
    LogDamagedError,
    PenstockError,
    SourceError,
    StateError,
    WireError,
)
from penstock.model.cell import UNCHANGED, Cell, OldRow, OldRowKind, TableRow, UpdatedRow
from penstock.model.event import Begin, Commit, Delete, Event, Insert, Relation, Truncate, Unsupported, Update
from penstock.model.lsn import Lsn, Position
from penstock.model.mode import TableMode
from penstock.model.table import Column, Kind, PgType, PipelineId, TableId, TableName, TableSchema

if TYPE_CHECKING:
    from penstock.config.pipeline import PipelineConfig
    from penstock.config.replicator import ReplicatorConfig
    from penstock.destinations.delta import DeltaDestination
    from penstock.destinations.iceberg import CatalogSettings, IcebergDestination
    from penstock.destinations.memory import MemoryDestination
    from penstock.runtime.pipeline import Pipeline
    from penstock.spark.source import register
    from penstock.spark.table_snapshot import snapshot
    from penstock.store.memory import MemoryStore
    from penstock.store.sqlite import SQLiteStore

_LAZY = {
    "CatalogSettings": "penstock.destinations.iceberg",
    "DeltaDestination": "penstock.destinations.delta",
    "IcebergDestination": "penstock.destinations.iceberg",
    "MemoryDestination": "penstock.destinations.memory",
    "MemoryStore": "penstock.store.memory",
    "Pipeline": "penstock.runtime.pipeline",
    "PipelineConfig": "penstock.config.pipeline",
    "ReplicatorConfig": "penstock.config.replicator",
    "SQLiteStore": "penstock.store.sqlite",
    "register": "penstock.spark.source",
    "snapshot": "penstock.spark.table_snapshot",
}

__all__ = [
    "UNCHANGED",
    "Begin",
    "CatalogSettings",
    "Cell",
    "CleanupStore",
    "Column",
    "Commit",
    "ConfigError",
    "ConversionError",
    "CopiedFile",
    "Delete",
    "DeltaDestination",
    "Destination",
    "DestinationError",
    "ErrorKind",
    "Event",
    "EventBatch",
    "IcebergDestination",
    "Insert",
    "Kind",
    "LogDamagedError",
    "Lsn",
    "Maintained",
    "MemoryDestination",
    "MemoryStore",
    "OldRow",
    "OldRowKind",
    "PenstockError",
    "PgType",
    "Pipeline",
    "PipelineConfig",
    "PipelineId",
    "Position",
    "Positioned",
    "Relation",
    "ReplicatorConfig",
    "RowBatch",
    "SQLiteStore",
    "SchemaStore",
    "SourceError",
    "StateError",
    "StateStore",
    "Store",
    "TableChanges",
    "TableId",
    "TableMode",
    "TableName",
    "TableRow",
    "TableSchema",
    "Truncate",
    "Unsupported",
    "Update",
    "UpdatedRow",
    "Upkeep",
    "WireError",
    "register",
    "snapshot",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
