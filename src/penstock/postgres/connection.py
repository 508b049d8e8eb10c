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
    # A server that leaves changes out says so in a warning.
    "client_min_messages": "warning",
    # A copy, or a slot that waits for old transactions, may take hours; a role's own limits are for its queries.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
SESSION_OPTIONS = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
"""The pinned settings as the start-up packet's `options`, which come after a role's and a database's own."""

TRANSACTION_TIMEOUT_SINCE = 170000
LIFT_TRANSACTION_TIMEOUT = "set transaction_timeout = 0"
"""Run after the fact: older servers refuse a connection that names a setting they do not have."""


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
    sslcert: str | None = None
    """The path of a file with the certificate that we show, where the server asks for one."""
    sslkey: str | None = None
    """The path of that certificate's key, which only we may read."""
    hostaddr: str | None = None
    """An IP address to connect to, where `host` is only the name to verify."""
    connect_timeout_s: int = 10
    # A peer that vanished without a word is noticed within about a minute, not after two hours.
    keepalives_idle_s: int = 30
    keepalives_interval_s: int = 10
    keepalives_count: int = 3

    @property
    def silence_limit_s(self) -> int:
        """How long a peer may leave us without a sign of life, probed or owing us an acknowledgement."""
        return self.keepalives_idle_s + self.keepalives_interval_s * self.keepalives_count

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
        "sslcert": address.sslcert,
        "sslkey": address.sslkey,
        "hostaddr": address.hostaddr,
        "connect_timeout": address.connect_timeout_s,
        "keepalives_idle": address.keepalives_idle_s,
        "keepalives_interval": address.keepalives_interval_s,
        "keepalives_count": address.keepalives_count,
        # Probes wait while something is unacknowledged, and a stream always owes or is owed a status update.
        "tcp_user_timeout": address.silence_limit_s * 1000,
        "options": SESSION_OPTIONS,
    }


def _lift_transaction_timeout(connection: Connection) -> None:
    if connection.info.server_version >= TRANSACTION_TIMEOUT_SINCE:
        with source_errors("preparing the session"):
            connection.execute(LIFT_TRANSACTION_TIMEOUT)


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
        re.compile(r"authentication|password|pg_hba\.conf|client cert|role .* does not exist|not permitted to log in"),
        ErrorKind.SOURCE_AUTHENTICATION,
    ),
    (re.compile(r"database .* does not exist"), ErrorKind.SOURCE_SCHEMA),
    (re.compile(r"permission denied|must be superuser or replication role"), ErrorKind.SOURCE_PERMISSION_DENIED),
    (re.compile(r"starting up|shutting down|recovery|not accepting connections"), ErrorKind.SOURCE_IN_RECOVERY),
)
"""What a server says when it refuses a connection: libpq passes on its words, but not its SQLSTATE."""

_WORDS: tuple[tuple[re.Pattern[str], ErrorKind], ...] = (
    (re.compile(r"no password supplied"), ErrorKind.SOURCE_AUTHENTICATION),
    # The server's judgement of the certificate that we showed.
    (re.compile(r"alert (\w+ )?certificate|alert unknown ca"), ErrorKind.SOURCE_AUTHENTICATION),
)
"""What goes wrong on our side of a connection, in libpq's or OpenSSL's words; anything else is a failed connection."""

_REMEDIES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r'database ".*" does not exist'), "Check pipeline.pg_connection.name, or create the database."),
    (re.compile(r"WAL sender|replication role"), "Let the role replicate: alter role … with replication."),
    (
        re.compile(r"does not offer TLS|server does not support SSL"),
        "Turn TLS on at the server (ssl = on), or off in pipeline.pg_connection.tls.enabled.",
    ),
    (
        re.compile(r"certificate verify failed|server certificate for|root certificate"),
        "Compare the server's certificate with pipeline.pg_connection.host and its tls.trusted_root_certs.",
    ),
    (
        re.compile(r"alert (\w+ )?certificate|alert unknown ca|valid client certificate"),
        "Check pipeline.pg_connection.tls.client_cert: the server must trust its issuer, and it must not have expired.",
    ),
)
"""Where the kind's own remedy would mislead."""


def as_source_error(error: psycopg.Error, doing: str = "") -> SourceError:
    """Translate an error of psycopg's: its kind, and one line that names what was being done."""
    if error.sqlstate is not None:
        return _server_error(error.sqlstate, error.diag.message_primary or "", str(error), doing)
    said = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return connection_error(said, doing)
    return SourceError(_line(said, doing), remedy=_remedy(said))


def error_from_response(body: bytes, doing: str = "") -> SourceError:
    """Translate the body of an ErrorResponse of the wire: to the same error as psycopg's exception for it.

    It may come in another encoding than UTF-8, as long as the session's is not agreed on.
    """
    fields = {field[:1]: field[1:].decode(errors="replace") for field in body.split(b"\0") if field}
    said = [fields[name] for name in (b"M", b"D", b"H") if name in fields]
    return _server_error(fields.get(b"C", "XX000"), fields.get(b"M", ""), "\n".join(said), doing)


def connection_error(said: str, doing: str = "") -> SourceError:
    """Return the error of a connection that failed without an SQLSTATE: in libpq's, OpenSSL's or our words."""
    return SourceError(_line(said, doing), kind=_kind_of_words(said), remedy=_remedy(said))


@contextlib.contextmanager
def source_errors(doing: str = "") -> Iterator[None]:
    """Translate what psycopg raises inside.

    The original is not chained: its text has the server's DETAIL, which may quote a row.
    """
    try:
        yield
    except psycopg.Error as error:
        raise as_source_error(error, doing) from None


def _server_error(sqlstate: str, primary: str, said: str, doing: str) -> SourceError:
    """Return the error for what a server said: `primary` is its message, `said` all of it, which is never shown."""
    return SourceError(_line(_describe(sqlstate, primary), doing), kind=_kind(sqlstate, primary), remedy=_remedy(said))


def _line(said: str, doing: str) -> str:
    return f"{doing}: {said}" if doing else said


def _describe(sqlstate: str, primary: str) -> str:
    """Return the server's one-line message; for errors about data only their name, as the message may quote it."""
    if sqlstate.startswith(("22", "23")) or not primary:
        return f"{_condition(sqlstate)} (SQLSTATE {sqlstate})"
    return f"{' '.join(primary.split())} (SQLSTATE {sqlstate})"


def _condition(sqlstate: str) -> str:
    try:
        return psycopg.errors.lookup(sqlstate).__name__
    except KeyError:
        return "an error without a name"


def _kind(sqlstate: str, primary: str) -> ErrorKind:
    for which, pattern, kind in _SAID:
        if which == sqlstate and pattern.search(primary):
            return kind
    return KINDS.get(sqlstate) or KINDS.get(sqlstate[:2]) or ErrorKind.SOURCE_ERROR


def _kind_of_words(said: str) -> ErrorKind:
    _, fatal, refusal = said.partition("FATAL:")
    kinds = _REFUSED if fatal else _WORDS
    found = (kind for pattern, kind in kinds if pattern.search(refusal or said))
    return next(found, ErrorKind.SOURCE_CONNECTION_FAILED)


def _remedy(said: str) -> str | None:
    return next((remedy for pattern, remedy in _REMEDIES if pattern.search(said)), None)
