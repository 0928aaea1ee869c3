"""Count tool calls, and read the rows of gauges.py at each scrape (prometheus_client). Only HTTP imports it."""

import logging
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from toolgate.server.base.reports.metric_rows import MetricRow
from toolgate.server.base.task import StoredTask
from toolgate.server.calls.observers import GRANTED, CallEnd
from toolgate.server.calls.tasks import tool_of
from toolgate.server.protocol.messages import Request
from toolgate.server.protocol.session import Call

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
BOUNDS = (*map(str, BUCKETS), "+Inf")
MAX_TOOLS = 200  # names with a series of their own: a plugin may bring new ones for ever, and a series stays
OTHER = "other"  # an unknown tool, or one too many
PENDING = ("asked", "task")  # outcomes after which the call may still be allowed
NO_TRANSPORT = "none"  # if another process had the request
KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}

log = logging.getLogger("toolgate.metrics")


class Metrics:
    """The metrics of one server, in a registry of its own. `tools()` are the names of its tools; `calls` observes."""

    def __init__(self, tools: Callable[[], Container[str]]) -> None:
        self._registry = CollectorRegistry()
        self.calls = CallMetrics(self._registry, tools)
        ProcessCollector(registry=self._registry)

    def add_rows(self, rows: Iterable[MetricRow]) -> None:
        """Read these rows at each scrape."""
        self._registry.register(RowCollector(tuple(rows)))

    def render(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)


class CallMetrics:
    """Observes calls. `tools()` are the names of the tools: a client may send any text as a name."""

    def __init__(self, registry: CollectorRegistry, tools: Callable[[], Container[str]]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # else each series has a second one with its start
        self._tools = tools
        self._names: set[str] = set()  # of tools that were called
        self._seconds = SecondsHistogram(
            "toolgate_call_seconds", "Calls of tools that ended, by duration.", ("tool", "transport", "outcome")
        )
        registry.register(self._seconds)
        self._refused = Counter(
            "toolgate_calls_refused", "Calls of tools that were refused, by reason.", ("reason",), registry=registry
        )

    prepare = None
    call_started = None

    def call_ended(self, call: Call, begun: Any, end: CallEnd) -> None:
        self._observe(call.params.get("name"), call.session.transport, end.outcome, end.seconds)
        if call.decision not in GRANTED and end.outcome not in PENDING:
            self._refused.labels(call.decision).inc()

    def task_lost(self, kept: StoredTask) -> None:
        self._observe(tool_of(kept.id), NO_TRANSPORT, "fault", max(0.0, kept.updated - kept.created))

    def scope_missing(self, principal: str, client: str, request: Request) -> None:
        self._observe(request.params.get("name"), NO_TRANSPORT, "refused", 0.0)
        self._refused.labels("scope").inc()

    def _observe(self, name: Any, transport: str, outcome: str, seconds: float) -> None:
        if not isinstance(name, str):
            name = OTHER
        elif name not in self._names:
            if name in self._tools() and len(self._names) < MAX_TOOLS:
                self._names.add(name)
            else:
                name = OTHER
        self._seconds.observe((name, transport or NO_TRANSPORT, outcome), seconds)


class SecondsHistogram(Collector):
    """Durations by labels. A call costs a look-up and two additions; the library's own takes locks and three calls."""

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        self._name, self._help, self._labels = name, help, labels
        self._counts: dict[tuple[str, ...], list[int]] = {}  # labels → how many fell into each bucket and above them
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, labels: tuple[str, ...], seconds: float) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(BUCKETS) + 1)
            self._sums[labels] = 0.0
        counts[bisect_left(BUCKETS, seconds)] += 1
        self._sums[labels] += seconds

    def describe(self) -> Iterator[Metric]:
        yield HistogramMetricFamily(self._name, self._help, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for labels, counts in list(self._counts.items()):
            buckets = zip(BOUNDS, accumulate(counts), strict=True)
            family.add_metric(labels, list(buckets), self._sums[labels])
        yield family


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
