"""Clients that make random requests, valid and invalid ones. Answers that a server must never give are kept in
`faults`."""

import base64
import contextlib
import http.client
import io
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from PIL import Image

from tests.clients.raw_client import PATIENCE, STATELESS, Server
from tests.clients.raw_http_client import POSTED

INTERNAL = -32603
PAUSE = 0.15  # seconds between two requests of a client: rate limits are met now and then
META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    "io.modelcontextprotocol/clientInfo": {"name": "soak", "version": "1"},
}
KNOWS_TASKS = {
    **META,
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri", "tasks/get": "taskId"}
QUESTION = json.dumps({"questions": [{"question": "Which?", "options": ["one", "two"]}]})


def _picture() -> str:
    raw = io.BytesIO()
    Image.effect_noise((160, 120), 60).save(raw, "PNG")
    return base64.b64encode(raw.getvalue()).decode()


# A client's calls in either era: tool and arguments. `{page}` is a page on loopback, `{root}` the workspace
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("Bash", {"command": "echo hello; pwd"}),
    ("Bash", {"command": "exit 3"}),
    ("Bash", {"command": "head -c 200000 /dev/zero | tr '\\0' x"}),
    ("Bash", {"command": "sleep 2 & echo left", "timeout": 500}),
    ("Bash", {"command": "mkdir -p deep && cd deep; date > note"}),
    ("Bash", {"command": "sleep 30", "timeout": 200}),
    ("BackgroundBash", {"command": "for i in 1 2 3; do echo $i; sleep 0.1; done"}),
    ("BackgroundBash", {"command": "sleep 20"}),
    ("ListBgTasks", {}),
    ("ReadBgOutput", {"task_id": 1}),
    ("KillBgTask", {"task_id": "{background}"}),
    ("ReadImage", {"file_path": "/{root}/picture.png"}),
    ("ReadDocs", {"url": "{page}"}),
    ("ReadDocs", {"url": "{page}missing"}),
    ("TaskManager", {"action": "create", "query": "", "text": "a task"}),
    ("TaskManager", {"action": "add", "query": "", "text": "a step"}),
    ("TaskManager", {"action": "complete", "query": "a task"}),
    ("TaskManager", {"action": "list", "query": ""}),
    ("PlanMode", {"action": "enter", "goal": "a plan"}),
    ("PlanMode", {"action": "reset"}),
    ("PlanMode", {"action": "reset"}),
    ("SetCallback", {"action": "set", "message": "later", "delay_seconds": 2, "repeat_count": 2}),
    ("SetCallback", {"action": "cancel"}),
    ("AskUserQuestion", {"questions_json": QUESTION}),
    ("InvokeSkill", {"skill_name": "toolgate-tools"}),
    ("NoSuchTool", {}),
    ("Bash", {"command": 7}),
]
ASKED: list[tuple[str, dict[str, Any]]] = [  # in either era
    ("tools/list", {}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "toolgate-tools"}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "task://list"}),
    ("resources/read", {"uri": "file:///{root}/picture.png"}),
    ("resources/read", {"uri": "callback://inbox"}),
    (
        "completion/complete",
        {"ref": {"type": "ref/resource", "uri": "task://{id}"}, "argument": {"name": "id", "value": ""}},
    ),
    ("no/such", {}),
]
IN_SESSION: list[tuple[str, dict[str, Any]]] = [
    ("ping", {}),
    ("logging/setLevel", {"level": "debug"}),
    ("resources/subscribe", {"uri": "task://list"}),
    ("resources/subscribe", {"uri": "file:///{root}/deep/note"}),
    ("resources/unsubscribe", {"uri": "task://list"}),
]
BAD: list[tuple[str, str, bytes | None, dict[str, str]]] = [  # without a token
    ("POST", "/mcp", b"{", {}),
    ("POST", "/mcp", b"[]", {}),
    ("POST", "/mcp", b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\\ud800"}}', {}),
    ("POST", "/mcp", b"x" * 200_000, {}),
    ("POST", "/mcp", b"{}", {"authorization": "Bearer nobody"}),
    ("GET", "/mcp", None, {"mcp-session-id": "none"}),
    ("DELETE", "/mcp", None, {}),
    ("PUT", "/mcp", b"", {}),
    ("GET", "/no/such", None, {}),
    ("POST", "/messages?session_id=none", b"{}", {}),
    ("GET", "/", None, {"accept": "text/html"}),
    ("GET", "/", None, {}),
    ("GET", "/health", None, {}),
    ("GET", "/ready", None, {}),
    ("GET", "/login", None, {"accept": "text/html"}),
    ("POST", "/login", b"username=ada&password=wrong", {"content-type": "application/x-www-form-urlencoded"}),
    ("GET", "/authorize?client_id=none&response_type=code", None, {"accept": "text/html"}),
    (
        "POST",
        "/token",
        b"grant_type=refresh_token&refresh_token=x",
        {"content-type": "application/x-www-form-urlencoded"},
    ),
    ("POST", "/register", b'{"redirect_uris":["http://127.0.0.1:1/cb"]}', {"content-type": "application/json"}),
    ("GET", "/.well-known/oauth-protected-resource/mcp", None, {}),
    ("GET", "/.well-known/oauth-authorization-server", None, {}),
]


class Caller(threading.Thread):
    """A client that runs until it is stopped."""

    def __init__(self, name: str, page: str) -> None:
        super().__init__(name=name, daemon=True)
        self.page = page
        self.root = ""
        self.done: Counter[str] = Counter()
        self.faults: list[str] = []
        self.chance = random.Random(name)
        self._ending = threading.Event()
        self._background = 0

    def steps(self) -> list[Callable[[], None]]:
        raise NotImplementedError

    def settle(self) -> None:
        """Prepare the first request."""

    def run(self) -> None:
        try:
            self.settle()
            steps = self.steps()
            while not self._ending.wait(PAUSE):
                step = self.chance.choice(steps)
                self.done[getattr(step, "__name__", "step")] += 1
                with contextlib.suppress(OSError, http.client.HTTPException):  # a busy server may refuse a connection
                    step()
        except BaseException as error:  # the test raises it
            self.faults.append(f"{self.name}: {error!r}")

    def end(self) -> None:
        self._ending.set()
        self.join(2 * PATIENCE)
        if self.is_alive():
            self.faults.append(f"{self.name} is stuck")

    def filled(self, params: Any) -> Any:
        """Return the parameters with the caller's own values in place of placeholders."""
        match params:
            case dict():
                return {name: self.filled(value) for name, value in params.items()}
            case "{background}":
                return self._background
            case str():
                return params.replace("{page}", self.page).replace("{root}", self.root.lstrip("/"))
            case _:
                return params

    def check(self, method: str, answer: Any) -> None:
        if isinstance(answer, dict) and answer.get("error", {}).get("code") == INTERNAL:
            self.faults.append(f"{self.name}: {method}: {answer}")
        with contextlib.suppress(Exception):
            text = answer["result"]["content"][0]["text"]
            if text.startswith("task "):
                self._background = int(text.split()[1])


class Person(Caller):
    """A client over HTTP with a token, in both eras, which leaves most of its sessions open."""

    def __init__(self, name: str, page: str, port: int, token: str) -> None:
        super().__init__(name, page)
        self._port = port
        self._headers = {**POSTED, "Authorization": f"Bearer {token}"}
        self._session: str | None = None
        self._ids = iter(range(1, 2**31))

    def settle(self) -> None:
        self._session = self._opened()
        answer = self._post(self._call("Bash", {"command": f"echo '{_picture()}' | base64 -d > picture.png; pwd"}))
        self.root = str(answer["result"]["content"][0]["text"]).split()[0]

    def steps(self) -> list[Callable[[], None]]:
        often = (self.call, self.call, self.call, self.ask, self.call_without_session, self.ask_without_session)
        return [
            *often,
            *(self.abandon_session, self.end_session, self.drop_stream, self.drop_call, self.drop_listen),
            *(self.begin_task, self.be_bad, self.be_bad, self.connect_by_sse),
        ]

    def call(self) -> None:
        self._told(self._call(*self.chance.choice(CALLS)))

    def ask(self) -> None:
        method, params = self.chance.choice([*ASKED, *IN_SESSION])
        self._told(self._message(method, self.filled(params)))

    def call_without_session(self) -> None:
        name, arguments = self.chance.choice(CALLS)
        message = self._message("tools/call", self.filled({"name": name, "arguments": arguments, "_meta": META}))
        self.check(name, self._post(message, session=None))

    def ask_without_session(self) -> None:
        method, params = self.chance.choice([*ASKED, ("server/discover", {})])
        self.check(method, self._post(self._message(method, self.filled({**params, "_meta": META})), session=None))

    def begin_task(self) -> None:
        arguments = {"command": f"sleep {self.chance.choice([0.1, 2])}"}
        params = {"name": "Bash", "arguments": arguments, "_meta": KNOWS_TASKS}
        answer = self._post(self._message("tools/call", params), session=None)
        self.check("tools/call", answer)
        id = answer.get("result", {}).get("taskId") if isinstance(answer, dict) else None
        if id is not None and self.chance.random() < 0.5:
            self.check(
                "tasks/get", self._post(self._message("tasks/get", {"taskId": id, "_meta": KNOWS_TASKS}), session=None)
            )

    def abandon_session(self) -> None:
        for _ in range(10):  # the limit is reached soon
            self._opened()

    def end_session(self) -> None:
        self._asked("DELETE", None, self._opened())

    def drop_stream(self) -> None:
        with self._begun("GET", None, {**self._headers, "Mcp-Session-Id": self._session or ""}) as response:
            response.fp.readline()

    def drop_call(self) -> None:
        message = self._call("Bash", {"command": "for i in 1 2 3 4 5 6; do echo $i; sleep 0.4; done"})
        message["params"]["_meta"] = {"progressToken": message["id"]}
        with self._begun("POST", message, {**self._headers, "Mcp-Session-Id": self._session or ""}) as response:
            response.fp.readline()

    def drop_listen(self) -> None:
        wanted = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["task://list"]}, "_meta": META}
        message = self._message("subscriptions/listen", wanted)
        with self._begun("POST", message, {**self._headers, **self._mirrored(message)}) as response:
            response.fp.readline()

    def connect_by_sse(self) -> None:
        with self._begun("GET", None, self._headers, "/sse") as response:
            response.fp.readline()

    def be_bad(self) -> None:
        method, path, body, headers = self.chance.choice(BAD)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body, {**POSTED, **headers})
            response = connection.getresponse()
            response.read()
        self._count(response.status, path)

    # -- sending

    def _opened(self) -> str | None:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "soak", "version": "1"}}
        response, _ = self._asked("POST", self._message("initialize", params), None)
        session = response.getheader("mcp-session-id")
        if session is not None:
            self._asked("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
        return session

    def _told(self, message: dict[str, Any]) -> None:
        self.check(message["method"], self._post(message))

    def _post(self, message: dict[str, Any], session: str | None = "") -> Any:
        """Return the answer, from JSON or a stream."""
        response, content = self._asked("POST", message, self._session if session == "" else session)
        if response.status == 404 and session == "":  # it gave way to newer ones
            self._session = self._opened()
        if (response.getheader("content-type") or "").startswith("text/event-stream"):
            content = content.decode().rpartition("data: ")[2].encode()
        with contextlib.suppress(ValueError):
            return json.loads(content)
        return None

    def _asked(self, method: str, message: Any, session: str | None) -> tuple[http.client.HTTPResponse, bytes]:
        headers = {**self._headers, **({"Mcp-Session-Id": session} if session else self._mirrored(message))}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, "/mcp", None if message is None else json.dumps(message), headers)
            response = connection.getresponse()
            content = response.read()
        self._count(response.status, str(message)[:300])
        return response, content

    @contextlib.contextmanager
    def _begun(self, method: str, message: Any, headers: dict[str, str], path: str = "/mcp") -> Any:
        """Return a response without waiting for its body."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, None if message is None else json.dumps(message), headers)
            response = connection.getresponse()
            self._count(response.status, path)
            yield response

    def _mirrored(self, message: Any) -> dict[str, str]:
        """Return the headers of the stateless era."""
        if not isinstance(message, dict) or "_meta" not in message.get("params", {}):
            return {}
        method = message["method"]
        headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method}
        if method in NAMED:
            headers["Mcp-Name"] = str(message["params"].get(NAMED[method]))
        return headers

    def _call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._message("tools/call", self.filled({"name": name, "arguments": arguments}))

    def _message(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}

    def _count(self, status: int, about: str) -> None:
        self.done[f"HTTP {status}"] += 1
        if status == 500:
            self.faults.append(f"{self.name}: 500 to {about}")


class Host(Caller):
    """A program that starts the server, over stdio."""

    def __init__(self, name: str, page: str, server: Server) -> None:
        super().__init__(name, page)
        self._server = server

    def settle(self) -> None:
        command = f"echo '{_picture()}' | base64 -d > picture.png; pwd"
        answer = self._server.request("tools/call", {"name": "Bash", "arguments": {"command": command}})
        self.root = str(answer["content"][0]["text"]).split()[0]

    def steps(self) -> list[Callable[[], None]]:
        return [self.call, self.call, self.ask, self.cancel, self.be_bad]

    def call(self) -> None:
        name, arguments = self.chance.choice(CALLS)
        self._request("tools/call", self.filled({"name": name, "arguments": arguments}))

    def ask(self) -> None:
        method, params = self.chance.choice([*ASKED, *IN_SESSION])
        self._request(method, self.filled(params))

    def cancel(self) -> None:
        id = self._server.begin("tools/call", {"name": "Bash", "arguments": {"command": "sleep 20"}})
        time.sleep(PAUSE)
        self._server.notify("notifications/cancelled", {"requestId": id})

    def be_bad(self) -> None:
        self._server.write(self.chance.choice([b"{\n", b"[]\n", b'{"jsonrpc":"2.0","id":{},"method":7}\n']))

    def _request(self, method: str, params: dict[str, Any]) -> None:
        from tests.clients.raw_client import Refusal

        try:
            self.check(method, {"result": self._server.request(method, params)})
        except Refusal as refusal:
            if refusal.code == INTERNAL:
                self.faults.append(f"{self.name}: {method}: {refusal}")
        del self._server.messages[:]  # a client forgets
