"""A role that may not read every row and column is refused before the copy, with the statement that lets it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
from plugins.pipeline import PUBLICATION, Pipelines

from penstock.destinations.memory import MemoryDestination
from penstock.errors import ErrorKind, SourceError
from penstock.model.event import Insert
from penstock.model.table import TableId
from penstock.postgres.catalog import describe_table
from penstock.postgres.connection import SourceAddress, connect
from penstock.postgres.copy import copy_statement
from penstock.postgres.preflight import check_source
from penstock.postgres.privilege import require_readable
from penstock.postgres.publication import PublishedTable, published_tables
from penstock.postgres.ranges import plan_ranges
from penstock.store.memory import MemoryStore
from penstock.testing.postgres import Database, wait_until

pytestmark = pytest.mark.postgres

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


@dataclass(frozen=True, slots=True)
class Limited:
    """A database, and a role that may log in to it and replicate."""

    database: Database
    role: str

    @property
    def quoted(self) -> str:
        return f'"{self.role}"'

    @property
    def address(self) -> SourceAddress:
        return replace(self.database.address, user=self.role)

    def execute(self, statement: str) -> None:
        """Run a statement as the owner of everything; `$role` is the role."""
        self.database.execute(statement.replace("$role", self.quoted))

    def table(self, publication: str = "p") -> PublishedTable:
        with closing(connect(self.database.address, application_name="test")) as connection:
            (table,) = published_tables(connection, publication)
        return table

    def require(self) -> None:
        with closing(connect(self.address, application_name="test")) as connection:
            require_readable(connection, self.table())

    def refused(self) -> SourceError:
        with pytest.raises(SourceError) as caught:
            self.require()
        assert caught.value.kind is ErrorKind.SOURCE_PERMISSION_DENIED
        return caught.value

    def copied(self) -> int:
        """Copy the table with the statements that a real copy uses, and return how many bytes came."""
        table = self.table()
        with closing(connect(self.address, application_name="test")) as connection, connection.cursor() as cursor:
            schema = describe_table(connection, table.id, table.columns)
            parts = plan_ranges(connection, table, blocks_per_range=1)
            statements = [copy_statement(schema, part, table.row_filter) for part in parts]
            return sum(len(chunk) for statement in statements for chunk in read(cursor, statement))


def read(cursor: psycopg.Cursor[tuple[object, ...]], statement: str) -> Iterator[bytes]:
    with cursor.copy(statement.encode()) as copy:
        yield from map(bytes, copy)


@pytest.fixture
def limited(any_database: Database) -> Iterator[Limited]:
    role = f"Limited {any_database.name}"
    any_database.execute(f'create role "{role}" login replication')
    yield Limited(any_database, role)
    any_database.execute(f'drop owned by "{role}" cascade; drop role "{role}"')


def test_a_table_without_select_is_refused_until_the_remedy_is_run(limited: Limited) -> None:
    limited.execute(
        'create schema "S s"; create table "S s"."T t" (id int); create publication p for table "S s"."T t"'
    )
    error = limited.refused()
    assert "S s.T t" in error.message
    assert "grant usage on schema" in error.remedy
    limited.execute(error.remedy)
    limited.require()
    assert limited.copied()


def test_select_without_usage_of_the_schema_is_not_enough(limited: Limited) -> None:
    limited.execute("create schema s; create table s.t (id int); create publication p for table s.t")
    limited.execute("grant select on s.t to $role")
    error = limited.refused()
    assert error.remedy == f'grant usage on schema "s" to {limited.quoted};'
    limited.execute(error.remedy)
    limited.require()


def test_a_right_that_comes_through_a_group_counts(limited: Limited) -> None:
    group = f"group of {limited.role}"
    limited.execute(f'create table t (id int); create publication p for table t; create role "{group}"')
    try:
        limited.execute(f'grant select on t to "{group}"')
        limited.refused()
        limited.execute(f'grant "{group}" to $role')
        limited.require()
    finally:
        limited.execute(f'drop owned by "{group}"; drop role "{group}"')


def test_one_column_that_may_not_be_read_is_named_and_what_was_granted_suffices(limited: Limited) -> None:
    """What is accepted is what the copy's own statements need: the columns, and ctid to bound ranges."""
    limited.execute('create table t (id int primary key, "N n" text, secret text); create publication p for table t')
    limited.execute("insert into t select g, repeat('x', 1000), 's' from generate_series(1, 100) g")
    limited.execute("grant select (id) on t to $role")
    error = limited.refused()
    assert "columns N n, secret, ctid of table public.t" in error.message
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        limited.copied()
    limited.execute(error.remedy)
    limited.require()
    assert limited.copied() > 100_000


def test_columns_outside_the_publications_list_need_no_right(limited: Limited) -> None:
    if limited.database.version_major < 15:
        pytest.skip("column lists need 15")
    limited.execute("create table t (id int primary key, name text, secret text)")
    limited.execute("create publication p for table t (id, name)")
    limited.execute("grant select (id, name, ctid) on t to $role")
    limited.require()
    assert limited.copied()
    limited.execute("revoke select (name) on t from $role")
    assert "column name of table public.t" in limited.refused().message


def test_generated_columns_that_are_not_published_need_no_right(limited: Limited) -> None:
    limited.execute("create table t (id int primary key, twice int generated always as (id * 2) stored)")
    limited.execute("create publication p for table t; grant select (id, ctid) on t to $role")
    limited.require()
    assert limited.copied()


def test_columns_of_the_row_filter_need_a_right_too(limited: Limited) -> None:
    if limited.database.version_major < 15:
        pytest.skip("row filters need 15")
    limited.execute("create table t (id int primary key, kind int); insert into t values (1, 1), (2, 2)")
    limited.execute("create publication p for table t (id) where (kind % 2 = 1) with (publish = 'insert')")
    limited.execute("grant select (id, ctid) on t to $role")
    assert "row filter of table public.t" in limited.refused().message
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        limited.copied()
    limited.execute("grant select (kind) on t to $role")
    limited.require()
    assert limited.copied()


@pytest.mark.parametrize("via_root", ["true", "false"])
def test_of_a_partitioned_table_every_leaf_counts_and_the_root_does_not(limited: Limited, via_root: str) -> None:
    limited.execute("create table root (id int primary key) partition by range (id)")
    limited.execute("create table low partition of root for values from (0) to (10) partition by range (id)")
    limited.execute("create table lowest partition of low for values from (0) to (5)")
    limited.execute("create table high partition of root for values from (10) to (20)")
    limited.execute(f"create publication p for table root with (publish_via_partition_root = {via_root})")
    limited.execute("grant select on root, low, high to $role")
    with closing(connect(limited.address, application_name="test")) as connection:
        found = published_tables(connection, "p")
        refused = []
        for table in found:
            try:
                require_readable(connection, table)
            except SourceError as error:
                refused.append(error.message)
        limited.execute("grant select on lowest to $role; revoke select on root, low from $role")
        for table in found:
            require_readable(connection, table)
    assert len(refused) == 1
    assert "may not read table public.lowest" in refused[0]
    assert ("a partition of public.root" in refused[0]) == (via_root == "true")


def test_of_many_partitions_the_first_are_named_and_the_rest_counted(limited: Limited) -> None:
    limited.execute("create table root (id int primary key) partition by list (id)")
    limited.execute(";".join(f"create table leaf{n} partition of root for values in ({n})" for n in range(8)))
    limited.execute("create publication p for table root with (publish_via_partition_root)")
    error = limited.refused()
    assert "public.leaf4" in error.message
    assert "public.leaf5" not in error.message
    assert error.message.endswith("and 3 more like it")
    assert error.remedy.count("grant select") == 5


def test_row_level_security_is_refused_though_the_policy_would_show_some_rows(limited: Limited) -> None:
    limited.execute("create table t (id int primary key); insert into t values (1), (2)")
    limited.execute("create publication p for table t; grant select on t to $role")
    limited.require()
    limited.execute("alter table t enable row level security; create policy one on t using (id = 1)")
    error = limited.refused()
    assert "row-level security may hide rows of table public.t" in error.message
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        limited.copied()
    limited.execute(error.remedy)
    limited.require()
    assert limited.copied()


def test_an_owner_sees_its_rows_unless_security_is_forced(limited: Limited) -> None:
    limited.execute("create table t (id int primary key); create publication p for table t")
    limited.execute("alter table t owner to $role; alter table t enable row level security")
    limited.require()
    limited.execute("alter table t force row level security")
    assert "row-level security" in limited.refused().message


def test_security_of_a_partitioned_table_hides_nothing_of_its_leaves(limited: Limited) -> None:
    """Leaves are read by their own names, and only their own policies apply then."""
    limited.execute("create table root (id int primary key) partition by range (id)")
    limited.execute("create table leaf partition of root default; insert into root values (1)")
    limited.execute("create publication p for table root with (publish_via_partition_root)")
    limited.execute("grant select on leaf to $role; alter table root enable row level security")
    limited.require()
    assert limited.copied()
    limited.execute("alter table leaf enable row level security")
    assert "a partition of public.root" in limited.refused().message


def test_superusers_read_everything(any_database: Database) -> None:
    any_database.execute("create table t (id int primary key); alter table t force row level security")
    any_database.execute("alter table t enable row level security; create publication p for table t")
    with closing(connect(any_database.address, application_name="test")) as connection:
        (table,) = published_tables(connection, "p")
        require_readable(connection, table)


def test_a_table_that_may_not_be_read_stops_alone_and_goes_on_after_its_remedy(
    limited: Limited, tmp_path: Path
) -> None:
    limited.execute("create table open (id int primary key); create table shut (id int primary key)")
    limited.execute("create table hidden (id int primary key); alter table hidden enable row level security")
    for name in ("open", "shut", "hidden"):
        limited.execute(f"insert into {name} values (1)")
    limited.execute(f"grant select on open, hidden to $role; create publication {PUBLICATION} for all tables")
    destination, store = MemoryDestination(), MemoryStore()
    with running(limited, tmp_path) as pipelines:
        pipeline = pipelines.start(destination, store)
        pipelines.catch_up(pipeline)
        tables = {table.name: table for table in pipeline.report.tables}
        pipelines.stop(pipeline)
        stopped = [tables["public.hidden"], tables["public.shut"]]
        assert tables["public.open"].phase == "ready"
        assert [table.phase for table in stopped] == ["errored", "errored"]
        assert [destination.table_rows(TableId(table.id)) for table in stopped] == [[], []]
        for table in stopped:
            assert table.solution is not None
            limited.execute(table.solution)
            store.rollback_table_replication_state(TableId(table.id))
        pipeline = pipelines.start(destination, store)
        pipelines.catch_up(pipeline)
        assert {table.phase for table in pipeline.report.tables} == {"ready"}
    assert [len(destination.table_rows(TableId(table.id))) for table in stopped] == [1, 1]


@contextlib.contextmanager
def running(limited: Limited, folder: Path) -> Iterator[Pipelines]:
    pipelines = Pipelines(replace(limited.database, username=limited.role), folder / "state")
    try:
        yield pipelines
    finally:
        pipelines.close()


def documented_statements() -> list[str]:
    """Return the statements that the manual gives for the role, one block after the other."""
    _, _, section = OPERATIONS.read_text().partition("\n## The role on the source\n")
    section, _, _ = section.partition("\n## ")
    return re.findall(r"^```sql\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.fixture
def documented(any_database: Database) -> Iterator[Limited]:
    """The role as the manual makes it, in a database where nobody has a right by default."""
    any_database.execute(
        "create schema sales;"
        "create table sales.orders (id int primary key); insert into sales.orders values (1), (2);"
        "create table sales.customers (id int primary key, name text); insert into sales.customers values (1, 'a');"
        "alter table sales.customers enable row level security;"
        f"create publication {PUBLICATION} for table sales.orders, sales.customers;"
        f'revoke all on database "{any_database.name}" from public; revoke all on schema public from public'
    )
    for block in documented_statements():
        any_database.execute(block.replace("on database shop", f'on database "{any_database.name}"'))
    yield Limited(any_database, "penstock")
    any_database.execute("drop owned by penstock cascade; drop role penstock")


def test_the_documented_rights_are_enough_for_a_whole_pipeline(documented: Limited, tmp_path: Path) -> None:
    findings = check_source(documented.address, PUBLICATION, 2)
    assert [finding.message for finding in findings if not finding.ok] == []
    destination = MemoryDestination()
    with running(documented, tmp_path) as pipelines:
        pipeline = pipelines.start(destination, receiver={"heartbeat_ms": 100})
        pipelines.catch_up(pipeline)
        documented.execute("insert into sales.orders values (3); insert into sales.customers values (2, 'b')")
        pipelines.catch_up(pipeline)
        wait_until(lambda: sum(isinstance(each, Insert) for each in destination.events) == 2, "both inserts")
        report = pipeline.report
    assert {table.name: (table.phase, table.copied_rows) for table in report.tables} == {
        "sales.customers": ("ready", 1),
        "sales.orders": ("ready", 2),
    }


def test_the_documented_rights_are_needed_each(documented: Limited) -> None:
    for revoke in (
        "revoke usage on schema sales from penstock",
        "revoke select on sales.orders from penstock",
        "alter role penstock nobypassrls",
        "alter role penstock noreplication",
    ):
        documented.execute(revoke)
        failed = [finding for finding in check_source(documented.address, PUBLICATION, 2) if not finding.ok]
        assert failed, revoke
        for finding in failed:
            documented.execute(finding.remedy)
        assert all(finding.ok for finding in check_source(documented.address, PUBLICATION, 2)), revoke


def test_a_role_with_rights_to_columns_only_replicates_them(limited: Limited, tmp_path: Path) -> None:
    if limited.database.version_major < 15:
        pytest.skip("column lists need 15")
    limited.execute("create table t (id int primary key, name text, secret text)")
    limited.execute("insert into t select g, 'n', 's' from generate_series(1, 3000) g")
    limited.execute(f"create publication {PUBLICATION} for table t (id, name)")
    limited.execute("grant select (id, name, ctid) on t to $role")
    with running(limited, tmp_path) as pipelines:
        pipeline = pipelines.start(MemoryDestination(), initial_copy={"commit_bytes": 8192})
        pipelines.catch_up(pipeline)
        (table,) = pipeline.report.tables
    assert (table.phase, table.copied_rows) == ("ready", 3000)
