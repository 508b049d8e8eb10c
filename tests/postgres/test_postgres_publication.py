"""A publication's tables, rows and columns are read as the server will send them."""

from __future__ import annotations

import pytest

from penstock.errors import ErrorKind, SourceError
from penstock.model.table import TableName
from penstock.postgres.connection import connect
from penstock.postgres.publication import PublishedTable, published_tables
from penstock.testing.postgres import Database

pytestmark = pytest.mark.postgres


def read(database: Database, publication: str) -> dict[str, PublishedTable]:
    with connect(database.address, application_name="test") as connection:
        return {str(table.name): table for table in published_tables(connection, publication)}


def test_tables_come_with_their_filters_and_column_lists(any_database: Database) -> None:
    any_database.execute('create schema "Größe"')
    any_database.execute('create table "Größe"."wei""rd name" (id int primary key, "Ä b" text, c int)')
    any_database.execute("create table plain (id int primary key, g int generated always as (id + 1) stored, gone int)")
    any_database.execute("alter table plain drop column gone")
    any_database.execute(
        'create publication p for table plain, table "Größe"."wei""rd name" (id, "Ä b") where (id > 5)'
    )
    tables = read(any_database, "p")
    weird = tables['Größe.wei"rd name']
    assert weird.name == TableName("Größe", 'wei"rd name')
    assert weird.columns == ("id", "Ä b")
    assert weird.row_filter == "(id > 5)"
    assert (tables["public.plain"].columns, tables["public.plain"].row_filter) == (None, None)


def test_published_generated_columns_are_listed(any_database: Database) -> None:
    if any_database.version_major < 18:
        pytest.skip("generated columns are published from 18 on")
    any_database.execute("create table t (id int, g int generated always as (id + 1) stored)")
    any_database.execute("create publication p for table t with (publish_generated_columns = stored)")
    assert read(any_database, "p")["public.t"].columns == ("id", "g")


def test_a_filter_names_types_outside_the_pinned_search_path_in_full(any_database: Database) -> None:
    any_database.execute("create table t (id int primary key, n numeric)")
    any_database.execute("create publication p for table t where (n > 1.5 and id is not null)")
    filtered = read(any_database, "p")["public.t"].row_filter
    assert any_database.execute(f"select count(*) from t where {filtered}") == [(0,)]


@pytest.mark.parametrize(("via_root", "expected"), [("true", {"public.root"}), ("false", {"public.a", "public.b"})])
def test_partitions_are_published_as_their_root_or_as_themselves(
    any_database: Database, via_root: str, expected: set[str]
) -> None:
    any_database.execute("create table root (id int primary key) partition by range (id)")
    any_database.execute("create table a partition of root for values from (0) to (10)")
    any_database.execute("create table b partition of root for values from (10) to (20)")
    any_database.execute(f"create publication p for table root with (publish_via_partition_root = {via_root})")
    assert set(read(any_database, "p")) == expected


def test_a_publication_for_all_tables_follows_new_tables(any_database: Database) -> None:
    any_database.execute("create publication p for all tables")
    any_database.execute("create table late (id int)")
    assert set(read(any_database, "p")) == {"public.late"}


def test_a_missing_publication_is_named_with_those_that_exist(database: Database) -> None:
    with pytest.raises(SourceError, match=r"shop_pub does not exist.*there are none") as caught:
        read(database, "shop_pub")
    assert caught.value.kind is ErrorKind.PUBLICATION_MISSING
    database.execute("create publication other_one")
    with pytest.raises(SourceError, match="there are: other_one"):
        read(database, "shop_pub")


def test_an_empty_publication_says_how_to_fill_it(database: Database) -> None:
    database.execute('create publication "Em pty"')
    with pytest.raises(SourceError, match="Em pty has no tables") as caught:
        read(database, "Em pty")
    assert caught.value.kind is ErrorKind.PUBLICATION_EMPTY
    assert 'alter publication "Em pty" add table' in caught.value.remedy
