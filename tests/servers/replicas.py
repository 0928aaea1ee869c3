"""Two servers on one Redis, one PostgreSQL and one node, and a client that sends each request to the next of them."""

import contextlib
import http.client
import json
import secrets
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.clients.raw_client import PATIENCE
from tests.clients.raw_http_client import POSTED, Site, events
from tests.conftest import PROBE
from tests.server.node.nodes import running_node
from tests.servers.postgres import Postgres
from tests.servers.redis_server import RedisProcess, find_free_port, redis_server
from toolgate.server.protocol.session import hash_key

REVISION = "2025-11-25"
Answered = tuple[http.client.HTTPResponse, bytes, Any]


class Replicas:
    """The servers in `sites`, on one state."""

    def __init__(self, folder: Path, redis: RedisProcess, *options: str) -> None:
        self.redis = redis
        self.ports = [find_free_port() for _ in range(2)]
        self.options = options
        self._folder = folder
        self.sites = [self._start(place) for place in range(2)]

    def restart(self, place: int) -> Site:
        """Start a server again."""
        self.sites[place].kill()
        self.sites[place] = self._start(place)
        return self.sites[place]

    def close(self) -> None:
        for site in self.sites:
            site.kill()

    def log(self) -> str:
        return "\n".join(site.log() for site in self.sites)

    def _start(self, place: int) -> Site:
        folder = self._folder / secrets.token_hex(4)
        folder.mkdir()
        return Site(folder, *PROBE, "--port", str(self.ports[place]), *self.options, *self._signs_in, workspace=False)

    @property
    def _signs_in(self) -> tuple[str, ...]:
        """Return the options of servers that people sign in at, under the URL of the first."""
        return ("--public-url", f"http://127.0.0.1:{self.ports[0]}") if "oauth" in self.options else ()


@contextlib.contextmanager
def running_replicas(folder: Path, postgres: Postgres, *options: str) -> Generator[Replicas]:
    """Run two servers, and what they share. Their logs must have no traceback."""
    secret = folder / "secret"
    secret.write_bytes(secrets.token_bytes(32))
    secret.chmod(0o600)
    with redis_server() as redis, running_node(folder / "node", "--sandbox", "none") as node:
        shared = ("--redis", redis.url, "--database", postgres.create_database(), "--secret", str(secret))
        replicas = Replicas(folder, redis, *shared, "--node", str(node.address), *options)
        try:
            yield replicas
            assert "Traceback" not in replicas.log(), replicas.log()
        finally:
            replicas.close()


class RoundRobin:
    """A client of a session, whose requests go to the servers in turn unless it names one."""

    def __init__(
        self, sites: list[Site], *, capabilities: Any = None, revision: str = REVISION, at: int = 0, token: str = ""
    ) -> None:
        self.sites = sites
        self.turn = at
        self.revision = revision
        self.headers: dict[str, str] = {"Authorization": f"Bearer {token}"} if token else {}
        client = {"name": "round robin", "version": "1"}
        params = {"protocolVersion": revision, "capabilities": capabilities or {}, "clientInfo": client}
        response, content, hello = self.post("initialize", params)
        assert response.status == 200, content
        self.hello = hello["result"]
        self.id = str(response.getheader("mcp-session-id"))
        self.headers |= {"Mcp_Session_Id": self.id, "Mcp_Protocol_Version": revision}

    @property
    def key(self) -> str:
        """The digest of the session's id, which names its record."""
        return hash_key(self.id)

    def ready(self, at: int | None = None) -> None:
        response, content, _ = self.post("notifications/initialized", at=at, is_request=False)
        assert response.status == 202, content

    def next(self, at: int | None = None) -> Site:
        if at is None:
            at, self.turn = self.turn, (self.turn + 1) % len(self.sites)
        return self.sites[at]

    def post(
        self, method: str, params: Any = None, *, at: int | None = None, is_request: bool = True, id: Any = None
    ) -> Answered:
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if is_request:
            message["id"] = id or secrets.randbelow(2**30)
        return self.next(at).ask("POST", "/mcp", message, **self.headers)

    def call(self, tool: str, arguments: Any = None, *, at: int | None = None) -> str:
        """Return the text of a call's result, also of one that came on a stream."""
        response, content, answer = self.post("tools/call", {"name": tool, "arguments": arguments or {}}, at=at)
        assert response.status == 200, content
        if answer is None:
            *_, answer = [json.loads(line[6:]) for line in content.decode().splitlines() if line.startswith("data: {")]
        assert "result" in answer, answer
        return "".join(part["text"] for part in answer["result"]["content"])

    def stream(self, tool: str, arguments: Any = None, *, at: int, id: Any = 1) -> "StreamReader":
        """Begin a call that is answered by a stream."""
        params = {"name": tool, "arguments": arguments or {}, "_meta": {"progressToken": "p"}}
        message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        return self._open("POST", message, at, {})

    def listen(self, *, at: int, after: str | None = None) -> "StreamReader":
        """Open a GET stream, or resume a stream after an event."""
        return self._open("GET", None, at, {"Last-Event-ID": after} if after is not None else {})

    def _open(self, method: str, message: Any, at: int, more: dict[str, str]) -> "StreamReader":
        told = {name.replace("_", "-"): value for name, value in self.headers.items()}
        connection = self.sites[at].connect()
        data = None if message is None else json.dumps(message)
        connection.request(method, "/mcp", data, {**POSTED, **told, **more})
        return StreamReader(connection)


class StreamReader:
    """Reads the events of a response in a thread."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.events: list[dict[str, str]] = []
        self.status = 0
        self._connection = connection
        self._arrived = threading.Condition()
        self.has_ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def messages(self) -> list[Any]:
        return [json.loads(event["data"]) for event in self.events if event.get("data")]

    def wait(self, wanted: Any, timeout: float = PATIENCE) -> Any:
        """Return the first message that `wanted` accepts."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.has_ended or any(map(wanted, self.messages)), timeout)
            found = next(filter(wanted, self.messages), None)
        assert found is not None, (self.status, self.events)
        return found

    def answer(self, timeout: float = PATIENCE) -> Any:
        return self.wait(lambda message: "id" in message and "method" not in message, timeout)

    def wait_open(self) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.status or self.has_ended, PATIENCE)

    def last_id(self) -> str:
        return next(event["id"] for event in reversed(self.events) if "id" in event)

    def wait_id(self) -> str:
        """Return the newest event's id, as soon as there is one."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: any("id" in event for event in self.events), PATIENCE)
        return self.last_id()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._connection.sock is not None:
                self._connection.sock.shutdown(2)

    def _read(self) -> None:
        lost = contextlib.suppress(OSError, http.client.HTTPException)
        with lost, contextlib.closing(self._connection), self._connection.getresponse() as response:
            self._note(status=response.status)
            if response.getheader("content-type") == "application/json":
                self._note(event={"data": response.read().decode()})
            for event in events(response):
                self._note(event=event)
        self._note(has_ended=True)

    def _note(self, *, status: int = 0, event: dict[str, str] | None = None, has_ended: bool = False) -> None:
        with self._arrived:
            self.status = status or self.status
            self.has_ended = has_ended
            if event is not None:
                self.events.append(event)
            self._arrived.notify_all()
