"""A raw client of the real server process: the part common to all transports, and stdio. Every message is validated
against the official schema of its revision; an invalid one fails the test."""

import contextlib
import functools
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs

from tests.servers import forked_command
from tests.servers.forked_command import COMMAND as COMMAND
from tests.servers.forked_command import ROOT as ROOT

PATIENCE = 40.0  # seconds for any message: test machines are slow at times

RESULTS = {
    "initialize": "InitializeResult",
    "server/discover": "DiscoverResult",
    "tools/list": "ListToolsResult",
    "tools/call": "CallToolResult",
    "prompts/list": "ListPromptsResult",
    "prompts/get": "GetPromptResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "resources/read": "ReadResourceResult",
    "resources/subscribe": "Result",
    "resources/unsubscribe": "Result",
    "completion/complete": "CompleteResult",
    "subscriptions/listen": "SubscriptionsListenResult",
    "events/list": "Result",  # the others of events are an extension's: in no schema of the protocol
    "events/poll": "Result",
    "events/stream": "Result",
    "events/subscribe": "Result",
    "events/unsubscribe": "Result",
    "toolgate/events/test": "Result",
    "skills/list": "CacheableResult",
    "skills/get": "CacheableResult",
    "resources/directory/read": "ListResourcesResult",
    "tasks/get": "Result",  # an extension's: in no schema of the protocol
    "tasks/update": "Result",
    "tasks/cancel": "Result",
    "ping": "Result",
    "logging/setLevel": "Result",
}
NOTIFICATIONS = {
    "notifications/progress": "ProgressNotification",
    "notifications/message": "LoggingMessageNotification",
    "notifications/tools/list_changed": "ToolListChangedNotification",
    "notifications/prompts/list_changed": "PromptListChangedNotification",
    "notifications/resources/list_changed": "ResourceListChangedNotification",
    "notifications/resources/updated": "ResourceUpdatedNotification",
    "notifications/cancelled": "CancelledNotification",
    "notifications/elicitation/complete": "ElicitationCompleteNotification",
    "notifications/subscriptions/acknowledged": "SubscriptionsAcknowledgedNotification",
    "notifications/tasks": "Notification",  # as above
    **{
        f"notifications/events/{name}": "Notification"
        for name in ("list_changed", "active", "event", "heartbeat", "error", "terminated")
    },
}
REQUESTS = {
    "elicitation/create": "ElicitRequest",
    "sampling/createMessage": "CreateMessageRequest",
    "roots/list": "ListRootsRequest",
}
STATELESS = "2026-07-28"
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", STATELESS)
WITH_SESSION = REVISIONS[:-1]


class Refusal(Exception):
    """A JSON-RPC error the server answered with."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.code, self.message, self.data = error["code"], error["message"], error.get("data")


class Server:
    """A client of a server process. `capabilities` are declared; `answer(method, params)` answers the server's
    requests. The carriers add `write`, `close` and `kill`."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        revision: str,
        capabilities: Mapping[str, Any],
        answer: Callable[[str, dict[str, Any]], Any] | None,
        state: Path,
        stderr: Path,
    ) -> None:
        self.process = process
        self.revision = revision
        self.capabilities = dict(capabilities)
        self.state = state
        self.messages: list[dict[str, Any]] = []  # all that came
        self.hello: dict[str, Any] = {}
        self._stderr = stderr
        self._answer = answer
        self._methods: dict[Any, str] = {}
        self._last_id = 0
        self._arrived = threading.Condition()
        self._faults: list[str] = []
        self._ended = False

    # -- sending

    def write(self, data: bytes) -> None:
        """Send one message, or any bytes in place of one."""
        raise NotImplementedError

    def send(self, message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self.send({"method": method, "params": params or {}})

    def begin(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> int:
        """Send a request and return its id; the stateless revision adds its envelope."""
        self._last_id += 1
        params = dict(params or {})
        if self.revision == STATELESS:
            meta = {**self.envelope(), **meta}
        if meta:
            params["_meta"] = {**params.get("_meta", {}), **meta}
        self._methods[self._last_id] = method
        self.send({"id": self._last_id, "method": method, "params": params})
        return self._last_id

    def envelope(self) -> dict[str, Any]:
        prefix = "io.modelcontextprotocol/"
        return {
            prefix + "protocolVersion": STATELESS,
            prefix + "clientCapabilities": self.capabilities,
            prefix + "clientInfo": {"name": "tests", "version": "1"},
        }

    def result(self, id: Any, timeout: float = PATIENCE) -> Any:
        """Return the result of the request `id`. Raises Refusal."""
        message = self.wait(lambda said: said.get("id") == id and "method" not in said, timeout)
        if "error" in message:
            raise Refusal(message["error"])
        return message["result"]

    def request(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> Any:
        return self.result(self.begin(method, params, **meta))

    def call(self, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
        result: dict[str, Any] = self.request("tools/call", {"name": tool, "arguments": arguments or {}}, **meta)
        return result

    def text(self, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> str:
        """Return the text of a call that must not fail."""
        result = self.call(tool, arguments, **meta)
        assert not result.get("isError"), result
        return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")

    def error(self, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> str:
        """Return the text of a call that must be an error of the tool."""
        result = self.call(tool, arguments, **meta)
        assert result.get("isError") is True, result
        return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")

    def wait(self, wanted: Callable[[dict[str, Any]], bool], timeout: float = PATIENCE) -> dict[str, Any]:
        """Return the first message, past or future, that is `wanted`."""
        until = time.monotonic() + timeout
        seen = 0
        with self._arrived:
            while True:
                assert not self._faults, self._faults
                for message in self.messages[seen:]:
                    if wanted(message):
                        return message
                seen = len(self.messages)
                left = until - time.monotonic()
                assert left > 0, f"nothing of the kind came in {timeout} s; came: {str(self.messages[-5:])[:2000]}"
                assert not self._ended, f"the server ended; it said: {self.log()[-2000:]}"
                self._arrived.wait(left)

    def notes(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of all notifications of `method` so far."""
        with self._arrived:
            return [message["params"] for message in self.messages if message.get("method") == method]

    def log(self) -> str:
        return self._stderr.read_text(errors="replace")

    # -- start and end

    def shake_hands(self) -> None:
        hello = {
            "protocolVersion": self.revision,
            "capabilities": self.capabilities,
            "clientInfo": {"name": "tests", "version": "1"},
        }
        self.hello = self.request("initialize", hello)
        self.notify("notifications/initialized")

    def close(self, timeout: float = PATIENCE) -> int:
        """End the conversation and the server, and return its exit code."""
        raise NotImplementedError

    def kill(self) -> None:
        """End every remaining process."""
        raise NotImplementedError

    # -- receiving

    def _hear(self, message: Any) -> None:
        """Take a message of the server, or an array of them."""
        parts = message if isinstance(message, list) else [message]
        faults = [fault for part in parts if (fault := self._fault(part))]
        self._arrive(parts, faults[0] if faults else None)
        for part in parts:
            if "id" in part and "method" in part:
                self._reply(part)

    def _arrive(self, parts: list[dict[str, Any]], fault: str | None) -> None:
        with self._arrived:
            self.messages += parts
            if fault is not None:
                self._faults.append(fault)
            self._arrived.notify_all()

    def _reply(self, message: dict[str, Any]) -> None:
        if self._answer is None:
            self.send({"id": message["id"], "error": {"code": -32601, "message": "not here"}})
            return
        result = self._answer(message["method"], message.get("params", {}))
        if result is not None:
            self.send({"id": message["id"], "result": result})

    def _fault(self, message: dict[str, Any]) -> str | None:
        if "error" in message and message.get("id") is None:
            message = {
                **message,
                "id": 0,
            }  # an unreadable id is null: the one exception (contract/cli.md)
        method = message.get("method") or self._methods.get(message.get("id"), "")
        names = ["JSONRPCMessage"]
        body: Any = message
        if "result" in message:
            names.append(self._result_type(method, message["result"]))
            body = message["result"]
        elif "method" in message:
            names.append((REQUESTS if "id" in message else NOTIFICATIONS)[method])
        for name, value in zip(names, (message, body), strict=False):
            validator = schema(self.revision, name)
            found = [f"{list(e.instance_path)}: {e.message[:300]}" for e in validator.iter_errors(value)]
            if found:
                return f"{name} of {self.revision}: {found}: {str(message)[:500]}"
        return None

    def _result_type(self, method: str, result: dict[str, Any]) -> str:
        special = {"input_required": "InputRequiredResult", "task": "Result"}
        return special.get(result.get("resultType", ""), RESULTS.get(method, "Result"))


class Stdio(Server):
    """A client over the standard streams of its own server process."""

    def __init__(self, process: subprocess.Popen[bytes], *rest: Any) -> None:
        super().__init__(process, *rest)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def close(self, timeout: float = PATIENCE) -> int:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        assert not self._faults, self._faults
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self.close()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError as error:
                self._arrive([], f"not JSON on stdout: {line[:200]!r} ({error})")
                continue
            self._hear(message)
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()


@functools.cache
def schema(revision: str, name: str) -> jsonschema_rs.Validator:
    """Return the validator of one type of one revision."""
    document = json.loads((ROOT / "tests" / "spec" / f"{revision}.schema.json").read_text())
    key = "$defs" if "$defs" in document else "definitions"
    wanted = {"$schema": document["$schema"], key: document[key], "$ref": f"#/{key}/{name}"}
    if name not in document[key]:
        raise AssertionError(f"{name} is no type of {revision}: it must not be sent there")
    return jsonschema_rs.validator_for(wanted)


@contextlib.contextmanager
def served(
    folder: Path,
    *options: str,
    revision: str = "2025-11-25",
    capabilities: Mapping[str, Any] | None = None,
    answer: Callable[[str, dict[str, Any]], Any] | None = None,
    env: Mapping[str, str] | None = None,
    state: Path | None = None,
    command: Sequence[str] = (COMMAND,),
    handshake: bool = True,
) -> Iterator[Server]:
    """Yield a server in `folder` with its own home and state, after its handshake; end it and check its end."""
    state = state or folder / "state"
    stderr = folder / "stderr.log"
    work, environment = surroundings(folder, state, env)
    with stderr.open("ab") as log:
        process = forked_command.start(
            [*command, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=work,
            env=environment,
        )
    server = Stdio(process, revision, capabilities or {}, answer, state, stderr)
    try:
        if handshake and revision != STATELESS:
            server.shake_hands()
        yield server
        if process.poll() is None:
            assert server.close() == 0, server.log()
    finally:
        server.kill()


def surroundings(folder: Path, state: Path, env: Mapping[str, str] | None) -> tuple[Path, dict[str, str]]:
    """Return a working directory and an environment with a home for a server."""
    for name in ("home", "work"):
        (folder / name).mkdir(exist_ok=True)
    own = {"HOME": str(folder / "home"), "TOOLGATE_STATE": str(state), "LANG": "C.UTF-8"}
    return folder / "work", {"PATH": os.environ["PATH"], **own, **(env or {})}


def children(pid: int) -> set[int]:
    """Return all living descendants of a process, by /proc."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found


def processes_with(mark: str) -> set[int]:
    """Return living processes whose command line has `mark`: tests mark their own with an odd number of seconds."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
    return found


def eventually(check: Callable[[], bool], timeout: float = PATIENCE) -> bool:
    """Return whether `check` becomes true in time. For state that no message shows, such as the end of a process. Each
    look takes processor time from other tests: they become rarer the longer it takes."""
    begun = time.monotonic()
    turn: queue.Queue[None] = queue.Queue()
    while not check():
        taken = time.monotonic() - begun
        if taken > timeout:
            return False
        with contextlib.suppress(queue.Empty):
            turn.get(timeout=min(max(0.02, taken / 20), 0.1))
    return True
