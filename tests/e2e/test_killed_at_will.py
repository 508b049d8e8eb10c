"""The product killed at random, driver and receiver, with writers at work: source and lake still agree."""

from __future__ import annotations

import random
import secrets
import time
from typing import TYPE_CHECKING

import pytest
from plugins.replicator import Replicator, assert_lake_equals_source, finish

from penstock.testing.postgres import Database
from penstock.testing.workload import Workload, create_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

PUBLICATION = "test_pub"


@pytest.mark.parametrize("lives", [2, pytest.param(12, marks=pytest.mark.long)])
def test_source_equals_lake_whatever_is_killed(
    spark: SparkSession, replicator: Replicator, database: Database, lives: int
) -> None:
    seed = secrets.randbelow(1 << 32)
    print("seed", seed)  # noqa: T201
    chance = random.Random(seed)
    create_source(database, PUBLICATION)
    with Workload(database, seed):
        for _ in range(lives):
            replicator.start()
            deadline = time.monotonic() + chance.uniform(3, 12)
            while time.monotonic() < deadline:
                time.sleep(chance.uniform(0.2, 4))
                replicator.kill_receiver()
            assert replicator.is_running, replicator.log
            replicator.kill()
    finish(replicator)
    assert_lake_equals_source(spark, replicator, database)
