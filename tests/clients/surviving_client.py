"""Clients that survive restarts of their server, each in a thread. They compare answers and working directory with what
they asked for."""

import contextlib
import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.clients.raw_client import PATIENCE, STATELESS
from tests.clients.raw_http_client import POSTED, events
from toolgate.server.protocol.interruption import INTERRUPTED

AGAIN = 0.03  # seconds until a server that does not answer is asked again
META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
}
BROKEN = (OSError, http.client.HTTPException)


class UnknownOutcome(Exception):
    """A call's fate is unknown: the server ended before it answered or reported an error."""


class SurvivingClient:
    """A client of one revision. `failure` names a forbidden answer of the server."""

    def __init__(self, port: int, revision: str, name: str, token: str | None = None) -> None:
        self.revision = revision
        self.answered = 0  # calls
        self.lost = 0
        self.resumed = 0
        self.failure: BaseException | None = None
        self._port = port
        self._name = name
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._session: str | None = None
        self._ids = itertools.count(1)
        self._random = random.Random(name)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._live, name=name)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive(), f"{self._name} is stuck"
        if self.failure is not None:
            raise self.failure

    def _live(self) -> None:
        try:
            if self.revision != STATELESS:
                self._initialize()
            stands = {""}  # its possible working directories
            while not self._ending.is_set():
                stands = self._step(stands)
        except BaseException as error:  # the test raises it
            self.failure = error

    def _step(self, stands: set[str]) -> set[str]:
        """Do one thing, and return the possible working directories after it."""
        kind = self._random.choice(["move", "look", "look", "wait"])
        try:
            if kind == "move":
                folder = f"{self._name}-{next(self._ids)}"
                self._call("Bash", command=f"cd ~- 2>/dev/null; mkdir -p $HOME/{folder} && cd $HOME/{folder}")
                return {folder}
            if kind == "wait":
                assert "waited" in self._call("wait", seconds=self._random.choice([0.01, 1.2]))
                return stands
            said = self._call("Bash", command="pwd").strip().rpartition("/")[2]
            stood = said if said.startswith(self._name) else ""
            assert stood in stands, f"{self._name} stands in {said!r}, not in one of {stands}"
        except UnknownOutcome:
            self.lost += 1
            time.sleep(2 * AGAIN)  # a dying process still accepts connections, and resets them
            return stands | {folder} if kind == "move" else stands
        return {stood}

    def _initialize(self) -> None:
        params = {"protocolVersion": self.revision, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        while self._session is None:
            with contextlib.suppress(*BROKEN), self._asked("POST", self._message("initialize", params)) as response:
                response.read()
                self._session = response.getheader("mcp-session-id")
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        while True:
            with contextlib.suppress(*BROKEN), self._asked("POST", note) as response:
                assert response.status in (202, 503), response.status
                if response.status == 202:
                    return

    def _call(self, tool: str, **arguments: Any) -> str:
        """Return the text of the result. Raises UnknownOutcome."""
        message = self._message("tools/call", {"name": tool, "arguments": arguments})
        id, last = message["id"], None
        message["params"]["_meta"] = {"progressToken": id, **(META if self.revision == STATELESS else {})}
        answers = list[Any]()
        try:
            answers, last = self._exchange(message)
        except BROKEN:
            raise UnknownOutcome from None
        if not answers and last is not None:
            answers, last = self._resume(last)
            self.resumed += 1
        if not answers:
            raise UnknownOutcome  # a stream that broke off before its first event
        assert [answer["id"] for answer in answers] == [id], f"answered {answers}"
        if last is not None and last.endswith("a") and self._random.random() < 0.2:
            assert self._resume(last) == ([], last)  # nothing comes twice
        (answer,) = answers
        if "error" in answer:
            assert answer["error"]["message"] == INTERRUPTED, answer
            raise UnknownOutcome
        self.answered += 1
        return str(answer["result"]["content"][0]["text"])

    def _exchange(self, message: dict[str, Any]) -> tuple[list[Any], str | None]:
        """Return the answers, and the id of the last event. Raises the error of a broken connection."""
        while True:
            with self._asked("POST", message) as response:
                if response.status == 503:
                    response.read()
                    continue
                assert response.status == 200, f"{self._name}: {response.status} {response.read()!r}"
                if response.getheader("content-type") == "application/json":
                    return [json.loads(response.read())], None
                return self._read(response)

    def _resume(self, last: str) -> tuple[list[Any], str]:
        while True:
            found, ended = list[Any](), False
            with contextlib.suppress(*BROKEN), self._asked("GET", None, last) as response:
                assert response.status in (200, 204, 503), f"{self._name}: {response.status} {response.read()!r} {last}"
                if response.status == 200:
                    found, newest = self._read(response)
                    last = newest or last
                ended = response.status == 204
            if found or ended:
                return found, last

    def _read(self, response: http.client.HTTPResponse) -> tuple[list[Any], str | None]:
        answers, last = list[Any](), None
        with contextlib.suppress(*BROKEN):
            for event in events(response):
                last = event.get("id", last)
                message = json.loads(event["data"]) if event.get("data") else {}
                answers += [message] if "result" in message or "error" in message else []
        return answers, last

    @contextlib.contextmanager
    def _asked(self, method: str, message: Any, last: str | None = None) -> Iterator[http.client.HTTPResponse]:
        """Yield the response, once a server listens."""
        headers = {**POSTED, **self._headers} | ({"Last-Event-ID": last} if last is not None else {})
        if self._session is not None:
            headers |= {"Mcp-Session-Id": self._session, "MCP-Protocol-Version": self.revision}
        if self.revision == STATELESS:
            named = {"Mcp-Method": "tools/call", "Mcp-Name": message["params"]["name"]}
            headers |= {"MCP-Protocol-Version": STATELESS, **named}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        with contextlib.closing(connection):
            self._connect(connection)
            connection.request(method, "/mcp", None if message is None else json.dumps(message), headers)
            yield connection.getresponse()

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                connection.connect()
            except OSError:
                if time.monotonic() > until:
                    raise AssertionError(f"{self._name}: no server came") from None
                time.sleep(AGAIN)
            else:
                return

    def _message(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": f"{self._name}-{next(self._ids)}", "method": method, "params": params}
