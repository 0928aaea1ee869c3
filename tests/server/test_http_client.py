"""The HTTP client of `toolgate call` and `doctor`, at servers that do not behave."""

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from tests.tools.test_web import certificate
from toolgate.server.http_client import exchange


def test_a_server_that_does_not_answer_tlss_goodbye_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = certificate(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
    hung_up = threading.Event()

    def serve() -> None:
        with context.wrap_socket(listening.accept()[0], server_side=True) as spoken:
            spoken.recv(65_536)
            spoken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            hung_up.wait(60)

    async def ask() -> int:
        url = f"https://localhost:{listening.getsockname()[1]}/"
        async with exchange("GET", url, {}, b"", address="127.0.0.1") as response:
            return response.status

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert asyncio.run(asyncio.wait_for(ask(), 15)) == 200
        finally:
            hung_up.set()
            thread.join()
