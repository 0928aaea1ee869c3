"""A refusal waits for the end of the body: a proxy would disconnect a client that still sends."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from toolgate.transports.http import guard as http_guard
from toolgate.transports.http.asgi import Receive, Scope, Send, refuse

PARTS = 4


def happened(
    *headers: tuple[str, str], status: int = 401, parts: Iterator[bytes] | None = None, begun: bool = False
) -> list[Any]:
    """Return the reads and sends, in order, of a request that is refused unread or partly read."""
    told: list[Any] = []
    coming = parts or iter([b"x" * 50_000] * PARTS)

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await receive()
        await refuse(send, status, "no")

    async def receive() -> dict[str, Any]:
        body = next(coming, b"")
        told.append(len(body))
        return {"type": "http.request", "body": body, "more_body": bool(body)}

    async def send(message: Any) -> None:
        told.append(message.get("status", "body"))

    async def main() -> None:
        given = {name.encode(): value.encode() for name, value in headers}
        async with asyncio.timeout(PATIENCE):
            await app({}, *http_guard.BodyDrain().wrap(given, receive, send))

    asyncio.run(main())
    return told


WHOLE = [50_000] * PARTS + [0]


@pytest.mark.parametrize("header", [("content-length", "200000"), ("transfer-encoding", "chunked")])
def test_a_refusal_waits_for_the_end_of_a_large_body(header: tuple[str, str]) -> None:
    assert happened(header) == [*WHOLE, 401, "body"]


def test_a_small_waiting_or_slow_body_is_refused_at_once() -> None:
    assert happened(("content-length", "2000")) == [401, "body"]
    assert happened(("content-length", "200000"), ("expect", "100-continue")) == [401, "body"]
    assert happened(("content-length", "200000"), status=408) == [408, "body"]


def test_a_refusal_waits_for_a_client_that_got_100_continue() -> None:
    """Otherwise a proxy would take the rest of its body for the next request."""
    assert happened(("content-length", "200000"), ("expect", "100-continue"), begun=True) == [*WHOLE, 401, "body"]


def test_a_proxy_that_forwards_expect_is_not_believed_to_wait() -> None:
    told = (("content-length", "200000"), ("expect", "100-continue"), ("x-forwarded-for", "192.0.2.1"))
    assert happened(*told) == [*WHOLE, 401, "body"]


def test_with_many_refused_bodies_one_more_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_guard, "MAX_DRAINS", 0)
    assert happened(("content-length", "200000")) == [401, "body"]


def test_a_refused_body_is_read_up_to_four_times_the_limit() -> None:
    endless = itertools.repeat(b"x" * 2**20)
    told = happened(("transfer-encoding", "chunked"), parts=endless)
    assert told == [2**20] * 64 + [401, "body"]


def test_a_body_that_does_not_come_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_guard, "DRAIN_TIME", 0.05)
    told: list[Any] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await refuse(send, 401, "no")

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        told.append(message["type"])

    async def main() -> None:
        given = {b"content-length": b"200000"}
        async with asyncio.timeout(PATIENCE):
            await app({}, *http_guard.BodyDrain().wrap(given, receive, send))

    asyncio.run(main())
    assert told == ["http.response.start", "http.response.body"]
