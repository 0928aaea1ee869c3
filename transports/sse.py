"""Serve HTTP+SSE, the transport of 2024-11-05: one stream per client, and POSTs that are answered on it.

The stream is the session: its end cancels the session's work.
Source: MCP 2024-11-05 basic/transports, "HTTP with SSE".
"""

import logging
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from sse_starlette import EventSourceResponse

from toolgate.server.base.bus.replica_ids import parse_id
from toolgate.server.base.principals.principal import GrantKey, Principal
from toolgate.server.protocol.messages import Request, decode_in_turns, encode
from toolgate.transports.http.requests import body as bodies
from toolgate.transports.http.requests.bearer import SignedInHandler
from toolgate.transports.http.requests.post import ACCEPTED, is_json
from toolgate.transports.http.sessions.event_stream import EventStream
from toolgate.transports.http.sessions.session import HttpSession
from toolgate.transports.http.stream_response import LARGE
from toolgate.transports.http.transport import Endpoint, RunningMessages, TransportServices, refuse_for_now
from toolgate.transports.http.wire.asgi import answer_with
from toolgate.transports.http.wire.request import Answer, HttpRequest, StreamedResponse, WholeResponse, refuse
from toolgate.transports.http.wire.writer import AnswerWriter

PULSE = 15  # seconds between comments on a quiet stream

log = logging.getLogger("toolgate.sse")


class SseTransport:
    """The transport: its stream at the path of its row, and the POSTs at `/messages`. `pulse`: see PULSE."""

    def __init__(self, services: TransportServices, *, pulse: int = PULSE) -> None:
        self.sessions = services.sessions
        self._path = services.row.path
        self.running = RunningMessages(services.dispatcher)
        self._prefix = services.prefix
        self._budgets = services.budgets
        self._scope_check = services.scope_check
        self._pulse = pulse
        self._bodies = bodies.BodyReader(self._budgets.bodies)
        self._forwarder = services.forwarder
        if self._forwarder is not None:
            self._forwarder.receive(self._take_forwarded)

    def endpoints(self) -> Mapping[str, SignedInHandler]:
        return {
            self._path: Endpoint(self._budgets, {"GET": self._stream}),
            "/messages": Endpoint(self._budgets, {"POST": self._post}),
        }

    @property
    def streams(self) -> Collection[EventStream]:
        return list(self.sessions.streams())

    def drain(self) -> None:
        """Do nothing: a stream is a session here, and no client can continue it elsewhere."""

    def rights(self) -> Iterator[GrantKey]:
        return self.sessions.rights()

    def end_by_rights(self, rights: Collection[GrantKey]) -> None:
        self.sessions.close_by_rights(rights)

    async def _stream(self, principal: Principal, request: HttpRequest) -> Answer:
        session = await self.sessions.admit(principal)
        if session is None:
            return refuse(503, "too many sessions", [(b"retry-after", b"30")])
        return StreamedResponse(partial(self._send_stream, session, request))

    async def _send_stream(self, session: HttpSession, request: HttpRequest, writer: AnswerWriter) -> None:
        stream = session.open_get_stream()
        stream.attach(session)
        end = partial(self.sessions.close, session)
        claim = self._budgets.streams.take(session.principal.name, 1, end)
        messages = f"{self._prefix}/messages?session_id={session.id}"
        response = EventSourceResponse(
            self._generate_events(session, stream, messages),
            ping=self._pulse,
            headers={"Cache-Control": "no-store, no-transform"},
        )
        del response.headers["Connection"]  # the connection decides how long it is kept
        try:
            await answer_with(response, request).write(writer)
        finally:
            stream.release(session)
            end()
            if claim is not None:
                claim.release()

    async def _generate_events(self, session: HttpSession, stream: EventStream, uri: str) -> AsyncGenerator[Any, None]:
        yield {"event": "endpoint", "data": uri}
        cursor = 0
        while not stream.has_gap(cursor):
            stream.news.clear()
            waiting = stream.size_after(cursor)
            if waiting > LARGE and not self._budgets.answers.has_room(session.principal.name, waiting, stream.news.set):
                await stream.news.wait()
                continue
            messages = stream.messages_after(cursor)
            cursor = stream.sent = stream.last  # more may come while these are sent
            for data in messages:
                yield {"event": "message", "data": data.decode()}
            stream.forget(cursor)
            if stream.ended:
                return
            await stream.news.wait()
        log.info("a reader was too slow and is disconnected")

    async def _post(self, principal: Principal, request: HttpRequest) -> Answer:
        id = _parse_session_id(request.head.query)
        session = self.sessions.find(id, principal)
        if session is None and (self._forwarder is None or parse_id(id) is None):
            return self._refuse_unknown()
        if not is_json(request.head):
            return refuse(415, "Content-Type must be application/json, without a Content-Encoding")
        body = await self._bodies.read_or_refuse(principal.name, request)
        if isinstance(body, WholeResponse):
            return body
        is_begun = False
        try:
            message = await decode_in_turns(body.data)
            missing = self._scope_check.find_missing(principal, message) if self._scope_check is not None else None
            if missing is not None and missing.answer is None:
                return missing.refuse()
            if session is None:
                answer = None if missing is None or missing.answer is None else encode(missing.answer)
                return await self._forward(id, principal, bytes(body.data), answer)
            if missing is not None and missing.answer is not None:
                session.send(missing.answer)
                return ACCEPTED
            if self.running.is_ending and isinstance(message, (Request, list)):
                return refuse_for_now()
            is_begun = True
            self.running.start(message, session.session, session, body.claim, session.tasks)
            return ACCEPTED
        finally:
            if body.claim is not None and not is_begun:
                body.claim.release()

    async def _forward(self, id: str, principal: Principal, data: bytes, answer: bytes | None) -> WholeResponse:
        """Let the replica that has the session take a POST, and return what it answers."""
        assert self._forwarder is not None
        match await self._forwarder.forward(id, principal, data, answer):
            case 202:
                return ACCEPTED
            case 404:
                return self._refuse_unknown()
            case _:
                return refuse_for_now("the server that has this session does not answer")

    async def _take_forwarded(self, id: str, principal: Principal, data: bytes, answer: bytes | None) -> int:
        """Take a POST that came to another replica. Return the status of its answer."""
        session = self.sessions.find(id, principal)
        if session is None:
            return 404
        if answer is not None:
            session.send(msgspec.Raw(answer))
            return 202
        message = await decode_in_turns(data)
        if self.running.is_ending and isinstance(message, (Request, list)):
            return 503
        self.running.start(message, session.session, session, None, session.tasks)
        return 202

    def _refuse_unknown(self) -> WholeResponse:
        return refuse(404, f"no such session: open {self._path} again")


def _parse_session_id(query: bytes) -> str:
    for part in query.decode("latin-1").split("&"):
        name, _, value = part.partition("=")
        if name == "session_id":
            return value
    return ""
