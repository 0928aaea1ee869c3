"""A response that breaks is resumed from its last event, and a request that was sent is never one that did not run."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import pytest

from toolgate.server.features.mounts.upstream import http
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamRefusedError
from toolgate.server.features.mounts.upstream.http import HttpWire
from toolgate.server.features.mounts.upstream.peer import UpstreamPeer

ANSWER = b'data: {"jsonrpc":"2.0","id":1,"result":{"x":1}}\n\n'


class Stream:
    """A response of events."""

    status, headers, is_stream, is_json = 200, dict[str, str](), True, False

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts

    @property
    async def body(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part

    async def drain(self) -> None: ...


class Client:
    """Answers requests with these streams, and then refuses the connection."""

    def __init__(self, *streams: Stream) -> None:
        self._streams = list(streams)
        self.asked: list[tuple[str, str]] = []

    @contextlib.asynccontextmanager
    async def open(
        self, method: str, headers: Mapping[str, str], _body: bytes, *, is_call: bool = True
    ) -> AsyncGenerator[Stream]:
        assert is_call is (method == "POST")
        self.asked.append((method, headers.get("Last-Event-ID", "")))
        if not self._streams:
            raise MountError("CONNECT_FAILED", "no connection to it: connection refused")
        yield self._streams.pop(0)


def ask(client: Client) -> dict[str, Any]:
    """Return the answer to one request. Raises MountError."""

    async def body() -> dict[str, Any]:
        peer = UpstreamPeer(lambda _method, _params: None)
        peer.wire = HttpWire(client, peer)  # type: ignore[arg-type]
        return await peer.request("tools/call", {}, 30.0)

    return asyncio.run(body())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "RESUME_AFTER", 0.0)


def test_a_stream_that_broke_is_resumed_from_its_last_event() -> None:
    client = Client(Stream(b"id: 7\ndata:\n\n"), Stream(b"id: 8\ndata:\n\n"), Stream(ANSWER))
    assert "x" in ask(client)
    assert client.asked == [("POST", ""), ("GET", "7"), ("GET", "8")]


@pytest.mark.parametrize("streams", [(Stream(b": nothing\n\n"),), (Stream(b"id: 7\ndata:\n\n"),)])
def test_a_request_that_was_sent_may_have_run(streams: tuple[Stream, ...]) -> None:
    with pytest.raises(MountError) as caught:
        ask(Client(*streams))
    assert caught.value.code == "CONNECTION_LOST"


def test_a_request_that_was_not_sent_did_not_run() -> None:
    with pytest.raises(MountError) as caught:
        ask(Client())
    assert caught.value.code == "CONNECT_FAILED"


class Refused(Stream):
    """A response that is no success."""

    is_stream, is_json = False, True

    def __init__(self, status: int, error: str) -> None:
        super().__init__()
        self.status = status
        self._body = b'{"jsonrpc":"2.0","id":1,"error":%s}' % error.encode()

    async def read(self, _limit: int) -> bytes:
        return self._body

    def describe(self, _body: bytes) -> str:
        return "JSON"


@pytest.mark.parametrize(
    ("status", "error", "is_over"),
    [
        (404, '{"code":-32001,"message":"Session not found"}', True),
        (404, '{"code":0,"message":"gone"}', True),
        (400, '{"code":-32000,"message":"Bad Request: No valid session ID provided"}', True),
        (400, '{"code":-32000,"message":"Bad Request: Server not initialized"}', True),
        (400, '{"code":-32600,"message":"Session not found"}', True),
        (503, '{"code":-32000,"message":"unknown session"}', True),
        (500, '{"code":-32000,"message":"database timeout after insert"}', False),
        (500, '{"code":-32000,"message":"the session of the database ended"}', False),
        (400, '{"code":-32600,"message":"the field n is missing"}', False),
        (400, '{"code":-32602,"message":"session must be a number"}', False),
    ],
)
def test_a_call_is_repeated_only_where_the_session_is_gone(status: int, error: str, is_over: bool) -> None:
    async def body() -> None:
        peer = UpstreamPeer(lambda _method, _params: None)
        wire = peer.wire = HttpWire(Client(Refused(status, error)), peer)  # type: ignore[arg-type]
        wire._session = "known"
        with pytest.raises((MountError, UpstreamRefusedError)) as caught:
            await peer.request("tools/call", {}, 30.0)
        assert (getattr(caught.value, "code", "") == "SESSION_EXPIRED") is is_over
        assert peer.has_expired is is_over

    asyncio.run(body())
