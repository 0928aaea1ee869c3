"""What is read when somebody looks, a row each: its name, what it says, and how it is read. Knows what a server has
open, running and waiting; knows nothing of Prometheus' library.

Label values are from short lists of our own: tools, engines, transports, levels, words. Never a principal, a client, an
address, or anything else that came from outside.
"""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from toolgate.server import VERSION
from toolgate.server.budget import Budget
from toolgate.server.server import Server
from toolgate.server.workspaces.workspaces import Workspaces
from toolgate.tools.search import Search
from toolgate.tools.search.health import STATES
from toolgate.tools.web.fetch import Web

Values = Iterable[tuple[tuple[str, ...], float]]


class MetricRow(NamedTuple):
    """`kind` is gauge or counter; `read` gives the value for each set of label values there is."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[], Values]


@dataclass(frozen=True, slots=True)
class HttpGauges:
    """What is served over HTTP, by transport where there is a choice."""

    sessions: Mapping[str, Callable[[], int]]
    calls: Mapping[str, Callable[[], int]]  # requests of JSON-RPC under way
    streams: Mapping[str, Callable[[], int]]  # that are read now
    waiting: Mapping[str, Callable[[], int]]  # events that those have not sent yet
    replay_bytes: Mapping[str, Callable[[], int]]  # bytes, for readers that come back too
    connections: Callable[[], int]
    budgets: Mapping[str, Budget]
    running: Callable[[], int]  # requests of HTTP, streams included
    responses: Mapping[int, int]  # by status, ever
    refused_tokens: Mapping[str, int]  # tokens, by why, ever
    issued_tokens: Callable[[], int] = lambda: 0  # tokens, ever
    sign_ins: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])  # (way, outcome), ever


def server_rows(server: Server, workspaces: Workspaces, search: Search, web: Web, sandbox: str) -> Iterator[MetricRow]:
    """Of what is behind any transport."""
    about = (VERSION, platform.python_version())
    yield MetricRow("toolgate_build_info", "gauge", "What runs.", ("version", "python"), lambda: [(about, 1)])
    yield MetricRow(
        "toolgate_sandbox_info", "gauge", "How commands are kept apart.", ("level",), lambda: [((sandbox,), 1)]
    )
    yield MetricRow(
        "toolgate_subscriptions", "gauge", "Open subscriptions/listen.", (), lambda: [((), len(server.subscriptions))]
    )
    yield MetricRow(
        "toolgate_tasks_running",
        "gauge",
        "Calls that go on as tasks.",
        (),
        lambda: [((), len(server.call_tasks.work))],
    )
    yield MetricRow(
        "toolgate_commands_running", "gauge", "Commands that run.", ("kind",), lambda: _commands(workspaces)
    )
    yield MetricRow(
        "toolgate_queue_running", "gauge", "What has its turn.", ("queue",), lambda: _queues(search, web, 0)
    )
    yield MetricRow(
        "toolgate_queue_waiting", "gauge", "What waits for it.", ("queue",), lambda: _queues(search, web, 1)
    )
    yield from _search_rows(search)
    yield MetricRow("toolgate_browser_up", "gauge", "Whether Chromium runs.", (), lambda: [((), web.browser_is_up)])
    yield MetricRow(
        "toolgate_browser_pages", "gauge", "Pages that are open.", (), lambda: [((), dict(web.depths())["pages"][0])]
    )


def http_rows(http: HttpGauges) -> Iterator[MetricRow]:
    """Of what only HTTP has."""
    by = ("transport",)
    yield MetricRow("toolgate_sessions", "gauge", "Open sessions.", by, lambda: _by_transport(http.sessions))
    yield MetricRow(
        "toolgate_requests_running", "gauge", "MCP requests being answered.", by, lambda: _by_transport(http.calls)
    )
    yield MetricRow("toolgate_streams", "gauge", "Streams that are read.", by, lambda: _by_transport(http.streams))
    yield MetricRow("toolgate_stream_events_waiting", "gauge", "Not sent yet.", by, lambda: _by_transport(http.waiting))
    yield MetricRow(
        "toolgate_stream_kept_bytes", "gauge", "Kept for readers.", by, lambda: _by_transport(http.replay_bytes)
    )
    yield MetricRow("toolgate_connections", "gauge", "Open ones.", (), lambda: [((), http.connections())])
    yield MetricRow(
        "toolgate_budget_used",
        "gauge",
        "Of what principals share: requests, streams, and bytes of the rest.",
        ("budget",),
        lambda: [((name,), budget.used) for name, budget in http.budgets.items()],
    )
    yield MetricRow(
        "toolgate_http_requests_running", "gauge", "Open streams included.", (), lambda: [((), http.running())]
    )
    yield MetricRow(
        "toolgate_http_responses", "counter", "Answers that began.", ("status",), lambda: _by_key(http.responses)
    )
    yield MetricRow("toolgate_sign_ins", "counter", "How they ended.", ("way", "result"), lambda: http.sign_ins.items())
    yield MetricRow(
        "toolgate_tokens_issued", "counter", "Access tokens made.", (), lambda: [((), http.issued_tokens())]
    )
    yield MetricRow(
        "toolgate_tokens_refused",
        "counter",
        "Sent away at the gate.",
        ("reason",),
        lambda: _by_key(http.refused_tokens),
    )


def _search_rows(search: Search) -> Iterator[MetricRow]:
    yield MetricRow(
        "toolgate_search_engine_state",
        "gauge",
        "1 for the state an engine is in: open is not asked, half-open is tried.",
        ("engine", "state"),
        lambda: [((name, state), held.state == state) for name, held in search.health.items() for state in STATES],
    )
    yield MetricRow(
        "toolgate_search_answers",
        "counter",
        "What engines said when they were asked.",
        ("engine", "status"),
        lambda: [((name, said), n) for name, held in search.health.items() for said, n in held.tally.items()],
    )


def _commands(workspaces: Workspaces) -> Values:
    background = Counter(run.background for run in workspaces.list_running())
    return [(("foreground",), background[False]), (("background",), background[True])]


def _queues(search: Search, web: Web, which: int) -> Values:
    """`which`: 0 is how many have their turn, 1 how many wait."""
    return [((name,), depth[which]) for name, depth in (("engines", search.depth), *web.depths())]


def _by_transport(counts: Mapping[str, Callable[[], int]]) -> Values:
    return [((name,), count()) for name, count in counts.items()]


def _by_key(counts: Mapping[str, int] | Mapping[int, int]) -> Values:
    return [((str(key),), count) for key, count in counts.items()]
