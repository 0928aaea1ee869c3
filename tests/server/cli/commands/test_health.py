"""`toolgate health` reports any server's answer, with an exit code for container engines."""

import asyncio
import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from toolgate.server.cli.commands import health
from toolgate.server.config import load

READY = (200, b'{"status":"ready","sandbox":"bwrap"}')


@contextmanager
def answering(status: int, body: bytes, asked: list[str]) -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.headers['host']}{self.path}")
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield str(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def told(capsys: pytest.CaptureFixture[str], url: str | None = None, **flags: str) -> tuple[int, str]:
    code = asyncio.run(health.health(load.load(flags, {}), url=url))
    return code, capsys.readouterr().out.rstrip("\n")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_it_asks_on_this_machine_wherever_the_server_listens(capsys: pytest.CaptureFixture[str], host: str) -> None:
    asked: list[str] = []
    with answering(*READY, asked) as port:
        assert told(capsys, host=host, port=port) == (0, "ready")
        assert told(capsys, f"http://127.0.0.1:{port}/") == (0, "ready")
    name = "localhost" if host == "localhost" else "127.0.0.1"
    assert asked == [f"{name}:{port}/ready", f"127.0.0.1:{port}/ready"]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, b'{"status":"ending"}', "ending"),
        (500, READY[1], "{url} answers 500"),
        (200, b"<html>another</html>", "{url}: no Toolgate answers"),
        (200, b'{"status":"\\u001b[31mready"}', "{url}: no Toolgate answers"),
        (200, b"[" * 100_000, "{url}: no Toolgate answers"),
        (404, b"[]", "{url}: no Toolgate answers"),
    ],
)
def test_what_is_not_ready_is_told_and_fails(
    capsys: pytest.CaptureFixture[str], status: int, body: bytes, said: str
) -> None:
    with answering(status, body, []) as port:
        url = f"http://127.0.0.1:{port}/ready"
        assert told(capsys, port=port) == (1, said.format(url=url))


def test_a_server_that_does_not_answer_is_given_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        assert told(capsys, port=port) == (1, f"http://127.0.0.1:{port}/ready: no answer in 0.1 s")
