"""Format what was measured: a table for each route, and the ratios against their targets."""

from collections.abc import Iterator

from tests.bench.measure import Figures
from tests.bench.mounts.measure import ADDED, BARE, CALLS, CPU, FURTHER, MEMORY, P50, name_row
from tests.bench.mounts.sides import COMMAND, FASTMCP, FORGE, HTTP, OURS, OWN, ROUTES, URL, Route
from tests.bench.report import Target, absolutes, ratios

COLUMNS = {
    P50: "p50 µs",
    ADDED: "added µs",
    CPU: "CPU µs a call",
    CALLS: "calls/s, 8",
    MEMORY: "MB, one mount",
    FURTHER: "KB a further one",
}
BY_NAME = {(route.server, route.client): route for route in ROUTES}


def _target(server: str, client: str, says: str, metric: str, to: str, limit: float, of: str = "") -> Target:
    """Return a target of ours on a route, beside the side `to` there, if any."""
    route = BY_NAME[server, client]
    other = name_row(route, to) if to else ""
    at_least = metric == CALLS
    return Target(f"{route}: {says}", metric, other, limit, at_least, of, name_row(route, OURS))


TARGETS = (
    _target(COMMAND, HTTP, "at most 500 µs added", ADDED, "", 500),
    _target(COMMAND, HTTP, "at most 2 × our own tool's processor time", CPU, OWN, 2),
    _target(URL, HTTP, "at most 1.4 × a bare request added", ADDED, BARE, 1.4, P50),
    *(
        _target(route.server, route.client, "at least 3 × the calls of FastMCP's proxy", CALLS, FASTMCP, 3)
        for route in ROUTES
    ),
    _target(URL, HTTP, "at least 10 × the calls of ContextForge", CALLS, FORGE, 10),
)


def report(figures: Figures) -> str:
    """Return the tables and the ratios."""
    tables = (line for route in ROUTES for line in (*_report_route(figures, route), ""))
    return "\n".join((*tables, *ratios(figures, TARGETS)))


def _report_route(figures: Figures, route: Route) -> Iterator[str]:
    prefix = name_row(route, "")
    head, *lines = absolutes(figures, [name_row(route, side) for side in (*route.sides, BARE)], COLUMNS)
    yield str(route)
    yield head[len(prefix) :]
    for line in lines:
        yield line.replace(prefix, "", 1) if line.startswith(prefix) else line[len(prefix) :]
