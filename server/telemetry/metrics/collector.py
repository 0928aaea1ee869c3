"""Read the rows of gauges.py at each scrape, for Prometheus' library."""

import logging
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from toolgate.server.telemetry.metrics.gauges import MetricRow

KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}

log = logging.getLogger("toolgate.metrics")


class RowCollector(Collector):
    def __init__(self, rows: tuple[MetricRow, ...]) -> None:
        self._rows = rows

    def describe(self) -> Iterator[Metric]:
        """Yield the names alone: nothing is read before a scrape."""
        return (KINDS[row.kind](row.name, row.help, labels=row.labels) for row in self._rows)

    def collect(self) -> Iterator[Metric]:
        for row in self._rows:
            family = KINDS[row.kind](row.name, row.help, labels=row.labels)
            try:
                for labels, value in row.read():
                    family.add_metric(labels, value)
            except Exception:
                log.exception("%s can't be read", row.name)
                continue  # the others can
            yield family
