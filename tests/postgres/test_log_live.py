"""The log of a pipeline at work: followed from another process, kept for replay, and held back by a named table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from plugins.pipeline import Pipelines

from penstock import failpoint
from penstock.changelog.folder import Folder
from penstock.changelog.verification import Verification
from penstock.changelog.visitor import open_log
from penstock.destinations.memory.destination import MemoryDestination
from penstock.errors import PenstockError
from penstock.runtime.pipeline import Pipeline
from penstock.runtime.report import HeldBack
from penstock.testing.postgres import Database, wait_until

pytestmark = pytest.mark.postgres

Publish = Callable[[str], None]
HOUR_MS = 3_600_000


class Following:
    """`penstock log tail` as a process of its own, its lines collected as they come."""

    def __init__(self, log: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "penstock.cli.main", "log", "tail", "--log", str(log), "--output", "json"]
        self._process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.seen: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def ids(self, kind: str) -> list[int]:
        """Return the keys of the rows that were changed in some way."""
        return [each["values"]["id"] for each in self.seen if each["type"] == kind]

    def stop(self) -> tuple[int, bytes]:
        """Interrupt it as Ctrl-C does, and return its exit code and what it said on standard error."""
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(30)
        self._thread.join()
        assert self._process.stderr is not None
        with self._process.stderr as err:
            return code, err.read()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def _collect(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as out:
            self.seen.extend(json.loads(line) for line in out)


@pytest.fixture
def follow() -> Iterator[Callable[..., Following]]:
    started: list[Following] = []

    def start(log: Path, *arguments: str) -> Following:
        started.append(Following(log, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.close()


def log_of(pipelines: Pipelines) -> Folder:
    return Folder.on_disk(pipelines.state_dir / "log")


def logged_rows(pipelines: Pipelines) -> int:
    return sum(file.rows for entry in open_log(log_of(pipelines)).entries for file in entry.files)


def insert_one_by_one(database: Database, keys: range, kilobytes: int = 1) -> None:
    """Insert rows in transactions of their own, with text that does not compress."""
    text = f"select string_agg(md5(random()::text), '') from generate_series(1, {32 * kilobytes})"
    for key in keys:
        database.execute(f"insert into t values ({key}, ({text}))")


def test_tail_follows_one_table_of_a_pipeline_at_work_until_interrupted(
    database: Database, pipelines: Pipelines, publish: Publish, follow: Callable[..., Following]
) -> None:
    publish("create table t(id int primary key, v text); create table other(id int primary key)")
    pipeline = pipelines.start(MemoryDestination(), log={"keep_ms": HOUR_MS})
    pipelines.catch_up(pipeline)
    database.execute("insert into t values (1, 'a'); insert into other values (1)")
    pipelines.catch_up(pipeline)
    following = follow(log_of(pipelines), "--table", "public.t", "--from", "beginning")
    wait_until(lambda: following.ids("insert") == [1], "what is there already")
    database.execute("insert into other values (2)")
    database.execute("update t set v = 'b'; delete from t")
    wait_until(lambda: following.ids("delete") == [1], "what comes")
    assert [each["type"] for each in following.seen] == [
        *("begin", "insert", "commit"),
        *("begin", "update", "delete", "commit"),
    ]
    assert following.stop() == (0, b"")


def test_what_every_table_has_is_kept_for_replay_and_not_a_byte_longer(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    publish("create table t(id int primary key, v text)")
    pipeline = pipelines.start(MemoryDestination(), log={"keep_ms": HOUR_MS})
    pipelines.catch_up(pipeline)
    insert_one_by_one(database, range(20))
    pipelines.catch_up(pipeline)
    wait_until(lambda: pipeline.report.log_held_by is None, "nothing to be held back")
    assert logged_rows(pipelines) == 20
    pipelines.stop(pipeline)
    assert logged_rows(pipelines) == 20
    assert Verification(log_of(pipelines)).run() == []

    pipeline = pipelines.start(MemoryDestination(), log={"keep_ms": 1})
    pipelines.catch_up(pipeline)
    wait_until(lambda: len(open_log(log_of(pipelines)).entries) == 1, "what is older to go")


def test_what_is_kept_for_replay_gives_way_before_the_receiver_pauses(
    database: Database, pipelines: Pipelines, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("create table t(id int primary key, v text)")
    max_bytes = 400_000
    pipeline = pipelines.start(
        MemoryDestination(),
        log={"keep_ms": HOUR_MS, "max_bytes": max_bytes},
        failpoints="changelog.after_trim_header=slow:300",
    )
    pipelines.catch_up(pipeline)
    was_full = watch_for_a_full_log(pipeline, monkeypatch)
    # With this the receiver looks at the log's size while entries go, and what came last is still needed.
    failpoint.arm("apply.before_write=slow:500")
    try:
        for start in range(0, 60, 10):
            insert_one_by_one(database, range(start, start + 10), kilobytes=20)
            pipelines.catch_up(pipeline)
    finally:
        failpoint.arm("")
    kept = open_log(log_of(pipelines))
    assert not was_full()
    assert max_bytes / 2 < kept.size_bytes < max_bytes
    assert 0 < logged_rows(pipelines) < 60


def watch_for_a_full_log(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Hear every event of the receiver's, and return what tells whether it has paused since."""
    events: list[str] = []
    hear = pipeline._supervisor._hear

    def overhear(event: dict[str, Any], *others: Any) -> PenstockError | None:
        events.append(event["event"])
        return hear(event, *others)

    monkeypatch.setattr(pipeline._supervisor, "_hear", overhear)
    return lambda: "log_full" in events


def test_a_stopped_table_holds_the_log_back_and_is_named(
    database: Database, pipelines: Pipelines, publish: Publish
) -> None:
    publish("create table t(id int primary key, v date); create table other(id int primary key)")
    pipeline = pipelines.start(MemoryDestination())
    pipelines.catch_up(pipeline)
    database.execute("insert into t values (1, 'infinity')")
    pipelines.catch_up(pipeline)
    database.execute("insert into other values (1)")
    pipelines.catch_up(pipeline)
    [stopped] = [table for table in pipeline.report.tables if table.error]
    wait_until(
        lambda: pipeline.report.log_held_by == HeldBack("public.t", "errored", str(stopped.watermark)),
        "the report to name it",
    )
