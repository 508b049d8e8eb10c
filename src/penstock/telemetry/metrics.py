"""Every metric: its name, kind and meaning, once; and the HTTP endpoint that Prometheus reads them from.

Nothing is counted here. What is asked for at a scrape is read from the pipeline then.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from penstock.errors import ConfigError

PATH = "/metrics"
_CLIENT_TIMEOUT_S = 10.0  # a client that says nothing is sent away, or it would keep a thread for ever

_OF_PIPELINE = ("pipeline",)
_OF_TABLE = ("pipeline", "table")


@dataclass(frozen=True, slots=True)
class Metric:
    """What one metric is called, and means. A counter counts from the process's start, a gauge stands for now."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = _OF_PIPELINE


INFO = Metric("penstock_info", "gauge", "1, with the version that runs.", ("pipeline", "version"))
TABLES = Metric("penstock_tables", "gauge", "How many tables are in each phase.", ("pipeline", "phase"))
RECEIVER_RUNNING = Metric("penstock_receiver_running", "gauge", "1 while there is a receiver process, 0 otherwise.")
RECEIVER_RESTARTS = Metric("penstock_receiver_restarts_total", "counter", "How often the receiver was started again.")
RECEIVED_EVENTS = Metric("penstock_received_events_total", "counter", "Changes that the receiver wrote to the log.")
SOURCE_REACHABLE = Metric(
    "penstock_source_reachable", "gauge", "1 if the source told its position when last asked, 0 otherwise."
)
SOURCE_LSN = Metric("penstock_source_lsn", "gauge", "Where the source's WAL ended when last asked.")
SOURCE_LAG_BYTES = Metric(
    "penstock_source_lag_bytes", "gauge", "WAL between what is acknowledged and the source's end: what it keeps for us."
)
ACKNOWLEDGED_LSN = Metric("penstock_acknowledged_lsn", "gauge", "What is acknowledged to the source.")
LOG_START_LSN = Metric("penstock_log_start_lsn", "gauge", "From where on a table needs the change log.")
LOG_END_LSN = Metric("penstock_log_end_lsn", "gauge", "Where the change log ends.")
LOG_BYTES = Metric("penstock_log_bytes", "gauge", "The size of what is needed of the change log.")
LOG_FULL = Metric("penstock_log_full", "gauge", "1 while the receiver waits because the change log is full, else 0.")
SNAPSHOT_AGE_SECONDS = Metric(
    "penstock_snapshot_age_seconds", "gauge", "For how long the oldest snapshot has been held; absent when none is."
)
TABLE_PHASE = Metric("penstock_table_phase", "gauge", "1, with the table's phase.", (*_OF_TABLE, "phase"))
TABLE_FAILURES = Metric("penstock_table_failures", "gauge", "How often the table failed in a row.", _OF_TABLE)
TABLE_WATERMARK_LSN = Metric(
    "penstock_table_watermark_lsn", "gauge", "All that committed before it is in the destination.", _OF_TABLE
)
TABLE_LAG_BYTES = Metric(
    "penstock_table_lag_bytes", "gauge", "WAL between the table's watermark and the source's end.", _OF_TABLE
)
APPLIED_EVENTS = Metric(
    "penstock_applied_events_total", "counter", "Changes that the destination has committed.", _OF_TABLE
)
COPY_ROWS = Metric("penstock_copy_rows", "gauge", "Rows that the last copy has read.", _OF_TABLE)
COPY_BYTES = Metric(
    "penstock_copy_bytes", "gauge", "How much of the source's table is copied, as it lies on its disk.", _OF_TABLE
)
COPY_SIZE_BYTES = Metric(
    "penstock_copy_size_bytes", "gauge", "How large the source's table was when the copy began.", _OF_TABLE
)
COPY_RATIO = Metric("penstock_copy_ratio", "gauge", "How much is copied, from 0 to 1.", _OF_TABLE)
COPY_ROWS_PER_SECOND = Metric(
    "penstock_copy_rows_per_second", "gauge", "How fast the copy reads, or has read on the whole.", _OF_TABLE
)
COPY_LEFT_SECONDS = Metric(
    "penstock_copy_left_seconds", "gauge", "How long the copy will still take; absent while nobody knows.", _OF_TABLE
)
TABLE_FILES = Metric(
    "penstock_table_files", "gauge", "Data files of the destination's table behind its last upkeep.", _OF_TABLE
)
UPKEEP_RUNS = Metric("penstock_upkeep_runs_total", "counter", "How often the table got its upkeep.", _OF_TABLE)
UPKEEP_FAILURES = Metric("penstock_upkeep_failures_total", "counter", "How often its upkeep failed.", _OF_TABLE)
UPKEEP_SECONDS = Metric("penstock_upkeep_seconds_total", "counter", "How long all of it took.", _OF_TABLE)
UPKEEP_REWRITTEN_FILES = Metric(
    "penstock_upkeep_rewritten_files_total", "counter", "Data files whose rows it put into others.", _OF_TABLE
)
UPKEEP_REWRITTEN_BYTES = Metric("penstock_upkeep_rewritten_bytes_total", "counter", "The size of these.", _OF_TABLE)

METRICS: tuple[Metric, ...] = (
    INFO,
    TABLES,
    RECEIVER_RUNNING,
    RECEIVER_RESTARTS,
    RECEIVED_EVENTS,
    SOURCE_REACHABLE,
    SOURCE_LSN,
    SOURCE_LAG_BYTES,
    ACKNOWLEDGED_LSN,
    LOG_START_LSN,
    LOG_END_LSN,
    LOG_BYTES,
    LOG_FULL,
    SNAPSHOT_AGE_SECONDS,
    TABLE_PHASE,
    TABLE_FAILURES,
    TABLE_WATERMARK_LSN,
    TABLE_LAG_BYTES,
    APPLIED_EVENTS,
    COPY_ROWS,
    COPY_BYTES,
    COPY_SIZE_BYTES,
    COPY_RATIO,
    COPY_ROWS_PER_SECOND,
    COPY_LEFT_SECONDS,
    TABLE_FILES,
    UPKEEP_RUNS,
    UPKEEP_FAILURES,
    UPKEEP_SECONDS,
    UPKEEP_REWRITTEN_FILES,
    UPKEEP_REWRITTEN_BYTES,
)
"""All of them, in the order in which they are served and documented."""

_Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily


@dataclass(frozen=True, slots=True)
class Sample:
    """A metric's value, and the labels that it is of, in the metric's order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


class _AtScrape(Collector):
    """Turns what is read at a scrape into the library's families; one without samples is not served."""

    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[_Family]:
        families: dict[str, _Family] = {}
        for sample in self._read():
            metric = sample.metric
            family = families.setdefault(metric.name, _family(metric))
            family.add_metric(sample.labels, sample.value)
        yield from (families[metric.name] for metric in METRICS if metric.name in families)


def _family(metric: Metric) -> _Family:
    made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return made(metric.name, metric.help, labels=metric.labels)


class _Listener(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        super().__init__((str(address[0]), port), _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the DNS for our own name, and waits for it.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing: a scrape every few seconds is no news."""


class MetricsServer:
    """Listens from the start, so that a port that is taken is known at once; answers when told whom to read."""

    def __init__(self, host: str, port: int) -> None:
        try:
            self._listener = _Listener(host, port)
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be served on {host}, port {port}: {error.strerror}",
                remedy="Stop whatever uses the port, or set metrics.address to another port, or to an address of this "
                "machine.",
            ) from None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.server_port

    def serve(self, read: Callable[[], Iterable[Sample]]) -> None:
        """Answer scrapes with what is read at each; returns at once."""
        registry = CollectorRegistry()
        registry.register(_AtScrape(read))
        self._listener.set_app(_only_at_path(make_wsgi_app(registry)))
        self._thread = threading.Thread(target=self._listener.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and listening."""
        if self._thread is not None:
            self._listener.shutdown()
            self._thread.join()
        self._listener.server_close()


def _only_at_path(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    def answer(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") == PATH:
            return app(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"metrics are at {PATH}\n".encode()]

    return answer
