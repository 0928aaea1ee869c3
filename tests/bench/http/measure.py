"""Measure HTTP: rounds of calls in which each side takes a turn, then the cost of sessions and streams."""

import contextlib
import gc
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

from tests.bench.http.driver import Caller, Client, Dialect, Site, load
from tests.bench.http.sides import OURS_SIGNED, OURS_STATELESS, WebSides
from tests.bench.measure import Figures
from tests.bench.sides import OURS, PYTHON

CLIENTS = (1, 8, 64)
CALLS = {clients: f"calls/s at {clients}" for clients in CLIENTS}
P50 = {clients: f"p50 at {clients}" for clients in CLIENTS}
P99 = {clients: f"p99 at {clients}" for clients in CLIENTS}
CPU = {clients: f"CPU at {clients}" for clients in CLIENTS}
PROSE_CPU = "CPU at 100 KB"
SLICED_CALLS, SLICED_CPU = "calls/s in slices", "CPU in slices"
CLOSE = (OURS, OURS_SIGNED, OURS_STATELESS)  # sides whose ratios are near 1
OPENED, SESSION, STREAM, IDLE = "sessions/s", "KiB a session", "KiB a stream", "idle"
ASKING = 8  # connections on which sessions are asked for
PROSE = ("He said 'no', and then \"yes\" (in 2024):\n the quick brown fox jumps over -- or under -- it. " * 1_100)[
    :100_000
]
ECHO = {"name": "echo", "arguments": {"text": "hello"}}
HELLO = [{"type": "text", "text": "hello"}]


@dataclass(frozen=True)
class WebEffort:
    """How much is measured. `seconds`: of one throughput figure in one round."""

    rounds: int
    seconds: float = 0.5
    warm: float = 0.2
    held_rounds: int = 2  # for the cost of sessions and streams, each with its own servers
    slice: float = 0.1  # seconds: the machine's speed changes within a second by more than the sides differ
    slices: int = 100  # of each of the close sides
    case_slices: int = 15  # of each case in a round
    held: int = 1_000  # sessions, and streams
    settle: float = 1.0  # seconds before memory is measured
    idle: float = 3.0  # seconds of idleness that are measured


def measure(sides: WebSides, effort: WebEffort, tell: Callable[[str], None]) -> Figures:
    """Return all figures. Raises RuntimeError, TimeoutError or OSError when a side breaks."""
    figures = Figures()
    gc.collect()
    gc.disable()  # our own pauses would count as the servers'
    try:
        with _started(sides, sides.commands) as sites:
            for turn in range(1, effort.rounds + 1):
                for clients in CLIENTS:
                    tell(f"HTTP round {turn} of {effort.rounds}: {clients} at once")
                    for name, site in sites.items():
                        _calls(site, sides.dialect(name), clients, effort, _adder(figures, name))
                tell(f"HTTP round {turn} of {effort.rounds}: 100 KB of prose")
                for name in (OURS, PYTHON):
                    _prose(sites[name], sides.dialect(name), effort, _adder(figures, name))
            tell(f"HTTP, {effort.slices} short slices of each of our own")
            _slices({name: sites[name] for name in CLOSE}, sides, effort, figures)
        for turn in range(1, effort.held_rounds + 1):
            tell(f"HTTP sessions and streams, {turn} of {effort.held_rounds}")
            with _started(
                sides, [name for name in sides.commands if name != OURS_SIGNED]
            ) as sites:  # one owner's are few
                _held(sites, sides, effort, figures)
    finally:
        gc.enable()
        sides.cores.free()
    return figures


@contextlib.contextmanager
def _started(sides: WebSides, names: Iterable[str]) -> Generator[dict[str, Site], None, None]:
    sites: dict[str, Site] = {}
    try:
        for name in names:
            sites[name] = sides.start(name)
        yield sites
    finally:
        for site in sites.values():
            site.end()
        for site in sites.values():
            site.close()


def _adder(figures: Figures, name: str) -> Callable[[str, float], None]:
    return lambda metric, value: figures.add(name, metric, value)


def _calls(site: Site, dialect: Dialect, clients: int, effort: WebEffort, add: Callable[[str, float], None]) -> None:
    """Measure calls per second and latencies, warm, with one call in flight per client."""
    connected = [connect_client(site, dialect) for _ in range(clients)]
    callers = [Caller(client, "tools/call", ECHO, HELLO) for client in connected]
    load(callers, effort.warm)
    before = site.cpu()
    rate, taken = load(callers, effort.seconds)
    add(CPU[clients], (site.cpu() - before) / len(taken) * 1e6)
    add(CALLS[clients], rate)
    add(P50[clients], taken[len(taken) // 2] * 1e6)
    add(P99[clients], taken[len(taken) * 99 // 100] * 1e3)
    for client in connected:
        client.close()


def _prose(site: Site, dialect: Dialect, effort: WebEffort, add: Callable[[str, float], None]) -> None:
    """Measure the processor time of a call with a long text, there and back, by four clients."""
    connected = [connect_client(site, dialect) for _ in range(4)]
    params, content = {"name": "echo", "arguments": {"text": PROSE}}, [{"type": "text", "text": PROSE}]
    callers = [Caller(client, "tools/call", params, content) for client in connected]
    load(callers, effort.warm)
    before = site.cpu()
    _, taken = load(callers, effort.seconds)
    add(PROSE_CPU, (site.cpu() - before) / len(taken) * 1e6)
    for client in connected:
        client.close()


def _slices(sites: dict[str, Site], sides: WebSides, effort: WebEffort, figures: Figures) -> None:
    """Measure 8 clients of each side in many short turns, on connections that stay open."""
    with contextlib.ExitStack() as stack:
        callers: dict[str, list[Caller]] = {}
        for name, site in sites.items():
            clients = [connect_client(site, sides.dialect(name)) for _ in range(8)]
            for client in clients:
                stack.callback(client.close)
            callers[name] = [Caller(client, "tools/call", ECHO, HELLO) for client in clients]
            load(callers[name], effort.warm)
        for _ in range(effort.slices):
            for name, site in sites.items():
                before = site.cpu()
                rate, taken = load(callers[name], effort.slice)
                figures.add(name, SLICED_CPU, (site.cpu() - before) / len(taken) * 1e6)
                figures.add(name, SLICED_CALLS, rate)


def connect_client(site: Site, dialect: Dialect) -> Client:
    client = site.connect(dialect)
    if dialect.has_sessions:
        client.open()
    return client


def _held(sites: dict[str, Site], sides: WebSides, effort: WebEffort, figures: Figures) -> None:
    """Open sessions and then a stream in each, on slightly warmed-up servers; then leave them idle."""
    streams: list[Client] = []
    for name, site in sites.items():
        add, dialect = _adder(figures, name), sides.dialect(name)
        open_stream(_warmed(site, dialect)).close()
        keys = _sessions(site, dialect, effort, add) if dialect.has_sessions else [""] * effort.held
        before = _settled(site, effort)
        streams += [open_stream(site.connect(dialect), key) for key in keys]
        add(STREAM, (_settled(site, effort) - before) / len(keys))
    before_idle = {name: site.cpu() for name, site in sites.items()}
    time.sleep(effort.idle)
    for name, site in sites.items():
        figures.add(name, IDLE, (site.cpu() - before_idle[name]) / max(effort.idle, 0.001) * 1e3)
    for stream in streams:
        stream.close()


def _warmed(site: Site, dialect: Dialect) -> Client:
    clients = [connect_client(site, dialect) for _ in range(8)]
    load([Caller(client, "tools/call", ECHO, HELLO) for client in clients], 0.1)
    for client in clients[1:]:
        client.close()
    return clients[0]


def _sessions(site: Site, dialect: Dialect, effort: WebEffort, add: Callable[[str, float], None]) -> list[str]:
    """Initialize sessions on a few connections at once; measure the rate, and the cost of each when idle."""
    clients = [site.connect(dialect) for _ in range(ASKING)]
    before = _settled(site, effort)
    keys: list[str] = []
    begun = time.perf_counter()
    while len(keys) < effort.held:
        for client in clients:
            client.initialize()
        keys += [client.received_session() for client in clients]
    add(OPENED, len(keys) / (time.perf_counter() - begun))
    if len(set(keys)) != len(keys):
        raise RuntimeError("a session id was given twice")
    for clients[0].session in keys:
        clients[0].initialized()
    add(SESSION, (_settled(site, effort) - before) / len(keys))
    for client in clients:
        client.close()
    return keys


def _settled(site: Site, effort: WebEffort) -> int:
    time.sleep(effort.settle)  # the idle state is measured
    return site.memory()


def open_stream(client: Client, session: str | None = None) -> Client:
    """Open the stream of a session, or a subscription in the stateless era."""
    if session is not None:
        client.session = session
    has_session = bool(client.session)
    client.socket.sendall(client.get() if has_session else client.listen())
    head = client.read_head()
    if not head.startswith(b"HTTP/1.1 200 ") or b"text/event-stream" not in head.lower():
        raise RuntimeError(f"no stream: {head[:500]!r}")
    return client
