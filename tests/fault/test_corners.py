"""The corners of replication, one by one, from a real source into both lakes and in every mode: the lake equals it.

All tables are one pipeline's, and each table's changes reach the lake in one batch; each test compares its own tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from plugins.driver import Driver, DriverSettings, Jvm, TableOutcome
from plugins.iceberg import new_catalog
from plugins.kept import AUDIT, Kept, ReadTable, audited, quoted, read_delta, read_iceberg
from pyspark.sql import SparkSession

from penstock.model.mode import TableMode, TableModes
from penstock.testing.postgres import Cluster, Database

pytestmark = pytest.mark.postgres

CURRENT, HISTORY, SCD2 = TableMode
LONG = "(select string_agg(md5(n::text), '') from generate_series(1, 100) n)"


@dataclass(frozen=True)
class Corner:
    """A script; `{0}` is its table, of which there is one for each mode, and `{1}` a second one."""

    name: str
    changes: str
    columns: tuple[str, ...] = ("id", "v", "big")
    key: tuple[str, ...] = ("id",)
    ddl: str = "create table {0} (id int primary key, v int, big text)"
    modes: tuple[TableMode, ...] = (CURRENT, HISTORY, SCD2)
    others: tuple[str, ...] = ()
    """Further tables, by what their names end with."""

    def tables(self) -> list[Kept]:
        return [
            Kept(f"{self.name}_{mode}{suffix}", mode, self.columns, self.key)
            for mode in self.modes
            for suffix in ("", *self.others)
        ]

    def scripts(self, text: str) -> list[str]:
        """Return a script for each mode."""
        names = [[f"{self.name}_{mode}{suffix}" for suffix in ("", *self.others)] for mode in self.modes]
        return [text.format(*map(quoted, some)) for some in names]


_ROWS = f"insert into {{0}} select g, g, {LONG} from generate_series(1, 6) g"
_TWO = "create table {0} (id int primary key, v int, big text); create table {1} (id int primary key, v int, big text)"
_FULL = "create table {0} (id int primary key, v int, big text); alter table {0} replica identity full"
_INDEX = (
    "create table {0} (id int not null, v int primary key, big text); create unique index on {0} (id);"
    "do $$ begin execute format('alter table {0} replica identity using index %I',"
    " (select indexrelid::regclass::name from pg_index where indrelid = '{0}'::regclass and not indisprimary)); end $$"
)
CORNERS = [
    Corner(
        "insert_and_partial_update",
        f"insert into {{0}} values (9, 1, {LONG}); update {{0}} set v = 2 where id = 9;"
        f"update {{0}} set v = 3 where id = 9",
    ),
    Corner(
        "unchanged_in_every_position",
        "update {0} set v = 10 where id = 1; update {0} set v = 11 where id = 1;"
        f"update {{0}} set v = 20, big = 'short' where id = 2; update {{0}} set v = 21 where id = 2;"
        f"update {{0}} set v = 30 where id = 3; update {{0}} set big = {LONG} || 'x' where id = 3;"
        "update {0} set v = 31 where id = 3; update {0} set big = null where id = 4;"
        "update {0} set v = 40 where id = 4",
    ),
    Corner(
        "moved_keys",
        "update {0} set id = 22 where id = 2; update {0} set id = 2 where id = 1;"
        "update {0} set id = 3000 where id = 3;"
        "update {0} set id = 3 where id = 2; update {0} set id = 1 where id = 22",
    ),
    Corner(
        "swapped_keys",
        "begin; update {0} set id = 99 where id = 1; update {0} set id = 1 where id = 2;"
        "update {0} set id = 2 where id = 99; commit;"
        "begin; update {0} set id = 99 where id = 1; update {0} set id = 1 where id = 2;"
        "update {0} set id = 2 where id = 99; commit; update {0} set id = 99 where id = 5;"
        "update {0} set id = 5 where id = 99",
    ),
    Corner(
        "swapped_at_once",
        "update {0} set id = 3 - id where id < 3; update {0} set id = id % 3 + 4, v = 0 where id > 3;"
        "update {0} set id = id + 1",
        key=(),
        ddl="create table {0} (id int primary key deferrable, v int, big text); alter table {0} replica identity full",
        modes=(HISTORY,),
    ),
    Corner(
        "key_checked_late",
        "insert into {0} values (7, 1, 'a'); begin; truncate {0}; insert into {0} values (2, 2, 'b'); commit",
        key=(),
        ddl="create table {0} (id int primary key deferrable, v int, big text)",
        modes=(CURRENT, HISTORY),
    ),
    Corner(
        "moved_and_rewritten", f"update {{0}} set id = 70, big = {LONG} || 'y' where id = 1; update {{0}} set v = 0"
    ),
    Corner(
        "deleted_and_inserted",
        "begin; delete from {0} where id = 1; insert into {0} values (1, null, null); commit;"
        "delete from {0} where id = 2; insert into {0} values (2, 2, 'new'); update {0} set v = 3 where id = 2;"
        "insert into {0} values (8, 8, 'x'); delete from {0} where id = 8; insert into {0} values (8, 9, null)",
    ),
    Corner(
        "truncated_together",
        "begin; insert into {0} values (50, 1, 'gone'); insert into {1} values (51, 1, 'gone'); truncate {0}, {1};"
        "insert into {0} values (52, 1, 'kept'); insert into {1} values (52, 1, 'kept'); update {1} set v = 2; commit;"
        "insert into {1} values (53, 1, 'later')",
        ddl=_TWO,
        others=("_b",),
    ),
    Corner(
        "truncated_by_cascade",
        "begin; delete from {1} where id = 1; truncate {0} cascade; insert into {0} values (1, 1, 'again');"
        "insert into {1} values (1, 1, 'again'); commit; update {0} set v = 5",
        ddl=_TWO + "; alter table {1} add foreign key (v) references {0}",
        others=("_b",),
    ),
    Corner(
        "many_tables_in_a_transaction",
        "begin; update {0} set v = 7; insert into {1} select id + 10, v, big from {0}; savepoint s; delete from {0};"
        "rollback to s; delete from {0} where id = 3; commit; begin; delete from {1}; rollback",
        ddl=_TWO,
        others=("_b",),
    ),
    Corner(
        "old_rows_logged",
        "update {0} set v = 5 where id = 1; update {0} set id = 60, big = 'x' where id = 2;"
        "delete from {0} where id = 3",
        ddl=_FULL,
    ),
    Corner(
        "identified_by_an_index",
        "update {0} set big = 'x' where id = 1; update {0} set id = 60 where id = 2; delete from {0} where id = 3;"
        "update {0} set v = v + 100",
        ddl=_INDEX,
    ),
    Corner(
        "without_a_key",
        "insert into {0} values (1, 1, 'a'), (1, 1, 'a'); update {0} set v = 2 where id = 1;"
        "delete from {0} where id = 2;"
        f"insert into {{0}} values (7, 7, {LONG}), (7, 7, {LONG}); update {{0}} set v = 8 where id = 7",
        key=(),
        ddl="create table {0} (id int, v int, big text); alter table {0} replica identity full",
        modes=(HISTORY,),
    ),
    Corner(
        "without_a_key_only_added",
        "insert into {0} values (1, 1, 'a'), (1, 1, 'a'); begin; truncate {0};"
        "insert into {0} values (2, 2, 'b'); commit;"
        "insert into {0} values (2, 2, 'b')",
        key=(),
        ddl="create table {0} (id int, v int, big text)",
        modes=(CURRENT, HISTORY),
    ),
    Corner(
        "no_identity",
        "insert into {0} values (7, 1, 'a'); begin; truncate {0}; insert into {0} values (2, 2, 'b'); commit",
        key=(),
        ddl="create table {0} (id int primary key, v int, big text); alter table {0} replica identity nothing",
        modes=(CURRENT, HISTORY),
    ),
    Corner(
        'Select "x".* From',
        'insert into {0} values (9, 1, \'a\'); update {0} set "group by" = 2 where "Order" > 3;'
        'update {0} set "Order" = 40 where "Order" = 1; delete from {0} where "Order" = 2',
        columns=("Order", "group by", "a.b`c\\d"),
        key=("Order",),
        ddl='create table {0} ("Order" int primary key, "group by" int, "a.b`c\\d" text)',
    ),
    Corner(
        "columns_like_the_logs",
        "insert into {0} values (9, 1, 'a'); update {0} set _commit_lsn = 2 where _op > 3;"
        "update {0} set _op = 40 where _op = 1; delete from {0} where _op = 2",
        columns=("_op", "_commit_lsn", "_unchanged"),
        key=("_op",),
        ddl="create table {0} (_op int primary key, _commit_lsn int, _unchanged text)",
    ),
]


@dataclass(frozen=True)
class Corners:
    """A lake that has taken the changes of all corners, those of each table in one batch."""

    database: Database
    outcomes: Mapping[str, TableOutcome]
    read: ReadTable

    def check(self, table: Kept) -> None:
        assert self.outcomes[f"public.{table.name}"] == TableOutcome("ready", None)
        source, seen = table.source_rows(self.database), table.seen_by_triggers(self.database)
        table.check(self.read(table.name), source, seen)


def change(database: Database) -> None:
    """Make the changes of all corners, a statement at a time."""
    with database.connect() as connection:
        for corner in CORNERS:
            for statement in "; ".join(corner.scripts(corner.changes)).split(";"):
                connection.execute(statement)


def create(database: Database) -> None:
    database.execute(AUDIT + "create publication test_pub for tables in schema public")
    for corner in CORNERS:
        for script in corner.scripts(corner.ddl):
            database.execute(script)
        for table in corner.tables():
            database.execute(f'alter table {table.quoted} alter column "{table.columns[2]}" set storage external')
        for script in corner.scripts(_ROWS):
            database.execute(script)
        for table in corner.tables():
            if table.mode is not CURRENT:
                database.execute(audited(table.quoted))


@pytest.fixture(scope="module", params=["delta", pytest.param("iceberg", marks=pytest.mark.spark)])
def corners(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    driver_forks: ForkServerContext,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Corners]:
    folder: Path = tmp_path_factory.mktemp("corners")
    modes = TableModes(tables={f"public.{each.name}": each.mode for corner in CORNERS for each in corner.tables()})
    with cluster.database() as database:
        create(database)
        settings, read = DriverSettings(database, folder, modes), read_delta(folder / "lake")
        if request.param == "iceberg":
            spark: SparkSession = request.getfixturevalue("spark")
            catalog = new_catalog(spark, folder / "lake")
            settings = DriverSettings(database, folder, modes, (catalog, Jvm.of(spark)))
            read = read_iceberg(spark, catalog)
        yield Corners(database, replicate(database, Driver(driver_forks, settings)), read)


def replicate(database: Database, driver: Driver) -> Mapping[str, TableOutcome]:
    """Copy, then let all changes be made while nobody looks, and take them in."""
    driver.start()
    driver.catch_up()
    driver.stop()
    change(database)
    driver.start()
    outcomes = driver.catch_up()
    driver.stop()
    return outcomes


@pytest.mark.parametrize("corner", CORNERS, ids=lambda corner: corner.name)
def test_the_lake_equals_the_source_in_every_corner(corners: Corners, corner: Corner) -> None:
    for table in corner.tables():
        corners.check(table)
