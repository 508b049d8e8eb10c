"""The command line as users have it: a process of its own, with standard output and error apart."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from penstock.testing.postgres import Database

PROGRAM = [sys.executable, "-m", "penstock.cli.main"]


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Cli:
    """Runs `penstock` in a folder of the test's own."""

    folder: Path

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 120) -> Finished:
        done = subprocess.run(
            [*PROGRAM, *arguments],
            cwd=self.folder,
            env=self.environment(env),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command that is waited for later."""
        return subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=self.folder,
            env=self.environment(None),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        """Return ours without settings of Penstock's that would leak in."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        return {**inherited, "COLUMNS": "200", **(more or {})}

    def write_config(self, database: Database, destination: Mapping[str, object], **pipeline: object) -> Path:
        """Write ./penstock.yaml for a source and a destination."""
        connection = {
            "host": database.host,
            "port": database.port,
            "name": database.name,
            "username": database.username,
            **({"password": database.password} if database.password else {}),
        }
        config = {
            "pipeline": {"id": "cli", "publication_name": "pub", "pg_connection": connection, **pipeline},
            "destination": dict(destination),
        }
        path = self.folder / "penstock.yaml"
        path.write_text(yaml.safe_dump(config))
        return path


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)
