"""Measure what each case of a call costs over HTTP beside the plain one, in short slices by turns."""

import math
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from tests.bench import kept
from tests.bench.http.driver import FIRST_ID, Caller, Client, Dialect, Site, load
from tests.bench.http.measure import ECHO, HELLO, WebEffort, connect_client, open_stream
from tests.bench.http.sides import OURS_SIGNED, OURS_STATELESS, WebSides
from tests.bench.measure import Figures
from tests.bench.report import Target, absolutes, ratios
from tests.bench.sides import OURS

RATE, CPU = "calls/s", "CPU µs a call"
TOOLS = 250  # in the longest list
LARGE = "x" * 2**20
PLAIN = "plain: 8 clients"
AUDITED, TRACED, MANY = "toolgate, audit full", "toolgate, traced", "toolgate, many tools"
WATCHED = "toolgate, watched"  # the plain call is made beside no streams


@dataclass(frozen=True)
class Case:
    """A row: the side that serves it, what is called, by how many clients, beside how many open streams.

    `most` bounds its processor time in plain calls. It is None where the work is the case's own and no share of a call:
    there a cheaper plain call raises the ratio, so the kept ratio is the bound.
    """

    name: str
    most: float | None
    side: str = OURS
    method: str = "tools/call"
    params: Mapping[str, Any] | None = None
    clients: int = 8
    streams: int = 0


CASES = (
    Case(PLAIN, 1.01),
    Case("64 clients", 1.1, clients=64),
    Case("a token at each call", 1.05, OURS_SIGNED),
    Case("2026-07-28", 1.05, OURS_STATELESS),
    Case("--audit full", None, AUDITED),
    Case("OpenTelemetry", None, TRACED),
    Case("beside 1,000 streams", 1.1, WATCHED, streams=1_000),
    Case("beside 1,000 subscriptions", 1.15, OURS_STATELESS, streams=1_000),
    Case(f"a list of {TOOLS} tools", 1.1, MANY, "tools/list", {}),
    Case("a text of 1 MiB, there and back", None, params={"name": "echo", "arguments": {"text": LARGE}}, clients=2),
)


def _target(case: Case) -> Target:
    if case.most is None:
        says = f"{case.name}: no more plain calls' processor time than kept"
        most = kept.read_kept().get(says, math.inf) * kept.WORSE
    else:
        says, most = f"{case.name}: at most {case.most:g} × the plain call's processor time", case.most
    return Target(says, CPU, PLAIN, most, False, _beside(case), case.name)


def _beside(case: Case) -> str:
    """Return the metric of the plain calls between those of the case."""
    return f"{CPU} beside {case.name}"


TARGETS = tuple(map(_target, CASES[1:]))


def measure(sides: WebSides, effort: WebEffort, tell: Callable[[str], None]) -> Figures:
    """Return all figures. Raises RuntimeError, TimeoutError or OSError when a case breaks."""
    figures = Figures()
    with _collecting() as collector:
        with ExitStack() as stack:
            sides = _with_options(sides, collector.url)
            sites = {name: sides.start(name) for name in dict.fromkeys(case.side for case in CASES)}
            for site in sites.values():
                stack.callback(site.close)
                stack.callback(site.end)
            for turn in range(1, effort.rounds + 1):
                tell(f"cases, round {turn} of {effort.rounds}")
                for case in CASES[1:]:
                    with ExitStack() as opened:
                        plain = _open(CASES[0], sites[OURS], sides.dialect(OURS), effort, opened)
                        callers = _open(case, sites[case.side], sides.dialect(case.side), effort, opened)
                        for _ in range(effort.case_slices):
                            cost = _measure(CASES[0], sites[OURS], plain, effort, figures)
                            figures.add(PLAIN, _beside(case), cost)
                            _measure(case, sites[case.side], callers, effort, figures)
        if not collector.size:  # what was left is sent at the end
            raise RuntimeError("no traces were sent")
    sides.cores.free()
    return figures


def report(figures: Figures) -> str:
    columns = {RATE: RATE, CPU: CPU}
    return "\n".join((*absolutes(figures, [case.name for case in CASES], columns), "", *ratios(figures, TARGETS)))


def _open(case: Case, site: Site, dialect: Dialect, effort: WebEffort, stack: ExitStack) -> list[Caller]:
    """Return the clients of a case, warm."""
    for _ in range(min(case.streams, effort.held)):
        stack.callback(open_stream(connect_client(site, dialect)).close)
    callers: list[Caller] = []
    for _ in range(case.clients):
        client = connect_client(site, dialect)
        stack.callback(client.close)
        callers.append(_caller(case, client))
    load(callers, effort.warm)
    return callers


def _measure(case: Case, site: Site, callers: list[Caller], effort: WebEffort, figures: Figures) -> float:
    """Measure a slice, and return the processor time of a call in it."""
    before = site.cpu()
    rate, taken = load(callers, effort.slice)
    cost = (site.cpu() - before) / len(taken) * 1e6
    figures.add(case.name, CPU, cost)
    figures.add(case.name, RATE, rate)
    return cost


def _caller(case: Case, client: Client) -> Caller:
    if case.method == "tools/call":
        params = case.params or ECHO
        text = params["arguments"]["text"]
        return Caller(client, case.method, params, HELLO if text == "hello" else [{"type": "text", "text": text}])
    before, after = client.request(case.method, {})
    listed = msgspec.json.decode(client.exchange(b"%b%d%b" % (before, FIRST_ID, after)).body)["result"]["tools"]
    if len(listed) != TOOLS:
        raise RuntimeError(f"a list of {len(listed)} tools")
    return Caller(client, case.method, {}, None)


def _with_options(sides: WebSides, collector: str) -> WebSides:
    """Return the sides, with those of the cases that differ from the plain one by an option."""
    plain = [*sides.commands[OURS]]
    tools = sides.folder / "tools"
    tools.mkdir()
    (tools / "many.py").write_text(_plugin(TOOLS))
    traced = ["env", f"OTEL_EXPORTER_OTLP_ENDPOINT={collector}", *plain]
    more = {
        AUDITED: [*plain, "--audit", "full"],
        TRACED: traced,
        WATCHED: [*plain],
        MANY: [*plain, "-p", str(tools)],
    }
    at = plain.index("--state") + 1
    for name, command in more.items():
        place = command.index("--state") + 1
        command[place] = f"{plain[at]}-{name.rpartition(' ')[2]}"
    return replace(sides, commands={**sides.commands, **more})


def _plugin(count: int) -> str:
    """Return a plugin with tools like those that models are given: some arguments and a sentence about each."""
    tool = """
@tool(read_only=True)
async def look_up_{0}(name: str, limit: int = 10, exact: bool = False) -> str:
    \"\"\"Return what the register {0} has about a name, at most as many entries as wanted.\"\"\"
    return name
"""
    return "from toolgate.tools import tool\n" + "".join(tool.format(number) for number in range(count))


class _Collector(ThreadingHTTPServer):
    """A collector of traces that counts their bytes, and drops them."""

    size = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Traces(BaseHTTPRequestHandler):
    server: _Collector

    def do_POST(self) -> None:
        self.server.size += len(self.rfile.read(int(self.headers.get("content-length", 0))))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *_args: Any) -> None: ...


@contextmanager
def _collecting() -> Generator[_Collector, None, None]:
    collector = _Collector(("127.0.0.1", 0), _Traces)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        collector.shutdown()
        collector.server_close()
