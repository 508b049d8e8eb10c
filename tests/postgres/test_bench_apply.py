"""The apply benchmark runs, in the small, and its last line holds every figure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.long]


def run_bench(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.apply", "--quick", "--changes", "2000", "--seconds", "3", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def test_the_benchmark_applies_every_change_and_ends_with_a_line_of_figures() -> None:
    figures = run_bench()
    assert [each["workload"] for each in figures["backlog"]] == ["inserts", "updates"]
    for backlog in figures["backlog"]:
        assert backlog["contenders"].keys() == {"pg_recvlogical", "receiver", "delta", "iceberg"}
    for fresh in figures["freshness"]:
        assert fresh["all"]["changes"] == fresh["load"]["changes"]
        assert fresh["insert_only"]["changes"] > 0
    assert all(each["highest_changes_per_s"] >= 0 for each in figures["ceiling"])
    assert {(each["lake"], each["rows"], each["keys"]) for each in figures["growth"]} == {
        (lake, rows, keys)
        for lake in ("delta", "iceberg")
        for rows in (20_000, 40_000)
        for keys in ("clustered", "scattered")
    }
    for kept in figures["upkeep"]:
        assert kept["upkeep"]["runs"]
        assert kept["upkeep"]["failures"] == 0
        assert all(way["ratio"] > 0 for read in kept["read"] for way in read["ways"].values())
    jobs = [each["jobs_per_batch"] for each in figures["jobs"] if not each["batch"].startswith("first")]
    assert jobs == [0] * len(jobs)
