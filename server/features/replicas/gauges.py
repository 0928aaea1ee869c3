"""List what is read of Redis at each scrape."""

from collections.abc import Callable
from functools import partial

from toolgate.server.base.bus.bus import BusHealth
from toolgate.server.base.reports.metric_rows import MetricRow, counter, gauge, read_field


def bus_rows(measure: Callable[[], BusHealth]) -> list[MetricRow]:
    """Return the rows of the connections to Redis."""

    read = partial(read_field, measure)
    return [
        gauge("toolgate_bus_up", "1 if Redis answers.", read("is_reachable")),
        gauge("toolgate_bus_latency_seconds", "Time of the newest answer of Redis.", read("latency")),
        gauge("toolgate_bus_lease_age_seconds", "Time since the lease was renewed.", read("lease_age")),
        gauge("toolgate_bus_lag_seconds", "Time that the oldest unwritten event has waited.", read("lag")),
        gauge("toolgate_bus_unwritten_bytes", "Bytes of events that Redis does not have yet.", read("unwritten")),
        counter("toolgate_bus_dropped", "Events for which there was no room.", read("dropped")),
    ]
