"""How a source is reached: its address, connections whose sessions all behave alike, and what their errors mean.

Every session is pinned to the same settings, because they decide how values are printed: a copy and
the stream must print the same row alike. Nothing here puts a password or a row's value in a message.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psycopg

from penstock.errors import ErrorKind, SourceError

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

SESSION: Mapping[str, str] = {
    # Output: the text forms that `penstock.wire` reads.
    "datestyle": "ISO,MDY",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "client_encoding": "UTF8",
    "timezone": "UTC",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    # Names in row filters, and values such as regclass, are printed in full, the same in every session.
    "search_path": "pg_catalog",
    # A policy that would hide rows from a copy makes it fail instead.
    "row_security": "off",
    # A copy, or a slot that waits for old transactions, may take hours; a role's own limits are for its queries.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
_TRANSACTION_TIMEOUT_SINCE = 170000


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """Where a source database is, and who we are there: plain values, which travel to Spark tasks."""

    host: str
    port: int
    dbname: str
    user: str
    password: str | None = field(default=None, repr=False)
    sslmode: str = "prefer"
    """libpq's word: `verify-full` checks certificate and name, `disable` sends everything in the clear."""
    sslrootcert: str | None = None
    """The path of a file of trusted certificates, or `system`."""
    hostaddr: str | None = None
    """An IP address to connect to, where `host` is only the name to verify."""
    connect_timeout_s: int = 10
    # A peer that vanished without a word is noticed within about a minute, not after two hours.
    keepalives_idle_s: int = 30
    keepalives_interval_s: int = 10
    keepalives_count: int = 3

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}/{self.dbname}"


def connect(
    address: SourceAddress, *, application_name: str, replication: bool = False, autocommit: bool = True
) -> Connection:
    """Open a connection with the pinned session settings; `replication` gives a logical walsender."""
    parameters: dict[str, Any] = {"replication": "database"} if replication else {}
    with source_errors(f"connecting to {address}"):
        connection = psycopg.connect(
            autocommit=True,
            # Nothing is worth preparing, and poolers in between may not support it.
            prepare_threshold=None,
            application_name=application_name,
            **_address_parameters(address),
            **parameters,
        )
    try:
        _lift_transaction_timeout(connection)
        connection.autocommit = autocommit
    except BaseException:
        connection.close()
        raise
    return connection


def _address_parameters(address: SourceAddress) -> dict[str, Any]:
    return {
        "host": address.host,
        "port": address.port,
        "dbname": address.dbname,
        "user": address.user,
        "password": address.password,
        "sslmode": address.sslmode,
        "sslrootcert": address.sslrootcert,
        "hostaddr": address.hostaddr,
        "connect_timeout": address.connect_timeout_s,
        "keepalives_idle": address.keepalives_idle_s,
        "keepalives_interval": address.keepalives_interval_s,
        "keepalives_count": address.keepalives_count,
        "options": " ".join(f"-c {name}={value}" for name, value in SESSION.items()),
    }


def _lift_transaction_timeout(connection: Connection) -> None:
    """Set it after the fact: older servers refuse a connection that names a setting they do not have."""
    if connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
        with source_errors("preparing the session"):
            connection.execute("set transaction_timeout = 0")


KINDS: Mapping[str, ErrorKind] = {
    "08": ErrorKind.SOURCE_CONNECTION_FAILED,
    "0A": ErrorKind.SOURCE_SCHEMA,
    "22": ErrorKind.SOURCE_QUERY_FAILED,
    "23": ErrorKind.SOURCE_QUERY_FAILED,
    "25": ErrorKind.SOURCE_QUERY_FAILED,
    "25P03": ErrorKind.SOURCE_CONNECTION_FAILED,  # idle in a transaction for too long
    "25P04": ErrorKind.SOURCE_CONNECTION_FAILED,  # a transaction took too long
    "28": ErrorKind.SOURCE_AUTHENTICATION,
    "3D": ErrorKind.SOURCE_SCHEMA,
    "3F": ErrorKind.SOURCE_SCHEMA,
    "40": ErrorKind.SOURCE_OPERATION_CANCELED,  # serialization failure, deadlock: passes when tried again
    "42": ErrorKind.SOURCE_QUERY_FAILED,
    "42501": ErrorKind.SOURCE_PERMISSION_DENIED,
    "42703": ErrorKind.SOURCE_SCHEMA,
    "42704": ErrorKind.SOURCE_SCHEMA,
    "42883": ErrorKind.SOURCE_SCHEMA,
    "42P01": ErrorKind.SOURCE_SCHEMA,
    "53": ErrorKind.SOURCE_CONNECTION_FAILED,  # out of memory or connections: passes
    "53100": ErrorKind.SOURCE_IO,
    "53400": ErrorKind.SOURCE_LIMIT_EXCEEDED,
    "55006": ErrorKind.SLOT_IN_USE,
    "55P03": ErrorKind.SOURCE_LOCK_TIMEOUT,
    "57014": ErrorKind.SOURCE_OPERATION_CANCELED,
    "57P01": ErrorKind.SOURCE_SHUTDOWN,
    "57P02": ErrorKind.SOURCE_SHUTDOWN,
    "57P03": ErrorKind.SOURCE_IN_RECOVERY,
    "57P04": ErrorKind.SOURCE_SCHEMA,
    "57P05": ErrorKind.SOURCE_CONNECTION_FAILED,
    "58": ErrorKind.SOURCE_IO,
    "72": ErrorKind.SOURCE_SNAPSHOT_LOST,
    "XX001": ErrorKind.SOURCE_IO,
    "XX002": ErrorKind.SOURCE_IO,
}
"""What an SQLSTATE means to us: the whole code first, then its class."""

_SAID: tuple[tuple[str, re.Pattern[str], ErrorKind], ...] = (
    ("42704", re.compile(r"replication slot"), ErrorKind.SLOT_MISSING),
    ("42704", re.compile(r"publication"), ErrorKind.PUBLICATION_MISSING),
    ("42704", re.compile(r"snapshot"), ErrorKind.SOURCE_SNAPSHOT_LOST),
    ("55000", re.compile(r"wal_level"), ErrorKind.SOURCE_WAL_LEVEL),
    ("55000", re.compile(r"(can no longer|cannot read from).*replication slot"), ErrorKind.SLOT_INVALIDATED),
    ("55000", re.compile(r"snapshot"), ErrorKind.SOURCE_SNAPSHOT_LOST),
    ("22023", re.compile(r"snapshot"), ErrorKind.SOURCE_SNAPSHOT_LOST),
)
"""Codes that stand for several things, which only the message tells apart."""

_REFUSED: tuple[tuple[re.Pattern[str], ErrorKind], ...] = (
    (
        re.compile(r"authentication|password|pg_hba\.conf|role .* does not exist|not permitted to log in"),
        ErrorKind.SOURCE_AUTHENTICATION,
    ),
    (re.compile(r"database .* does not exist"), ErrorKind.SOURCE_SCHEMA),
    (re.compile(r"permission denied|must be superuser or replication role"), ErrorKind.SOURCE_PERMISSION_DENIED),
    (re.compile(r"starting up|shutting down|recovery|not accepting connections"), ErrorKind.SOURCE_IN_RECOVERY),
)
"""What a server says when it refuses a connection: libpq passes on its words, but not its SQLSTATE."""

_REMEDIES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r'database ".*" does not exist'), "Check pipeline.pg_connection.name, or create the database."),
    (re.compile(r"WAL sender|replication role"), "Let the role replicate: alter role … with replication."),
)
"""Where the kind's own remedy would mislead."""


def as_source_error(error: psycopg.Error, doing: str = "") -> SourceError:
    """Translate an error of psycopg's: its kind, and one line that names what was being done."""
    return SourceError(
        f"{doing}: {_describe(error)}" if doing else _describe(error),
        kind=_kind(error),
        remedy=_remedy(error),
    )


@contextlib.contextmanager
def source_errors(doing: str = "") -> Iterator[None]:
    """Translate what psycopg raises inside.

    The original is not chained: its text has the server's DETAIL, which may quote a row.
    """
    try:
        yield
    except psycopg.Error as error:
        raise as_source_error(error, doing) from None


def _describe(error: psycopg.Error) -> str:
    """Return the server's one-line message; for errors about data only their name, as the message may quote it."""
    if error.sqlstate is None:
        return " ".join(str(error).split()) or type(error).__name__
    if error.sqlstate.startswith(("22", "23")):
        return f"{type(error).__name__} (SQLSTATE {error.sqlstate})"
    return f"{' '.join((error.diag.message_primary or type(error).__name__).split())} (SQLSTATE {error.sqlstate})"


def _kind(error: psycopg.Error) -> ErrorKind:
    code = error.sqlstate
    if code is None:
        return _kind_without_code(error)
    said = error.diag.message_primary or ""
    for which, pattern, kind in _SAID:
        if which == code and pattern.search(said):
            return kind
    return KINDS.get(code) or KINDS.get(code[:2]) or ErrorKind.SOURCE_ERROR


def _kind_without_code(error: psycopg.Error) -> ErrorKind:
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return ErrorKind.SOURCE_ERROR
    _, fatal, said = str(error).partition("FATAL:")
    if fatal:
        for pattern, kind in _REFUSED:
            if pattern.search(said):
                return kind
    # "no password supplied" is libpq's own complaint, not the server's.
    if "no password supplied" in str(error):
        return ErrorKind.SOURCE_AUTHENTICATION
    return ErrorKind.SOURCE_CONNECTION_FAILED


def _remedy(error: psycopg.Error) -> str | None:
    return next((remedy for pattern, remedy in _REMEDIES if pattern.search(str(error))), None)
