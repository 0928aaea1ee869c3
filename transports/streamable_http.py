"""Serve Streamable HTTP at one endpoint, in both eras: each request shows its era.

A POST brings its own channel (`PostReply`). An answer within a second is one JSON body; another message, or silence,
makes an event stream. An Accept header with only one form decides. In the sessions era streams outlive their
connections and can be resumed.
Source: MCP 2025-03-26, 2025-06-18, 2025-11-25 basic/transports; 2026-07-28 basic/transports/streamable-http.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import chain

from toolgate.server.auth.scopes import NOTHING
from toolgate.server.principal import GrantKey, Principal
from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.protocol.messages import (
    Failure,
    MalformedMessage,
    Request,
    decode,
    decode_in_turns,
    decode_repeated,
)
from toolgate.server.protocol.revisions import STATELESS, WITH_SESSION
from toolgate.server.state.store import StateError
from toolgate.transports.http import body as bodies
from toolgate.transports.http.asgi import EagerApplication, Headers, Pending, Receive, Scope, Send, finish, refuse
from toolgate.transports.http.event_stream import MAX_RESUMED, EventStream
from toolgate.transports.http.known_head import KnownHead
from toolgate.transports.http.post import Post, PostReply, ReplyForms, parse_accept, send_accepted
from toolgate.transports.http.session import HttpSession
from toolgate.transports.http.stateless import StatelessPosts
from toolgate.transports.http.stream_response import PULSE, StreamSender
from toolgate.transports.http.transport import Endpoint, RunningMessages, TransportServices, refuse_for_now

PATIENCE = 1.0  # seconds for an answer as one JSON body: proxies take longer silence for a dead connection
OPENING = 10.0  # seconds for the answer to initialize: longer than the state waits for other processes
POLL = 300.0  # seconds until a connection of 2025-11-25 is closed, to be polled: proxies close it anyway


class StreamableHttpTransport:
    """The transport. `patience`, `pulse` and `poll`: see the constants; `slow`: seconds for a body."""

    def __init__(
        self,
        services: TransportServices,
        *,
        patience: float = PATIENCE,
        pulse: float = PULSE,
        poll: float = POLL,
        slow: float = bodies.BODY_TIME,
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
        self._bodies = bodies.BodyReader(self.budgets.bodies, slow)

    def endpoints(self) -> Mapping[str, EagerApplication]:
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

    def _post(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> Pending:
        headers: Headers = scope["toolgate.headers"]
        head: KnownHead | None = scope.get("toolgate.head")
        forms: ReplyForms | None = head.forms if head is not None else None
        if forms is None:
            if not bodies.is_json(headers):
                return refuse(send, 415, "Content-Type must be application/json, without a Content-Encoding")
            forms = parse_accept(headers.get(b"accept"))
            if forms is ReplyForms.NEITHER:
                return refuse(send, 406, "Accept must list application/json, text/event-stream or (best) both")
            if head is not None:
                head.forms = forms
        data = bodies.take_small_body(scope)
        if data is None:
            return self._read_and_answer(principal, forms, scope, receive, send)
        meta = None if head is None else head.meta
        message = (None if meta is None else decode_repeated(data, meta)) or decode(data)
        answers = self.budgets.answers
        return self._answer(Post(principal, headers, forms, message, None, scope, receive, send, answers, head))

    async def _read_and_answer(
        self, principal: Principal, forms: ReplyForms, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a POST whose body is large, or still to come."""
        headers: Headers = scope["toolgate.headers"]
        body = await self._bodies.read_or_refuse(principal.name, headers, receive, send)
        if body is None:
            return
        claim, data, post = body.claim, body.data, None
        del body
        try:
            message = await decode_in_turns(data)
            post = Post(principal, headers, forms, message, claim, scope, receive, send, self.budgets.answers)
            del data, headers  # a stream may stay open for days
            await finish(self._answer(post))
        finally:
            claim = claim if post is None else post.take_claim()
            if claim is not None:
                claim.release()  # no work was begun

    def _answer(self, post: Post) -> Pending:
        missing = None
        if self._scope_check is not None:
            missing = self._scope_check.find_missing(post.principal, post.message)
        if self.running.is_ending and post.wants_answer:
            return refuse_for_now(post.send)
        if missing is not None:
            return missing.refuse(post.send) if missing.answer is None else post.begin_answer(missing.answer, 200)
        message = post.message
        if not post.accepts.has_stream and isinstance(message, Request) and self._dispatcher.is_stream(message):
            method = message.method
            return refuse(post.send, 406, f"{method} is answered by a stream: Accept must list text/event-stream")
        if post.is_stateless:
            return self._stateless.serve(post)
        id = post.headers.get(b"mcp-session-id")
        session = None if id is None else self.sessions.find(id.decode("latin-1"), post.principal)
        return self._answer_without_session(post, id) if session is None else self._serve(session, post)

    async def _answer_without_session(self, post: Post, id: bytes | None) -> None:
        """Answer a POST that opens a session, or names one that is not open here.

        An `initialize` that names no session of its principal opens one: clients repeat the id of an ended session.
        """
        session = None
        if id is not None:
            try:
                session = await self._wake_session(id, post.principal)
            except StateError as error:
                await refuse_for_now(post.send, str(error))
                return
        if session is not None:
            await finish(self._serve(session, post))
        elif id is not None and self.running.is_ending:
            await refuse_for_now(post.send)  # the next process may have it
        elif isinstance(post.message, Request) and post.message.method == "initialize":
            await self._open(post)
        elif id is not None:
            unknown = InvalidRequest("no such session: initialize again")
            await post.send_answer(Failure(post.id, unknown), 404)
        else:
            missing = InvalidRequest("Mcp-Session-Id is missing")
            fault = post.message.error if isinstance(post.message, MalformedMessage) else missing
            await post.send_answer(Failure(post.id, fault), 400)

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

    async def _open(self, post: Post) -> None:
        session = await self.sessions.admit(post.principal)
        if session is None:
            await refuse(post.send, 503, "too many sessions", [(b"retry-after", b"30")])
            return
        try:
            # no stream before the session is stored: its head would reveal the id
            await finish(self._serve(session, post, [(b"mcp-session-id", session.id.encode())], OPENING))
        finally:
            if session.session.revision is None:
                self.sessions.close(session)  # a refused initialize opens no session

    def _serve(
        self,
        session: HttpSession,
        post: Post,
        extra: Collection[tuple[bytes, bytes]] = (),
        patience: float | None = None,
    ) -> Pending:
        """Answer a POST of a session. The work goes on if its reader leaves."""
        if isinstance(post.message, MalformedMessage):
            return post.begin_answer(Failure(post.id, post.message.error), 400)
        if not isinstance(post.message, Request) and not post.wants_answer:
            return self._accept(session, post)
        create_stream = partial(self._open_stream, session, post) if post.accepts.has_stream else None
        reply = PostReply(create_stream, session)
        self.running.start_reply(post, session.session, reply, session.tasks)
        if reply.is_one_body(post.accepts):
            return post.begin_answer(reply.answer, 400 if _is_unreadable(reply.answer) else 200, extra)
        return self._send_reply(session, post, reply, extra, self._patience if patience is None else patience)

    async def _accept(self, session: HttpSession, post: Post) -> None:
        """Take a message that wants no answer."""
        reply = PostReply(session.open_stream)
        message = await self.sessions.pass_on(session, post.message)
        await self._dispatcher.handle_message(message, session.session, reply)
        await self.sessions.store(session)
        if reply.answer is None:
            await send_accepted(post.send)
        else:  # a batch that was refused
            await post.send_answer(reply.answer, 400)

    async def _send_reply(
        self,
        session: HttpSession,
        post: Post,
        reply: PostReply,
        extra: Collection[tuple[bytes, bytes]],
        patience: float,
    ) -> None:
        """Send a reply that takes a while, or is a stream."""
        await reply.wait_decided(patience)
        is_refused = _is_unreadable(reply.answer)
        stream = reply.choose_stream(post.accepts, is_refused=is_refused)
        if stream is not None:
            post.headers = {}
            ends_with_reader = self._dispatcher.is_stream(post.message)
            is_whole = await self._send_stream(
                session, stream, 0, post.scope, post.send, extra, can_return=not ends_with_reader
            )
            if ends_with_reader and not is_whole:
                session.session.cancel(post.id)
                session.forget(stream)
        elif reply.answer is None:
            await send_accepted(post.send, 204)  # the client has called it off
        else:
            await post.send_answer(reply.answer, 400 if is_refused else 200, extra)

    def _open_stream(self, session: HttpSession, post: Post) -> EventStream:
        """Return a stream for the answer to a message. Resuming it needs the message's scopes."""
        scopes = NOTHING if self._scope_check is None else self._scope_check.required_scopes(post.message)
        stream = session.open_post_stream(post.request_ids, scopes)
        self.sessions.keep_request(session, stream, post.message)
        return stream

    # -- GET and DELETE: the sessions era only

    async def _get(self, principal: Principal, scope: Scope, _receive: Receive, send: Send) -> None:
        headers: Headers = scope["toolgate.headers"]
        session = await self._require_session(principal, headers, send)
        if session is None:
            return
        if not parse_accept(headers.get(b"accept")).has_stream:
            await refuse(send, 406, "GET is answered by a stream: Accept must list text/event-stream")
            return
        last = headers.get(b"last-event-id")
        del headers  # the stream may stay open for days
        if last is None:
            stream = session.open_get_stream(principal.scopes)
            until = 0.0 if self._streams.is_draining else principal.until
            async with self.sessions.listening(session, stream):
                await self._send_stream(session, stream, stream.sent, scope, send, until=until)
            return
        found = await self.sessions.find_event(session, last.decode("latin-1"), principal)
        if found is None:
            await refuse(send, 400, "Last-Event-ID names no event that can be sent again")
            return
        stream, cursor = found
        check = self._scope_check
        missing = check.compare_scopes(principal, stream.wanted) if check is not None else None
        if missing is not None:
            await missing.refuse(send)
        elif stream.ended and cursor == stream.last:
            await send_accepted(send, 204)  # nothing will follow: 204 stops an EventSource from coming back
        else:
            async with self.sessions.listening(session, stream):
                await self._send_stream(session, stream, cursor, scope, send, until=principal.until)

    async def _delete(self, principal: Principal, scope: Scope, _receive: Receive, send: Send) -> None:
        session = await self._require_session(principal, scope["toolgate.headers"], send)
        if session is None:
            return
        try:
            await self.sessions.end(session)
        except StateError as error:
            await refuse_for_now(send, str(error))
        else:
            await send_accepted(send, 204)

    async def _require_session(self, principal: Principal, headers: Headers, send: Send) -> HttpSession | None:
        """Return the session of a GET or DELETE, or None after refusing the request."""
        version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        id = headers.get(b"mcp-session-id")
        if version in STATELESS:
            await refuse(send, 405, "this revision accepts only POST", [(b"allow", b"POST")])
        elif version and version not in WITH_SESSION:
            await refuse(send, 400, f"MCP-Protocol-Version must be one of {', '.join(WITH_SESSION)}")
        elif id is None:
            await refuse(send, 400, "Mcp-Session-Id is missing")
        else:
            try:
                key = id.decode("latin-1")
                session = self.sessions.find(key, principal) or await self.sessions.wake(key, principal)
            except StateError as error:
                await refuse_for_now(send, str(error))
                return None
            if session is not None:
                return session
            if self.running.is_ending:
                await refuse_for_now(send)
            else:
                await refuse(send, 404, "no such session: initialize again")
        return None

    async def _send_stream(
        self,
        session: HttpSession,
        stream: EventStream,
        cursor: int,
        scope: Scope,
        send: Send,
        extra: Collection[tuple[bytes, bytes]] = (),
        until: float | None = None,
        *,
        can_return: bool = True,
    ) -> bool:
        """Send a stream of the sessions era to a reader. The stream stays if the reader leaves: it may come back.
        Return False if it has left."""
        revision = session.session.revision
        poll = self._poll if can_return and revision is not None and revision.resumable else None
        is_whole = await self._streams.send(
            stream, cursor, session.principal, scope, send, keep=True, poll=poll, until=until, extra=extra
        )
        if is_whole and stream.size > MAX_RESUMED:
            session.forget(stream)
        return is_whole


def _is_unreadable(answer: object) -> bool:
    """Return whether this answers a message that could not be read."""
    return isinstance(answer, Failure) and answer.id is None
