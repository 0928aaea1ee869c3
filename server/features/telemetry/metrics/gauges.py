"""List what is read at each scrape: a row for each gauge and counter.

Label values come from short lists of our own: tools, engines, transports, levels, words; and from the operator. Never a
principal, a client, a caller's address, or anything else from outside.
"""

import platform
from collections.abc import Callable, Mapping, Sized

from toolgate.server.base.reports.http_gauges import HttpGauges
from toolgate.server.base.reports.metric_rows import MetricRow, Values, by_key, counter, gauge
from toolgate.server.base.version import VERSION
from toolgate.tools.reading.pages.page_reader import PageReader
from toolgate.tools.reading.search.health import STATES
from toolgate.tools.reading.search.search import Search
from toolgate.tools.workspace.workspaces import Workspaces


def server_rows(
    subscriptions: Sized, tasks: Sized, workspaces: Workspaces, search: Search, reader: PageReader, sandbox: str
) -> list[MetricRow]:
    """Return the rows that every transport has."""
    build = (VERSION, platform.python_version())
    return [
        gauge("toolgate_build_info", "Version of the server.", lambda: [(build, 1)], "version", "python"),
        gauge("toolgate_sandbox_info", "Sandbox of the commands.", lambda: [((sandbox,), 1)], "level"),
        gauge("toolgate_subscriptions", "Open subscriptions/listen requests.", lambda: [((), len(subscriptions))]),
        gauge("toolgate_tasks_running", "Calls that run as tasks.", lambda: [((), len(tasks))]),
        gauge("toolgate_commands_running", "Running commands.", lambda: _count_commands(workspaces), "kind"),
        counter(
            "toolgate_sandboxes_lost",
            "Sandboxes that ended with commands in them.",
            lambda: [((), workspaces.count_lost_sandboxes())],
        ),
        gauge("toolgate_queue_running", "Running jobs of a queue.", lambda: _read_queues(search, reader, 0), "queue"),
        gauge("toolgate_queue_waiting", "Waiting jobs of a queue.", lambda: _read_queues(search, reader, 1), "queue"),
        gauge(
            "toolgate_search_engine_state",
            "1 for the state of an engine: an open one is not asked, a half-open one is tried.",
            lambda: [((name, state), held.state == state) for name, held in search.health.items() for state in STATES],
            "engine",
            "state",
        ),
        counter(
            "toolgate_search_answers",
            "Answers of search engines.",
            lambda: [((name, status), n) for name, held in search.health.items() for status, n in held.tally.items()],
            "engine",
            "status",
        ),
        gauge("toolgate_browser_up", "1 if Chromium runs.", lambda: _read_browser(reader)),
        gauge("toolgate_browser_pages", "Open pages.", lambda: _count_pages(reader)),
    ]


def http_rows(http: HttpGauges) -> list[MetricRow]:
    """Return the rows that only HTTP has."""
    by = "transport"
    return [
        gauge("toolgate_sessions", "Open sessions.", lambda: _call_each(http.sessions), by),
        gauge("toolgate_requests_running", "MCP requests being answered.", lambda: _call_each(http.calls), by),
        gauge("toolgate_streams", "Streams with a reader.", lambda: _call_each(http.streams), by),
        gauge("toolgate_stream_events_waiting", "Events not sent yet.", lambda: _call_each(http.waiting), by),
        gauge("toolgate_stream_kept_bytes", "Bytes of kept events.", lambda: _call_each(http.replay_bytes), by),
        gauge("toolgate_connections", "Open connections.", lambda: [((), http.connections())]),
        gauge(
            "toolgate_budget_used",
            "Use of the limits that principals share: requests, streams, or bytes.",
            lambda: [((name,), budget.used) for name, budget in http.budgets.items()],
            "budget",
        ),
        gauge(
            "toolgate_http_requests_running",
            "HTTP requests being answered, with open streams.",
            lambda: [((), http.running())],
        ),
        counter("toolgate_http_responses", "HTTP responses.", lambda: by_key(http.responses), "status"),
        counter("toolgate_sign_ins", "Sign-ins.", lambda: http.sign_ins.items(), "way", "result"),
        counter("toolgate_tokens_issued", "Issued access tokens.", lambda: [((), http.issued_tokens())]),
        counter(
            "toolgate_tokens_refused",
            "Requests with a missing or refused token.",
            lambda: by_key(http.refused_tokens),
            "reason",
        ),
    ]


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
