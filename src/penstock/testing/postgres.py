"""Postgres clusters for tests: one server per version, and a database of its own for every test.

A test's database is cloned from a template, and goes with its slots when the test ends.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from penstock.postgres.connection import SourceAddress
from penstock.postgres.embedded import EmbeddedServer, ServerBinaries

TEMPLATE = "penstock_template"
WAIT_S = 30.0
_POLL_S = 0.01

SETTINGS: Mapping[str, str] = {
    # Idle transitions wait for half of it at most.
    "wal_sender_timeout": "10s",
    # Background work only adds noise and load to short tests.
    "autovacuum": "off",
    "max_wal_size": "4GB",
    "log_min_messages": "warning",
}


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait until the condition holds; fail, naming what was waited for, when it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class Database:
    """One database of a test cluster."""

    host: str
    port: int
    name: str
    username: str
    password: str | None
    version_major: int

    @property
    def conninfo(self) -> str:
        """The database as a connection string."""
        return psycopg.conninfo.make_conninfo(
            host=self.host, port=self.port, dbname=self.name, user=self.username, password=self.password
        )

    @property
    def address(self) -> SourceAddress:
        """The database as a source."""
        return SourceAddress(self.host, self.port, self.name, self.username, self.password)

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """Open a connection, in autocommit unless told otherwise."""
        return psycopg.connect(self.conninfo, **{"autocommit": True, **options})

    def execute(self, statement: str, *params: Any) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own, and return its rows if it has any.

        Without parameters the text may hold several statements.
        """
        with self.connect() as connection:
            cursor = connection.execute(statement, params or None)
            return cursor.fetchall() if cursor.description else []


class Cluster:
    """A running server that hands out databases."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self._names = (f"test_{number}" for number in itertools.count())
        self._create(TEMPLATE, template="template0")

    @property
    def version_major(self) -> int:
        """The server's major version."""
        return self.server.binaries.version_major

    def handle(self, name: str) -> Database:
        """Describe one of the databases, which need not exist."""
        server = self.server
        return Database(server.host, server.port, name, server.username, server.password, self.version_major)

    @contextlib.contextmanager
    def database(self, template: str = TEMPLATE) -> Iterator[Database]:
        """Lend a fresh database."""
        name = next(self._names)
        self._create(name, template=template)
        try:
            yield self.handle(name)
        finally:
            if self.server.is_running:
                self.drop(name)

    def drop(self, name: str) -> None:
        """Drop a database with its connections and slots."""
        with self.handle("postgres").connect() as connection:
            wait_until(lambda: _drop_slots(connection, name), f"the slots of {name} to be dropped")
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def _create(self, name: str, template: str) -> None:
        statement = sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
        with self.handle("postgres").connect() as connection:
            connection.execute(statement)


def _drop_slots(connection: psycopg.Connection[tuple[Any, ...]], database: str) -> bool:
    """Try once; say whether none is left. A holder that was just terminated takes a moment to go."""
    connection.execute(
        "select pg_terminate_backend(active_pid) from pg_replication_slots"
        " where database = %s and active_pid is not null",
        [database],
    )
    with contextlib.suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
        connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", [database]
        )
    left = connection.execute("select 1 from pg_replication_slots where database = %s", [database])
    return left.fetchone() is None


class Clusters:
    """At most one cluster per server version, started when first asked for."""

    def __init__(self, servers: Sequence[ServerBinaries]) -> None:
        self.servers = {server.version_major: server for server in servers}
        self._running: dict[int, Cluster] = {}

    @property
    def newest(self) -> int:
        """The newest version there is."""
        return max(self.servers)

    def get(self, version_major: int) -> Cluster:
        """Return the version's cluster, starting it if need be."""
        if version_major not in self._running:
            self._running[version_major] = start_cluster(self.servers[version_major])
        return self._running[version_major]

    def close(self) -> None:
        """Stop and remove all of them."""
        for cluster in self._running.values():
            cluster.server.remove()


def start_cluster(
    binaries: ServerBinaries, settings: Mapping[str, str] | None = None, *, password: str | None = None
) -> Cluster:
    """Start a cluster in a directory of its own; `cluster.server.remove()` ends it."""
    data_dir = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    server = EmbeddedServer(binaries, data_dir, {**SETTINGS, **(settings or {})}, password=password, durable=False)
    server.start()
    return Cluster(server)
