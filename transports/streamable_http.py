"""Serves Streamable HTTP at one endpoint, both eras of it, told apart by each request. Raw ASGI.

Each POST brings its own channel (`Reply`): an answer that comes first, within a second, is one JSON body; anything
else, or silence, makes an event stream. Where Accept has one of the two alone, it is that. In the sessions era streams
outlive their connections and can be resumed; in the stateless era hanging up cancels. Knows HTTP and streams; knows
nothing of MCP methods.
Source: MCP 2025-03-26, 2025-06-18, 2025-11-25 basic/transports; 2026-07-28 basic/transports/streamable-http.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from toolgate.server.auth.scopes import NOTHING, usable_scopes
from toolgate.server.budget import Claim
from toolgate.server.principal import GrantKey, Principal
from toolgate.server.protocol import eager_task, request_meta
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.errors import InvalidParams, InvalidRequest, RpcError, UnsupportedProtocolVersion
from toolgate.server.protocol.messages import Failure, Inbound, Malformed, Notification, Request, decode_in_turns
from toolgate.server.protocol.revisions import STATELESS, SUPPORTED, WITH_SESSION
from toolgate.server.protocol.session import Session
from toolgate.server.state.store import StateError
from toolgate.transports.http import body as bodies
from toolgate.transports.http import mcp_headers, post_reply
from toolgate.transports.http.accept import ReplyForms, parse_accept
from toolgate.transports.http.asgi import Headers, Receive, Scope, Send, refuse
from toolgate.transports.http.bearer import ScopeCheck
from toolgate.transports.http.budgets import HttpBudgets, admit_request, create_budgets
from toolgate.transports.http.event_ids import RequestIds
from toolgate.transports.http.event_stream import MAX_RESUMED, EventStream, PingTimer
from toolgate.transports.http.post_reply import JsonReply, PostReply
from toolgate.transports.http.session import HttpSession
from toolgate.transports.http.sessions import Sessions
from toolgate.transports.http.stream_response import send_stream

LISTEN = "subscriptions/listen"
PATIENCE = 1.0  # seconds an answer may take to still be one JSON body: longer silence looks dead to a proxy
PULSE = 15.0  # seconds between comments on a quiet stream
OPENING = 10.0  # seconds an answer to initialize may take: longer than the state waits for other processes
ENDING = "the server is ending"
POLL = 300.0  # seconds after which a connection of 2025-11-25 is closed, to be polled: proxies hold none for ever
STATUS = {  # of refusals, in the stateless era; the rest is 200
    -32700: 400,
    -32600: 400,
    -32601: 404,
    -32020: 400,
    -32021: 400,
    -32022: 400,
}


class StreamableHttpTransport:
    """The ASGI application behind `/mcp`. `caller(scope)` says who calls; `mirrored(tool)` what it mirrors; `permits`
    what a caller lacks for what they ask: None where everyone may do everything. `shared` is what principals share."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        sessions: Sessions,
        caller: Callable[[Scope], Principal],
        mirrored: Callable[[str], mcp_headers.Mirrored],
        *,
        permits: ScopeCheck | None = None,
        shared: HttpBudgets | None = None,
        patience: float = PATIENCE,
        pulse: float = PULSE,
        poll: float = POLL,
        slow: float = bodies.BODY_TIME,
    ) -> None:
        self._dispatcher = dispatcher
        self._sessions = sessions
        self._caller = caller
        self._permits = permits
        self._mirrored = mirrored
        self._patience = patience
        self._poll = poll
        self._pulse = PingTimer(pulse)
        self._shared = shared or create_budgets(dispatcher.answers)
        self._bodies = bodies.BodyReader(self._shared.bodies, slow)
        self._large: dict[int, Claim] = {}  # of the bodies of messages whose work has not begun, by the message's id()
        self._methods = {"POST": self._post, "GET": self._get, "DELETE": self._delete}
        self.running: set[asyncio.Task[None]] = set()  # the calls under way, of both eras
        self._alone: dict[asyncio.Task[None], Principal] = {}  # those of them that belong to no session
        self.ending = False  # no request is begun any more; answers and cancellations still come through

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = self._methods.get(scope["method"])
        if method is None:
            await refuse(send, 405, "POST, GET or DELETE", [(b"allow", b"POST, GET, DELETE")])
            return
        principal = self._caller(scope)
        place = await admit_request(self._shared, principal, send)
        if place is None:
            return
        try:
            await method(principal, scope["toolgate.headers"], receive, send)
        finally:
            place.release()

    def rights(self) -> Iterator[GrantKey]:
        """By which calls and subscriptions without a session are open."""
        return (principal.grant_key for principal in self._alone.values())

    @property
    def streams(self) -> Collection[EventStream]:
        """Those that are read now."""
        return self._pulse.streams

    def end_by_rights(self, rights: Collection[GrantKey]) -> None:
        """End those by these rights."""
        for task, principal in list(self._alone.items()):
            if principal.grant_key in rights:
                task.cancel()

    # -- POST

    async def _post(self, principal: Principal, given: Headers, receive: Receive, send: Send) -> None:
        refusal = _unacceptable(given)
        if refusal is not None:
            await refuse(send, *refusal)
            return
        body = await self._bodies.read_or_refuse(principal.name, given, receive, send)
        if body is None:
            return
        claim, data, key = body.claim, body.data, None
        del body
        try:
            message = await decode_in_turns(data)
            del data  # a stream may be open for days
            if claim is not None:
                key = id(message)
                self._large[key] = claim
            await self._answer(principal, given, message, receive, send)
        finally:
            if claim is not None and (key is None or self._large.pop(key, None) is not None):
                claim.release()  # no work was begun

    async def _answer(
        self, principal: Principal, given: Headers, message: Inbound | list[Inbound], receive: Receive, send: Send
    ) -> None:
        lacking = self._permits.find_missing(principal, message) if self._permits is not None else None
        if self.ending and _wants_answer(message):
            await _refuse_for_now(send, ENDING)
        elif lacking is not None:
            await (
                lacking.refuse(send) if lacking.answer is None else post_reply.send_answer(send, lacking.answer, 200)
            )
        elif _needs_stream(message) and ReplyForms.STREAM not in parse_accept(given.get(b"accept")):
            await refuse(send, 406, f"{LISTEN} is answered by a stream: Accept must have text/event-stream")
        elif _is_stateless(given, message):
            await self._stateless(principal, given, message, receive, send)
        else:
            await self._in_session(principal, given, message, receive, send)

    async def _stateless(
        self, principal: Principal, given: Headers, message: Inbound | list[Inbound], receive: Receive, send: Send
    ) -> None:
        if not isinstance(message, Request):
            refused = _refuse_stateless(given, message)
            if refused is None:
                await post_reply.send_accepted(send)  # a notification: this revision defines none over HTTP
            else:
                await post_reply.send_answer(send, refused, 400)
            return
        try:
            self._check_headers(given, message)
        except RpcError as error:
            await post_reply.send_answer(send, Failure(message.id, error), 400)
            return
        taken = parse_accept(given.get(b"accept"))
        has_room = partial(self._shared.answers.has_room, principal.name)
        reply = PostReply(partial(self._create_stream, principal)) if ReplyForms.STREAM in taken else JsonReply(None)
        session = Session(
            principal.name,
            stateless=True,
            owner=principal.owner,
            right=principal.grant_key,
            scopes=usable_scopes(principal.scopes),
            granted=usable_scopes(principal.grant_scopes),
            until=principal.until,
            client=principal.client,
            transport="http",
        )
        task = self._begin(message, session, reply, self.running)
        if not task.done():
            self._alone[task] = principal
            task.add_done_callback(self._alone.pop)
        if isinstance(reply, JsonReply):
            if not await reply.wait_ended(receive):
                task.cancel()  # hanging up calls the work off
            elif reply.answer is None:
                await post_reply.send_accepted(send, 204)
            else:
                await post_reply.send_answer(send, reply.answer, _status(reply.answer), (), has_room)
            return
        await reply.wait_decided(self._patience)
        if reply.stream is None and (taken is ReplyForms.EITHER or _status(reply.answer) != 200):
            await post_reply.send_answer(send, reply.answer, _status(reply.answer), (), has_room)
            return
        stream = reply.stream or reply.stream_answer()
        place = self._shared.streams.take(principal.name, 1)
        try:
            if not await send_stream(
                stream, 0, receive, send, self._pulse, keep=False, poll=None, place=place, has_room=has_room
            ):
                task.cancel()  # as above
        finally:
            stream.close()
            if place is not None:
                place.release()

    def _create_stream(self, principal: Principal) -> EventStream:
        """A stream of one request, that nobody comes back to."""
        return EventStream("", numbered=False, claim=self._shared.events.claim(principal.name))

    def _check_headers(self, given: Headers, request: Request) -> None:
        """Raise what is wrong with the request's metadata, in the order of the specification."""
        meta = request.params.get("_meta")
        if not isinstance(meta, dict):
            raise InvalidParams("'_meta' must be an object")
        request_meta.check_meta(meta)
        name = request.params.get("name")
        mirrored = self._mirrored(name) if request.method == "tools/call" and isinstance(name, str) else {}
        name_parameter = self._dispatcher.name_parameter(request.method)
        mcp_headers.check_headers(given, request, name_parameter, mirrored)

    async def _in_session(
        self, principal: Principal, given: Headers, message: Inbound | list[Inbound], receive: Receive, send: Send
    ) -> None:
        id = given.get(b"mcp-session-id")
        if id is not None:
            try:
                held = await self._session(id, principal, self.running)
            except StateError as error:
                await _refuse_for_now(send, str(error))
                return
            if held is not None:
                await self._serve(held, given, message, receive, send)
            elif self.ending:
                await _refuse_for_now(send, ENDING)  # the next process may have it
            else:
                unknown = InvalidRequest("no such session: initialize anew")
                await post_reply.send_answer(send, Failure(_id_of(message), unknown), 404)
        elif isinstance(message, Request) and message.method == "initialize":
            await self._open(principal, given, message, receive, send)
        else:
            missing = message.error if isinstance(message, Malformed) else InvalidRequest("Mcp-Session-Id is missing")
            await post_reply.send_answer(send, Failure(_id_of(message), missing), 400)

    async def _session(
        self, id: bytes, principal: Principal, running: "set[asyncio.Task[None]] | None" = None
    ) -> HttpSession | None:
        """The session of that id, if it is the principal's. One that has to be taken up takes a while: meanwhile the
        request is one of those `running`, which are waited for at the end. Raises StateError."""
        key = id.decode("latin-1")
        held = self._sessions.find(key, principal)
        if held is not None:
            return held
        arriving = asyncio.current_task()
        if running is None or arriving is None:
            return await self._sessions.wake(key, principal)
        running.add(arriving)
        try:
            return await self._sessions.wake(key, principal)
        finally:
            running.discard(arriving)

    async def _open(self, principal: Principal, given: Headers, message: Request, receive: Receive, send: Send) -> None:
        held = self._sessions.open(principal)
        if held is None:
            await refuse(send, 503, "too many sessions", [(b"retry-after", b"30")])
            return
        try:
            # no stream before the session is written down: its head would tell the id
            await self._serve(held, given, message, receive, send, [(b"mcp-session-id", held.id.encode())], OPENING)
        finally:
            if held.session.revision is None:
                self._sessions.close(held)  # an initialize that was refused opens no session

    async def _serve(
        self,
        held: HttpSession,
        given: Headers,
        message: Inbound | list[Inbound],
        receive: Receive,
        send: Send,
        extra: list[tuple[bytes, bytes]] | None = None,
        patience: float | None = None,
    ) -> None:
        taken = parse_accept(given.get(b"accept"))
        if ReplyForms.STREAM not in taken and _wants_answer(message):
            await self._serve_json(held, message, send, extra or [])
            return
        reply = PostReply(partial(self._open_stream, held, message) if _wants_answer(message) else held.open_stream)
        if isinstance(message, Malformed):
            await post_reply.send_answer(send, Failure(message.id, message.error), 400)
        elif not _wants_answer(message):
            await self._dispatcher.handle_message(message, held.session, reply)
            if reply.answer is None:
                await post_reply.send_accepted(send)
            else:  # a batch that could not be accepted
                await post_reply.send_answer(send, reply.answer, 400)
        else:
            self._begin(message, held.session, reply, held.tasks)
            await reply.wait_decided(self._patience if patience is None else patience)
            if reply.stream is None and (taken is ReplyForms.EITHER or _is_unreadable(reply.answer)):
                status = 400 if _is_unreadable(reply.answer) else 200
                await post_reply.send_answer(send, reply.answer, status, extra or (), self._has_room(held))
            else:
                await self._send_stream(held, reply.stream or reply.stream_answer(), 0, receive, send, extra)

    def _open_stream(self, held: HttpSession, message: Inbound | list[Inbound]) -> EventStream:
        """The stream of what answers a message. Whoever resumes it needs what asking took."""
        wanted = NOTHING if self._permits is None else self._permits.required_scopes(message)
        return held.open_post_stream(_request_ids(message), wanted)

    async def _serve_json(
        self, held: HttpSession, message: Inbound | list[Inbound], send: Send, extra: list[tuple[bytes, bytes]]
    ) -> None:
        """One body at the end, however long that takes. That its reader goes changes nothing, as with a stream."""
        reply = JsonReply(held)
        self._begin(message, held.session, reply, held.tasks)
        await reply.wait_ended(None)
        if reply.answer is None:
            await post_reply.send_accepted(send, 204)  # the client has called it off
        else:
            status = 400 if _is_unreadable(reply.answer) else 200
            await post_reply.send_answer(send, reply.answer, status, extra, self._has_room(held))

    def _has_room(self, held: HttpSession) -> Callable[..., bool]:
        return partial(self._shared.answers.has_room, held.principal.name)

    def _begin(
        self,
        message: Inbound | list[Inbound],
        session: Session,
        reply: PostReply | JsonReply,
        tasks: set["asyncio.Task[None]"],
    ) -> "asyncio.Task[None]":
        """Start the work on a message. It belongs to its session, or to nobody but its connection."""
        claim = self._large.pop(id(message), None) if self._large else None
        task = eager_task.start(asyncio.get_running_loop(), self._dispatcher.handle_message(message, session, reply))
        if claim is not None:
            task.add_done_callback(lambda _: claim.release())
        if task.done():
            reply.finish(task)
            return task
        for kept in (tasks, self.running):
            kept.add(task)
            task.add_done_callback(kept.discard)
        task.add_done_callback(partial(self._finish, reply, _request_ids(message)))
        return task

    def _finish(self, reply: PostReply | JsonReply, asked: RequestIds | None, task: "asyncio.Task[None]") -> None:
        """The work is over. Where it is the end of the server that broke it off, the client is told so."""
        if self.ending and task.cancelled() and asked is not None:
            reply.send(post_reply.interrupted_answer(asked))
        reply.finish(task)

    # -- GET and DELETE: the sessions era only

    async def _get(self, principal: Principal, given: Headers, receive: Receive, send: Send) -> None:
        held = await self._named_session(principal, given, send)
        if held is None:
            return
        if ReplyForms.STREAM not in parse_accept(given.get(b"accept")):
            await refuse(send, 406, "GET is answered by a stream: Accept must have text/event-stream")
            return
        last = given.get(b"last-event-id")
        if last is None:
            stream = held.open_get_stream(principal.scopes)
            await self._send_stream(held, stream, stream.sent, receive, send, until=principal.until)
            return
        found = held.find_event(last.decode("latin-1"), principal.scopes)
        if found is None:
            await refuse(send, 400, "no such event, or no longer: Last-Event-ID")
            return
        stream, cursor = found
        lacking = self._permits.compare_scopes(principal, stream.wanted) if self._permits is not None else None
        if lacking is not None:
            await lacking.refuse(send)
        elif stream.ended and cursor == stream.last:
            await post_reply.send_accepted(
                send, 204
            )  # nothing will come any more: this stops an EventSource from coming back
        else:
            await self._send_stream(held, stream, cursor, receive, send, until=principal.until)

    async def _delete(self, principal: Principal, given: Headers, _receive: Receive, send: Send) -> None:
        held = await self._named_session(principal, given, send)
        if held is None:
            return
        try:
            await self._sessions.end(held)
        except StateError as error:
            await _refuse_for_now(send, str(error))
        else:
            await post_reply.send_accepted(send, 204)

    async def _named_session(self, principal: Principal, given: Headers, send: Send) -> HttpSession | None:
        """The session a GET or DELETE is about. In the stateless era there is none: 405."""
        version = given.get(b"mcp-protocol-version", b"").decode("latin-1")
        id = given.get(b"mcp-session-id")
        if version in STATELESS:
            await refuse(send, 405, "this revision has POST only", [(b"allow", b"POST")])
        elif version and version not in WITH_SESSION:
            await refuse(send, 400, f"MCP-Protocol-Version must be one of {', '.join(WITH_SESSION)}")
        elif id is None:
            await refuse(send, 400, "Mcp-Session-Id is missing")
        else:
            return await self._session_or_refuse(id, principal, send)
        return None

    async def _session_or_refuse(self, id: bytes, principal: Principal, send: Send) -> HttpSession | None:
        try:
            held = await self._session(id, principal)
        except StateError as error:
            await _refuse_for_now(send, str(error))
            return None
        if held is None and self.ending:
            await _refuse_for_now(send, ENDING)
        elif held is None:
            await refuse(send, 404, "no such session: initialize anew")
        return held

    async def _send_stream(
        self,
        held: HttpSession,
        stream: EventStream,
        cursor: int,
        receive: Receive,
        send: Send,
        extra: list[tuple[bytes, bytes]] | None = None,
        until: float | None = None,
    ) -> None:
        """Let a reader of the sessions era have a stream. That it goes changes nothing: it may come back."""
        revision = held.session.revision
        poll = self._poll if revision is not None and revision.resumable else None
        place = self._shared.streams.take(held.principal.name, 1)
        try:
            whole = await send_stream(
                stream,
                cursor,
                receive,
                send,
                self._pulse,
                keep=True,
                poll=poll,
                until=until,
                extra=extra or (),
                place=place,
                has_room=self._has_room(held),
            )
        finally:
            if place is not None:
                place.release()
        if whole and stream.size > MAX_RESUMED:
            held.forget(stream)


def _unacceptable(given: Headers) -> tuple[int, str] | None:
    if not bodies.is_json(given):
        return 415, "Content-Type must be application/json, without a Content-Encoding"
    if not parse_accept(given.get(b"accept")):
        return 406, "Accept must have application/json, text/event-stream or, best, both"
    return None


def _status(answer: Any) -> int:
    """Of an answer in the stateless era."""
    return STATUS.get(answer.error.code, 200) if isinstance(answer, Failure) else 200


def _is_unreadable(answer: Any) -> bool:
    """Whether it answers what could not be read."""
    return isinstance(answer, Failure) and answer.id is None


def _needs_stream(message: Inbound | list[Inbound]) -> bool:
    return isinstance(message, Request) and message.method == LISTEN


def _is_stateless(given: Headers, message: Inbound | list[Inbound]) -> bool:
    version = given.get(b"mcp-protocol-version")
    if version is not None and version.decode("latin-1") not in WITH_SESSION:
        return True
    if not isinstance(message, Request):
        return False
    meta = message.params.get("_meta")
    return isinstance(meta, dict) and request_meta.is_stateless(meta)


def _refuse_stateless(given: Headers, message: Inbound | list[Inbound]) -> Failure | None:
    """Why what is no request is not taken in the stateless era; None for a notification, which is."""
    version = given.get(b"mcp-protocol-version", b"").decode("latin-1")
    if isinstance(message, Malformed):
        return Failure(message.id, message.error)
    if version not in STATELESS:
        data = {"supported": list(SUPPORTED), "requested": version[:40]}
        return Failure(None, UnsupportedProtocolVersion("MCP-Protocol-Version is not served", data))
    if isinstance(message, Notification):
        return None
    return Failure(None, InvalidRequest("this revision knows requests and notifications only, one at a time"))


async def _refuse_for_now(send: Send, text: str) -> None:
    await refuse(send, 503, text, [(b"connection", b"close"), (b"retry-after", b"1")])


def _request_ids(message: Inbound | list[Inbound]) -> RequestIds | None:
    """The request, or those of a batch, that have an id to answer to."""
    if isinstance(message, list):
        return [item.id for item in message if isinstance(item, Request)]
    return message.id if isinstance(message, Request) else None


def _wants_answer(message: Inbound | list[Inbound]) -> bool:
    if isinstance(message, list):
        return not message or any(isinstance(item, (Request, Malformed)) for item in message)
    return isinstance(message, Request)


def _id_of(message: Any) -> Any:
    return getattr(message, "id", None) if isinstance(message, (Request, Malformed)) else None
