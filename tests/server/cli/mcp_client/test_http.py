"""The HTTP client of `toolgate call` and `doctor` against misbehaving servers."""

import asyncio
import contextlib
import gc
import http.server
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.tools.api.outbound.test_fetch import certificate
from toolgate.server.cli.mcp_client.client import McpClientError
from toolgate.server.cli.mcp_client.http import connect, open_response, read_body, read_events
from toolgate.server.config import load
from toolgate.server.features.remote_checks import connection
from toolgate.server.features.remote_checks.target import RemoteTarget


@pytest.fixture
def rude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a server that answers one request and never closes TLS; yield its URL."""
    context, _ = certificate(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
    hung_up = threading.Event()

    def serve() -> None:
        with context.wrap_socket(listening.accept()[0], server_side=True) as spoken, contextlib.suppress(OSError):
            spoken.recv(65_536)
            spoken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            hung_up.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://localhost:{listening.getsockname()[1]}/"
        finally:
            hung_up.set()
            thread.join()


def test_a_server_that_does_not_answer_tlss_goodbye_is_not_waited_for(rude: str) -> None:
    async def ask() -> int:
        async with open_response("GET", rude, {}, b"", address="127.0.0.1") as response:
            return response.status

    assert asyncio.run(asyncio.wait_for(ask(), 15)) == 200


def test_nor_does_doctor_leave_a_connection_to_it_open(rude: str) -> None:
    found = asyncio.run(asyncio.wait_for(connection.tls(RemoteTarget(rude, load.load({}, {}))), 15))
    assert "verified" in str(found)
    gc.collect()  # what is left open is told of then, and fails the test


async def send_parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def test_an_answer_and_an_event_have_a_largest_size() -> None:
    async def read_all(*parts: bytes) -> list[tuple[str, str]]:
        return [event async for event in read_events(send_parts(*parts), 16)]

    assert asyncio.run(read_all(*[b": alive\n", b"data: 12345678\n\n"] * 9)) == [("message", "12345678")] * 9
    for parts in ([b"data: 123"] * 2, [b"data: 12\n"] * 3):
        with pytest.raises(McpClientError, match="an event is larger than 16 bytes"):
            asyncio.run(read_all(*parts))
    assert asyncio.run(read_body(send_parts(b"1" * 16), 16)) == b"1" * 16
    with pytest.raises(McpClientError, match="the answer is larger than 16 bytes"):
        asyncio.run(read_body(send_parts(b"1" * 9, b"1" * 8), 16))


def test_a_line_without_an_end_costs_what_its_size_deserves() -> None:
    def measure(count: int) -> float:
        async def read_all() -> None:
            parts = (b"x" * 1_000 for _ in range(count))
            with pytest.raises(McpClientError):
                _ = [event async for event in read_events(send_parts(*parts), 1_000 * count - 1)]

        began = time.process_time()
        asyncio.run(read_all())
        return time.process_time() - began

    measure(100)
    assert measure(16_000) < 32 * measure(2_000)  # and not 64 times


class DeepPage(http.server.BaseHTTPRequestHandler):
    """Answers with JSON that is nested too deeply for any reader."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        page = b"[" * 200_000
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None: ...


def test_an_answer_that_is_nested_too_deeply_is_refused_in_words() -> None:
    async def look(url: str) -> None:
        async with connect(url):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), DeepPage) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with pytest.raises(McpClientError, match="no JSON, or nested too deeply"):
            asyncio.run(look(f"http://127.0.0.1:{server.server_port}/mcp"))
        server.shutdown()


class UntitledPage(http.server.BaseHTTPRequestHandler):
    """Answers with a page whose title never ends."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        page = b"<title" * 500_000
        self.send_response(404)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None: ...


def test_a_page_without_an_end_of_its_title_costs_no_time() -> None:
    async def look(url: str) -> None:
        async with connect(url):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), UntitledPage) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        began = time.process_time()
        with pytest.raises(McpClientError, match="HTTP 404 with a web page: no MCP server"):
            asyncio.run(look(f"http://127.0.0.1:{server.server_port}/mcp"))
        assert time.process_time() - began < 5  # and not the square of its length
        server.shutdown()
