"""Every error Penstock raises on purpose, and what each kind means for the table or pipeline it stops.

    PenstockError             the root: a kind, a message, a remedy
    ├── ConfigError           the user's file, flags or environment
    ├── SourceError           the source database, its settings or its rights
    ├── DestinationError      where the data goes
    ├── ConversionError       a value that its target type cannot hold
    ├── WireError             bytes that are not the protocol they should be
    ├── LogDamagedError       the change log fails its checksums or has a gap
    └── StateError            a call that the current state does not allow

Messages name tables, columns and positions; never row values, never secrets.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Retry(StrEnum):
    """What is done about an error of some kind."""

    TIMED = "timed"
    """Tried again by itself, with growing pauses."""
    MANUAL = "manual"
    """Waits for someone to mend the cause."""
    NEVER = "never"
    """The table has to be copied anew."""


class ErrorKind(StrEnum):
    """What went wrong, as precisely as it can be told; one row of `REMEDIES` each."""

    CONFIG = "config"
    SOURCE_CONNECTION_FAILED = "source_connection_failed"
    SOURCE_AUTHENTICATION = "source_authentication"
    SOURCE_PERMISSION_DENIED = "source_permission_denied"
    SOURCE_WAL_LEVEL = "source_wal_level"
    SOURCE_LIMIT_EXCEEDED = "source_limit_exceeded"
    SOURCE_SCHEMA = "source_schema"
    SOURCE_QUERY_FAILED = "source_query_failed"
    SOURCE_LOCK_TIMEOUT = "source_lock_timeout"
    SOURCE_OPERATION_CANCELED = "source_operation_canceled"
    SOURCE_SHUTDOWN = "source_shutdown"
    SOURCE_IN_RECOVERY = "source_in_recovery"
    SOURCE_SNAPSHOT_LOST = "source_snapshot_lost"
    SOURCE_IO = "source_io"
    SOURCE_ERROR = "source_error"
    PUBLICATION_MISSING = "publication_missing"
    PUBLICATION_EMPTY = "publication_empty"
    SLOT_MISSING = "slot_missing"
    SLOT_INVALIDATED = "slot_invalidated"
    SLOT_IN_USE = "slot_in_use"
    REPLICA_IDENTITY = "replica_identity"
    SCHEMA_CHANGED = "schema_changed"
    CONVERSION = "conversion"
    WIRE = "wire"
    LOG_DAMAGED = "log_damaged"
    LOG_GAP = "log_gap"
    LOG_IO = "log_io"
    DESTINATION_UNAVAILABLE = "destination_unavailable"
    DESTINATION_PERMISSION_DENIED = "destination_permission_denied"
    DESTINATION_CONFLICT = "destination_conflict"
    DESTINATION_UNSUPPORTED = "destination_unsupported"
    DESTINATION_ERROR = "destination_error"
    STATE = "state"
    INTERNAL = "internal"


REMEDIES: dict[ErrorKind, tuple[Retry, str]] = {
    ErrorKind.CONFIG: (Retry.MANUAL, "Correct the configuration and start again."),
    ErrorKind.SOURCE_CONNECTION_FAILED: (Retry.TIMED, "Check host, port and network; the server must be running."),
    ErrorKind.SOURCE_AUTHENTICATION: (Retry.MANUAL, "Check username and password, and the server's pg_hba.conf."),
    ErrorKind.SOURCE_PERMISSION_DENIED: (Retry.MANUAL, "Grant the role what the message names."),
    ErrorKind.SOURCE_WAL_LEVEL: (Retry.MANUAL, "Set wal_level = logical on the source and restart it."),
    ErrorKind.SOURCE_LIMIT_EXCEEDED: (Retry.MANUAL, "Raise the setting that the message names on the source."),
    ErrorKind.SOURCE_SCHEMA: (Retry.MANUAL, "Compare the table with what was published, then resync it."),
    ErrorKind.SOURCE_QUERY_FAILED: (Retry.MANUAL, "See the server's message and its log."),
    ErrorKind.SOURCE_LOCK_TIMEOUT: (Retry.TIMED, "Another session holds a lock; it is tried again."),
    ErrorKind.SOURCE_OPERATION_CANCELED: (Retry.TIMED, "The server cancelled the operation; it is tried again."),
    ErrorKind.SOURCE_SHUTDOWN: (Retry.TIMED, "The server is shutting down; it is tried again."),
    ErrorKind.SOURCE_IN_RECOVERY: (Retry.TIMED, "The server is starting up or recovering; it is tried again."),
    ErrorKind.SOURCE_SNAPSHOT_LOST: (Retry.TIMED, "The snapshot's session ended; the copy starts with a new one."),
    ErrorKind.SOURCE_IO: (Retry.MANUAL, "The server could not read or write its own files; see its log."),
    ErrorKind.SOURCE_ERROR: (Retry.MANUAL, "See the server's message and its log."),
    ErrorKind.PUBLICATION_MISSING: (Retry.MANUAL, "Create the publication, or correct pipeline.publication_name."),
    ErrorKind.PUBLICATION_EMPTY: (Retry.MANUAL, "Add tables to the publication."),
    ErrorKind.SLOT_MISSING: (
        Retry.MANUAL,
        "Changes may be lost: restore the slot, or drop the pipeline's state to copy anew.",
    ),
    ErrorKind.SLOT_INVALIDATED: (
        Retry.MANUAL,
        "The source removed WAL that was still needed: the tables must be copied anew.",
    ),
    ErrorKind.SLOT_IN_USE: (Retry.TIMED, "Another process reads this slot: stop it, or give this pipeline another id."),
    ErrorKind.REPLICA_IDENTITY: (Retry.MANUAL, "Give the table a primary key or a replica identity."),
    ErrorKind.SCHEMA_CHANGED: (Retry.MANUAL, "Undo the change at the source, or copy the table anew."),
    ErrorKind.CONVERSION: (
        Retry.MANUAL,
        "Choose another special-value policy for the column and roll the table back; or correct the value and resync.",
    ),
    ErrorKind.WIRE: (Retry.MANUAL, "The server sent something unexpected: please report it with the server's version."),
    ErrorKind.LOG_DAMAGED: (
        Retry.MANUAL,
        "Restore the change log's folder from a copy, or drop the pipeline's state to copy anew.",
    ),
    ErrorKind.LOG_GAP: (Retry.NEVER, "The change log no longer holds what the table needs: it must be copied anew."),
    ErrorKind.LOG_IO: (
        Retry.TIMED,
        "Free space, or mend access, where the change log is: state_dir, or pipeline.log.location.",
    ),
    ErrorKind.DESTINATION_UNAVAILABLE: (Retry.TIMED, "The destination did not answer; it is tried again."),
    ErrorKind.DESTINATION_PERMISSION_DENIED: (Retry.MANUAL, "Give the process write access to the destination."),
    ErrorKind.DESTINATION_CONFLICT: (Retry.TIMED, "Another writer committed first; it is tried again."),
    ErrorKind.DESTINATION_UNSUPPORTED: (
        Retry.MANUAL,
        "See the message; the destination cannot hold this table as it is.",
    ),
    ErrorKind.DESTINATION_ERROR: (
        Retry.TIMED,
        "It is tried again; --log-level debug shows what the library said.",
    ),
    ErrorKind.STATE: (Retry.MANUAL, "See the message."),
    ErrorKind.INTERNAL: (Retry.MANUAL, "This is a fault in Penstock: please report it with the log."),
}


class PenstockError(Exception):
    """An error with a kind, a message for a person, and what that person can do."""

    default_kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL

    def __init__(self, message: str, *, kind: ErrorKind | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind or self.default_kind
        self.remedy = remedy or REMEDIES[self.kind][1]

    @property
    def retry(self) -> Retry:
        """What is done about it."""
        return REMEDIES[self.kind][0]

    def __str__(self) -> str:
        return self.message


class ConfigError(PenstockError):
    """The user's file, flags or environment are wrong. Exit code 2."""

    default_kind = ErrorKind.CONFIG


class SourceError(PenstockError):
    """The source database, its settings or its rights."""

    default_kind = ErrorKind.SOURCE_ERROR


class DestinationError(PenstockError):
    """Where the data goes."""

    default_kind = ErrorKind.DESTINATION_ERROR


class ConversionError(PenstockError):
    """A value that its target type cannot hold, under the policy `error`."""

    default_kind = ErrorKind.CONVERSION


class WireError(PenstockError):
    """Bytes that are not the protocol they should be."""

    default_kind = ErrorKind.WIRE


class LogDamagedError(PenstockError):
    """The change log fails its checksums, or has a gap where something is still needed."""

    default_kind = ErrorKind.LOG_DAMAGED


class StateError(PenstockError):
    """A call that the current state does not allow."""

    default_kind = ErrorKind.STATE
