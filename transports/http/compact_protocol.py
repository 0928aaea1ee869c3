"""Speak HTTP/1.1 as uvicorn does, with less memory for an idle connection and an idle stream."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sized
from typing import Any, Literal

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from toolgate.transports.http.asgi import Scope

SHARED_EVENT = asyncio.Event()  # of all streams: none waits for it


class CompactProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with its attributes in slots: a dictionary of so many takes 1.5 KB for each connection.

    An attribute that another version of uvicorn adds goes to the dictionary.
    """

    __slots__ = (
        "_is_lost",
        "_on_disconnect",
        "_streaming",
        "access_log",
        "access_logger",
        "app",
        "app_state",
        "asgi_version",
        "client",
        "config",
        "connections",
        "cycle",
        "expect_100_continue",
        "flow",
        "headers",
        "limit_concurrency",
        "logger",
        "loop",
        "parser",
        "pipeline",
        "root_path",
        "scheme",
        "scope",
        "server",
        "server_state",
        "tasks",
        "timeout_keep_alive",
        "timeout_keep_alive_task",
        "transport",
        "url",
        "ws_protocol_class",
    )

    def __init__(self, *settings: Any, **more: Any) -> None:
        super().__init__(*settings, **more)
        self.pipeline = _Pipeline()  # type: ignore[assignment]  # all of a deque that uvicorn uses
        self._is_lost = False
        self._streaming: RequestResponseCycle | None = None  # the request that is answered by a stream
        self._on_disconnect: Callable[[], None] | None = None  # called when that stream's reader disconnects

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = _CompactFlow(transport, self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._is_lost = True
        if self._on_disconnect is not None:
            self._on_disconnect()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not self._streaming:  # else nobody reads the rest
            super().on_body(body)

    def begin_stream(self, scope: Scope, on_disconnect: Callable[[], None]) -> None:
        """Drop the request of `scope`, whose answer has begun and may stay open for days. Call `on_disconnect` when its
        client disconnects, or now if it has. Nothing may be received for this request from now on."""
        self._on_disconnect = on_disconnect
        if self.cycle.scope is scope:  # else the client has sent more requests already
            self._streaming = self.cycle
            self.cycle.message_event = SHARED_EVENT
        if self.scope is scope:  # else the head of another request is coming
            self.headers = []
        method = scope["method"]
        scope.clear()
        scope["method"] = method  # which uvicorn reads as it sends
        if self._is_lost:
            on_disconnect()

    def end_stream(self) -> None:
        self._on_disconnect = self._streaming = None


class ArrivedEvent(asyncio.Event):
    """An event that is set: all of a request has come. Nearly none is waited for, so it has no deque of 700 bytes."""

    _value = True
    _waiters: Any = ()
    __init__ = object.__init__

    async def wait(self) -> Literal[True]:
        self._waiters = self._waiters or deque()
        return await super().wait()


class ArrivedCycle(RequestResponseCycle):
    """A request that has arrived whole. What all of them begin with is in the class: uvicorn sets 20 attributes."""

    access_log = False
    access_logger = logging.getLogger("uvicorn.access")
    chunked_encoding: bool | None = None
    disconnected = False
    expected_content_length = 0
    logger = logging.getLogger("uvicorn.error")
    more_body = False
    response_complete = False
    response_started = False
    waiting_for_100_continue = False

    def __init__(self, protocol: HttpToolsProtocol, scope: Scope, body: bytes, *, keep_alive: bool) -> None:
        self.scope = scope  # type: ignore[assignment]
        self.body = body  # type: ignore[assignment]
        self.transport = protocol.transport
        self.flow = protocol.flow
        self.default_headers = protocol.server_state.default_headers
        self.message_event = ArrivedEvent()
        self.keep_alive = keep_alive
        self.on_response = protocol.on_response_complete


class _Pipeline(list[Any]):
    """Requests that wait for the answer of another one. An empty deque takes 700 bytes more."""

    __slots__ = ()

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


class _CompactFlow(FlowControl):
    """uvicorn's flow control, without an event, of 800 bytes, for a connection that is never paused.

    While requests wait in the `pipeline`, nothing more is read.
    """

    __slots__ = ("_is_writable_event", "_pipeline", "_transport", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        self._pipeline = pipeline
        self._transport = transport
        self.read_paused = False
        self.write_paused = False

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()

    def pause_writing(self) -> None:
        if not self.write_paused:
            self._is_writable_event = asyncio.Event()
            super().pause_writing()

    async def drain(self) -> None:
        if self.write_paused:
            await super().drain()
