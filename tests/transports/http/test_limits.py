"""Time limits of the HTTP server, shortened: slow heads, slow bodies, stuck readers. In this process, over real
sockets."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.servers.http_in_process import inside
from tests.transports.test_streamable_http import modern
from toolgate.transports.http import server as http
from toolgate.transports.http.requests.bearer import LocalAuth
from toolgate.transports.http.requests.front import Front
from toolgate.transports.http.wire.connections import Connections
from toolgate.transports.http.wire.listener import ConnectionLimits, Listener
from toolgate.transports.http.wire.request import refuse

SHORT = ConnectionLimits(head=0.3, body=0.3, quiet=0.3, unread=0.4, tick=0.05)
PATIENT = ConnectionLimits(body=2 * PATIENCE)
HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def serving(
    folder: Path,
    body: Callable[[int, Any], Awaitable[None]],
    *,
    connections: Connections | None = None,
    wire: ConnectionLimits | None = None,
    **limits: float,
) -> None:
    """Run `body(port, inside)` against a listening server in this process with `/mcp` alone; `/probe` is a probe."""

    async def main() -> None:
        async with asyncio.timeout(2 * PATIENCE), inside(folder, **limits) as here:
            bound = http.bind("127.0.0.1", 0)
            port = bound.getsockname()[1]

            async def finish() -> None:
                here.sessions.close_all()

            endpoint = LocalAuth(here.streamable.endpoints()["/mcp"])
            front = Front({"/mcp": endpoint}, lambda _: refuse(404, "no"), [], [], loopback=True, behind_proxy=False)
            places = Connections() if connections is None else connections
            listener = Listener(front, places, here.app.host.dispatcher().answers, ["/probe"], wire)
            server = asyncio.create_task(http.serve(listener, bound, finish))
            try:
                await body(port, here)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                await server

    asyncio.run(main())


def drip(port: int, data: bytes, begin: bytes = b"") -> tuple[bytes, float]:
    """Send a byte every 20 ms until the server disconnects; return its answer and the seconds."""
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as wire:
        wire.sendall(begin)
        wire.settimeout(0.02)
        came = b""
        for n in range(1_000):
            try:
                part = wire.recv(65_536)
                came += part
                if not part:
                    break
            except TimeoutError:
                pass
            except ConnectionResetError:
                break
            try:
                wire.sendall(data[n % len(data) :][:1])
            except OSError:
                break
        return came, time.monotonic() - begun


def test_a_head_that_comes_a_byte_at_a_time_is_cut_off(tmp_path: Path) -> None:
    async def body(port: int, here: Any) -> None:
        for begin, data in (
            (b"", b"GET /mcp HTTP/1.1\r\n" + b"X-Filler: aaaaaaaaaaa\r\n" * 100),
            (b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /mcp HTTP/1.1\r\n" + b"X: a\r\n" * 500),
            (b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n"),
        ):
            came, took = await asyncio.to_thread(drip, port, data, begin)
            assert took < 5
            assert came.count(b"HTTP/1.1") == (1 if begin else 0)

    serving(tmp_path, body, wire=SHORT)


def test_a_connection_that_says_nothing_is_cut_off(tmp_path: Path) -> None:
    def silent(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as wire:
            return wire.recv(1)

    async def body(port: int, here: Any) -> None:
        assert await asyncio.to_thread(silent, port) == b""

    serving(tmp_path, body, wire=SHORT)


def test_a_body_that_comes_a_byte_at_a_time_is_408(tmp_path: Path) -> None:
    async def body(port: int, here: Any) -> None:
        for framing in (b"Content-Length: 5000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
            came, took = await asyncio.to_thread(drip, port, b"1\r\na\r\n", HEAD + framing)
            assert came.startswith(b"HTTP/1.1 408")
            assert took < 5

    serving(tmp_path, body, wire=SHORT)


def test_the_rest_of_a_refused_body_is_read_for_a_while_only(tmp_path: Path) -> None:

    async def body(port: int, here: Any) -> None:
        for head in (HEAD.replace(b"application/json", b"text/plain"), HEAD.replace(b"POST", b"PUT")):
            came, took = await asyncio.to_thread(drip, port, b"a", head + b"Content-Length: 999999\r\n\r\n")
            assert came.startswith((b"HTTP/1.1 415", b"HTTP/1.1 405"))
            assert took < 5

    serving(tmp_path, body, wire=SHORT)


@pytest.mark.parametrize(
    ("lines", "status", "wire"),
    [
        (b"", b"415", SHORT),
        (b"Expect: 100-continue\r\n", b"415", PATIENT),
        # from a proxy: the body may come without being asked for, at once
        (b"Expect: 100-continue\r\nVia: 1.1 a\r\n", b"403", PATIENT),
    ],
)
def test_a_client_that_waits_with_its_body_is_refused_on_a_connection_that_closes(
    tmp_path: Path, lines: bytes, status: bytes, wire: ConnectionLimits
) -> None:
    def post(port: int) -> bytes:
        head = HEAD.replace(b"application/json", b"text/plain")
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as wire:
            wire.sendall(head + lines + b"Content-Length: 3000000\r\n\r\n")
            return whole_answer(wire)

    async def body(port: int, here: Any) -> None:
        came = await asyncio.to_thread(post, port)
        assert came.startswith(b"HTTP/1.1 " + status)
        assert b"\r\nconnection: close\r\n" in came

    serving(tmp_path, body, wire=wire)


def test_a_refused_body_that_comes_is_dropped_and_the_connection_goes_on(tmp_path: Path) -> None:
    def post(port: int) -> bytes:
        head = HEAD.replace(b"application/json", b"text/plain")
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as wire:
            wire.sendall(head + b"Content-Length: 3000000\r\n\r\n" + b"x" * 3_000_000)
            wire.sendall(b"PUT /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return whole_answer(wire)

    async def body(port: int, here: Any) -> None:
        came = await asyncio.to_thread(post, port)
        assert came.startswith(b"HTTP/1.1 415")
        assert b"HTTP/1.1 405" in came

    serving(tmp_path, body, wire=SHORT)


def whole_answer(wire: socket.socket) -> bytes:
    came = b""
    while part := wire.recv(65_536):
        came += part
    return came


def test_a_call_longer_than_the_head_may_take_is_not_cut_off(tmp_path: Path) -> None:
    message, told = modern("tools/call", {"name": "wait", "arguments": {"seconds": 0.9}})

    async def body(port: int, here: Any) -> None:
        data = json.dumps(message).encode()
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items()).encode()
        head = HEAD + b"Connection: close\r\n" + lines + f"Content-Length: {len(data)}\r\n\r\n".encode()
        assert b"waited" in await asyncio.to_thread(whole, port, head + data)

    def whole(port: int, sent: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as wire:
            wire.sendall(sent)
            return whole_answer(wire)

    serving(tmp_path, body, wire=SHORT)


def test_a_reader_that_takes_nothing_is_disconnected_and_its_call_called_off(tmp_path: Path) -> None:
    message, told = modern("tools/call", {"name": "flood", "arguments": {}})
    message["params"]["_meta"]["progressToken"] = 1

    async def body(port: int, here: Any) -> None:
        data = json.dumps(message).encode()
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items()).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
        writer.write(HEAD + lines + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        while not here.streamable.running:
            await asyncio.sleep(0.01)
        while here.streamable.running:
            await asyncio.sleep(0.01)
        writer.transport.abort()

    serving(tmp_path, body, wire=SHORT)


def test_a_repeated_head_vouches_for_no_other_body(tmp_path: Path) -> None:
    """The headers that repeat parts of a body are compared with each body, whatever was compared before."""

    def call(name: str, head: list[bytes]) -> bytes:
        data = json.dumps(modern("tools/call", {"name": name, "arguments": {}})[0]).encode()
        _, told = modern("tools/call", {"name": "echo"})
        lines = "".join(f"{key}: {value}\r\n" for key, value in told.items())
        head[:] = [HEAD + lines.encode() + b"Content-Length: %d\r\n\r\n" % len(data)]
        return head[0] + data

    async def body(port: int, here: Any) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        heads: list[bytes] = []
        seen = []
        for name in ("echo", "echo", "echo", "ohce", "echo"):
            head: list[bytes] = []
            writer.write(call(name, head))
            heads += head
            answer = await reader.readuntil(b"\r\n\r\n")
            size = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            seen.append((answer.split()[1], b"-32020" in await reader.readexactly(size)))
        writer.close()
        assert len(set(heads)) == 1
        good, bad = seen[0], (b"400", True)
        assert good != bad
        assert seen == [good, good, good, bad, good]

    serving(tmp_path, body, wire=SHORT)
