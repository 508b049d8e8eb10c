"""The demo, run for real: it ends with 0 only because it compared everything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plugins.cli import Cli

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

TABLES = ("carts", "customers", "documents", "order_items", "orders", "products")


def postgres_processes(folder: Path) -> list[str]:
    """Return the command lines of servers whose data lies below a folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and process.name != str(os.getpid()):
            try:
                command = (process / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if f"{folder}/postgres" in command:
                found.append(command)
    return found


def test_the_demo_finds_source_and_lake_the_same_and_leaves_nothing_running(cli: Cli) -> None:
    folder = cli.folder / "demo"
    done = cli("demo", "--seconds", "5", "--rows", "2000", "--dir", str(folder), timeout_s=480)
    assert done.code == 0, done.stdout + done.stderr
    assert "every row and value is the same in source and lake" in done.stdout
    for name in TABLES:
        assert f"✓  public.{name} " in done.stdout
        assert (folder / "lake" / "public" / name / "_delta_log").is_dir()
    assert "rows copied" in done.stderr
    assert postgres_processes(folder) == []


def test_a_folder_that_is_not_empty_is_refused(cli: Cli) -> None:
    (cli.folder / "precious").write_text("")
    done = cli("demo", "--dir", str(cli.folder))
    assert done.code == 2
    assert "is not empty" in done.stderr
