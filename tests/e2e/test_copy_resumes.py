"""The replicator killed in the middle of a copy, with writers at work: tables with a key go on where they were."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from plugins.replicator import Replicator, comparable, finish, lake_rows, source_rows

from penstock.testing.postgres import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

SOURCE = """
create table keyed (id int primary key, v int, big text) with (fillfactor = 70);
alter table keyed alter column big set storage external;
insert into keyed select g, 0, repeat(md5(g::text), case when g % 10 = 0 then 100 else 2 end)
from generate_series(1, 60000) g;
create table keyless (at int, note text);
insert into keyless select g, md5(g::text) from generate_series(1, 20000) g;
create publication test_pub for all tables
"""
CHANGES = (
    "update keyed set v = v + 1 where id % 97 = {n} % 97",  # to another block, its long value unchanged
    "delete from keyed where id % 1009 = {n} % 1009",
    "update keyed set id = id + 1000000 where id % 2003 = {n} % 2003 and id < 1000000",
    "insert into keyed values ({n} + 2000000, {n}, 'new')",
    "insert into keyless values ({n}, 'new')",
)


@contextmanager
def writing(database: Database) -> Iterator[None]:
    stopping = threading.Event()

    def write() -> None:
        with database.connect(autocommit=True) as connection:
            for number in itertools.count():
                if stopping.wait(0.05):
                    return
                connection.execute(CHANGES[number % len(CHANGES)].format(n=number).encode())

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


@pytest.mark.long
def test_a_copy_that_was_killed_goes_on_from_its_committed_parts(
    spark: SparkSession, replicator: Replicator, database: Database
) -> None:
    database.execute(SOURCE)
    replicator.configure(initial_copy={"commit_bytes": 1 << 20})
    with writing(database):
        for _ in range(3):
            replicator.start("table_sync.part_copied=kill@2")
            assert replicator.wait(180) < 0, replicator.log
        replicator.start()
        replicator.wait_until_ready(2)
        assert replicator.stop() == 0, replicator.log
    finish(replicator)
    replaced = [entry["operation"] for entry in DeltaTable(replicator.lake / "public/keyed").history()]
    assert sum("CREATE" in operation for operation in replaced) == 1, replaced
    assert "copy starts again" not in replicator.log
    assert "copy is settled" in replicator.log
    for table in ("keyed", "keyless"):
        source = comparable(source_rows(database, table))
        assert comparable(lake_rows(spark, replicator.lake, f"public/{table}")) == source
