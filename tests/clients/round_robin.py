"""A client of a session whose requests go to several servers in turn, and a reader of its streams."""

import contextlib
import http.client
import json
import secrets
import threading
from typing import Any

from tests.clients.raw_client import PATIENCE
from tests.clients.raw_http_client import POSTED, Site, events
from toolgate.server.protocol.session import hash_key

REVISION = "2025-11-25"
Answered = tuple[http.client.HTTPResponse, bytes, Any]


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
        """Return the text of a call's result."""
        response, content, answer = self.post("tools/call", {"name": tool, "arguments": arguments or {}}, at=at)
        assert response.status == 200, content
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
