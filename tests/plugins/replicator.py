"""The replicator as users run it: a process with a configuration file, killed and started at will."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import UUID

import pytest
import yaml

from penstock.testing.postgres import Database
from penstock.testing.workload import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = Path(sys.executable).with_name("penstock")
CDC_COLUMNS = ("_CHANGE_TYPE", "_LSN", "_TIMESTAMP")


class Replicator:
    """`penstock run` in a folder of its own."""

    def __init__(self, database: Database, folder: Path, publication: str) -> None:
        self.database = database
        self.folder = folder
        self.lake = folder / "lake"
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        folder.mkdir(exist_ok=True)
        connection = {"host": database.host, "port": database.port, "name": database.name}
        config = {
            "pipeline": {
                "id": database.name,
                "publication_name": publication,
                "pg_connection": {**connection, "username": database.username, "password": database.password},
                # Small segments make large transactions span several.
                "batch": {"max_fill_ms": 200, "max_bytes": 1_000_000, "merge_every_ms": 0},
                "table_error_retry_delay_ms": 500,
            },
            "destination": {"delta": {"path": str(self.lake)}},
            "spark": {"master": "local[2]", "driver_memory": "1g"},
        }
        (folder / "penstock.yaml").write_text(yaml.safe_dump(config))

    def configure(self, **settings: Any) -> None:
        """Set something of the pipeline for the next start."""
        path = self.folder / "penstock.yaml"
        config = yaml.safe_load(path.read_text())
        config["pipeline"].update(settings)
        path.write_text(yaml.safe_dump(config))

    def run(self, *arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [PROGRAM, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def start(self, failpoints: str = "") -> None:
        """Start `penstock run` in the background."""
        environment = {**os.environ, "PENSTOCK_FAILPOINTS": failpoints}
        self._log = (self.folder / "run.log").open("ab")
        self._process = subprocess.Popen(
            [PROGRAM, "run"], cwd=self.folder, stdout=self._log, stderr=self._log, env=environment
        )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def report(self) -> dict[str, Any]:
        """What the running replicator last said of itself."""
        try:
            data: dict[str, Any] = json.loads((self.folder / ".penstock" / "status.json").read_text())
        except FileNotFoundError:
            return {"tables": [], "receiver_pid": None, "pid": None}
        return data if self._process is not None and data["pid"] == self._process.pid else {**data, "tables": []}

    def wait_until_ready(self, tables: int, patience_s: float = 120) -> None:
        """Wait until all tables are followed, for as long as those that are not get on."""
        seen, deadline = self._behind(), time.monotonic() + patience_s
        while not self._is_ready(tables):
            assert self.is_running, self.log
            if seen != (behind := self._behind()):
                seen, deadline = behind, time.monotonic() + patience_s
            assert time.monotonic() < deadline, f"for {patience_s:g} s these did not move: {seen}\n{self.log}"
            time.sleep(0.1)

    def _is_ready(self, tables: int) -> bool:
        phases = [table["phase"] for table in self.report["tables"]]
        return len(phases) == tables and set(phases) == {"ready"}

    def _behind(self) -> list[tuple[str, str, str]]:
        found = self.report["tables"]
        return [(each["name"], each["phase"], each["watermark"]) for each in found if each["phase"] != "ready"]

    def kill_receiver(self) -> None:
        """Kill the receiver, if there is one to be killed."""
        pid = self.report.get("receiver_pid")
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the replicator itself; its receiver and its JVM must notice by themselves."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._close()

    def stop(self) -> int:
        """Ask the replicator to stop, as a service manager would, and return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(120)
        self._close()
        return code

    def wait(self, timeout_s: float = 120) -> int:
        """Wait for the replicator to end by itself."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._close()
        return code

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()

    @property
    def log(self) -> str:
        return (self.folder / "run.log").read_text()

    def close(self) -> None:
        if self.is_running:
            self.kill()


@pytest.fixture
def replicator(database: Database, tmp_path: Path) -> Iterator[Replicator]:
    made = Replicator(database, tmp_path / "replicator", "test_pub")
    yield made
    made.close()


def source_rows(database: Database, table: str) -> list[dict[str, Any]]:
    """Read a table with psycopg's own adapters, which share no code with ours."""
    with database.connect() as connection:
        connection.execute("set timezone to utc")
        cursor = connection.execute(f"select * from {table}")
        assert cursor.description is not None
        columns = cursor.description
        return [
            {column.name: _plain(value, column) for column, value in zip(columns, row, strict=True)} for row in cursor
        ]


def _plain(value: Any, column: Any) -> Any:
    """Return a source value in the form that the lake has, by the documented map of types."""
    if isinstance(value, Decimal) and column.precision is None:
        return format(value, "f")
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return str(value) if isinstance(value, UUID) else value


def lake_rows(spark: SparkSession, lake: Path, folder: str) -> list[dict[str, Any]]:
    """Read a Delta table with Spark."""
    frame = spark.read.format("delta").load(str(lake / folder)).drop(*CDC_COLUMNS)
    return frame.toArrow().to_pylist()


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows in a form that can be sorted and compared, every value by its type and exact content."""
    return sorted(json.dumps({name: _comparable(value) for name, value in row.items()}, sort_keys=True) for row in rows)


def _comparable(value: Any) -> Any:  # noqa: PLR0911
    if isinstance(value, Decimal):
        return ["decimal", str(value)]
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, bytes | memoryview):
        return ["bytes", bytes(value).hex()]
    if hasattr(value, "isoformat"):
        return [type(value).__name__, value.isoformat()]
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, str) and value[:1] in "{[":
        return ["json", json.dumps(json.loads(value), sort_keys=True)] if _is_json(value) else value
    return value


def _is_json(value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


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
