"""Call echo(text) by way of a side: over stdio, over HTTP, and bare with the HTTP client that Toolgate uses."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import httpcore
import msgspec
import uvloop

from tests.bench.driver import Peer
from tests.bench.http.driver import FIRST_ID, SESSIONS, Answer, Caller, Client, Dialect, Site, load
from tests.bench.http.measure import ECHO, HELLO, connect_client
from tests.bench.mounts.sides import ECHO as SERVER
from tests.clients.raw_client import eventually

CLIENTS = 8
MIN_BURST = 4 * CLIENTS  # calls
SLOW = 0.5  # seconds that a slice of calls takes at most, about
START = 60.0  # seconds until the tools of a mounted server are listed


class Line(Protocol):
    """A way to the tool. `process` is the gateway's, `cpu()` the processor time that it has used, in seconds."""

    def latencies(self, count: int) -> list[float]:
        """Return the seconds of `count` calls, one after another; of fewer where they are slow."""
        ...

    def burst(self, seconds: float) -> tuple[float, int]:
        """Call for about that long with CLIENTS calls at once. Return the calls a second, and how many there were."""
        ...

    def cpu(self) -> float: ...


class StdioLine:
    """Calls on one pipe."""

    def __init__(self, peer: Peer, tool: str) -> None:
        self._peer = peer
        self._params = {**ECHO, "name": tool}
        self._rate = 0.0
        self.cpu = peer.cpu

    def latencies(self, count: int) -> list[float]:
        return self._peer.latencies("tools/call", self._params, count)

    def burst(self, seconds: float) -> tuple[float, int]:
        count = max(MIN_BURST, int(self._rate * seconds))
        self._rate = self._peer.pipeline("tools/call", self._params, count, CLIENTS, _says_hello)
        return self._rate, count


class HttpLine:
    """Calls of CLIENTS clients, each with a session and a connection of its own."""

    def __init__(self, site: Site, tool: str, dialect: Dialect = SESSIONS) -> None:
        self._clients = [connect_client(site, dialect) for _ in range(CLIENTS)]
        self._callers = [GatewayCaller(client, "tools/call", {**ECHO, "name": tool}, HELLO) for client in self._clients]
        self.cpu = site.cpu

    def latencies(self, count: int) -> list[float]:
        self._connect()
        taken: list[float] = []
        while len(taken) < count and sum(taken) < SLOW:
            taken += load(self._callers[:1], 0.02)[1]
        return taken

    def burst(self, seconds: float) -> tuple[float, int]:
        self._connect()
        rate, taken = load(self._callers, seconds)
        return rate, len(taken)

    def _connect(self) -> None:
        """Connect again: some servers close connections that were idle while the other sides had their turns."""
        for client in self._clients:
            client.reconnect()

    def close(self) -> None:
        for client in self._clients:
            client.close()


class GatewayCaller(Caller):
    """A client of any gateway: its answers may come in chunks, and as events with ids of their own."""

    __slots__ = ("_is_chunked",)

    def find_repeated(self, first: Answer) -> bytes:
        self._is_chunked = first.headers.get("transfer-encoding") == "chunked"
        return first.message

    def is_whole(self, data: bytes) -> bool:
        return data.endswith(b"\r\n0\r\n\r\n") if self._is_chunked else super().is_whole(data)

    def is_expected(self, data: bytes) -> bool:
        return self.expected in data and data.startswith(b"HTTP/1.1 200 ")


class BareLine:
    """Requests of the HTTP client to the server itself."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._pool = httpcore.AsyncConnectionPool()
        self._url = url
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": ECHO}
        self._body = msgspec.json.encode(body)

    def latencies(self, count: int) -> list[float]:
        return self._runner.run(self._request(count))

    async def _request(self, count: int) -> list[float]:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        taken: list[float] = []
        for _ in range(count):
            begun = time.perf_counter()
            answer = await self._pool.request("POST", self._url, headers=headers, content=self._body)
            taken.append(time.perf_counter() - begun)
            if not _says_hello(msgspec.json.decode(answer.content)["result"]):
                raise RuntimeError(f"a wrong answer: {answer.content[:500]!r}")
        return taken

    def close(self) -> None:
        self._runner.run(self._pool.aclose())
        self._runner.close()


def await_tools(request: Callable[[str, dict[str, Any]], Any], *tools: str) -> None:
    """Wait until these tools are listed, and each has answered. Raises RuntimeError."""

    def are_listed() -> bool:
        return {*tools} <= {tool["name"] for tool in request("tools/list", {})["tools"]}

    if not eventually(are_listed, START):
        raise RuntimeError(f"the gateway does not list {tools}")
    for tool in tools:
        result = request("tools/call", {**ECHO, "name": tool})
        if not _says_hello(result):
            raise RuntimeError(f"a wrong answer of {tool}: {result}")


def request_over(client: Client) -> Callable[[str, dict[str, Any]], Any]:
    """Return a function that makes a request in a client's session, and returns its result."""

    def request(method: str, params: dict[str, Any]) -> Any:
        before, after = client.request(method, params)
        answer = client.exchange(b"%b%d%b" % (before, FIRST_ID, after))
        return msgspec.json.decode(answer.message)["result"]

    return request


def measure_memory(pid: int) -> float:
    """Return the resident memory of a gateway in MB: its processes, without the servers that it has mounted."""
    total, pids = 0, [pid]
    while pids:
        place = Path(f"/proc/{pids.pop()}")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (place / "cmdline").read_text().split("\0")[:2] == SERVER:
                continue
            lines = (place / "status").read_text().splitlines()
            total += next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)
            for task in (place / "task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return total / 1024


def _says_hello(result: Any) -> bool:
    return [block.get("text") for block in result.get("content", [])] == ["hello"]
