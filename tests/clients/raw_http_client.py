"""The raw client over HTTP: a server process that listens, and the two HTTP transports as carriers of `Server`."""

import base64
import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.clients.raw_client import COMMAND, PATIENCE, STATELESS, Server, eventually, surroundings
from tests.servers import forked_command

POSTED = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
NAMED |= dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")


class Site:
    """A server process that listens for HTTP on a free port, `-t` and `-s` both."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
        workspace: bool = True,
        command: Sequence[str] = (COMMAND,),
    ) -> None:
        self.state = folder / "state"
        self.stderr = folder / "stderr.log"
        self.shared: tuple[str, Path] | None = None  # the URL of a database, and the file of its secret
        work, environment = surroundings(folder, self.state, env)
        # otherwise every principal has its own folder and sandbox; this folder may be root's
        shared = ["--workspace", str(work), "--sandbox", "none"] if workspace else []
        words = [*command, "-t", "-s", "--auth", "none", "--port", "0", "--drain", "0", *shared, *options]
        with self.stderr.open("wb") as log:
            self.process = forked_command.start(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=work, env=environment
            )
        assert eventually(lambda: "serving http" in self.log() or self.process.poll() is not None)
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", self.log())
        assert found, self.log()
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self.stderr.read_text(errors="replace")

    def connect(self, timeout: float = PATIENCE) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def socket(self, timeout: float = PATIENCE) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes, Any]:
        """Return a response, its body, and the body's JSON if it is some, of a stream the last message. `_` in header
        names is `-`."""
        told = {name.replace("_", "-").title(): value for name, value in headers.items()}
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        if data is not None:
            told = {**POSTED, **told}
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, data, told)
            response = connection.getresponse()
            content = response.read()
        messages = read_messages(response, content)
        return response, content, messages[-1] if messages else None

    def stop(self, number: int = signal.SIGTERM, timeout: float = PATIENCE) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def read_messages(response: http.client.HTTPResponse, content: bytes) -> list[Any]:
    """Return what a body says: its JSON, or the messages of a stream, which an answer is that took over a second."""
    match response.getheader("content-type", "").partition(";")[0]:
        case "application/json" if content:
            return [json.loads(content)]
        case "text/event-stream":
            lines = content.splitlines()
            return [json.loads(line[6:]) for line in lines if line.startswith((b"data: {", b"data: ["))]
        case _:
            return []


class Opener:
    """What `site` opens instead of a server: several behind a load balancer, with the option --replicas."""

    open: Callable[..., contextlib.AbstractContextManager[Site]] | None = None


@contextlib.contextmanager
def site(folder: Path, *options: str, **how: Any) -> Iterator[Site]:
    """Yield a listening server, and end it."""
    folder.mkdir(exist_ok=True)
    if Opener.open is not None:
        with Opener.open(folder, *options, **how) as replicated:
            yield replicated
        return
    listening = Site(folder, *options, **how)
    try:
        yield listening
        if listening.process.poll() is None:
            assert listening.stop() == 0, listening.log()
        assert "Exception in ASGI" not in listening.log(), listening.log()
    finally:
        listening.kill()


def events(response: Any) -> Iterator[dict[str, str]]:
    """Yield the server-sent events of a response as they arrive: their fields, comments under ''."""
    event: dict[str, str] = {}
    while line := response.readline():
        text = line.decode().rstrip("\r\n")
        if text:
            name, _, value = text.partition(":")
            event[name] = value.removeprefix(" ")
        elif event:
            yield event
            event = {}


class Http(Server):
    """A client over Streamable HTTP with one connection per message; threads read the answers."""

    def __init__(
        self,
        listening: Site,
        revision: str,
        capabilities: Mapping[str, Any] | None,
        answer: Callable[[str, dict[str, Any]], Any] | None,
        owned: bool,
    ) -> None:
        super().__init__(listening.process, revision, capabilities or {}, answer, listening.state, listening.stderr)
        self.site = listening
        self.session: str | None = None
        self._owned = owned
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._threads: list[threading.Thread] = []
        self._closing = False

    def shake_hands(self) -> None:
        super().shake_hands()
        self._spawn("GET", None, {"Accept": "text/event-stream", **self._headers({})}, "standing")

    def write(self, data: bytes) -> None:
        message: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(data)
        fields = message if isinstance(message, dict) else {}
        headers = {**POSTED, **self._headers(fields)}
        if fields.get("method") == "initialize" or not ("id" in fields and "method" in fields):
            connection = self.site.connect()
            connection.request("POST", self._path(), data.rstrip(b"\n"), headers)
            self._take(connection)
        else:
            self._spawn("POST", data, headers, fields["id"])

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        if self.revision == STATELESS and method == "notifications/cancelled":
            self._hang_up(self._connections[str((params or {})["requestId"])])  # that is how it is said there
        else:
            super().notify(method, params)

    def close(self, timeout: float = PATIENCE) -> int:
        self._leave()
        assert not self._faults, self._faults
        return self.site.stop(timeout=timeout) if self._owned else 0

    def kill(self) -> None:
        self._leave()
        if self._owned:
            self.site.kill()

    def _path(self) -> str:
        return "/mcp"

    def _headers(self, message: dict[str, Any]) -> dict[str, str]:
        """Return the headers of the session, or of the message without a session."""
        meta = message.get("params", {}).get("_meta") if isinstance(message.get("params"), dict) else None
        version = meta.get("io.modelcontextprotocol/protocolVersion") if isinstance(meta, dict) else None
        if version is None:
            told = {"Mcp-Session-Id": self.session} if self.session else {}
            if self.session and self.revision >= "2025-06-18" and self.revision != STATELESS:
                told["MCP-Protocol-Version"] = self.revision
            if self.revision == STATELESS:
                told["MCP-Protocol-Version"] = STATELESS
            return told
        told = {"MCP-Protocol-Version": version, "Mcp-Method": str(message.get("method"))}
        field = NAMED.get(message.get("method", ""))
        if field is not None and field in message["params"]:
            name = str(message["params"][field])
            told["Mcp-Name"] = name if name.isascii() else f"=?base64?{base64.b64encode(name.encode()).decode()}?="
        return told

    def _spawn(self, method: str, data: bytes | None, headers: dict[str, str], key: Any) -> None:
        """Send now, in order, and read the answer in a thread."""
        connection = self.site.connect(timeout=10 * PATIENCE)
        connection.request(method, self._path(), data, headers)
        self._connections[str(key)] = connection
        thread = threading.Thread(target=self._take, args=(connection,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _take(self, connection: http.client.HTTPConnection) -> None:
        try:
            response = connection.getresponse()
            self.session = response.getheader("mcp-session-id") or self.session
            kind = (response.getheader("content-type") or "").partition(";")[0]
            if kind == "text/event-stream":
                for event in events(response):
                    self._event(event)
            elif kind == "application/json":
                self._hear(json.loads(response.read()))
            elif response.status not in (202, 204):
                self._arrive([], f"{response.status} {response.read(500)!r}")
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            if not self._closing and connection.sock is not None:
                self._arrive([], f"a response broke off: {error!r}")
        finally:
            connection.close()

    def _event(self, event: dict[str, str]) -> None:
        if event.get("data"):
            self._hear(json.loads(event["data"]))

    def _hang_up(self, connection: http.client.HTTPConnection) -> None:
        held, connection.sock = connection.sock, None
        if held is not None:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()

    def _leave(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._owned and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # it ends the streams in order
            for thread in self._threads:
                thread.join(PATIENCE)
        for connection in self._connections.values():
            self._hang_up(connection)
        for thread in self._threads:
            thread.join(PATIENCE)
        if self.session is not None and self.process.poll() is None:
            with contextlib.suppress(OSError):
                self.site.ask("DELETE", "/mcp", mcp_session_id=self.session)
                self.session = None


class Sse(Http):
    """A client over HTTP+SSE: one stream for all received messages, a POST per sent one."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self._endpoint: str | None = None
        connection = self.site.connect(timeout=10 * PATIENCE)
        connection.request("GET", "/sse", headers={"Accept": "text/event-stream"})
        self._connections["standing"] = connection
        thread = threading.Thread(target=self._take, args=(connection,), daemon=True)
        self._threads.append(thread)
        thread.start()
        assert eventually(lambda: self._endpoint is not None)

    def shake_hands(self) -> None:
        Server.shake_hands(self)

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        Server.notify(self, method, params)

    def write(self, data: bytes) -> None:
        connection = self.site.connect()
        connection.request("POST", self._path(), data.rstrip(b"\n"), POSTED)
        self._take(connection)

    def _path(self) -> str:
        assert self._endpoint is not None
        return self._endpoint

    def _event(self, event: dict[str, str]) -> None:
        if event.get("event") == "endpoint":
            self._endpoint = event["data"]
        else:
            super()._event(event)


CARRIERS: dict[str, type[Http]] = {"http": Http, "sse": Sse}


@contextlib.contextmanager
def spoken(
    listening: Site,
    transport: str,
    *,
    revision: str = "2025-11-25",
    capabilities: Mapping[str, Any] | None = None,
    answer: Callable[[str, dict[str, Any]], Any] | None = None,
    handshake: bool = True,
    owned: bool = False,
) -> Iterator[Server]:
    """Yield a client of a listening server, after its handshake. `owned`: closing it ends the server."""
    server = CARRIERS[transport](listening, revision, capabilities, answer, owned)
    try:
        if handshake and revision != STATELESS:
            server.shake_hands()
        yield server
        assert server.close() == 0, server.log()
    finally:
        server.kill()
