"""Send bytes to a listening server in segments, and read all answers of the connection."""

import contextlib
import re
import socket

from tests.clients.raw_client import PATIENCE
from tests.clients.raw_http_client import Site

USED = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def exchange(site: Site, *parts: bytes, used: bool = False, pause: float = 0.1) -> tuple[list[int], bytes]:
    """Return the statuses of all answers, and what came, until the server closes the connection.

    Each part is a segment of its own: the next one follows an answer, or `pause` seconds.
    """
    came = b""
    with site.socket() as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if used:
            wire.sendall(USED)
            assert b'"ok"' in receive_answer(wire)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            for part in parts:
                wire.settimeout(PATIENCE)
                wire.sendall(part)
                wire.settimeout(pause)
                with contextlib.suppress(TimeoutError):
                    came += wire.recv(65_536)
        wire.settimeout(PATIENCE)
        came += receive_rest(wire)
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", came)], came


def receive_answer(wire: socket.socket) -> bytes:
    came = b""
    while b"\r\n\r\n" not in came or not came.endswith(b"}"):
        part = wire.recv(65_536)
        assert part
        came += part
    return came


def receive_rest(wire: socket.socket) -> bytes:
    came = bytearray()
    with contextlib.suppress(ConnectionResetError):  # the server closed while this side was sending
        while part := wire.recv(65_536):
            came += part
    return bytes(came)
