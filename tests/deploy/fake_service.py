"""A fake service on a free loopback port, whose answers are a function of the request."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Mapping[str, str], bytes]


class FakeService:
    """`asked` holds the path (with the query) and the body of each request so far; `over` is set at the end."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.asked: list[tuple[str, bytes]] = []
        self.over = threading.Event()


@contextlib.contextmanager
def fake_service(answer: Callable[[FakeService, str, bytes], Answer]) -> Iterator[FakeService]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            service.asked.append((self.path, body))
            status, headers, content = answer(service, self.path, body)
            with contextlib.suppress(OSError):  # the client may be gone
                self.send_response(status)
                for name, value in {"content-length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service = FakeService(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield service
    finally:
        service.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
