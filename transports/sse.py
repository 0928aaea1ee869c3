"""Serve HTTP+SSE, the transport of 2024-11-05: one stream a client, and POSTs whose answers come on it.

The stream is the session: when it ends, so does the session, and what runs in it is called off.
Source: MCP 2024-11-05 basic/transports, "HTTP with SSE".
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial

from toolgate.server.principal import GrantKey, Principal
from toolgate.server.protocol.messages import Request, decode_in_turns
from toolgate.transports.http import body as bodies
from toolgate.transports.http.asgi import Application, Headers, Receive, Scope, Send, refuse
from toolgate.transports.http.event_stream import EventStream
from toolgate.transports.http.post import send_accepted
from toolgate.transports.http.stream_response import PULSE, StreamSender
from toolgate.transports.http.transport import Endpoint, RunningMessages, TransportServices, refuse_for_now


class SseTransport:
    """The transport: its stream behind `/sse`, and the POSTs behind `/messages`. `pulse`: see PULSE."""

    def __init__(self, services: TransportServices, *, pulse: float = PULSE) -> None:
        self.sessions = services.sessions
        self.running = RunningMessages(services.dispatcher)
        self._budgets = services.budgets
        self._scope_check = services.scope_check
        self._streams = StreamSender(self._budgets, pulse)
        self._bodies = bodies.BodyReader(self._budgets.bodies)

    def endpoints(self) -> Mapping[str, Application]:
        return {
            "/sse": Endpoint(self._budgets, {"GET": self._stream}),
            "/messages": Endpoint(self._budgets, {"POST": self._post}),
        }

    @property
    def streams(self) -> Collection[EventStream]:
        return self._streams.streams

    def rights(self) -> Iterator[GrantKey]:
        return self.sessions.rights()

    def end_by_rights(self, rights: Collection[GrantKey]) -> None:
        self.sessions.close_by_rights(rights)

    async def _stream(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        session = self.sessions.open(principal)
        if session is None:
            await refuse(send, 503, "too many sessions", [(b"retry-after", b"30")])
            return
        stream = session.open_get_stream()
        stream.numbered = False  # its client never comes back
        messages = f"{scope.get('root_path', '')}/messages?session_id={session.id}"
        end = partial(self.sessions.close, session)
        try:
            await self._streams.send(
                stream,
                0,
                principal,
                receive,
                send,
                keep=False,
                first=f"event: endpoint\r\ndata: {messages}\r\n\r\n".encode(),
                give_way=end,
            )
        finally:
            end()

    async def _post(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = scope["toolgate.headers"]
        session = self.sessions.find(_parse_session_id(scope["query_string"]), principal)
        if session is None:
            await refuse(send, 404, "no such session: open /sse anew")
            return
        if not bodies.is_json(headers):
            await refuse(send, 415, "Content-Type must be application/json, without a Content-Encoding")
            return
        body = await self._bodies.read_or_refuse(principal.name, headers, receive, send)
        if body is None:
            return
        is_begun = False
        try:
            message = await decode_in_turns(body.data)
            missing = self._scope_check.find_missing(principal, message) if self._scope_check is not None else None
            if missing is not None and missing.answer is None:
                await missing.refuse(send)
            elif missing is not None and missing.answer is not None:
                await send_accepted(send)
                session.send(missing.answer)
            elif self.running.is_ending and isinstance(message, (Request, list)):
                await refuse_for_now(send)
            else:
                await send_accepted(send)
                is_begun = True
                self.running.start(message, session.session, session, body.claim, session.tasks)
        finally:
            if body.claim is not None and not is_begun:
                body.claim.release()


def _parse_session_id(query: bytes) -> str:
    for part in query.decode("latin-1").split("&"):
        name, _, value = part.partition("=")
        if name == "session_id":
            return value
    return ""
