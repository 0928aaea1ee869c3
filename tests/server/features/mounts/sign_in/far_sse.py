"""A mounted server where people sign in, over HTTP+SSE: a stream belongs to its person, and other methods than GET are
refused at its URL."""

import contextlib
import http.server
import json
import queue
import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn, create_handler, serve


class FarStream(NamedTuple):
    """An open stream: whose it is, and what is to be sent."""

    subject: str
    messages: "queue.Queue[Any]"


class FarSse(FarSignIn):
    """What it knows and counts beside a FarSignIn."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[str, FarStream] = {}

    def end_streams(self) -> None:
        for stream in self.streams.values():
            stream.messages.put(None)
        self.streams.clear()


def create_sse_handler(far: FarSse) -> type[http.server.BaseHTTPRequestHandler]:
    handler: Any = create_handler(far)

    class SseHandler(handler):  # type: ignore[misc]  # a class that a function makes
        _stream: FarStream | None = None  # of the message that is answered

        def do_GET(self) -> None:
            if self.path != "/mcp":
                super().do_GET()
            elif (subject := self._find_subject()) is not None:
                self._open(subject)

        def do_POST(self) -> None:
            if self.path == "/mcp":
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._send(405, {})
                return
            self._stream = far.streams.get(urlsplit(self.path).query)
            if self._stream is None:
                super().do_POST()
                return
            body, given = self.rfile.read(int(self.headers["Content-Length"])), self.headers.get("Authorization", "")
            far.seen.append(given)
            found = far.access.get(given.removeprefix("Bearer "))
            if found is not None and found[0] != self._stream.subject:
                self._send(403, {"error": "a stream of somebody else"})
            else:
                self._mcp(json.loads(body), given)

        def _find_subject(self) -> str | None:
            """Return who opens a stream; it has refused others."""
            found = far.access.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
            if found is None:
                self._refuse_token()
            elif far.needed_scope and far.needed_scope not in found[2].split():
                self._refuse_scope()
            else:
                return str(found[0])
            return None

        def _open(self, subject: str) -> None:
            id, stream = secrets.token_hex(8), FarStream(subject, queue.Queue())
            far.streams[id] = stream
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            with contextlib.suppress(OSError):
                self._tell("endpoint", f"/messages?{id}")
                while (message := stream.messages.get()) is not None:
                    self._tell("message", json.dumps(message))
            self.close_connection = True

        def _tell(self, name: str, data: str) -> None:
            self.wfile.write(f"event: {name}\ndata: {data}\n\n".encode())
            self.wfile.flush()

        def _send(self, status: int, told: Any, *headers: tuple[str, str]) -> None:
            if status == 200 and self._stream is not None:
                self._stream.messages.put(told)
                status, told = 202, None
            super()._send(status, told, *headers)

    return SseHandler


@contextlib.contextmanager
def far_sse() -> Iterator[FarSse]:
    far = FarSse()
    with serve(far, create_sse_handler(far)):
        try:
            yield far
        finally:
            far.end_streams()
