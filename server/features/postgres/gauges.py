"""List what is read of PostgreSQL at each scrape."""

from collections.abc import Callable

from toolgate.server.state.store import DatabaseHealth
from toolgate.server.telemetry.metrics.gauges import MetricRow, Values, gauge


def database_rows(measure: Callable[[], DatabaseHealth]) -> list[MetricRow]:
    """Return the rows of the connections to PostgreSQL."""

    def read(field: str) -> Callable[[], Values]:
        return lambda: [((), getattr(measure(), field))]

    return [
        gauge("toolgate_database_up", "1 if PostgreSQL answers.", read("is_reachable")),
        gauge("toolgate_database_latency_seconds", "Time of the newest answer of PostgreSQL.", read("latency")),
        gauge("toolgate_database_transactions_running", "Transactions with a connection.", read("running")),
        gauge("toolgate_database_transactions_waiting", "Transactions that wait for one.", read("waiting")),
    ]
