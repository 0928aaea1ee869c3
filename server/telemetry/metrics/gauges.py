"""List what is read at each scrape: a row for each gauge and counter.

Label values come from short lists of our own: tools, engines, transports, levels, words; and from the operator: the
addresses of nodes, and their names, releases and levels. Never a principal, a client, a caller's address, or anything
else from outside.
"""

import platform
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from toolgate.server import VERSION
from toolgate.server.base.budget import Budget
from toolgate.server.workspaces.node_report import NodeReport
from toolgate.server.workspaces.workspaces import Workspaces
from toolgate.tools.pages.page_reader import PageReader
from toolgate.tools.search.health import STATES
from toolgate.tools.search.search import Search

if TYPE_CHECKING:
    from toolgate.server.base.bus.bus import BusHealth
    from toolgate.server.events.subscriptions import EventSubscriptions  # start-up: most servers have no webhooks
    from toolgate.server.state.store import DatabaseHealth

Values = Iterable[tuple[tuple[str, ...], float]]
Key = TypeVar("Key", bound=str | int)


class MetricRow(NamedTuple):
    """`kind` is gauge or counter; `read` returns the value for each set of label values."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[], Values]


class HttpGauges(msgspec.Struct, frozen=True):
    """What HTTP serves, by transport where there are several. Counters count since the start."""

    sessions: Mapping[str, Callable[[], int]]
    calls: Mapping[str, Callable[[], int]]  # JSON-RPC requests being answered
    streams: Mapping[str, Callable[[], int]]  # that have a reader
    waiting: Mapping[str, Callable[[], int]]  # events not sent yet on these
    replay_bytes: Mapping[str, Callable[[], int]]  # of events kept for readers, also for those that come back
    connections: Callable[[], int]
    budgets: Mapping[str, Budget]
    running: Callable[[], int]  # HTTP requests, streams included
    responses: Mapping[int, int]  # counter by status
    refused_tokens: Mapping[str, int]  # counter by reason
    issued_tokens: Callable[[], int] = lambda: 0  # counter
    # by (way, result)
    sign_ins: Mapping[tuple[str, str], int] = msgspec.field(default_factory=dict[tuple[str, str], int])


def server_rows(
    subscriptions: Sized, tasks: Sized, workspaces: Workspaces, search: Search, reader: PageReader, sandbox: str
) -> list[MetricRow]:
    """Return the rows that every transport has."""
    build = (VERSION, platform.python_version())
    return [
        _gauge("toolgate_build_info", "Version of the server.", lambda: [(build, 1)], "version", "python"),
        _gauge("toolgate_sandbox_info", "Sandbox of the commands.", lambda: [((sandbox,), 1)], "level"),
        _gauge("toolgate_subscriptions", "Open subscriptions/listen requests.", lambda: [((), len(subscriptions))]),
        _gauge("toolgate_tasks_running", "Calls that run as tasks.", lambda: [((), len(tasks))]),
        _gauge("toolgate_commands_running", "Running commands.", lambda: _count_commands(workspaces), "kind"),
        _counter(
            "toolgate_sandboxes_lost",
            "Sandboxes that ended with commands in them.",
            lambda: [((), workspaces.count_lost_sandboxes())],
        ),
        _gauge("toolgate_queue_running", "Running jobs of a queue.", lambda: _read_queues(search, reader, 0), "queue"),
        _gauge("toolgate_queue_waiting", "Waiting jobs of a queue.", lambda: _read_queues(search, reader, 1), "queue"),
        _gauge(
            "toolgate_search_engine_state",
            "1 for the state of an engine: an open one is not asked, a half-open one is tried.",
            lambda: [((name, state), held.state == state) for name, held in search.health.items() for state in STATES],
            "engine",
            "state",
        ),
        _counter(
            "toolgate_search_answers",
            "Answers of search engines.",
            lambda: [((name, status), n) for name, held in search.health.items() for status, n in held.tally.items()],
            "engine",
            "status",
        ),
        _gauge("toolgate_browser_up", "1 if Chromium runs.", lambda: _read_browser(reader)),
        _gauge("toolgate_browser_pages", "Open pages.", lambda: _count_pages(reader)),
        *(node_rows(workspaces) if workspaces.list_nodes() else ()),
    ]


def node_rows(workspaces: Workspaces) -> list[MetricRow]:
    """Return the rows of the nodes where commands run. What a node has not said has no value."""

    def read(value: Callable[[NodeReport], float | None]) -> Callable[[], Values]:
        def values() -> Values:
            found = [(node.address, value(node)) for node in workspaces.list_nodes()]
            return [((name,), number) for name, number in found if number is not None]

        return values

    def read_load(field: str) -> Callable[[], Values]:
        return read(lambda node: None if node.load is None else getattr(node.load, field))

    return [
        _gauge("toolgate_node_up", "1 if the node answers.", read(lambda node: node.is_reachable), "node"),
        _gauge(
            "toolgate_node_info",
            "Name, version and sandbox of a node.",
            lambda: [((node.address, node.name, node.release, node.level), 1) for node in workspaces.list_nodes()],
            *("node", "name", "version", "level"),
        ),
        _gauge(
            "toolgate_node_round_trip_seconds",
            "Time of the newest answer to the server's own question.",
            read(lambda node: None if node.load is None else node.round_trip),
            "node",
        ),
        _gauge(
            "toolgate_node_requests_running", "Requests without an answer.", read(lambda node: node.waiting), "node"
        ),
        _counter("toolgate_node_requests_failed", "Requests never answered.", read(lambda node: node.failures), "node"),
        _gauge("toolgate_node_people", "People with a workspace at the node.", read_load("people"), "node"),
        _gauge(
            "toolgate_node_commands_running",
            "Running commands at the node, of all servers.",
            read(lambda node: None if node.load is None else node.load.foreground + node.load.background),
            "node",
        ),
        _gauge("toolgate_node_pages_running", "Pages and pictures read there.", read_load("pages_running"), "node"),
        _gauge("toolgate_node_pages_waiting", "Those that wait for it.", read_load("pages_waiting"), "node"),
        _gauge("toolgate_node_disk_free_bytes", "Free bytes of the node's disk.", read_load("disk_free"), "node"),
        _gauge("toolgate_node_memory_free_bytes", "Free bytes of its memory.", read_load("memory_free"), "node"),
    ]


def bus_rows(measure: Callable[[], "BusHealth"]) -> list[MetricRow]:
    """Return the rows of the connections to Redis."""

    def read(field: str) -> Callable[[], Values]:
        return lambda: [((), getattr(measure(), field))]

    return [
        _gauge("toolgate_bus_up", "1 if Redis answers.", read("is_reachable")),
        _gauge("toolgate_bus_latency_seconds", "Time of the newest answer of Redis.", read("latency")),
        _gauge("toolgate_bus_lease_age_seconds", "Time since the lease was renewed.", read("lease_age")),
        _gauge("toolgate_bus_lag_seconds", "Time that the oldest unwritten event has waited.", read("lag")),
        _gauge("toolgate_bus_unwritten_bytes", "Bytes of events that Redis does not have yet.", read("unwritten")),
        _counter("toolgate_bus_dropped", "Events for which there was no room.", read("dropped")),
    ]


def database_rows(measure: Callable[[], "DatabaseHealth"]) -> list[MetricRow]:
    """Return the rows of the connections to PostgreSQL."""

    def read(field: str) -> Callable[[], Values]:
        return lambda: [((), getattr(measure(), field))]

    return [
        _gauge("toolgate_database_up", "1 if PostgreSQL answers.", read("is_reachable")),
        _gauge("toolgate_database_latency_seconds", "Time of the newest answer of PostgreSQL.", read("latency")),
        _gauge("toolgate_database_transactions_running", "Transactions with a connection.", read("running")),
        _gauge("toolgate_database_transactions_waiting", "Transactions that wait for one.", read("waiting")),
    ]


def webhook_rows(subscriptions: "EventSubscriptions") -> list[MetricRow]:
    """Return the rows of events by webhook."""
    queue, verifier = subscriptions.queue, subscriptions.verifier
    counters = queue.counters
    return [
        _gauge("toolgate_webhook_subscriptions", "Subscriptions by webhook.", lambda: [((), len(subscriptions))]),
        _gauge(
            "toolgate_webhook_subscriptions_waiting",
            "Subscriptions with a delivery that is not acknowledged.",
            lambda: [((), queue.pending)],
        ),
        _counter(
            "toolgate_webhook_deliveries",
            "Deliveries that ended.",
            lambda: [(("acknowledged",), counters.delivered), (("refused",), counters.abandoned)],
            "result",
        ),
        _counter("toolgate_webhook_failures", "Failed attempts.", lambda: _by_key(counters.failures), "reason"),
        _counter(
            "toolgate_webhook_lag_seconds",
            "Time from events to their acknowledgement, summed up.",
            lambda: [((), counters.lag)],
        ),
        _counter(
            "toolgate_webhook_challenges",
            "Challenges of endpoints.",
            lambda: [(("verified",), verifier.verified), *_by_key(verifier.failures)],
            "result",
        ),
    ]


def http_rows(http: HttpGauges) -> list[MetricRow]:
    """Return the rows that only HTTP has."""
    by = "transport"
    return [
        _gauge("toolgate_sessions", "Open sessions.", lambda: _call_each(http.sessions), by),
        _gauge("toolgate_requests_running", "MCP requests being answered.", lambda: _call_each(http.calls), by),
        _gauge("toolgate_streams", "Streams with a reader.", lambda: _call_each(http.streams), by),
        _gauge("toolgate_stream_events_waiting", "Events not sent yet.", lambda: _call_each(http.waiting), by),
        _gauge("toolgate_stream_kept_bytes", "Bytes of kept events.", lambda: _call_each(http.replay_bytes), by),
        _gauge("toolgate_connections", "Open connections.", lambda: [((), http.connections())]),
        _gauge(
            "toolgate_budget_used",
            "Use of the limits that principals share: requests, streams, or bytes.",
            lambda: [((name,), budget.used) for name, budget in http.budgets.items()],
            "budget",
        ),
        _gauge(
            "toolgate_http_requests_running",
            "HTTP requests being answered, with open streams.",
            lambda: [((), http.running())],
        ),
        _counter("toolgate_http_responses", "HTTP responses.", lambda: _by_key(http.responses), "status"),
        _counter("toolgate_sign_ins", "Sign-ins.", lambda: http.sign_ins.items(), "way", "result"),
        _counter("toolgate_tokens_issued", "Issued access tokens.", lambda: [((), http.issued_tokens())]),
        _counter(
            "toolgate_tokens_refused",
            "Requests with a missing or refused token.",
            lambda: _by_key(http.refused_tokens),
            "reason",
        ),
    ]


def _gauge(name: str, help: str, read: Callable[[], Values], *labels: str) -> MetricRow:
    return MetricRow(name, "gauge", help, labels, read)


def _counter(name: str, help: str, read: Callable[[], Values], *labels: str) -> MetricRow:
    return MetricRow(name, "counter", help, labels, read)


def _count_commands(workspaces: Workspaces) -> Values:
    foreground, background = workspaces.count_running()
    return [(("foreground",), foreground), (("background",), background)]


def _read_queues(search: Search, reader: PageReader, which: int) -> Values:
    """Return how many jobs of each queue run (`which` 0) or wait (1)."""
    return [((name,), depth[which]) for name, depth in (("engines", search.depth), *reader.depths())]


def _read_browser(reader: PageReader) -> Values:
    is_up = reader.is_browser_up()
    return [] if is_up is None else [((), is_up)]


def _count_pages(reader: PageReader) -> Values:
    return [((), running) for name, (running, _) in reader.depths() if name == "pages"]


def _call_each(counts: Mapping[str, Callable[[], int]]) -> Values:
    return [((name,), count()) for name, count in counts.items()]


def _by_key(counts: Mapping[Key, int]) -> Values:
    return [((str(key),), count) for key, count in counts.items()]
