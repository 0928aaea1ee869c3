"""List what is read of PostgreSQL at each scrape."""

from collections.abc import Callable
from functools import partial

from toolgate.server.base.reports.metric_rows import MetricRow, gauge, read_field
from toolgate.server.state.store import DatabaseHealth


def database_rows(measure: Callable[[], DatabaseHealth]) -> list[MetricRow]:
    """Return the rows of the connections to PostgreSQL."""

    read = partial(read_field, measure)
    return [
        gauge("toolgate_database_up", "1 if PostgreSQL answers.", read("is_reachable")),
        gauge("toolgate_database_latency_seconds", "Time of the newest answer of PostgreSQL.", read("latency")),
        gauge("toolgate_database_transactions_running", "Transactions with a connection.", read("running")),
        gauge("toolgate_database_transactions_waiting", "Transactions that wait for one.", read("waiting")),
    ]
