"""The product as users run it, with writers at work from before its start until after its end.

The oracle is the source, read by psycopg, against the lake, read by Spark: row for row, value for
value. A table without a key holds one row per transaction: there nothing lost or repeated can hide.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import pytest
from plugins.replicator import Replicator, assert_lake_equals_source, finish

from penstock.testing.postgres import Database
from penstock.testing.workload import TABLES, Workload, create_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

PUBLICATION = "test_pub"


@pytest.mark.long  # the same with kills is not
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
