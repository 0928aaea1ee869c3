"""Counts calls as they end, and reads gauges when Prometheus scrapes.

Enter at `Metrics`. No label names a person. Source: the Prometheus text format 0.0.4.
"""

from collections.abc import Callable, Container, Iterable

from toolgate.server.telemetry.metrics.calls import CallMetrics
from toolgate.server.telemetry.metrics.gauges import MetricRow

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one server, in a registry of its own. `tools()` are the names of its tools; `calls` observes."""

    def __init__(self, tools: Callable[[], Container[str]]) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector  # start-up: only HTTP has them

        self._registry = CollectorRegistry()
        self.calls = CallMetrics(self._registry, tools)
        ProcessCollector(registry=self._registry)

    def add_rows(self, rows: Iterable[MetricRow]) -> None:
        """Read these rows at each scrape."""
        from toolgate.server.telemetry.metrics.collector import RowCollector  # start-up, as above

        self._registry.register(RowCollector(tuple(rows)))

    def render(self) -> bytes:
        """Return all metrics in the text format."""
        from prometheus_client import generate_latest  # start-up, as above

        return generate_latest(self._registry)
