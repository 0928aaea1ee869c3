"""Measure a call at a mount where its person has connected, beside one at the same server mounted without sign-in."""

import statistics
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.driver import Cores, processor_time
from tests.bench.http.driver import SESSIONS, Client, Dialect, Site
from tests.bench.http.measure import connect_client
from tests.bench.measure import Figures
from tests.bench.mounts.lines import HttpLine, await_tools, request_over
from tests.bench.mounts.measure import CALLS, CPU, P50, MountEffort
from tests.bench.mounts.sides import ECHO
from tests.bench.report import Target, absolutes, ratios
from tests.bench.sides import environment
from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import signed_site
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.foreign_servers import AUTHLIB, ForeignScene, ForeignServer, running
from tests.servers.home_page_server import AppUser
from tests.servers.reserved_port import reserved_port

OPEN, CONNECTED = "an open mount", "a connected mount"
TOOLS = {OPEN: "open__echo", CONNECTED: "far__echo"}
LIFETIME = "3600"  # seconds of a token: none is refreshed while others are measured
TARGETS = tuple(
    Target(f"{CONNECTED}: at most 1.1 × the {says} of {OPEN}", metric, OPEN, 1.1, False, side=CONNECTED)
    for metric, says in ((P50, "p50"), (CPU, "processor time"))
)
LIFTED = ("--limit", "calls=0", "--limit", "calls:tools:shell=0")


@dataclass(frozen=True)
class SignedSite:
    """A server where people sign in, as the driver sees it."""

    port: int
    pid: int

    def connect(self, dialect: Dialect) -> Client:
        return Client(self.port, dialect)

    def cpu(self) -> float:
        return processor_time(self.pid)


def measure(folder: Path, cores: Cores, effort: MountEffort, tell: Callable[[str], None]) -> Figures:
    """Return the figures of both, in µs and calls a second. Raises RuntimeError or TimeoutError when a side breaks."""
    figures = Figures()
    tell("a connected mount: starting")
    try:
        with _lines(folder, cores) as lines:
            for line in lines.values():
                line.burst(effort.warm)
                line.latencies(effort.calls)
            for turn in range(effort.rounds):
                tell(f"a connected mount: round {turn + 1} of {effort.rounds}")
                for _ in range(effort.slices):
                    _measure_slice(lines, effort, figures)
    finally:
        cores.free()
    return figures


def report(figures: Figures) -> str:
    """Return the table of both, and the ratios."""
    columns = {P50: "p50 µs", CPU: "CPU µs a call", CALLS: "calls/s, 8"}
    return "\n".join((*absolutes(figures, [OPEN, CONNECTED], columns), "", *ratios(figures, TARGETS)))


def _measure_slice(lines: dict[str, HttpLine], effort: MountEffort, figures: Figures) -> None:
    for name, line in lines.items():
        figures.add(name, P50, statistics.median(line.latencies(effort.calls)) * 1e6)
    for name, line in lines.items():
        before = line.cpu()
        rate, count = line.burst(effort.burst)
        figures.add(name, CPU, (line.cpu() - before) / count * 1e6)
        figures.add(name, CALLS, rate)


@contextmanager
def _lines(folder: Path, cores: Cores) -> Generator[dict[str, HttpLine], None, None]:
    """Yield a line to each mount of one server, by the same person."""
    with ExitStack() as stack:
        issuer = stack.enter_context(reserved_port())
        far = Site([*ECHO, "http", f"http://127.0.0.1:{issuer}/notes"], environment(folder), folder, cores)
        stack.callback(far.close)
        stack.callback(far.end)
        url, log = f"http://127.0.0.1:{far.port}/mcp", folder / "provider.log"
        words = [sys.executable, *AUTHLIB, str(issuer), url, "none", "--lifetime", LIFETIME]
        stack.enter_context(running(log, words))
        assert eventually(lambda: "running on" in log.read_text()), log.read_text()
        scope = 'scope = "tools:shell"'
        tables = url_mount(url, "open", scope) + url_mount(url, "far", scope, 'auth = "oauth"')
        cores.server()
        signed = stack.enter_context(signed_site(folder / "signed", *LIFTED, *write_config(folder, tables)))
        cores.driver()
        ada = AppUser(signed, "ada", "Fern")
        ForeignScene(ForeignServer(url, log, "echo", "hello", {}), ada).connect(ada)
        site = SignedSite(signed.site.port, signed.site.process.pid)
        dialect = replace(SESSIONS, headers={**SESSIONS.headers, "Authorization": f"Bearer {ada.token}"})
        client = connect_client(site, dialect)
        stack.callback(client.close)
        await_tools(request_over(client), *TOOLS.values())
        lines: dict[str, HttpLine] = {}
        for name, tool in TOOLS.items():
            lines[name] = line = HttpLine(site, tool, dialect)
            stack.callback(line.close)
        yield lines
