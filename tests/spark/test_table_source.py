"""A frame is one snapshot of a table: every row once, as the server has it, read by any role that may read it."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.testing.postgres import Database, wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-a-table.md"


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    penstock.register(spark)


def connection_options(database: Database) -> dict[str, str]:
    options = {"host": database.host, "port": str(database.port), "dbname": database.name, "user": database.username}
    return options if database.password is None else {**options, "password": database.password}


def load(spark: SparkSession, database: Database, table: str, **options: Any) -> DataFrame:
    given = {**connection_options(database), "table": table, **options}
    return spark.read.format("penstock").options(**given).load()


def keepers(database: Database) -> list[int]:
    """Return the sessions that hold snapshots of a database for frames."""
    rows = database.execute(
        "select pid from pg_stat_activity where datname = %s and application_name like 'penstock snapshot %%'",
        database.name,
    )
    return [pid for (pid,) in rows]


def test_a_frame_is_the_table(spark: SparkSession, any_database: Database) -> None:
    any_database.execute(
        """create table "Odd t" (id int primary key, "a ""b"", c" text, n numeric(9,2), at timestamptz, tags text[],
        doubled int generated always as (id * 2) stored)"""
    )
    any_database.execute(
        """insert into "Odd t" values (1, 'é', 1.5, '2024-01-01 12:00+02', '{a,null}'), (2, null, null, null, '{}')"""
    )
    frame = load(spark, any_database, 'public."Odd t"')
    rows: list[dict[str, Any]] = frame.orderBy("id").toArrow().to_pylist()
    assert [list(row.values()) for row in rows] == [
        [1, "é", Decimal("1.50"), dt.datetime(2024, 1, 1, 10, tzinfo=dt.UTC), ["a", None], 2],
        [2, None, None, None, [], 4],
    ]
    assert frame.columns == ["id", 'a "b", c', "n", "at", "tags", "doubled"]


def test_a_frame_shows_one_moment_in_every_partition_and_every_action(spark: SparkSession, database: Database) -> None:
    database.execute("create table account (id int primary key, cents bigint, pad text default repeat('x', 500))")
    database.execute("insert into account select g, 100 from generate_series(1, 4000) g")
    with moving_money(database):
        frame = load(spark, database, "public.account", blocksPerPartition=45)
        first = sorted(tuple(row) for row in frame.select("id", "cents").collect())
        assert [row[0] for row in first] == list(range(1, 4001))
        assert sum(row[1] for row in first) == 400_000
        assert frame.agg({"cents": "sum"}).collect()[0][0] == 400_000
        wait_until(lambda: read_now(database) != first, "money to move")
        assert sorted(tuple(row) for row in frame.select("id", "cents").collect()) == first
        other = frame.selectExpr("id", "cents as cents_again")
        assert frame.join(other, "id").filter("cents <> cents_again").count() == 0
    assert frame.rdd.getNumPartitions() > 5
    assert sorted(tuple(row) for row in load(spark, database, "public.account", columns="id, cents").collect()) == (
        read_now(database)
    )


def read_now(database: Database) -> list[tuple[Any, ...]]:
    return sorted(database.execute("select id, cents from account"))


@contextlib.contextmanager
def moving_money(database: Database) -> Iterator[None]:
    """Move money between accounts, which moves their rows to other blocks; the sum stays."""
    stop = threading.Event()

    def run() -> None:
        with database.connect() as connection:
            while not stop.is_set():
                connection.execute(
                    "update account set cents = cents + case id % 2 when 0 then 1 else -1 end"
                    " where id / 2 = (select (random() * 1900)::int + 50)"
                )

    writer = threading.Thread(target=run)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def test_frames_of_one_snapshot_show_the_same_moment_until_it_is_left(spark: SparkSession, database: Database) -> None:
    database.execute("create table a (id int); create table b (id int)")
    with penstock.snapshot(**connection_options(database)) as held:
        database.execute("insert into a values (1); insert into b values (1)")
        frames = [
            spark.read.format("penstock").options(**held.options, table=table).load()
            for table in ("public.a", "public.b")
        ]
        assert [frame.count() for frame in frames] == [0, 0]
        assert keepers(database) == []
    with pytest.raises(PythonException, match=r"snapshot .* is gone.*Call load\(\) again"):
        frames[0].collect()
    late = spark.read.format("penstock").options(**held.options, table="public.a").load()
    with pytest.raises(AnalysisException, match=r"snapshot .* is gone"):
        late.collect()


def test_a_role_without_replication_reads_what_it_may_and_is_told_what_it_may_not(
    spark: SparkSession, database: Database
) -> None:
    database.execute("create table free as select 1 as id; create table closed as select 1 as id")
    database.execute("create table hidden as select 1 as id; alter table hidden enable row level security")
    database.execute("create table parts (id int) partition by list (id); create table part partition of parts default")
    database.execute("create role table_reader login")
    try:
        database.execute("grant select on free, hidden, parts to table_reader")
        options = {"user": "table_reader"}
        assert spark_rows(load(spark, database, "public.free", **options)) == [(1,)]
        for table, message in (
            ("closed", r"may not read table public\.closed.*grant select on"),
            ("hidden", r"row-level security may hide rows of table public\.hidden"),
            ("parts", r"may not read table public\.part, a partition of public\.parts"),
        ):
            with pytest.raises(AnalysisException, match=message):
                load(spark, database, f"public.{table}", **options)
    finally:
        database.execute("drop owned by table_reader; drop role table_reader")


def spark_rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_columns_filter_and_a_given_schema_choose_what_is_read(spark: SparkSession, database: Database) -> None:
    database.execute('create table t (id int, "Due, on" date, note text)')
    database.execute("insert into t select g, date '2024-01-01' + g, 'note ' || g from generate_series(1, 5) g")
    frame = load(spark, database, "public.t", columns='note, "Due, on"', filter="id > 3 or id = 1 -- the newest")
    assert frame.columns == ["note", "Due, on"]
    assert spark_rows(frame) == [(f"note {g}", dt.date(2024, 1, 1 + g)) for g in (1, 4, 5)]
    reader = spark.read.format("penstock").options(**connection_options(database), table="public.t")
    assert spark_rows(reader.schema("id decimal(12,0)").option("filter", "id < 3").load()) == [
        (Decimal(1),),
        (Decimal(2),),
    ]
    with pytest.raises(AnalysisException, match=r"id is int32, not int16"):
        reader.schema("id smallint").load().collect()
    with pytest.raises(AnalysisException, match=r"has no column note s\. It has id, Due, on, note\."):
        load(spark, database, "public.t", columns="note s")
    with pytest.raises(PythonException, match=r"copying public\.t: .*syntax error"):
        load(spark, database, "public.t", filter="id >").collect()


@pytest.mark.parametrize("columns", ["", "id int, note text"])
def test_a_table_may_lack_columns_or_rows(spark: SparkSession, database: Database, columns: str) -> None:
    database.execute(f"create table t ({columns})")
    frame = load(spark, database, "public.t", partitions=4)
    assert (frame.count(), frame.collect()) == (0, [])
    database.execute("insert into t select from generate_series(1, 123)")
    assert load(spark, database, "public.t").count() == 123


@pytest.mark.long
def test_partitions_are_as_many_as_asked_for_and_small_leaves_share_one(
    spark: SparkSession, database: Database
) -> None:
    database.execute("create table big as select g as id, repeat('x', 500) pad from generate_series(1, 5000) g")
    database.execute("create table parts (id int) partition by list (id)")
    for number in range(20):
        database.execute(f"create table part_{number} partition of parts for values in ({number})")
    database.execute("insert into parts select g % 19 from generate_series(1, 1000) g")
    for table, tasks in (("big", 7), ("big", 1), ("parts", 3), ("parts", 1)):
        frame = load(spark, database, f"public.{table}", columns="id", partitions=tasks)
        assert frame.rdd.getNumPartitions() == tasks
        assert spark_rows(frame) == sorted(database.execute(f"select id from {table}"))
    assert load(spark, database, "public.parts").rdd.getNumPartitions() == 1


@pytest.mark.long
def test_special_values_follow_the_policy_of_each_column(spark: SparkSession, database: Database) -> None:
    database.execute("create table t as select 1 as id, 'infinity'::date as due, 'nan'::numeric(5,2) as n")
    with pytest.raises(PythonException, match=r"table public\.t, column due: "):
        load(spark, database, "public.t").collect()
    assert spark_rows(load(spark, database, "public.t", specialValues="null")) == [(1, None, None)]
    assert spark_rows(load(spark, database, "public.t", specialValues="string")) == [(1, "infinity", "NaN")]
    exceptions = '{"policy": "clamp", "columns": {"public.t.n": "string"}}'
    assert spark_rows(load(spark, database, "public.t", specialValues=exceptions)) == [
        (1, dt.date(9999, 12, 31), "NaN")
    ]


def test_a_password_is_seen_neither_in_plans_nor_in_errors(spark: SparkSession, database: Database) -> None:
    database.execute("create table t as select 0 as id")
    given = database.conninfo + " password=hunter2"
    for secret in ({"url": given}, {**connection_options(database), "password": "hunter2"}):
        reader = spark.read.format("penstock").options(**secret)
        frame = reader.option("table", "public.t").option("filter", "1 / id > 0").load()
        seen = [str(frame._jdf.queryExecution()), frame._jdf.queryExecution().debug().toString(), repr(frame)]
        for attempt in (
            frame.collect,
            reader.option("table", "public.none").load,
            reader.option("table", "public.t").option("prot", "1").load,
            reader.option("table", "public.t").option("prot", "1").load,
            reader.option("table", "public.t").option("sslmode", "hunter2").load,
        ):
            with pytest.raises((PythonException, AnalysisException)) as caught:
                attempt()
            seen.append(str(caught.value))
        assert not [text for text in seen if "hunter2" in text]


def test_what_cannot_be_read_is_refused_with_a_remedy(spark: SparkSession, database: Database) -> None:
    database.execute('create table t (id int); create view v as select 1; create table "a.b" (id int)')
    database.execute(
        'create schema a; create table a.b (id int); create schema "public.a"; create table "public.a".b()'
    )
    for table, message in (
        ("t", r"has no table t\..*There is public\.t\."),
        ("public.T", r"has no table public\.T\.(?s:.*)Upper and lower case are different"),
        ("public.v", r"public\.v is a view"),
        ("public.a.b", r"several tables public\.a\.b(?s:.*)give an oid"),
    ):
        with pytest.raises(AnalysisException, match=message):
            load(spark, database, table)
    assert load(spark, database, 'public."a.b"').columns == ["id"]
    assert load(spark, database, '"public.a"."b"').columns == []
    [[oid]] = database.execute("select 'a.b'::regclass::oid::bigint")
    assert load(spark, database, str(oid)).columns == ["id"]


@pytest.mark.long
def test_a_snapshot_that_nobody_reads_is_let_go_and_reading_it_then_is_an_error(
    spark: SparkSession, database: Database
) -> None:
    database.execute("create table t as select 1 as id")
    frame = load(spark, database, "public.t", snapshotTimeout=15)  # a busy machine takes seconds to begin reading
    assert keepers(database) == []
    assert spark_rows(frame) == [(1,)]
    wait_until(lambda: not keepers(database), "the snapshot to be let go")
    with pytest.raises(PythonException, match=r"snapshot .* is gone.*Call load\(\) again.*snapshotTimeout"):
        frame.count()


def test_a_table_rewritten_after_the_snapshot_is_an_error_and_not_another_moment(
    spark: SparkSession, database: Database
) -> None:
    database.execute("create table t as select 1 as id")
    frame = load(spark, database, "public.t")
    assert frame.count() == 1
    database.execute("truncate t")
    with pytest.raises(PythonException, match=r"public\.t was rewritten.*Call load\(\) again"):
        frame.count()
    database.execute("alter table t add note text")
    assert load(spark, database, "public.t").columns == ["id", "note"]


def test_the_page_on_reading_a_table_is_right(
    spark: SparkSession, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table orders (id bigint primary key, customer text, amount numeric(10,2), placed date)")
    database.execute("create table customers (name text primary key)")
    database.execute("insert into customers values ('Ada')")
    database.execute("insert into orders values (1, 'Ada', 2.5, '2024-02-01'), (2, 'Ada', 1, '2023-01-01')")
    monkeypatch.setenv("PGPASSWORD", database.password or "")
    found: dict[str, Any] = {"spark": spark}
    for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        address = f"postgresql://{database.username}@{database.host}:{database.port}/{database.name}"
        exec(code.replace("postgresql://reader@db.example.com/shop?sslmode=verify-full", address), found)
    assert spark_rows(found["orders"].select("id")) == [(1,), (2,)]
    assert spark_rows(found["recent"]) == [(1, Decimal("2.50"))]
    assert found["total"] == Decimal("3.50")
