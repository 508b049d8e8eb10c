"""The product as users run it, with writers at work from before its start until after its end.

The oracle is the source, read by psycopg, against the lake, read by Spark: row for row, value for
value. A table without a key holds one row per transaction: there nothing lost or repeated can hide.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import TYPE_CHECKING

import pytest
from plugins.replicator import Replicator, comparable, lake_rows, source_rows

from penstock.testing.postgres import Database
from penstock.testing.workload import TABLES, Workload, create_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

PUBLICATION = "test_pub"


def assert_lake_equals_source(spark: SparkSession, replicator: Replicator, database: Database) -> None:
    for table in TABLES:
        folder = f"public/{table.strip(chr(34)).replace(' ', '~20')}"
        source = comparable(source_rows(database, table))
        lake = comparable(lake_rows(spark, replicator.lake, folder))
        missing, extra = sorted(set(source) - set(lake)), sorted(set(lake) - set(source))
        assert not missing, f"{table}: {len(missing)} rows differ or are missing, e.g. {missing[0][:2000]}"
        assert not extra, f"{table}: {len(extra)} rows are too many, e.g. {extra[0][:2000]}"
        assert source == lake, f"{table}: rows are there more than once"


def finish(replicator: Replicator) -> None:
    """Catch up with all that was written, as a last run."""
    ended = replicator.run("run", "--once")
    assert ended.returncode == 0, ended.stderr


def test_source_equals_lake_after_every_kind_of_change(
    spark: SparkSession, replicator: Replicator, database: Database
) -> None:
    create_source(database, PUBLICATION)
    with Workload(database, seed := secrets.randbelow(1 << 32)):
        print("seed", seed)  # noqa: T201
        replicator.start()
        replicator.wait_until_ready(len(TABLES))
        time.sleep(10)  # let the writers work against tables that are followed
        assert replicator.stop() == 0, replicator.log
    finish(replicator)
    assert_lake_equals_source(spark, replicator, database)


def test_source_equals_lake_whatever_is_killed(spark: SparkSession, replicator: Replicator, database: Database) -> None:
    seed = secrets.randbelow(1 << 32)
    print("seed", seed)  # noqa: T201
    chance = random.Random(seed)
    create_source(database, PUBLICATION)
    with Workload(database, seed):
        for _ in range(4):
            replicator.start()
            deadline = time.monotonic() + chance.uniform(3, 25)
            while time.monotonic() < deadline:
                time.sleep(chance.uniform(0.2, 4))
                replicator.kill_receiver()
            assert replicator.is_running, replicator.log
            replicator.kill()
    finish(replicator)
    assert_lake_equals_source(spark, replicator, database)
