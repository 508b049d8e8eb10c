"""From configuration to running parts: the only place that names concrete classes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from penstock import failpoint
from penstock.config.load import failpoints_from_environment
from penstock.config.replicator import ReplicatorConfig
from penstock.config.s3 import S3Config
from penstock.config.upkeep import UpkeepConfig
from penstock.contract import Destination, Store
from penstock.errors import ConfigError, ErrorKind, PenstockError
from penstock.lake.upkeep import UpkeepPolicy
from penstock.postgres.connection import SourceAddress
from penstock.runtime.pipeline import Pipeline
from penstock.runtime.source import s3_settings, source_address
from penstock.spark.lazy import LazySession
from penstock.spark.session import SparkSettings
from penstock.storage.s3 import S3Settings
from penstock.store.memory import MemoryStore
from penstock.store.sqlite import NothingStoredError, SQLiteStore

SPARK_LOG_NAME = "spark.log"


@dataclass(frozen=True, slots=True)
class Parts:
    """A replicator, put together and not yet started."""

    config: ReplicatorConfig
    store: Store
    session: LazySession
    destination: Destination
    pipeline: Pipeline

    def close(self) -> None:
        """Release what the pipeline does not own."""
        # A JVM that has died already, of the same signal perhaps, cannot be stopped in order.
        with contextlib.suppress(Exception):
            self.session.stop()
        if isinstance(self.store, SQLiteStore):
            self.store.close()


def assemble(config: ReplicatorConfig) -> Parts:
    """Build everything that a configuration names; nothing is started, no JVM either."""
    failpoints = failpoints_from_environment()
    _arm(failpoints)
    store = build_store(config)
    session = build_session(config)
    destination = build_destination(config, store, session)
    pipeline = Pipeline(
        config.pipeline,
        store=store,
        destination=destination,
        state_dir=config.state_dir,
        spark=session,
        failpoints=failpoints,
    )
    return Parts(config, store, session, destination, pipeline)


def build_store(config: ReplicatorConfig) -> Store:
    """Open the store for writing."""
    path = config.sqlite_path
    return MemoryStore() if path is None else SQLiteStore(path, config.pipeline.id)


def open_stored_state(config: ReplicatorConfig) -> Store | None:
    """Open what an earlier or running replicator stored, read-only; None if there is nothing."""
    path = config.sqlite_path
    if path is None or not path.is_file():
        return None
    try:
        store = SQLiteStore.open_readonly(path, config.pipeline.id)
    except NothingStoredError:
        return None
    store.load_table_replication_states()
    store.load_table_schemas()
    return store


def build_session(config: ReplicatorConfig) -> LazySession:
    """Describe Spark; it starts when first used, and its JVM writes to a file in the state folder."""
    spark, destination = config.spark, config.destination
    settings = SparkSettings(
        master=spark.master,
        conf={**destination.spark_conf, **spark.conf},
        driver_memory=spark.driver_memory,
        formats=destination.table_formats,
        packages=destination.packages,
        log_file=config.state_dir / SPARK_LOG_NAME,
    )
    return LazySession(settings, app_name=f"penstock {config.pipeline.id}")


def build_destination(config: ReplicatorConfig, store: Store, session: LazySession) -> Destination:
    """Build the destination; what it needs and is not installed is the user's to install."""
    try:
        return _build(config, store, session)
    except ModuleNotFoundError as error:
        kind = config.destination.kind
        extra = "s3" if error.name == "obstore" else kind
        raise ConfigError(
            f"destination.{kind} needs the Python package {error.name}, which is not installed",
            remedy=f"Run: pip install 'penstock[{extra}]'",
        ) from error


def _build(config: ReplicatorConfig, store: Store, session: LazySession) -> Destination:
    chosen, pipeline = config.destination, config.pipeline.id
    if chosen.delta is not None:
        from penstock.destinations.delta import CatalogNames, DeltaDestination

        delta = chosen.delta
        return DeltaDestination(
            delta.path,
            pipeline=pipeline,
            spark=session,
            tables=store,
            cdc_columns=delta.cdc_columns,
            modes=chosen.modes,
            upkeep=_upkeep(delta.upkeep),
            s3=_s3_settings(delta.s3),
            catalog=None if delta.catalog is None else CatalogNames(delta.catalog.name, delta.catalog.schema_name),
        )
    if chosen.iceberg is not None:
        from penstock.destinations.iceberg import CatalogSettings, IcebergDestination

        iceberg = chosen.iceberg
        catalog = CatalogSettings(iceberg.catalog_name, iceberg.catalog_properties, _s3_settings(iceberg.s3))
        return IcebergDestination(
            catalog,
            pipeline=pipeline,
            spark=session,
            tables=store,
            cdc_columns=iceberg.cdc_columns,
            modes=chosen.modes,
            upkeep=_upkeep(iceberg.upkeep),
        )
    from penstock.destinations.memory import MemoryDestination

    return MemoryDestination()


def _upkeep(config: UpkeepConfig) -> UpkeepPolicy:
    every_s = config.every_s if config.is_enabled else None
    return UpkeepPolicy(every_s, config.brief_after_batches, config.target_file_bytes, config.keep_versions_s)


def _s3_settings(config: S3Config | None) -> S3Settings | None:
    return None if config is None else s3_settings(config)


def source_of(config: ReplicatorConfig) -> SourceAddress:
    """Return where the source is; certificates given as text are put into the state folder."""
    certificates = config.pipeline.pg_connection.tls.trusted_root_certs
    if certificates and "-----BEGIN" in certificates:
        _make_state_dir(config.state_dir)
    return source_address(config.pipeline.pg_connection, config.state_dir)


def _make_state_dir(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PenstockError(f"state_dir {path}: {error.strerror}", kind=ErrorKind.LOG_IO) from error


def _arm(failpoints: str) -> None:
    try:
        failpoint.arm(failpoints)
    except ValueError as error:
        raise ConfigError(f"PENSTOCK_FAILPOINTS: {error}", remedy="Correct the variable, or unset it.") from None
