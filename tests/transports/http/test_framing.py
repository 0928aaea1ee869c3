"""Where a request ends: on a fresh and on a used connection, in one segment and in two, each byte has one meaning."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE
from tests.clients.raw_http_client import POSTED, Site
from tests.clients.segments import USED, exchange, receive_rest
from tests.transports.test_streamable_http import modern

INNER = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"  # a request inside a body, or behind a broken one


UPGRADES = ["Connection: Upgrade\r\nUpgrade: x", "Connection: keep-alive, upgrade\r\nUpgrade: websocket"]
UPGRADES += ["Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings"]


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("target", ["GET /nowhere", "POST /mcp", "DELETE /mcp", "PUT /health"])
def test_the_body_of_a_request_that_offers_an_upgrade_is_no_request(
    shared: Site, target: str, upgrade: str, framing: str, is_split: bool, used: bool
) -> None:
    length = f"Content-Length: {len(INNER)}" if framing == "length" else "Transfer-Encoding: chunked"
    body = INNER if framing == "length" else b"%x\r\n%b\r\n0\r\n\r\n" % (len(INNER), INNER)
    head = f"{target} HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\nConnection: close\r\n{length}\r\n\r\n".encode()
    parts: Sequence[bytes] = (head, body) if is_split else (head + body,)
    statuses, came = exchange(shared, *parts, used=used)
    assert len(statuses) == 1, came
    assert b'"ready"' not in came


def list_tools(*left_out: str) -> tuple[bytes, bytes]:
    """Return the lines of a head without its last line, and the body, of a call of 2026-07-28."""
    body, named = modern("tools/list")
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**POSTED, **named}.items() if name not in left_out)
    return f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{lines}".encode(), json.dumps(body).encode()


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_trailer_is_no_header(shared: Site, is_split: bool, used: bool) -> None:
    lines, body = list_tools("Mcp-Method")
    head = lines + b"Transfer-Encoding: chunked\r\nTrailer: Mcp-Method\r\nConnection: close\r\n\r\n"
    content = b"%x\r\n%b\r\n0\r\nMcp-Method: tools/list\r\n\r\n" % (len(body), body)
    parts: Sequence[bytes] = (head, content) if is_split else (head + content,)
    statuses, came = exchange(shared, *parts, used=used)
    assert statuses == [400]
    assert b"the Mcp-Method header is missing" in came


@pytest.mark.parametrize("endless", [b"a: b\r\n", b"x" * 1_000])
@pytest.mark.parametrize("begin", [b"1\r\n{\r\n0\r\n", b"1;"])
def test_trailers_and_chunk_extensions_end(shared: Site, begin: bytes, endless: bytes) -> None:
    head = list_tools()[0] + b"Transfer-Encoding: chunked\r\n\r\n"
    statuses, came = exchange(shared, head + begin + endless * (1_000_000 // len(endless)))
    assert statuses in ([400], [431]), came


def test_a_client_that_waits_to_send_its_body_is_refused_on_a_connection_that_closes(shared: Site) -> None:
    refused = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nExpect: 100-continue\r\n"
    statuses, came = exchange(shared, refused + b"Content-Length: %d\r\n\r\n" % len(USED), USED)
    assert statuses == [415]
    assert b"\r\nconnection: close\r\n" in came


def test_a_stream_whose_answer_is_there_comes_in_one_segment(shared: Site) -> None:
    """Proxies written in Go may lose what comes after the first one."""
    lines, body = list_tools("Accept")
    head = lines + b"Accept: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    with shared.socket() as wire:
        for _ in range(3):
            wire.sendall(head + body)
            came = wire.recv(2**20)
            assert b"\r\n: open\r\n" in came and came.endswith(b"\r\n0\r\n\r\n")


def test_requests_that_wait_for_an_answer_take_no_more_memory(listen: Callable[..., Site]) -> None:
    site = listen()
    data = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 120_000  # 4 MiB
    before = resident_bytes(site.process.pid)
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(site.socket()) for _ in range(3)]
        senders = [threading.Thread(target=send_some, args=(wire, data)) for wire in wires]
        readers = [threading.Thread(target=receive_rest, args=(wire,)) for wire in wires]
        for thread in (*senders, *readers):
            thread.start()
        for _ in range(20):
            assert site.ask("GET", "/health")[0].status == 200
            assert resident_bytes(site.process.pid) - before < 100 * 2**20
        for wire in wires:
            wire.shutdown(socket.SHUT_RDWR)
        for thread in (*senders, *readers):
            thread.join(PATIENCE)


def send_some(wire: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the test has ended
        wire.sendall(data)


def resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024
