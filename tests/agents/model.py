"""Serve a scripted model to agents of every kind, and record what they send it."""

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.agents.dialects import DIALECTS, Dialect, Shown

DONE = "That is all."
END = "end"  # the step after the last: no call


@dataclass(frozen=True, slots=True)
class Step:
    """A call that the model makes. Its arguments may come from earlier answers; `before` runs once, first."""

    tool: str
    arguments: Mapping[str, Any] | Callable[[Mapping[str, Shown]], Mapping[str, Any]] = field(default_factory=dict)
    before: Callable[[], object] | None = None


@dataclass
class Record:
    """The requests that the model was sent."""

    first: str = ""  # the first request that is part of the script
    shown: dict[str, Shown] = field(default_factory=dict)  # by the name of the step
    offered: dict[str, list[str]] = field(default_factory=dict)  # the server's tools, when the step was due
    seconds: dict[str, float] = field(default_factory=dict)  # from the call to the first request with its result
    done: bool = False


class Model:
    """The scripted model. An agent that repeats a request gets the same step."""

    def __init__(self, script: Mapping[str, Step], log: Path | None = None) -> None:
        self.record = Record()
        self._script = script
        self._names = [*script, END]
        self._log = log
        self._begun: set[str] = set()
        self._called: dict[str, float] = {}
        self._lock = threading.Lock()

    def answer(self, path: str, body: Any) -> Iterator[Any]:
        """Return the events of the answer to a request. Raises KeyError for one that is not for a model."""
        dialect = next((one for part, one in DIALECTS.items() if part in path), None)
        if dialect is None or path.endswith("/count_tokens"):
            raise KeyError(path)
        with self._lock:
            self._write(path, body)
            return self._next(dialect, body)

    def _write(self, path: str, body: Any) -> None:
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(json.dumps({"path": path, "body": body}) + "\n")

    def _next(self, dialect: Dialect, body: Any) -> Iterator[Any]:
        offers = dialect.offers(body)
        deferred = dialect.deferred(body)
        if not offers and not deferred:
            if dialect.is_connecting(body):
                return dialect.load(body, ())
            return dialect.say(body, "{}")  # a title, a summary or a classifier: not part of the script
        self.record.first = self.record.first or json.dumps(body)
        shown = dialect.shown(body)
        for step in shown:
            self.record.shown[self._names[step]] = shown[step]
            self.record.seconds.setdefault(self._names[step], time.monotonic() - self._called[self._names[step]])
        at = max(shown, default=-1) + 1
        name = self._names[at]
        self.record.offered[name] = sorted({*offers, *deferred})
        if name == END:
            self.record.done = True
            return dialect.say(body, DONE)
        step = self._script[name]
        if name not in self._begun:
            self._begun.add(name)
            if step.before is not None:
                step.before()
        if step.tool in offers:
            self._called.setdefault(name, time.monotonic())
            arguments = step.arguments(self.record.shown) if callable(step.arguments) else step.arguments
            return dialect.call(body, at, offers[step.tool], arguments)
        if step.tool in deferred:
            return dialect.load(body, deferred.values())
        return dialect.say(body, f"There is no {step.tool}.")


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: Model

    def do_GET(self) -> None:
        self._send(404, "application/json", b'{"error": {"message": "not here"}}')

    do_HEAD = do_GET

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        try:
            events = list(self.model.answer(path, json.loads(data or b"{}")))
        except KeyError:
            self.do_GET()
            return
        body = b"".join(_event(event) for event in events)
        self._send(200, "text/event-stream", body)

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _event(event: Any) -> bytes:
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


@contextlib.contextmanager
def serve_model(model: Model) -> Iterator[str]:
    """Serve the model on a free port; yield its URL."""
    handler = type("Handler", (_Handler,), {"model": model})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
