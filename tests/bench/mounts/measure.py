"""Measure the routes one after the other; on each, all sides take turns in short slices."""

import gc
import statistics
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.driver import Cores, Peer
from tests.bench.http.driver import SESSIONS, Site
from tests.bench.http.measure import connect_client
from tests.bench.measure import Figures
from tests.bench.mounts import context_forge
from tests.bench.mounts.lines import (
    BareLine,
    HttpLine,
    Line,
    StdioLine,
    await_tools,
    measure_memory,
    request_over,
)
from tests.bench.mounts.sides import (
    ALONE,
    ECHO,
    FASTMCP,
    FORGE,
    HTTP,
    OURS,
    OWN,
    ROUTES,
    URL,
    MountSides,
    Route,
)
from tests.bench.sides import environment

P50, ADDED, CPU, CALLS = "p50", "added p50", "CPU", "calls"
MEMORY, FURTHER = "MB with one mount", "KB a further mount"
BARE = "a bare request"
SEVERAL = 9  # mounts, to find what a further one costs
DIALECTS = {FORGE: replace(SESSIONS, has_sessions=True)}  # as it is configured at first
MOUNTING = (OURS, FASTMCP, FORGE)  # sides of which one process mounts several


@dataclass(frozen=True)
class MountEffort:
    """How much is measured on each route. `warm` and `burst` are seconds."""

    rounds: int
    slices: int = 10  # of a round
    calls: int = 50  # of a slice, one after another
    warm: float = 1.0
    burst: float = 0.2


def measure(folder: Path, cores: Cores, effort: MountEffort, tell: Callable[[str], None]) -> Figures:
    """Return all figures, in µs, calls a second, MB and KB. Raises RuntimeError or TimeoutError when a side breaks."""
    figures = Figures()
    gc.collect()
    gc.disable()  # our own pauses would count as the servers'
    try:
        with _echo_site(folder, cores) as site:
            sides = MountSides(folder, cores, f"http://127.0.0.1:{site.port}/mcp")
            for route in ROUTES:
                _measure_route(sides, route, site, effort, figures, tell)
    finally:
        gc.enable()
        cores.free()
    return figures


def name_row(route: Route, side: str) -> str:
    """Return the name of a side's figures on a route."""
    return f"{route}: {side}"


@contextmanager
def _echo_site(folder: Path, cores: Cores) -> Generator[Site, None, None]:
    site = Site([*ECHO, "http"], environment(folder), folder, cores)
    try:
        yield site
    finally:
        site.end()
        site.close()


def _measure_route(
    sides: MountSides, route: Route, site: Site, effort: MountEffort, figures: Figures, tell: Callable[[str], None]
) -> None:
    with ExitStack() as stack:
        lines: dict[str, Line] = {}
        for side in route.sides:
            tell(f"{route}: starting {side}")
            if side != OWN:  # it is in the same process as our mount
                lines |= _open_lines(sides, route, side, site, figures, stack)
        bare = BareLine(sides.url)
        stack.callback(bare.close)
        for line in lines.values():
            line.burst(effort.warm)
            line.latencies(effort.calls)
        bare.latencies(effort.calls)
        for turn in range(effort.rounds):
            tell(f"{route}: round {turn + 1} of {effort.rounds}")
            for _ in range(effort.slices):
                _measure_slice(route, lines, bare, effort, figures)


def _measure_slice(route: Route, lines: dict[str, Line], bare: BareLine, effort: MountEffort, figures: Figures) -> None:
    medians = {side: statistics.median(line.latencies(effort.calls)) * 1e6 for side, line in lines.items()}
    for side, median in medians.items():
        figures.add(name_row(route, side), P50, median)
        figures.add(name_row(route, side), ADDED, median - medians[ALONE])
    figures.add(name_row(route, BARE), P50, statistics.median(bare.latencies(effort.calls)) * 1e6)
    for side, line in lines.items():
        before = line.cpu()
        rate, count = line.burst(effort.burst)
        figures.add(name_row(route, side), CPU, (line.cpu() - before) / count * 1e6)
        figures.add(name_row(route, side), CALLS, rate)


def _open_lines(
    sides: MountSides, route: Route, side: str, site: Site, figures: Figures, stack: ExitStack
) -> dict[str, Line]:
    """Start a side, and return its lines: ours has one to its own tool, too."""
    if side == ALONE and route.server == URL:
        line = HttpLine(site, "echo")
        stack.callback(line.close)
        return {ALONE: line}
    if side == ALONE:
        peer = stack.enter_context(Peer(ECHO, environment(sides.folder), sides.folder, sides.cores))
        peer.handshake()
        return {ALONE: StdioLine(peer, "echo")}
    process, tools = _start(sides, route, side, 1, stack)
    figures.add(name_row(route, side), MEMORY, measure_memory(process.process.pid))
    names = {side: tools[0], **({OWN: "echo"} if side == OURS else {})}
    lines: dict[str, Line] = {}
    for name, tool in names.items():
        if isinstance(process, Peer):
            lines[name] = StdioLine(process, tool)
        else:
            lines[name] = line = HttpLine(process, tool, DIALECTS.get(side, SESSIONS))
            stack.callback(line.close)
    if side in MOUNTING and route.client == HTTP:
        _measure_further(sides, route, side, figures)
    return lines


def _measure_further(sides: MountSides, route: Route, side: str, figures: Figures) -> None:
    """Measure the memory of each further mount."""
    with ExitStack() as stack:
        process, _ = _start(sides, route, side, SEVERAL, stack)
        more = measure_memory(process.process.pid) - figures.median(name_row(route, side), MEMORY)
        figures.add(name_row(route, side), FURTHER, more / (SEVERAL - 1) * 1024)


def _start(sides: MountSides, route: Route, side: str, count: int, stack: ExitStack) -> tuple[Peer | Site, list[str]]:
    """Start a side with `count` mounts, each of which has answered a call. Return the names of their tools."""
    servers = sides.name_servers(route, count)
    process = sides.start(side, route, servers)
    stack.callback(process.close)
    if isinstance(process, Site):
        stack.callback(process.end)
    tools = ["echo"]
    if side == OURS:
        tools = [f"{name}__echo" for name in servers]
    elif side == FASTMCP and count > 1:
        tools = [f"{name}_echo" for name in servers]
    elif side == FORGE:
        assert isinstance(process, Site)
        tools = context_forge.register(process.port, servers)
    if isinstance(process, Peer):
        process.handshake()
        await_tools(process.request, *tools)
    else:
        client = connect_client(process, DIALECTS.get(side, SESSIONS))
        stack.callback(client.close)
        await_tools(request_over(client), *tools)
    return process, tools
