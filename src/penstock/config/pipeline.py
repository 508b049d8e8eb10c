"""What one pipeline replicates, and how."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PlainValidator,
    PositiveInt,
    field_validator,
    model_validator,
)

from penstock.config.connection import PgConnectionConfig
from penstock.config.load import load
from penstock.config.model import ConfigModel, PathOrUrl, is_url
from penstock.config.s3 import S3Config
from penstock.config.table_sync_copy import TableSyncCopySetting
from penstock.model.policy import ValuePolicies
from penstock.model.special import SpecialValues
from penstock.model.table import PipelineId

_BUCKET = re.compile(r"s3a?://[^/]+/+[^/]")
_ID = re.compile(r"[a-z0-9_]{1,32}\Z")
# A column's full name has two dots at least; names may have more of their own.
_COLUMN_DOTS = 2


def _parse_id(value: object) -> PipelineId:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if _ID.match(text) is None:
        raise ValueError("must be a whole number, or 1 to 32 of a-z, 0-9 and _")
    return PipelineId(text)


def _parse_special_values(value: object) -> object:
    if value is None:
        raise ValueError('a bare null means nothing is given: write "null" in quotes for the policy')
    return {"policy": value} if isinstance(value, str) else value


def _require_folder(location: str) -> str:
    if is_url(location) and _BUCKET.match(location) is None:
        raise ValueError("must be a folder of a disk, or of a bucket: s3://bucket/folder")
    return location


class BatchConfig(ConfigModel):
    """When changes become a segment of the log, where a destination can have them, and how often a lake takes them."""

    max_fill_ms: PositiveInt = 1000
    """How long a change may wait for company, so that a lake has no more commits than one in this time. What follows
    a pause as long does not wait."""
    max_bytes: PositiveInt = 64 << 20
    """How much is held in memory: 64 MiB makes files that a lake reads well, and a small process."""
    merge_every_ms: NonNegativeInt = 2000
    """The least time from a batch of a lake's table to its next one with updates or deletes: every such commit makes
    the table slower to read until its upkeep. Inserts alone, what follows a pause and large amounts never wait. With 0
    nothing does: changes are visible a second sooner, with twice as many versions for readers and buckets."""


class LogConfig(ConfigModel):
    """Where the change log is, and how much of it is kept."""

    location: Annotated[PathOrUrl, AfterValidator(_require_folder)] | None = None
    """A folder, local or mounted, or `s3://bucket/folder`. Left out, it is `log` in `state_dir`."""
    s3: S3Config = S3Config()
    """How the bucket is reached, if the log is in one."""
    max_bytes: PositiveInt = 10 << 30
    """When the log reaches this the receiver stops reading and the source keeps its WAL: 10 GiB fits most disks.
    Tables that stopped with an error may claim half of it, so that they can go on without a copy."""
    keep_ms: NonNegativeInt = 0
    """For how long changes stay after every table has them, for replay: an hour is 3600000. 0 promises nothing, because
    nothing but replay needs them. What `keep_bytes` promises stays too, and both give way before the log is full."""
    keep_bytes: NonNegativeInt = 0
    """How much of the log stays after every table has it, the newest, however old; at most `max_bytes`. 0 promises
    nothing."""

    @model_validator(mode="after")
    def _check_keep_bytes(self) -> LogConfig:
        if self.keep_bytes > self.max_bytes:
            raise ValueError("keep_bytes must be at most max_bytes: what is kept gives way when the log is full")
        return self


class ReceiverConfig(ConfigModel):
    """The process that holds the slot."""

    max_memory_bytes: int = Field(default=512 << 20, ge=320 << 20)
    """What it may take, however large transactions are. Libraries take 200 MiB of it, and the rest is room for rows of
    up to 64 MiB; of a larger row it needs room for four copies."""
    heartbeat_ms: NonNegativeInt = 0
    """How often a small transaction is made on the source, for servers that are idle for long and send no keepalives.
    0, the default, makes none: keepalives free an idle database's WAL already."""


class CopyConfig(ConfigModel):
    """How tables are copied at first."""

    max_snapshot_age_ms: PositiveInt = 1_800_000
    """How long a snapshot is kept before the rest is copied as of a new one: the source cannot vacuum what died since.
    A table that cannot be copied in parts (it has no key, or the destination stores no positions) keeps its snapshot
    to the end."""
    commit_bytes: int = Field(default=4 << 30, ge=8192)
    """How much of a table, as it lies on the source's disk, is committed at once: what a restart repeats at most."""


class SpecialValuesConfig(ConfigModel):
    """What is done with values that the target type cannot hold."""

    policy: SpecialValues = SpecialValues.ERROR
    """Refuse by default: nothing is altered unless someone said so."""
    columns: dict[str, SpecialValues] = Field(default_factory=dict)
    """Exceptions, by `schema.table.column` as the catalog has it, unquoted; one that fits no column has no effect."""

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: dict[str, SpecialValues]) -> dict[str, SpecialValues]:
        wrong = [name for name in columns if name.count(".") < _COLUMN_DOTS]
        if wrong:
            raise ValueError(f"must be named schema.table.column: {', '.join(wrong)}")
        return columns


class PipelineConfig(ConfigModel):
    """One publication of one source, replicated into one destination."""

    id: Annotated[PipelineId, PlainValidator(_parse_id, json_schema_input_type=int | str)]
    """A whole number, or 1 to 32 of a-z, 0-9 and _; it names the slot and the state."""
    publication_name: str = Field(min_length=1)
    """The publication on the source whose tables are replicated."""
    pg_connection: PgConnectionConfig
    """How the source is reached."""
    batch: BatchConfig = BatchConfig()
    max_table_sync_workers: PositiveInt = 4
    """Tables copied at once: enough to hide one slow table, few enough for a source at work."""
    max_copy_connections_per_table: PositiveInt = 4
    """Connections that share one table's copy; past a few, the source's disk is the limit."""
    table_sync_copy: TableSyncCopySetting = Field(default="all", validate_default=True)
    """Which tables are copied before they are followed: all, none, {only: […]} or {except: […]}, each listed as
    `schema.table` or by its oid. A table that is not copied begins empty, and has what changes from then on."""
    table_error_retry_delay_ms: PositiveInt = 10_000
    """The first pause before a failed table is tried again; it doubles, up to ten minutes."""
    table_error_retry_max_attempts: NonNegativeInt = 5
    """Retries until a table waits for a person: with the default delay, about five minutes of trouble."""
    ack: Literal["applied", "staged"] = "applied"
    """What is acknowledged to the source: what the destination has, or what our log has on disk.
    The default asks for nothing but the destination to be kept; `staged` makes the log as precious as it."""
    special_values: Annotated[SpecialValuesConfig, BeforeValidator(_parse_special_values)] = SpecialValuesConfig()
    """A policy (error, "null", clamp, string), or `policy` and exceptions in `columns`."""
    invalidated_slot: Literal["error", "resync"] = "error"
    """When the source removed WAL that was needed: stop, by default, because a copy of everything costs hours."""
    initial_copy: CopyConfig = CopyConfig()
    log: LogConfig = LogConfig()
    receiver: ReceiverConfig = ReceiverConfig()
    failover_slot: bool = True
    """On servers from 17 on the slot is made to survive a failover: standbys with sync_replication_slots keep a copy.
    It costs nothing where there are none."""

    @property
    def value_policies(self) -> ValuePolicies:
        """The special-value policies as the rest of Penstock takes them."""
        return ValuePolicies(self.special_values.policy, dict(self.special_values.columns))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> PipelineConfig:
        """Read the `pipeline` part of a file; the other parts may be absent and are not looked at.

        Raises `ConfigError` with everything that is wrong. See `penstock.config.load`.
        """
        return load(cls, path, section="pipeline", overrides=overrides, environ=environ)
