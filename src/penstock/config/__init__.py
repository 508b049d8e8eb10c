"""What a user can set, as frozen models: each default stands here once, with its reason."""

from penstock.config.connection import KeepaliveConfig, PgConnectionConfig, TlsConfig
from penstock.config.destination import (
    DeltaConfig,
    DestinationConfig,
    HadoopCatalogConfig,
    IcebergCatalogConfig,
    IcebergConfig,
    JdbcCatalogConfig,
    MemoryDestinationConfig,
    RestCatalogConfig,
)
from penstock.config.load import failpoints_from_environment
from penstock.config.metrics import MetricsConfig
from penstock.config.modes import ModesConfig
from penstock.config.pipeline import BatchConfig, LogConfig, PipelineConfig, SpecialValuesConfig
from penstock.config.replicator import ReplicatorConfig
from penstock.config.spark import SparkConfig
from penstock.config.store import MemoryStoreConfig, SqliteStoreConfig, StoreConfig
from penstock.config.table_sync_copy import TableSyncCopy
from penstock.config.template import read_template

__all__ = [
    "BatchConfig",
    "DeltaConfig",
    "DestinationConfig",
    "HadoopCatalogConfig",
    "IcebergCatalogConfig",
    "IcebergConfig",
    "JdbcCatalogConfig",
    "KeepaliveConfig",
    "LogConfig",
    "MemoryDestinationConfig",
    "MemoryStoreConfig",
    "MetricsConfig",
    "ModesConfig",
    "PgConnectionConfig",
    "PipelineConfig",
    "ReplicatorConfig",
    "RestCatalogConfig",
    "SparkConfig",
    "SpecialValuesConfig",
    "SqliteStoreConfig",
    "StoreConfig",
    "TableSyncCopy",
    "TlsConfig",
    "failpoints_from_environment",
    "read_template",
]
