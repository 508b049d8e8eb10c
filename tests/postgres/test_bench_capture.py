"""The capture benchmark runs, in the small, and its last line holds every figure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.postgres.embedded import newest_server

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.postgres, pytest.mark.long]


def run_bench(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.capture", "--quick", "--versions", str(newest_server().version_major)]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def test_the_benchmark_loses_no_change_and_ends_with_a_line_of_figures() -> None:
    figures = run_bench("--changes", "400", "--shapes", "mix-100", "--skip-bounds", "--max-fill-ms", "50")
    reference, receiver = figures["shapes"]
    assert (reference["contender"], receiver["contender"]) == ("pg_recvlogical", "receiver")
    assert reference["ratio"] == 1
    assert receiver["changes_per_s"] > 0
    assert receiver["peak_mib"] >= receiver["startup_mib"] > 0


def test_the_profile_names_functions_of_ours() -> None:
    figures = run_bench("--changes", "400", "--profile", "inserts-1", "--max-fill-ms", "50")
    assert any(place["function"].startswith("receiver.") for place in figures["places"])
