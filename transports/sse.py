"""Serves HTTP+SSE, the transport of 2024-11-05: one stream a client, and POSTs whose answers come on it.

The stream is the session: when it ends, so does the session, and what runs in it is called off. Knows HTTP and streams;
knows nothing of MCP methods.
Source: MCP 2024-11-05 basic/transports, "HTTP with SSE".
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from functools import partial
from typing import Any

from sse_starlette import EventSourceResponse

from toolgate.server.budget import Claim
from toolgate.server.principal import Principal
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.messages import Inbound, Request, decode_in_turns
from toolgate.transports.http import body as bodies
from toolgate.transports.http import post_reply
from toolgate.transports.http.asgi import Headers, Receive, Scope, Send, refuse
from toolgate.transports.http.bearer import ScopeCheck
from toolgate.transports.http.budgets import HttpBudgets, admit_request, create_budgets
from toolgate.transports.http.event_stream import EventStream
from toolgate.transports.http.session import HttpSession
from toolgate.transports.http.sessions import Sessions
from toolgate.transports.http.stream_response import LARGE

log = logging.getLogger("toolgate.sse")

PULSE = 15  # seconds between comments on a quiet stream


class SseResponse(EventSourceResponse):
    """sse-starlette's response, but for its watch on uvicorn, which polls: whoever serves ends the streams."""

    async def _listen_for_exit_signal_with_grace(self) -> None:
        await asyncio.Event().wait()


class SseTransport:
    """The two endpoints: `stream` behind `/sse`, `message` behind `/messages`. `caller(scope)` says who calls,
    `permits` what they lack for what they ask; None where everyone may do everything. `shared` is what principals
    share."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        sessions: Sessions,
        caller: Callable[[Scope], Principal],
        *,
        permits: ScopeCheck | None = None,
        shared: HttpBudgets | None = None,
        pulse: float = PULSE,
    ) -> None:
        self._dispatcher = dispatcher
        self._sessions = sessions
        self._caller = caller
        self._permits = permits
        self._pulse = pulse
        self._shared = shared or create_budgets(dispatcher.answers)
        self._bodies = bodies.BodyReader(self._shared.bodies)
        self.running: set[asyncio.Task[None]] = set()
        self.ending = False  # no request is begun any more

    @property
    def streams(self) -> Collection[EventStream]:
        """Those that are read now: all."""
        return list(self._sessions.streams())

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await refuse(send, 405, "GET", [(b"allow", b"GET")])
            return
        principal = self._caller(scope)
        place = await admit_request(self._shared, principal, send)
        if place is None:
            return
        try:
            await self._stream(principal, scope, receive, send)
        finally:
            place.release()

    async def _stream(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        held = self._sessions.open(principal)
        if held is None:
            await refuse(send, 503, "too many sessions", [(b"retry-after", b"30")])
            return
        place = self._shared.streams.take(principal.name, 1, partial(self._sessions.close, held))
        stream = held.open_get_stream()
        stream.attach(held)
        messages = f"{scope.get('root_path', '')}/messages?session_id={held.id}"
        response = SseResponse(
            self._events(held, stream, messages),
            ping=self._pulse,
            headers={"Cache-Control": "no-store, no-transform"},
        )
        del response.headers["Connection"]  # whoever serves says how long that is kept
        try:
            await response(scope, receive, send)
        finally:
            stream.release(held)
            self._sessions.close(held)
            if place is not None:
                place.release()

    async def message(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await refuse(send, 405, "POST", [(b"allow", b"POST")])
            return
        principal = self._caller(scope)
        place = await admit_request(self._shared, principal, send)
        if place is None:
            return
        try:
            await self._message(principal, scope, receive, send)
        finally:
            place.release()

    async def _message(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        given: Headers = scope["toolgate.headers"]
        held = self._sessions.find(_parse_session_id(scope["query_string"]), principal)
        if held is None:
            await refuse(send, 404, "no such session: open /sse anew")
            return
        if not bodies.is_json(given):
            await refuse(send, 415, "Content-Type must be application/json, without a Content-Encoding")
            return
        body = await self._bodies.read_or_refuse(principal.name, given, receive, send)
        if body is None:
            return
        task = None
        try:
            task = await self._begin(held, principal, await decode_in_turns(body.data), send)
        finally:
            if body.claim is not None:
                _release_after(task, body.claim)

    async def _begin(
        self, held: HttpSession, principal: Principal, message: Inbound | list[Inbound], send: Send
    ) -> "asyncio.Task[None] | None":
        """Start the work on a message; None where it is refused."""
        lacking = self._permits.find_missing(principal, message) if self._permits is not None else None
        if lacking is not None:
            if lacking.answer is None:
                await lacking.refuse(send)
            else:
                await post_reply.send_accepted(send)
                held.send(lacking.answer)
            return None
        if self.ending and isinstance(message, (Request, list)):
            await refuse(send, 503, "the server is ending", [(b"connection", b"close"), (b"retry-after", b"1")])
            return None
        await post_reply.send_accepted(send)
        task = asyncio.get_running_loop().create_task(self._dispatcher.handle_message(message, held.session, held))
        for kept in (held.tasks, self.running):
            kept.add(task)
            task.add_done_callback(kept.discard)
        return task

    async def _events(self, held: HttpSession, stream: EventStream, messages: str) -> AsyncGenerator[Any, None]:
        yield {"event": "endpoint", "data": messages}
        cursor = 0
        while not stream.has_gap(cursor):
            stream.news.clear()
            waiting = stream.size_after(cursor)
            if waiting > LARGE and not self._shared.answers.has_room(held.principal.name, waiting, stream.news.set):
                await stream.news.wait()
                continue
            for data in stream.messages_after(cursor):
                yield {"event": "message", "data": data.decode()}
            cursor = stream.sent = stream.last
            stream.forget(cursor)
            if stream.ended:
                return
            await stream.news.wait()
        log.info("a reader was too slow and is disconnected")


def _release_after(task: "asyncio.Task[None] | None", claim: Claim) -> None:
    if task is None:
        claim.release()
    else:
        task.add_done_callback(lambda _: claim.release())


def _parse_session_id(query: bytes) -> str:
    for part in query.decode("latin-1").split("&"):
        name, _, value = part.partition("=")
        if name == "session_id":
            return value
    return ""
