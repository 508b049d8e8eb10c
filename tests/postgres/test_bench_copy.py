"""The copy benchmark runs, in the small, and its last line holds every figure."""

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
    command = [sys.executable, "-m", "bench.copy", "--quick", "--rows", "3000"]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def test_the_benchmark_copies_every_row_and_ends_with_a_line_of_figures() -> None:
    figures = run_bench("--parts", "sizes,lineitem")
    copies, lineitem = figures["sections"]
    everyone = {"copy-to-nowhere", "arrow", "delta", "iceberg", "jdbc-delta", "jdbc-iceberg"}
    assert copies["contenders"].keys() == everyone
    assert lineitem["contenders"].keys() == everyone - {"jdbc-delta", "jdbc-iceberg"}
    for each in copies["contenders"].values():
        assert each["rows_per_s"] > 0
        assert each["cpu_s_per_million"].keys() == {"driver", "jvm", "workers", "backends"}
    assert copies["contenders"]["copy-to-nowhere"]["ratio"] == 1


def test_the_profile_names_every_stage_of_a_row() -> None:
    stages = {each["stage"] for each in run_bench("--profile")["stages"]}
    words = ("socket", "scan", "column detail: jsonb", "Parquet: encode", "Parquet: write", "fsync", "Spark")
    assert all(any(stage.startswith(word) for stage in stages) for word in words), stages
