"""The programs in examples/, run as users run them: against a real server, until source and destination agree."""

from __future__ import annotations

import importlib.util
import itertools
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import yaml
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from plugins.pipeline import PUBLICATION

from penstock.contract import Store
from penstock.testing.postgres import Database, wait_until
from penstock.testing.store_suite import StoreMachine, StoreSuite

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))

Publish = Callable[[str], None]


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Path:
    connection = {"host": database.host, "port": database.port, "name": database.name, "username": database.username}
    pipeline = {
        "id": "example",
        "publication_name": PUBLICATION,
        "pg_connection": connection,
        "batch": {"max_fill_ms": 50, "merge_every_ms": 0},
        "table_error_retry_delay_ms": 100,
    }
    path = tmp_path / "penstock.yaml"
    path.write_text(yaml.safe_dump({"pipeline": pipeline}))
    return path


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_every_example_is_short_and_has_a_main(path: Path) -> None:
    assert callable(load(path.stem).main)
    assert len(path.read_text().splitlines()) <= 60


class Endpoint(ThreadingHTTPServer):
    """What an example posts to: it keeps tables as the messages say, each change once, and can be told to refuse."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.rows: dict[int, dict[str, Any]] = {}
        self.seen: set[tuple[int, int]] = set()
        self.refusals = 0
        self.repeats = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def take(self, message: dict[str, Any]) -> None:
        if message["kind"] == "begin_copy":
            self.rows.clear()
        for row in message["rows"]:
            if message["kind"] == "rows":
                self.rows[row["id"]] = row
            elif message["kind"] == "changes":
                self._change(row)

    def _change(self, row: dict[str, Any]) -> None:
        position = (row["_commit_lsn"], row["_ordinal"])
        self.repeats += position in self.seen
        self.seen.add(position)
        old = row["_key"]["id"] if row["_key"] else row["id"]
        self.rows.pop(old, None)
        if row["_op"] != "D":
            self.rows[row["id"]] = {"id": row["id"], "v": row["v"]}


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.take(message)
        # Taken and then refused: the answer that got lost.
        is_refused = message["kind"] == "changes" and bool(message["rows"]) and self.server.refusals > 0
        self.server.refusals -= is_refused
        self.send_response(503 if is_refused else 204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.postgres
def test_the_http_example_keeps_an_endpoint_current_and_repeats_what_was_not_answered(
    database: Database, publish: Publish, config: Path, endpoint: Endpoint
) -> None:
    publish("create table t(id int primary key, v text); insert into t select g, 'old' from generate_series(1, 50) g")
    endpoint.refusals = 1
    program = subprocess.Popen(
        command("http_destination", config, endpoint.url), cwd=config.parent, stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: len(endpoint.rows) == 50, "the copy")
        database.execute(
            "insert into t values (51, 'new'); update t set id = 99 where id = 1; delete from t where id = 2"
        )
        expected = {row[0]: {"id": row[0], "v": row[1]} for row in database.execute("select id, v from t")}
        wait_until(lambda: endpoint.rows == expected and endpoint.repeats == 3, "the changes, twice")
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == 0
    finally:
        program.kill()
        program.wait()


@pytest.mark.postgres
def test_the_store_example_remembers_across_restarts(database: Database, publish: Publish, config: Path) -> None:
    publish("create table t(id int primary key); insert into t values (1), (2)")
    journal = config.parent / "state.jsonl"
    for expected in ((2, 0), (0, 1)):
        subprocess.run(
            command("custom_store", config, journal),
            cwd=config.parent,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )
        [table] = json.loads((config.parent / ".penstock" / "status.json").read_text())["tables"]
        assert (table["phase"], table["copied_rows"], table["applied_events"]) == ("ready", *expected)
        database.execute("insert into t values (3)" if expected[0] else "select 1")


def open_journal(path: Path) -> Any:
    return load("custom_store").Journal(path)


class TestJournal(StoreSuite):
    journal: Any

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        self.path = tmp_path / "state.jsonl"
        self.journal = open_journal(self.path)
        yield self.journal
        self.journal._file.close()

    def reopen(self, store: Store) -> Store:  # noqa: ARG002
        self.journal._file.close()
        self.journal = open_journal(self.path)
        return cast("Store", self.journal)


class JournalMachine(StoreMachine):
    folder: ClassVar[Path]
    numbers: ClassVar = itertools.count()
    journal: Any = None

    def open_store(self) -> Store:
        self.path = self.folder / f"{next(self.numbers)}.jsonl"
        self.journal = open_journal(self.path)
        return cast("Store", self.journal)

    def reopen(self, store: Store) -> Store:  # noqa: ARG002
        self.journal._file.close()
        self.journal = open_journal(self.path)
        return cast("Store", self.journal)

    def teardown(self) -> None:
        if self.journal is not None:
            self.journal._file.close()


def test_every_history_of_the_store_example_equals_its_model_across_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JournalMachine, "folder", tmp_path, raising=False)
    run_state_machine_as_test(JournalMachine, settings=settings(max_examples=15, stateful_step_count=20, deadline=None))
