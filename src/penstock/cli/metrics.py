"""Serves the metrics of the pipeline that a command runs, where the configuration says so."""

from __future__ import annotations

from penstock.config.metrics import MetricsConfig, split_address
from penstock.runtime.measure import SourceWatch, measure
from penstock.runtime.pipeline import Pipeline
from penstock.telemetry.log import get_logger
from penstock.telemetry.metrics import PATH, MetricsServer


class MetricsEndpoint:
    """The endpoint, from listening to closing; without an address, nothing at all."""

    def __init__(self, config: MetricsConfig) -> None:
        self._address = config.address
        self._server = MetricsServer(*split_address(config.address)) if config.address else None
        self._watch: SourceWatch | None = None

    def serve(self, pipeline: Pipeline) -> None:
        """Answer scrapes from now on; the pipeline has been started."""
        if self._server is None:
            return
        watch = self._watch = SourceWatch(pipeline.source_position)
        watch.start()
        self._server.serve(lambda: measure(pipeline.report, watch.position))
        get_logger().info("metrics are served", address=self._address, path=PATH)

    def close(self) -> None:
        """Stop answering."""
        if self._watch is not None:
            self._watch.stop()
        if self._server is not None:
            self._server.close()
