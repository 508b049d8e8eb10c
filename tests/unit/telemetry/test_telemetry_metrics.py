"""Metrics are declared once, told as they are declared, documented, and served on loopback."""

from __future__ import annotations

import http.client
import importlib.util
import math
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.reports import make_report
from prometheus_client.parser import text_string_to_metric_families

from penstock.config.metrics import MetricsConfig, split_address
from penstock.errors import ConfigError, SourceError
from penstock.model.lsn import Lsn
from penstock.runtime.measure import SourceWatch, measure
from penstock.runtime.report import PipelineReport, TableReport
from penstock.telemetry import metrics
from penstock.telemetry.metrics import METRICS, MetricsServer, Sample
from penstock.testing.postgres import wait_until

DOCS = Path(__file__).parents[3] / "docs"
BY_NAME = {metric.name: metric for metric in METRICS}


def table(number: int = 1, name: str = "public.a", phase: str = "ready", **fields: Any) -> TableReport:
    required = {"watermark": "0/10", "copied_rows": 0, "estimated_rows": None, "applied_events": 7}
    return TableReport(number, name, phase, **{**required, **fields})


def report(*tables: TableReport) -> PipelineReport:
    return make_report(*tables, receiver_restarts=3, is_log_full=True, received_events=5)


COPYING = table(
    phase="data_sync",
    copied_rows=50,
    copied_bytes=250,
    total_bytes=1000,
    copied_percent=25.0,
    rows_per_second=10.0,
    seconds_left=15.0,
)


def values(samples: Iterator[Sample]) -> dict[tuple[str, ...], float]:
    return {(sample.metric.name, *sample.labels): sample.value for sample in samples}


def test_names_follow_the_rule_and_are_unique() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"penstock(_[a-z]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.labels[0] == "pipeline"
        assert metric.help.endswith(".")
    assert len(BY_NAME) == len(METRICS)


def test_every_declared_metric_is_in_the_list() -> None:
    declared = {value for value in vars(metrics).values() if isinstance(value, metrics.Metric)}
    assert declared == set(METRICS)


def test_a_copy_under_way_tells_every_metric() -> None:
    whole = replace(report(replace(COPYING, files=7)), snapshot_age_s=2.0)
    assert {sample.metric for sample in measure(whole, Lsn(0x110))} == set(METRICS)
    found = values(measure(whole, Lsn(0x110)))
    assert found["penstock_copy_ratio", "p", "public.a"] == 0.25
    assert found["penstock_copy_left_seconds", "p", "public.a"] == 15
    assert found["penstock_table_lag_bytes", "p", "public.a"] == 0x100
    assert found["penstock_source_lag_bytes", "p"] == 0x100
    assert found["penstock_tables", "p", "data_sync"] == 1
    assert found["penstock_tables", "p", "ready"] == 0
    assert found["penstock_snapshot_age_seconds", "p"] == 2
    assert found["penstock_log_full", "p"] == 1


def test_what_is_not_known_is_absent_and_no_zero() -> None:
    found = values(measure(replace(report(table(watermark=None)), acknowledged="0/0"), Lsn(1 << 40)))
    names = {name for name, *_ in found}
    absent = {"source_lag_bytes", "acknowledged_lsn", "table_lag_bytes", "table_watermark_lsn", "snapshot_age_seconds"}
    assert names.isdisjoint(f"penstock_{name}" for name in absent)
    assert not any(name.startswith("penstock_copy") for name in names)
    away = values(measure(report(table()), None))
    assert away["penstock_source_reachable", "p"] == 0
    assert ("penstock_source_lsn", "p") not in away


def test_a_source_that_was_asked_too_early_is_not_behind_us() -> None:
    assert values(measure(report(table()), Lsn(1)))["penstock_table_lag_bytes", "p", "public.a"] == 0


optional = st.none() | st.floats(0, 1e9)
tables = st.builds(
    table,
    number=st.integers(1, 3),
    name=st.sampled_from(["public.a", 'odd."n\\a\nme"', "public.ä"]),
    phase=st.sampled_from(["init", "data_sync", "ready", "errored"]),
    watermark=st.none() | st.just("0/10"),
    total_bytes=st.none() | st.integers(0, 1 << 50),
    copied_percent=optional,
    rows_per_second=optional,
    seconds_left=optional,
)


@given(st.lists(tables, max_size=4, unique_by=lambda each: each.id), st.none() | st.just(Lsn(1 << 63)))
def test_no_report_gives_a_sample_twice_or_one_that_is_no_number(found: list[TableReport], source: Lsn | None) -> None:
    samples = list(measure(report(*found), source))
    keys = [(sample.metric.name, sample.labels) for sample in samples]
    assert len(set(keys)) == len(keys)
    assert all(len(sample.labels) == len(sample.metric.labels) for sample in samples)
    assert all(math.isfinite(sample.value) and sample.value >= 0 for sample in samples)


def scrape(server: MetricsServer, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with closing(MetricsServer("127.0.0.1", 0)) as started:
        yield started


def test_a_scrape_reads_what_is_true_then(server: MetricsServer) -> None:
    moments = iter([report(table(applied_events=1)), report(COPYING, table(2, 'odd."n\\a\nme"'))])
    server.serve(lambda: measure(next(moments), Lsn(0x110)))
    assert 'penstock_applied_events_total{pipeline="p",table="public.a"} 1.0' in scrape(server)
    families = {family.name: family for family in text_string_to_metric_families(scrape(server))}
    assert families["penstock_applied_events"].type == "counter"
    found = {sample.labels["table"]: sample.value for sample in families["penstock_copy_ratio"].samples}
    assert found == {"public.a": 0.25}
    phases = {sample.labels["table"] for sample in families["penstock_table_phase"].samples}
    assert phases == {"public.a", 'odd."n\\a\nme"'}
    assert all(BY_NAME.get(name) or BY_NAME[f"{name}_total"] for name in families)


def test_metrics_are_served_at_one_path_only(server: MetricsServer) -> None:
    server.serve(list)
    with pytest.raises(urllib.error.HTTPError) as caught:
        scrape(server, "/")
    assert caught.value.code == 404
    assert b"/metrics" in caught.value.read()
    caught.value.close()


def test_a_scrape_that_comes_early_is_answered_when_there_is_something_to_read(server: MetricsServer) -> None:
    answers: list[str] = []
    early = threading.Thread(target=lambda: answers.append(scrape(server)))
    early.start()
    server.serve(lambda: measure(report(table()), None))
    early.join(10)
    assert "penstock_info" in answers[0]


def test_several_scrapes_at_once_and_a_silent_client_do_not_hinder_each_other(server: MetricsServer) -> None:
    server.serve(lambda: measure(report(table()), None))
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as silent:
        silent.connect()
        assert "penstock_info" in scrape(server)


def test_a_port_that_is_taken_is_an_error_that_names_it(server: MetricsServer) -> None:
    with pytest.raises(ConfigError, match=f"127.0.0.1, port {server.port}: Address already in use") as caught:
        MetricsServer("127.0.0.1", server.port)
    assert "metrics.address" in caught.value.remedy


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        MetricsServer("192.0.2.1", 9464)


def test_a_port_is_free_again_after_closing() -> None:
    with closing(MetricsServer("127.0.0.1", 0)) as first:
        first.serve(list)
        scrape(first)
        port = first.port
    MetricsServer("127.0.0.1", port).close()


def test_the_source_is_asked_again_after_it_failed() -> None:
    answers: Iterator[Lsn | None] = iter([Lsn(5), None, Lsn(7)])

    def ask() -> Lsn:
        answer = next(answers, Lsn(9))
        if answer is None:
            raise SourceError("away")
        return answer

    watch = SourceWatch(ask, pause_s=0.001)
    assert watch.position is None
    watch.start()
    wait_until(lambda: watch.position == Lsn(9), "an answer after the failure")
    watch.stop()


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9464", ("127.0.0.1", 9464)), ("[::1]:1", ("::1", 1)), ("localhost:65535", ("localhost", 65535))],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address
    assert MetricsConfig(address=text).address == text


@pytest.mark.parametrize(
    "text", ["", "9464", ":9464", "host", "host:", "host:0", "host:65536", "::1:9464", "h:-1", "[]:1"]
)
def test_any_other_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        MetricsConfig(address=text)


def test_the_reference_is_fresh() -> None:
    spec = importlib.util.spec_from_file_location("generate_metrics", DOCS / "generate_metrics.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.PAGE.read_text() == generator.render(), "run: python docs/generate_metrics.py"


def test_the_alerts_of_the_reference_name_metrics_that_exist() -> None:
    named = set(re.findall(r"\bpenstock_\w+", (DOCS / "reference" / "metrics.md").read_text()))
    assert named == set(BY_NAME)
