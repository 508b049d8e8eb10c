"""A real pipeline, scraped over HTTP: while it copies, when it follows, when a table or the source fails."""

from __future__ import annotations

import json
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import yaml
from plugins.cli import Cli
from plugins.pipeline import Pipelines
from prometheus_client.parser import text_string_to_metric_families

from penstock.cli.metrics import MetricsEndpoint
from penstock.config.metrics import MetricsConfig
from penstock.contract import RowBatch
from penstock.destinations.memory import MemoryDestination
from penstock.model.table import TableSchema
from penstock.postgres.embedded import free_port
from penstock.telemetry.metrics import METRICS
from penstock.testing.postgres import Database, wait_until

pytestmark = pytest.mark.postgres

Publish = Callable[[str], None]
Found = dict[tuple[str, ...], float]
LABELS = {metric.name: metric.labels[1:] for metric in METRICS}
"""Without the pipeline, which is one and the same here."""


def scrape(address: str) -> Found:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    return {(each.name, *(each.labels[label] for label in LABELS[each.name])): each.value for each in samples}


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


class Halfway(MemoryDestination):
    """Reads some ranges of a table and then waits, so that a copy can be looked at."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.is_there, self.may_go_on = threading.Event(), threading.Event()
        self._batches = batches

    def write_table_rows(self, table: TableSchema, rows: RowBatch) -> None:  # noqa: ARG002
        for number, _ in enumerate(rows.arrow()):
            if number == self._batches:
                self.is_there.set()
                assert self.may_go_on.wait(30)


@pytest.fixture
def halfway() -> Iterator[Halfway]:
    destination = Halfway(batches=3)
    yield destination
    destination.may_go_on.set()


def test_a_copy_is_seen_from_its_first_range_to_its_last(
    database: Database, pipelines: Pipelines, publish: Publish, halfway: Halfway
) -> None:
    publish("create table t (id int, v text); insert into t select g, repeat('x', 1000) from generate_series(1, 700) g")
    ((blocks,),) = database.execute("select pg_relation_size('t') / 8192")
    pipeline = pipelines.start(halfway, initial_copy={"commit_bytes": 10 * 8192})
    assert halfway.is_there.wait(30)
    (during,) = pipeline.report.tables
    assert (during.phase, during.copied_bytes, during.total_bytes) == ("data_sync", 30 * 8192, blocks * 8192)
    assert during.copied_percent == pytest.approx(100 * 30 / blocks, abs=0.1)
    assert during.rows_per_second
    assert during.rows_per_second > 0
    assert pipeline.report.snapshot_age_s is not None
    halfway.may_go_on.set()
    pipelines.catch_up(pipeline)
    (after,) = pipeline.report.tables
    assert (after.copied_rows, after.copied_bytes, after.copied_percent) == (700, blocks * 8192, 100.0)
    assert after.seconds_left is None
    wait_until(lambda: pipeline.report.snapshot_age_s is None, "the snapshot to be let go")


def test_a_scrape_tells_what_the_pipeline_reports(database: Database, pipelines: Pipelines, publish: Publish) -> None:
    publish("create table t (id int primary key); insert into t select generate_series(1, 100)")
    pipeline = pipelines.start(MemoryDestination())
    address = free_address()
    with closing(MetricsEndpoint(MetricsConfig(address=address))) as endpoint:
        endpoint.serve(pipeline)
        pipelines.catch_up(pipeline)
        found = scrape(address)
        assert found["penstock_copy_rows", "public.t"] == 100
        assert found["penstock_copy_ratio", "public.t"] == 1
        assert found["penstock_tables", "ready"] == found["penstock_table_phase", "public.t", "ready"] == 1
        assert found["penstock_receiver_running",] == 1
        database.execute("insert into t select generate_series(101, 150)")
        pipelines.catch_up(pipeline)
        assert scrape(address)["penstock_applied_events_total", "public.t"] == 50
        wait_until(lambda: scrape(address)["penstock_source_reachable",] == 1, "the source's position")
        assert {("penstock_source_lsn",), ("penstock_table_lag_bytes", "public.t")} <= scrape(address).keys()


def test_a_table_that_stopped_is_counted(database: Database, pipelines: Pipelines, publish: Publish) -> None:
    publish("create table good (id int primary key); create table bad (id int primary key, d date)")
    database.execute("insert into bad values (1, 'infinity')")
    pipeline = pipelines.start(MemoryDestination())
    address = free_address()
    with closing(MetricsEndpoint(MetricsConfig(address=address))) as endpoint:
        endpoint.serve(pipeline)
        pipelines.catch_up(pipeline)
        found = scrape(address)
    assert found["penstock_tables", "errored"] == found["penstock_tables", "ready"] == 1
    assert found["penstock_table_phase", "public.bad", "errored"] == 1


def write_config(cli: Cli, database: Database, address: str) -> None:
    path = cli.write_config(database, {"memory": {}})
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**config, "metrics": {"address": address}}))


def test_the_replicator_serves_metrics_where_it_is_told_to(cli: Cli, database: Database) -> None:
    database.execute("create table items (id int primary key); create publication pub for table items")
    address = free_address()
    write_config(cli, database, address)
    with cli.start("run") as running:
        try:
            wait_until(lambda: is_ready(address), "the table to be ready by its metrics", timeout_s=60)
            running.send_signal(signal.SIGTERM)
            _, stderr = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 0, stderr
    served = [line for line in stderr.splitlines() if "metrics are served" in line]
    assert [json.loads(line)["address"] for line in served] == [address]


def is_ready(address: str) -> bool:
    try:
        return scrape(address).get(("penstock_table_phase", "public.items", "ready")) == 1
    except OSError:
        return False


def test_a_port_that_is_taken_ends_the_start_before_the_source_is_touched(cli: Cli, database: Database) -> None:
    database.execute("create table items (id int primary key); create publication pub for table items")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        write_config(cli, database, f"127.0.0.1:{taken.getsockname()[1]}")
        done = cli("run")
    assert done.code == 2, done.stderr
    assert "Address already in use" in done.stderr
    assert "metrics.address" in done.stderr
    assert database.execute("select 1 from pg_replication_slots where database = %s", database.name) == []
