"""Serve Streamable HTTP at one endpoint, in both eras: each request shows its era.

A POST brings its own channel (`PostReply`). An answer within a second is one JSON body; another message, or silence,
makes an event stream. An Accept header with only one form decides. In the sessions era streams outlive their
connections and can be resumed.
Source: MCP 2025-03-26, 2025-06-18, 2025-11-25 basic/transports; 2026-07-28 basic/transports/streamable-http.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import chain

from toolgate.server.base.errors import StateError
from toolgate.server.base.http.head import format_lines
from toolgate.server.base.principals.principal import GrantKey, Principal
from toolgate.server.base.principals.scopes import NOTHING
from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.protocol.messages import Failure, MalformedMessage, Request, decode, decode_in_turns
from toolgate.server.protocol.revisions import STATELESS, WITH_SESSION
from toolgate.transports.http.requests import body as bodies
from toolgate.transports.http.requests.bearer import SignedInHandler
from toolgate.transports.http.requests.post import (
    ACCEPTED,
    CALLED_OFF,
    Post,
    PostReply,
    ReplyForms,
    is_json,
    parse_accept,
)
from toolgate.transports.http.sessions.event_stream import MAX_RESUMED, EventStream
from toolgate.transports.http.sessions.session import HttpSession
from toolgate.transports.http.stateless import StatelessPosts
from toolgate.transports.http.stream_response import PULSE, StreamSender
from toolgate.transports.http.transport import Endpoint, RunningMessages, TransportServices, refuse_for_now
from toolgate.transports.http.wire.request import (
    Answer,
    HttpRequest,
    PendingResponse,
    StreamedResponse,
    WholeResponse,
    refuse,
)
from toolgate.transports.http.wire.writer import AnswerWriter

PATIENCE = 1.0  # seconds for an answer as one JSON body: proxies take longer silence for a dead connection
OPENING = 10.0  # seconds for the answer to initialize: longer than the state waits for other processes
POLL = 300.0  # seconds until a connection of 2025-11-25 is closed, to be polled: proxies close it anyway


class StreamableHttpTransport:
    """The transport. `patience`, `pulse` and `poll`: see the constants."""

    def __init__(
        self,
        services: TransportServices,
        *,
        patience: float = PATIENCE,
        pulse: float = PULSE,
        poll: float = POLL,
    ) -> None:
        self.sessions = services.sessions
        self._path = services.row.path
        self.budgets = services.budgets
        self.running = RunningMessages(services.dispatcher)  # of both eras
        self._dispatcher = services.dispatcher
        self._scope_check = services.scope_check
        self._patience = patience
        self._poll = poll
        self._streams = StreamSender(self.budgets, pulse, services.now)
        self._stateless = StatelessPosts(services, self.running, self._streams, patience)
        self._bodies = bodies.BodyReader(self.budgets.bodies)

    def endpoints(self) -> Mapping[str, SignedInHandler]:
        endpoint = Endpoint(self.budgets, {"POST": self._post, "GET": self._get, "DELETE": self._delete})
        return {self._path: endpoint, f"{self._path}/": endpoint}

    @property
    def streams(self) -> Collection[EventStream]:
        return self._streams.streams

    def drain(self) -> None:
        self._streams.is_draining = True
        for session in self.sessions.list_open():
            session.disconnect_get_readers()

    def rights(self) -> Iterator[GrantKey]:
        return chain(self.sessions.rights(), self._stateless.rights())

    def end_by_rights(self, rights: Collection[GrantKey]) -> None:
        self.sessions.close_by_rights(rights)
        self._stateless.end_by_rights(rights)

    # -- POST

    def _post(self, principal: Principal, request: HttpRequest) -> Answer:
        head = request.head
        if not is_json(head):
            return refuse(415, "Content-Type must be application/json, without a Content-Encoding")
        forms = parse_accept(head.headers.get(b"accept"))
        if forms is ReplyForms.NEITHER:
            return refuse(406, "Accept must list application/json, text/event-stream or (best) both")
        data = request.take_body(bodies.SMALL)
        if data is None:
            return self._read_and_answer(principal, forms, request)
        return self._answer(Post(principal, forms, decode(data), None, request, self.budgets.answers))

    async def _read_and_answer(self, principal: Principal, forms: ReplyForms, request: HttpRequest) -> Answer:
        """Answer a POST whose body is large, or still to come."""
        body = await self._bodies.read_or_refuse(principal.name, request)
        if isinstance(body, WholeResponse):
            return body
        post = None
        try:
            message = await decode_in_turns(body.data)
            post = Post(principal, forms, message, body.claim, request, self.budgets.answers)
            return self._answer(post)
        finally:
            claim = body.claim if post is None else post.take_claim()
            if claim is not None:
                claim.release()  # no work was begun

    def _answer(self, post: Post) -> Answer:
        missing = None
        if self._scope_check is not None:
            missing = self._scope_check.find_missing(post.principal, post.message)
        if self.running.is_ending and post.wants_answer:
            return refuse_for_now()
        if missing is not None:
            return missing.refuse() if missing.answer is None else post.format_answer(missing.answer, 200)
        message = post.message
        if not post.accepts.has_stream and isinstance(message, Request) and self._dispatcher.is_stream(message):
            method = message.method
            return refuse(406, f"{method} is answered by a stream: Accept must list text/event-stream")
        if post.is_stateless:
            return self._stateless.serve(post)
        id = post.headers.get(b"mcp-session-id")
        session = None if id is None else self.sessions.find(id.decode("latin-1"), post.principal)
        return self._answer_without_session(post, id) if session is None else self._serve(session, post)

    async def _answer_without_session(self, post: Post, id: bytes | None) -> Answer:
        """Answer a POST that opens a session, or names one that is not open here.

        An `initialize` that names no session of its principal opens one: clients repeat the id of an ended session.
        """
        session = None
        if id is not None:
            try:
                session = await self._wake_session(id, post.principal)
            except StateError as error:
                return refuse_for_now(str(error))
        if session is not None:
            return self._serve(session, post)
        if id is not None and self.running.is_ending:
            return refuse_for_now()  # the next process may have it
        if isinstance(post.message, Request) and post.message.method == "initialize":
            return await self._open(post)
        if id is not None:
            return post.format_answer(Failure(post.id, InvalidRequest("no such session: initialize again")), 404)
        missing = InvalidRequest("Mcp-Session-Id is missing")
        fault = post.message.error if isinstance(post.message, MalformedMessage) else missing
        return post.format_answer(Failure(post.id, fault), 400)

    async def _wake_session(self, id: bytes, principal: Principal) -> HttpSession | None:
        """Resume an earlier process's session `id` if the principal owns it. Raises StateError. The server's end waits
        for it, as it takes a while."""
        arriving = asyncio.current_task()
        assert arriving is not None
        self.running.tasks.add(arriving)
        try:
            return await self.sessions.wake(id.decode("latin-1"), principal)
        finally:
            self.running.tasks.discard(arriving)

    async def _open(self, post: Post) -> Answer:
        session = await self.sessions.admit(post.principal)
        if session is None:
            return refuse(503, "too many sessions", [(b"retry-after", b"30")])
        # no stream before the session is stored: its head would reveal the id
        extra = format_lines([(b"mcp-session-id", session.id.encode())])
        answer = self._serve(session, post, extra, OPENING)
        end = partial(self._end_unopened, session)
        if type(answer) is PendingResponse:
            return answer.change(partial(_call_first, end))
        end()
        return answer

    def _end_unopened(self, session: HttpSession) -> None:
        """A refused initialize opens no session."""
        if session.session.revision is None:
            self.sessions.close(session)

    def _serve(self, session: HttpSession, post: Post, extra: bytes = b"", patience: float | None = None) -> Answer:
        """Answer a POST of a session. The work goes on if its reader leaves."""
        if isinstance(post.message, MalformedMessage):
            return post.format_answer(Failure(post.id, post.message.error), 400)
        if not isinstance(post.message, Request) and not post.wants_answer:
            return self._accept(session, post)
        create_stream = partial(self._open_stream, session, post) if post.accepts.has_stream else None
        reply = PostReply(create_stream, session)
        self.running.start_reply(post, session.session, reply, session.tasks)
        choose = partial(self._choose_answer, session, post, reply, extra)
        return reply.answer_with(choose, self._patience if patience is None else patience)

    async def _accept(self, session: HttpSession, post: Post) -> Answer:
        """Take a message that wants no answer."""
        reply = PostReply(session.open_stream)
        await session.backend.pass_on(post.message)
        await self._dispatcher.handle_message(post.message, session.session, reply)
        await session.backend.write()
        return ACCEPTED if reply.answer is None else post.format_answer(reply.answer, 400)  # a refused batch

    def _choose_answer(self, session: HttpSession, post: Post, reply: PostReply, extra: bytes) -> Answer:
        """Return the answer that a decided reply is."""
        is_refused = _is_unreadable(reply.answer)
        stream = reply.choose_stream(post.accepts, is_refused=is_refused)
        if stream is not None:
            return self._stream_reply(session, post, stream, extra)
        if reply.answer is None:
            return CALLED_OFF
        return post.format_answer(reply.answer, 400 if is_refused else 200, extra)

    def _stream_reply(self, session: HttpSession, post: Post, stream: EventStream, extra: bytes) -> Answer:
        request, id = post.request, post.id
        request.ends_with_client = self._dispatcher.is_stream(post.message)

        async def write(writer: AnswerWriter) -> None:
            ends = request.ends_with_client
            is_whole = await self._send_stream(session, stream, 0, request, writer, extra, can_return=not ends)
            if ends and not is_whole:
                session.session.cancel(id)
                session.forget(stream)

        return StreamedResponse(write)

    def _open_stream(self, session: HttpSession, post: Post) -> EventStream:
        """Return a stream for the answer to a message. Resuming it needs the message's scopes."""
        check, principal = self._scope_check, session.session.principal
        scopes = NOTHING if check is None else check.required_scopes(post.message, principal)
        stream = session.open_post_stream(post.request_ids, scopes)
        session.backend.keep_request(stream, post.message)
        return stream

    # -- GET and DELETE: the sessions era only

    async def _get(self, principal: Principal, request: HttpRequest) -> Answer:
        headers = request.headers
        session = await self._require_session(principal, request)
        if isinstance(session, WholeResponse):
            return session
        if not parse_accept(headers.get(b"accept")).has_stream:
            return refuse(406, "GET is answered by a stream: Accept must list text/event-stream")
        request.ends_with_client = True
        last = headers.get(b"last-event-id")
        if last is None:
            stream = session.open_get_stream(principal.scopes)
            until = 0.0 if self._streams.is_draining else principal.until
            return self._listen(session, stream, stream.sent, request, until)
        found = await session.backend.resume(last.decode("latin-1"), principal)
        if found is None:
            return refuse(400, "Last-Event-ID names no event that can be sent again")
        stream, cursor = found
        check = self._scope_check
        missing = check.compare_scopes(principal, stream.wanted) if check is not None else None
        if missing is not None:
            return missing.refuse()
        if stream.ended and cursor == stream.last:
            return WholeResponse(204)  # nothing will follow: 204 stops an EventSource from coming back
        return self._listen(session, stream, cursor, request, principal.until)

    def _listen(
        self, session: HttpSession, stream: EventStream, cursor: int, request: HttpRequest, until: float | None
    ) -> StreamedResponse:
        """Return the answer to a GET: the events of a stream after number `cursor`."""

        async def write(writer: AnswerWriter) -> None:
            async with session.backend.listen(stream):
                await self._send_stream(session, stream, cursor, request, writer, until=until)

        return StreamedResponse(write)

    async def _delete(self, principal: Principal, request: HttpRequest) -> Answer:
        session = await self._require_session(principal, request)
        if isinstance(session, WholeResponse):
            return session
        try:
            await self.sessions.end(session)
        except StateError as error:
            return refuse_for_now(str(error))
        return WholeResponse(204)

    async def _require_session(self, principal: Principal, request: HttpRequest) -> HttpSession | WholeResponse:
        """Return the session of a GET or DELETE, or the answer that refuses the request."""
        version = request.headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        id = request.headers.get(b"mcp-session-id")
        if version in STATELESS:
            return refuse(405, "this revision accepts only POST", [(b"allow", b"POST")])
        if version and version not in WITH_SESSION:
            return refuse(400, f"MCP-Protocol-Version must be one of {', '.join(WITH_SESSION)}")
        if id is None:
            return refuse(400, "Mcp-Session-Id is missing")
        try:
            key = id.decode("latin-1")
            session = self.sessions.find(key, principal) or await self.sessions.wake(key, principal)
        except StateError as error:
            return refuse_for_now(str(error))
        if session is not None:
            return session
        return refuse_for_now() if self.running.is_ending else refuse(404, "no such session: initialize again")

    async def _send_stream(
        self,
        session: HttpSession,
        stream: EventStream,
        cursor: int,
        request: HttpRequest,
        writer: AnswerWriter,
        extra: bytes = b"",
        until: float | None = None,
        *,
        can_return: bool = True,
    ) -> bool:
        """Send a stream of the sessions era to a reader. The stream stays if the reader leaves: it may come back.
        Return False if it has left."""
        revision = session.session.revision
        poll = self._poll if can_return and revision is not None and revision.resumable else None
        is_whole = await self._streams.send(
            stream, cursor, session.principal, request, writer, keep=True, poll=poll, until=until, extra=extra
        )
        if is_whole and stream.size > MAX_RESUMED:
            session.forget(stream)
        return is_whole


def _call_first(end: Callable[[], None], answer: Answer) -> Answer:
    end()
    return answer


def _is_unreadable(answer: object) -> bool:
    """Return whether this answers a message that could not be read."""
    return isinstance(answer, Failure) and answer.id is None
