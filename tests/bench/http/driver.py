"""A raw-wire client for Streamable HTTP servers: sockets, epoll and comparisons of bytes. It imports no SDK.

It must be faster than the servers it measures. So it parses one answer, and then only compares: length and body must
stay the same, except for the id."""

import contextlib
import re
import resource
import select
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.driver import INIT, PATIENCE, Cores, processor_time

FIRST_ID = 1_000_000  # ids of one width, so that all answers have one length
CHUNK = 1 << 16
DESCRIPTORS = 8_192  # open files, for thousands of streams at both ends


@dataclass(frozen=True)
class Dialect:
    """The wire format of an era: the headers of each request, and the params."""

    headers: Mapping[str, str]
    params: Mapping[str, Any]
    has_sessions: bool


SESSIONS = Dialect({"MCP-Protocol-Version": "2025-11-25"}, {}, has_sessions=True)
STATELESS = Dialect(
    {"MCP-Protocol-Version": "2026-07-28"},
    {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": INIT["clientInfo"],
        }
    },
    has_sessions=False,
)


@dataclass(frozen=True)
class Answer:
    """One HTTP answer: `raw` is all of it, `tail` the bytes after the head, `body` their meaning."""

    raw: bytes
    status: int
    headers: dict[str, str]
    tail: bytes
    body: bytes

    @property
    def message(self) -> bytes:
        """The JSON-RPC message: the body, or the data of the last event of a stream."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return self.body
        return [line.removeprefix(b"data:").strip() for line in self.body.splitlines() if line[:6] == b"data: "][-1]


class Site:
    """A server process. It prints its address on standard error, or listens on the port that it was given."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        cores: Cores,
        port: int | None = None,
        patience: float = PATIENCE,
    ) -> None:
        _allow_descriptors()
        cores.server()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, cwd=cwd
        )
        cores.driver()
        self._said = b""
        self._draining = threading.Thread(target=self._drain, daemon=True)
        self._timer = threading.Timer(patience, self.process.kill)
        self._timer.start()
        try:
            self.port = self._read_port() if port is None else self._await_port(port)
        finally:
            self._timer.cancel()
        if port is None:
            self._draining.start()

    def _read_port(self) -> int:
        assert self.process.stderr is not None
        said = b""
        for line in self.process.stderr:
            said += line
            found = re.search(rb"http://127\.0\.0\.1:(\d+)", line)
            if found:
                return int(found[1])
        raise RuntimeError(f"the server did not start: {said.decode()[-2000:]}")

    def _await_port(self, port: int) -> int:
        self._draining.start()
        while self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE):
                return port
            time.sleep(0.05)
        self._draining.join()
        raise RuntimeError(f"the server did not start: {self._said.decode()[-2000:]}")

    def _drain(self) -> None:
        """Read what it logs, which must not block it."""
        assert self.process.stderr is not None
        self._said = self.process.stderr.read()

    def connect(self, dialect: Dialect) -> "Client":
        return Client(self.port, dialect)

    def memory(self) -> int:
        """Return the resident memory in KiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))

    def cpu(self) -> float:
        return processor_time(self.process.pid)

    def end(self) -> None:
        """Ask it to end; `close` waits for that."""
        self.process.terminate()

    def close(self) -> None:
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._draining.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


class Client:
    """One keep-alive connection, and its session if the dialect has sessions."""

    def __init__(self, port: int, dialect: Dialect) -> None:
        self._port = port
        self.socket = self._connect()
        self._dialect = dialect
        self._host = f"127.0.0.1:{port}"
        self.session = ""
        self._last_id = FIRST_ID

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def reconnect(self) -> None:
        """Go on with another connection: servers close those that are idle for some seconds."""
        self.socket.close()
        self.socket = self._connect()

    def open(self) -> None:
        """Initialize a session on this connection."""
        self.initialize()
        self.session = self.received_session()
        self.initialized()

    def initialize(self) -> None:
        """Request a session; `received_session` returns it."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INIT}
        self.socket.sendall(self.post(msgspec.json.encode(body), {}))

    def received_session(self) -> str:
        """Return the id of the new session. This client keeps its own."""
        answer = self.receive()
        id = answer.headers.get("mcp-session-id", "")
        if answer.status != 200 or not id or b'"protocolVersion"' not in answer.body:
            raise RuntimeError(f"no session: {answer.raw[:500]!r}")
        return id

    def initialized(self) -> None:
        """Send the session's `initialized` notification."""
        accepted = self.exchange(self.post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', {}))
        if accepted.status != 202:
            raise RuntimeError(f"a notification was refused: {accepted.raw[:500]!r}")

    def request(self, method: str, params: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Return a request in two halves, between which its id goes."""
        body = {"jsonrpc": "2.0", "id": FIRST_ID, "method": method, "params": {**params, **self._dialect.params}}
        headers = {} if self._dialect.has_sessions else {"Mcp-Method": method, "Mcp-Name": params.get("name", "")}
        before, _, after = self.post(msgspec.json.encode(body), headers).rpartition(b"%d" % FIRST_ID)
        return before, after

    def post(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Return the bytes of a POST."""
        told = {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
        return self._head("POST", "application/json, text/event-stream", told) + body

    def get(self) -> bytes:
        """Return the bytes of the GET that opens a stream."""
        return self._head("GET", "text/event-stream", {})

    def listen(self) -> bytes:
        """Return the bytes of the POST that opens a stream in the stateless era."""
        before, after = self.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        return b"%b%d%b" % (before, FIRST_ID, after)

    def exchange(self, request: bytes) -> Answer:
        """Send a request and wait for the whole answer."""
        self.socket.sendall(request)
        return self.receive()

    def receive(self) -> Answer:
        raw = self.read_head()
        while True:
            answer = _taken_apart(raw)
            if answer is not None:
                return answer
            raw += self._more()

    def read_head(self) -> bytes:
        """Return what has arrived once a head is complete. Raises RuntimeError if the server disconnects."""
        raw = b""
        while b"\r\n\r\n" not in raw:
            raw += self._more()
        return raw

    def _more(self) -> bytes:
        data = self.socket.recv(CHUNK)
        if not data:
            raise RuntimeError("the server hung up")
        return data

    def close(self) -> None:
        self.socket.close()

    def _head(self, method: str, accept: str, headers: Mapping[str, str]) -> bytes:
        told = {"Host": self._host, "Accept": accept, **self._dialect.headers, **headers}
        if self.session:
            told["Mcp-Session-Id"] = self.session
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items() if value)
        return f"{method} /mcp HTTP/1.1\r\n{lines}\r\n".encode()


class Caller:
    """One client that repeats one call. Each answer must equal the first, except for its id."""

    __slots__ = ("_after", "_before", "_behind", "_client", "_front", "_id", "begun", "expected", "length", "part")

    def __init__(self, client: Client, method: str, params: Mapping[str, Any], result: Any) -> None:
        self._client = client
        self._before, self._after = client.request(method, params)
        self._id = FIRST_ID
        first = client.exchange(b"%b%d%b" % (self._before, self._id, self._after))
        content = msgspec.json.decode(first.message).get("result", {}).get("content") if first.status == 200 else None
        if content != result or first.tail.count(b"%d" % self._id) != 1:
            raise RuntimeError(f"a wrong answer to {method}: {first.raw[:500]!r}")
        self._front, _, self._behind = self.find_repeated(first).partition(b"%d" % self._id)
        self.length = len(first.raw)
        self.part = b""
        self.expected = b""
        self.begun = 0.0

    def find_repeated(self, first: Answer) -> bytes:
        """Return what each answer has like the first, except for its id."""
        return first.tail

    @property
    def socket(self) -> socket.socket:
        return self._client.socket

    def is_whole(self, data: bytes) -> bool:
        """Return whether an answer has arrived."""
        return len(data) >= self.length

    def is_expected(self, data: bytes) -> bool:
        return data.endswith(self.expected) and data.startswith(b"HTTP/1.1 200 ")

    def send(self) -> None:
        self._id += 1
        self.expected = b"%b%d%b" % (self._front, self._id, self._behind)
        self.begun = time.perf_counter()
        self._client.socket.send(b"%b%d%b" % (self._before, self._id, self._after))


def load(callers: Sequence[Caller], seconds: float) -> tuple[float, list[float]]:
    """Run all callers at once, with one call each in flight. Return calls per second, and the sorted seconds of
    each."""
    by_descriptor = {caller.socket.fileno(): caller for caller in callers}
    taken: list[float] = []
    with select.epoll() as ready:
        for descriptor in by_descriptor:
            ready.register(descriptor, select.EPOLLIN)
        begun = time.perf_counter()
        end = begun + seconds
        for caller in callers:
            caller.send()
        busy = len(callers)
        while busy:
            events = ready.poll(PATIENCE)
            if not events:
                raise TimeoutError("the server fell silent")
            for descriptor, _ in events:
                caller = by_descriptor[descriptor]
                data = caller.part + caller.socket.recv(CHUNK)
                if not caller.is_whole(data):
                    if data == caller.part:
                        raise RuntimeError("the server hung up")
                    caller.part = data
                    continue
                now = time.perf_counter()
                caller.part = b""
                if not caller.is_expected(data):
                    raise RuntimeError(f"a wrong answer: {data[:1000]!r}")
                taken.append(now - caller.begun)
                if now < end:
                    caller.send()
                else:
                    busy -= 1
        elapsed = time.perf_counter() - begun
    return len(taken) / elapsed, sorted(taken)


def _taken_apart(raw: bytes) -> Answer | None:
    """Return the answer in `raw`, or None while it is incomplete."""
    head, _, tail = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    status = int(first.split()[1])
    if headers.get("transfer-encoding") == "chunked":
        body = _unchunked(tail)
    else:
        length = int(headers.get("content-length", 0))
        body = tail if len(tail) >= length else None
    return None if body is None else Answer(raw, status, headers, tail, body)


def _unchunked(tail: bytes) -> bytes | None:
    parts = []
    while True:
        line, found, tail = tail.partition(b"\r\n")
        size = int(line, 16) if found else 0
        if not found or len(tail) < size + 2:
            return None
        if size == 0:
            return b"".join(parts)
        parts.append(tail[:size])
        tail = tail[size + 2 :]


def _allow_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
