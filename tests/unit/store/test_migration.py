"""Migrations are numbered without gaps, come in pairs, and undo each other exactly."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import resources

import pytest

from penstock.errors import StateError
from penstock.store.migration import check_version, current_version, migrate, read_migrations, statements

MIGRATIONS = read_migrations("sqlite")
NEWEST = MIGRATIONS[-1].version


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        yield connection


def _schema(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute("select name, sql from sqlite_master order by name").fetchall()


def test_versions_count_from_one_without_a_gap() -> None:
    assert [migration.version for migration in MIGRATIONS] == list(range(1, NEWEST + 1))


def test_every_file_is_named_and_paired() -> None:
    folder = resources.files("penstock.store") / "migrations" / "sqlite"
    names = {file.name for file in folder.iterdir()}
    assert all(re.fullmatch(r"\d{4}_[a-z]+_[a-z_]+\.(up|down)\.sql", name) for name in names)
    assert {name.replace(".up.", ".down.") for name in names} == {name for name in names if ".down." in name}


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_down_and_up_again_gives_the_same_schema(connection: sqlite3.Connection, version: int) -> None:
    migrate(connection, MIGRATIONS, NEWEST)
    before = _schema(connection)
    migrate(connection, MIGRATIONS, version)
    assert current_version(connection) == version
    migrate(connection, MIGRATIONS, NEWEST)
    assert _schema(connection) == before


def test_all_the_way_down_leaves_only_the_history(connection: sqlite3.Connection) -> None:
    migrate(connection, MIGRATIONS, NEWEST)
    migrate(connection, MIGRATIONS, 0)
    assert [name for name, _ in _schema(connection)] == ["migration_history"]


def test_migrating_twice_changes_nothing(connection: sqlite3.Connection) -> None:
    migrate(connection, MIGRATIONS, NEWEST)
    applied = connection.execute("select * from migration_history").fetchall()
    migrate(connection, MIGRATIONS, NEWEST)
    assert connection.execute("select * from migration_history").fetchall() == applied


def test_an_empty_database_has_version_zero(connection: sqlite3.Connection) -> None:
    assert current_version(connection) == 0


def test_only_a_newer_version_is_refused() -> None:
    check_version(0, MIGRATIONS, "state.sqlite")
    check_version(NEWEST, MIGRATIONS, "state.sqlite")
    with pytest.raises(StateError, match=r"state\.sqlite was written by a newer Penstock"):
        check_version(NEWEST + 1, MIGRATIONS, "state.sqlite")


def test_a_script_is_split_at_its_semicolons_only() -> None:
    script = "-- a; b\ncreate table a (x text default ';');\n\ncreate table b (\n  y\n);\n"
    assert [statement.split("create")[1].split("(")[0].strip() for statement in statements(script)] == [
        "table a",
        "table b",
    ]
    with pytest.raises(ValueError, match="inside a statement"):
        list(statements("create table a (x)"))
