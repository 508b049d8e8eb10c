"""Numbered SQL migrations: what they are, which are applied, and the steps up and down.

A migration is a pair of files, `NNNN_verb_noun.up.sql` and `.down.sql`, never edited once released. Which are
applied is written in the database itself, in the transaction that applies them.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from penstock.errors import StateError
from penstock.store import query

_UP_FILE = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.up\.sql\Z")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of a schema, in both directions."""

    version: int
    name: str
    up: str
    down: str


def read_migrations(dialect: str) -> tuple[Migration, ...]:
    """Return a dialect's migrations in order."""
    folder = resources.files("penstock.store") / "migrations" / dialect
    matches = (match for file in folder.iterdir() if (match := _UP_FILE.match(file.name)))
    found = [
        Migration(
            int(match["version"]),
            match["name"],
            (folder / match.string).read_text("utf-8"),
            (folder / match.string.replace(".up.sql", ".down.sql")).read_text("utf-8"),
        )
        for match in matches
    ]
    return tuple(sorted(found, key=lambda migration: migration.version))


def current_version(connection: sqlite3.Connection) -> int:
    """Return the newest applied migration's version; 0 for an empty database."""
    if connection.execute(query.load("find_history")).fetchone() is None:
        return 0
    (version,) = connection.execute(query.load("read_version")).fetchone()
    return int(version)


def migrate(connection: sqlite3.Connection, migrations: tuple[Migration, ...], target: int) -> None:
    """Bring the schema up or down to the version `target`. Called inside a transaction."""
    connection.execute(query.load("create_history"))
    version = current_version(connection)
    for migration in migrations:
        if version < migration.version <= target:
            _step_up(connection, migration)
    for migration in reversed(migrations):
        if target < migration.version <= version:
            _step_down(connection, migration)


def check_version(version: int, migrations: tuple[Migration, ...], path: str) -> None:
    """Refuse a database that a newer Penstock wrote: we cannot know what it means."""
    newest = migrations[-1].version
    if version > newest:
        raise StateError(
            f"{path} was written by a newer Penstock: its schema has version {version}, this one knows {newest}",
            remedy="Run the newer Penstock, or restore the file from before the upgrade.",
        )


def _step_up(connection: sqlite3.Connection, migration: Migration) -> None:
    for statement in statements(migration.up):
        connection.execute(statement)
    connection.execute(query.load("record_migration"), {"version": migration.version, "name": migration.name})


def _step_down(connection: sqlite3.Connection, migration: Migration) -> None:
    for statement in statements(migration.down):
        connection.execute(statement)
    connection.execute(query.load("forget_migration"), {"version": migration.version})


def statements(script: str) -> Iterator[str]:
    """Split a script. `executescript` would commit the transaction that a migration must be part of."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        raise ValueError("a migration script ends inside a statement")
