"""Whether a source is ready to be replicated, checked before anything is changed.

Every finding that fails names the object concerned and the statement that mends it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.config.table_sync_copy import TableSyncCopy
from penstock.errors import ErrorKind, SourceError
from penstock.model.mode import TableMode, TableModes
from penstock.model.table import ReplicaIdentity, TableId, TableName, quote_identifier
from penstock.postgres import query
from penstock.postgres.connection import Connection, SourceAddress, connect, source_errors
from penstock.postgres.privilege import obstacles
from penstock.postgres.publication import PublishedTable, published_tables
from penstock.telemetry.log import get_logger

APPLICATION_NAME = "penstock check"
MIN_VERSION_MAJOR = 14
"""The first with ctid range scans."""
_ALL_CURRENT = TableModes()
_RENAMED = TableId(0)  # since the publication was read
_COPIES_ALL = TableSyncCopy()


class Level(StrEnum):
    """How much a failed finding matters."""

    ERROR = "error"
    """Replication cannot work."""
    TABLE = "table"
    """One table cannot be copied; the others can."""
    WARNING = "warning"
    """Replication works, but perhaps not as expected."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    name: str
    ok: bool
    message: str
    remedy: str = ""
    """What to do; empty when there is nothing to do."""
    level: Level = Level.ERROR
    kind: ErrorKind = ErrorKind.SOURCE_ERROR


def check_source(
    address: SourceAddress,
    publication: str,
    slots_needed: int,
    table_sync_copy: TableSyncCopy = _COPIES_ALL,
    modes: TableModes = _ALL_CURRENT,
) -> list[Finding]:
    """Check everything that can be checked; what depends on a failed check is left out."""
    try:
        connection = connect(address, application_name=APPLICATION_NAME)
    except SourceError as error:
        return [_failed("connection", error)]
    with contextlib.closing(connection):
        return [
            Finding("connection", ok=True, message=f"connected to {address}"),
            *_check_server(connection, slots_needed),
            _check_replication(address),
            *_check_publication(connection, publication, table_sync_copy, modes),
        ]


def require_source(
    address: SourceAddress,
    publication: str,
    slots_needed: int,
    table_sync_copy: TableSyncCopy = _COPIES_ALL,
    modes: TableModes = _ALL_CURRENT,
) -> None:
    """Raise the first error that `check_source` finds, and log warnings.

    A table that cannot be copied passes: its own copy is refused, if it still needs one.
    """
    for finding in check_source(address, publication, slots_needed, table_sync_copy, modes):
        if finding.ok or finding.level is Level.TABLE:
            continue
        if finding.level is Level.ERROR:
            raise SourceError(finding.message, kind=finding.kind, remedy=finding.remedy)
        get_logger().warning(
            "source is not as expected", check=finding.name, reason=finding.message, remedy=finding.remedy
        )


def _failed(name: str, error: SourceError) -> Finding:
    return Finding(name, ok=False, message=error.message, remedy=error.remedy, kind=error.kind)


def _judged(name: str, message: str, remedy: str, *, ok: bool, kind: ErrorKind = ErrorKind.SOURCE_ERROR) -> Finding:
    return Finding(name, ok=ok, message=message, remedy="" if ok else remedy, kind=kind)


def _check_server(connection: Connection, slots_needed: int) -> Iterator[Finding]:
    with source_errors("reading the server's settings"):
        row = connection.execute(query.load("server_limits")).fetchone()
    assert row is not None
    version, wal_level, max_slots, slots, max_senders, senders, encoding = row
    yield _judged(
        "version",
        f"the server is Postgres {version // 10000}; {MIN_VERSION_MAJOR} or newer is needed",
        f"Upgrade the source to Postgres {MIN_VERSION_MAJOR} or newer.",
        ok=version // 10000 >= MIN_VERSION_MAJOR,
    )
    yield _judged(
        "wal_level",
        f"wal_level is {wal_level}; logical is needed",
        "alter system set wal_level = 'logical'; then restart the server.",
        ok=wal_level == "logical",
        kind=ErrorKind.SOURCE_WAL_LEVEL,
    )
    yield _judged(
        "encoding",
        f"the database's encoding is {encoding}; text of SQL_ASCII may be anything, and a lake needs UTF-8",
        "Dump the database and restore it into one with encoding UTF8.",
        ok=encoding != "SQL_ASCII",
    )
    yield _check_limit("max_replication_slots", max_slots, slots, slots_needed)
    yield _check_limit("max_wal_senders", max_senders, senders, slots_needed)


def _check_limit(setting: str, limit: int, used: int, needed: int) -> Finding:
    return _judged(
        setting,
        f"{setting} is {limit}, {used} in use; {needed} more needed",
        f"alter system set {setting} = {used + needed}; then restart the server, or drop what is not used.",
        ok=limit - used >= needed,
        kind=ErrorKind.SOURCE_LIMIT_EXCEEDED,
    )


def _check_replication(address: SourceAddress) -> Finding:
    """Open a replication connection: hosted servers grant the right in ways that a role's attributes do not show."""
    try:
        connect(address, application_name=APPLICATION_NAME, replication=True).close()
    except SourceError as error:
        if error.kind is not ErrorKind.SOURCE_PERMISSION_DENIED:
            return _failed("replication", error)
        return Finding(
            "replication",
            ok=False,
            message=f"role {address.user} may not open replication connections",
            remedy=f"alter role {quote_identifier(address.user)} with replication;",
            kind=error.kind,
        )
    return Finding("replication", ok=True, message=f"role {address.user} may open replication connections")


def _check_publication(
    connection: Connection, publication: str, table_sync_copy: TableSyncCopy, modes: TableModes
) -> Iterator[Finding]:
    try:
        tables = published_tables(connection, publication)
    except SourceError as error:
        yield _failed("publication", error)
        return
    yield Finding("publication", ok=True, message=f"publication {publication} has {len(tables)} tables")
    known = [(table.name, table.id) for table in tables]
    yield from _check_listed("table_sync_copy", "pipeline.table_sync_copy", publication, table_sync_copy.unknown(known))
    yield from _check_listed("modes", "modes of the destination", publication, modes.unknown(known))
    copied = [table for table in tables if table_sync_copy.copies(table.name, table.id)]
    yield from _check_rights(connection, copied)
    yield from _check_identities(connection, publication, tables, modes)


def _check_listed(name: str, setting: str, publication: str, unknown: Sequence[str]) -> Iterator[Finding]:
    for entry in unknown:
        yield Finding(
            name,
            ok=False,
            message=f"{setting} lists {entry}, which publication {publication} does not have",
            remedy="Correct it: tables are listed as schema.table, unquoted, or by oid; "
            "of a partitioned table, what the publication has: its root, or its partitions.",
            level=Level.WARNING,
            kind=ErrorKind.CONFIG,
        )


def _check_rights(connection: Connection, tables: Sequence[PublishedTable]) -> Iterator[Finding]:
    found = [
        Finding(
            obstacle.check,
            ok=False,
            message=obstacle.message,
            remedy=obstacle.remedy,
            level=Level.TABLE,
            kind=ErrorKind.SOURCE_PERMISSION_DENIED,
        )
        for obstacle in obstacles(connection, tables)
    ]
    yield from found
    failed = {finding.name for finding in found}
    if "select" not in failed:
        yield Finding("select", ok=True, message=f"role {connection.info.user} may read every table that is copied")
    if "row_security" not in failed:
        yield Finding("row_security", ok=True, message="no row-level security hides rows")


def _check_identities(
    connection: Connection, publication: str, tables: Sequence[PublishedTable], modes: TableModes
) -> Iterator[Finding]:
    with source_errors("reading replica identities"):
        changing = connection.execute(query.load("publication_operations"), {"publication": publication}).fetchone()
        rows = connection.execute(query.load("table_identities"), {"tables": _oids(tables)}).fetchall()
    findings: list[Finding] = []
    known = {table.name: table.id for table in tables}
    if changing == (True,):
        for schema, name, identity, has_key in rows:
            table = TableName(schema, name)
            mode = modes.of(table, known.get(table, _RENAMED))
            findings.extend(_judge_identity(table, ReplicaIdentity(identity), mode, has_key=has_key))
    yield from findings or [
        Finding("replica_identity", ok=True, message="every table's updates and deletes can be told apart")
    ]


def _judge_identity(
    table: TableName, identity: ReplicaIdentity, mode: TableMode, *, has_key: bool
) -> Iterator[Finding]:
    if identity is ReplicaIdentity.NOTHING:
        yield _identity_warning(
            f"table {table} has replica identity nothing: the source refuses its updates and deletes",
            f"alter table {table.quoted} replica identity default;",
        )
    elif not has_key and not (mode is TableMode.HISTORY and identity is ReplicaIdentity.FULL):
        yield _identity_warning(
            f"table {table} has no key, or a deferrable one, but its updates and deletes are published",
            f"alter table {table.quoted} add primary key (…);",
        )


def _identity_warning(message: str, remedy: str) -> Finding:
    return Finding(
        "replica_identity",
        ok=False,
        message=message,
        remedy=remedy,
        level=Level.WARNING,
        kind=ErrorKind.REPLICA_IDENTITY,
    )


def _oids(tables: Sequence[PublishedTable]) -> list[int]:
    return [int(table.id) for table in tables]
