"""Whether a source is ready to be replicated, checked before anything is changed.

Every finding that fails names the object concerned and the statement that mends it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.errors import ErrorKind, SourceError
from penstock.model.table import ReplicaIdentity, TableName, quote_identifier
from penstock.postgres import query
from penstock.postgres.connection import Connection, SourceAddress, connect, source_errors
from penstock.postgres.publication import PublishedTable, published_tables

APPLICATION_NAME = "penstock check"
MIN_VERSION_MAJOR = 14
"""The first with ctid range scans."""


class Level(StrEnum):
    """How much a failed finding matters."""

    ERROR = "error"
    """Replication cannot work."""
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


def check_source(address: SourceAddress, publication: str, slots_needed: int) -> list[Finding]:
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
            *_check_publication(connection, address.user, publication),
        ]


def require_source(address: SourceAddress, publication: str, slots_needed: int) -> None:
    """Raise the first error that `check_source` finds; warnings pass."""
    for finding in check_source(address, publication, slots_needed):
        if not finding.ok and finding.level is Level.ERROR:
            raise SourceError(finding.message, kind=finding.kind, remedy=finding.remedy)


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


def _check_publication(connection: Connection, role: str, publication: str) -> Iterator[Finding]:
    try:
        tables = published_tables(connection, publication)
    except SourceError as error:
        yield _failed("publication", error)
        return
    yield Finding("publication", ok=True, message=f"publication {publication} has {len(tables)} tables")
    yield from _check_rights(connection, role, tables)
    yield from _check_identities(connection, publication, tables)


def _check_rights(connection: Connection, role: str, tables: Sequence[PublishedTable]) -> Iterator[Finding]:
    with source_errors("reading the role's rights"):
        rows = connection.execute(query.load("table_rights"), {"tables": _oids(tables)}).fetchall()
    grantee = quote_identifier(role)
    denied = [
        _denied(TableName(schema, name), grantee, may_use=may_use)
        for _, schema, name, may_use, may_select, _ in rows
        if not (may_use and may_select)
    ]
    hidden = [_hidden(TableName(schema, name), grantee) for _, schema, name, _, _, is_hidden in rows if is_hidden]
    yield from denied or [Finding("select", ok=True, message=f"role {role} may read every table")]
    yield from hidden or [Finding("row_security", ok=True, message="no row-level security hides rows")]


def _denied(table: TableName, grantee: str, *, may_use: bool) -> Finding:
    usage = "" if may_use else f"grant usage on schema {quote_identifier(table.schema)} to {grantee}; "
    return Finding(
        "select",
        ok=False,
        message=f"role {grantee} may not read table {table}",
        remedy=f"{usage}grant select on {table.quoted} to {grantee};",
        kind=ErrorKind.SOURCE_PERMISSION_DENIED,
    )


def _hidden(table: TableName, grantee: str) -> Finding:
    return Finding(
        "row_security",
        ok=False,
        message=f"row-level security may hide rows of table {table} from role {grantee}: a copy would miss them",
        remedy=f"alter role {grantee} with bypassrls;",
        kind=ErrorKind.SOURCE_PERMISSION_DENIED,
    )


def _check_identities(connection: Connection, publication: str, tables: Sequence[PublishedTable]) -> Iterator[Finding]:
    with source_errors("reading replica identities"):
        changing = connection.execute(query.load("publication_operations"), {"publication": publication}).fetchone()
        rows = connection.execute(query.load("table_identities"), {"tables": _oids(tables)}).fetchall()
    findings: list[Finding] = []
    if changing == (True,):
        for schema, name, identity, has_key in rows:
            findings.extend(_judge_identity(TableName(schema, name), ReplicaIdentity(identity), has_key=has_key))
    yield from findings or [
        Finding("replica_identity", ok=True, message="every table's updates and deletes can be told apart")
    ]


def _judge_identity(table: TableName, identity: ReplicaIdentity, *, has_key: bool) -> Iterator[Finding]:
    if identity is ReplicaIdentity.NOTHING:
        yield _identity_warning(
            f"table {table} has replica identity nothing: the source refuses its updates and deletes",
            f"alter table {table.quoted} replica identity default;",
        )
    elif not has_key:
        yield _identity_warning(
            f"table {table} has no key, but its updates and deletes are published",
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
