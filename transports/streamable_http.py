"""Serves Streamable HTTP at one endpoint, both eras of it, told apart by each request. Raw ASGI.

Each POST brings its own channel (`Reply`): an answer that comes first, within a second, is one JSON body; anything
else, or silence, makes an event stream. In the sessions era streams outlive their connections and can be resumed; in
the stateless era hanging up cancels. Knows HTTP and streams; knows nothing of MCP methods.
Source: MCP 2025-03-26, 2025-06-18, 2025-11-25 basic/transports; 2026-07-28 basic/transports/streamable-http.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from toolgate.server import envelope
from toolgate.server.dispatcher import Dispatcher
from toolgate.server.errors import InvalidParams, InvalidRequest, RpcError
from toolgate.server.messages import Failure, Inbound, Malformed, Outbound, Request, decode, encode
from toolgate.server.revisions import WITH_SESSION
from toolgate.server.session import Session
from toolgate.transports import bodies, headers
from toolgate.transports.events import PING, Pulse, Stream, is_answer
from toolgate.transports.guard import Headers, Receive, Scope, Send, refuse
from toolgate.transports.sessions import HttpSession, Sessions

log = logging.getLogger("toolgate.http")

PATIENCE = 1.0  # seconds an answer may take to still be one JSON body: longer silence looks dead to a proxy
PULSE = 15.0  # seconds between comments on a quiet stream
RETRY = 1_000  # milliseconds after which a reader may come back
POLL = 300.0  # seconds after which a connection of 2025-11-25 is closed, to be polled: proxies hold none for ever
STATUS = {
    -32700: 400,
    -32600: 400,
    -32601: 404,
    -32020: 400,
    -32021: 400,
    -32022: 400,
}  # stateless era; the rest is 200

JSON = (b"content-type", b"application/json")
EVENTS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store, no-transform"),  # no-transform: never compressed, which would buffer
    (b"x-accel-buffering", b"no"),
]


class Endpoint:
    """The ASGI application behind `/mcp`. `principal(headers)` says who calls; `mirrored(tool)` what it mirrors."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        sessions: Sessions,
        principal: Callable[[Headers], str],
        mirrored: Callable[[str], headers.Mirrored],
        *,
        patience: float = PATIENCE,
        pulse: float = PULSE,
        poll: float = POLL,
    ) -> None:
        self._dispatcher = dispatcher
        self._sessions = sessions
        self._principal = principal
        self._mirrored = mirrored
        self._patience = patience
        self._poll = poll
        self._pulse = Pulse(pulse)
        self._tasks: set[asyncio.Task[None]] = set()
        self._methods = {"POST": self._post, "GET": self._get, "DELETE": self._delete}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = self._methods.get(scope["method"])
        if method is None:
            await refuse(send, 405, "POST, GET or DELETE", [(b"allow", b"POST, GET, DELETE")])
            return
        await method(scope["toolgate.headers"], receive, send)

    @property
    def running(self) -> set["asyncio.Task[None]"]:
        """The calls under way, of both eras."""
        return self._tasks

    # -- POST

    async def _post(self, given: Headers, receive: Receive, send: Send) -> None:
        refusal = _unacceptable(given)
        if refusal is not None:
            await refuse(send, *refusal)
            return
        try:
            body = await bodies.read(given, receive)
        except bodies.TooLarge:
            await refuse(send, 413, f"more than {bodies.MAX_BODY} bytes", [(b"connection", b"close")])
            return
        except bodies.TooSlow:
            await refuse(send, 408, "the body did not come in time", [(b"connection", b"close")])
            return
        except bodies.Gone:
            return
        message = decode(body)
        if _is_stateless(given, message):
            await self._stateless(given, message, receive, send)
        else:
            await self._in_session(given, message, receive, send)

    async def _stateless(self, given: Headers, message: Inbound | list[Inbound], receive: Receive, send: Send) -> None:
        if isinstance(message, Malformed):
            await _answer(send, Failure(message.id, message.error), 400)
            return
        if not isinstance(message, Request):
            if isinstance(message, list):
                await _answer(send, Failure(None, InvalidRequest("batches are not known to this revision")), 400)
            else:
                await _accept(send)  # notifications; this revision defines none over HTTP
            return
        connection = Session(self._principal(given), stateless=True)
        try:
            self._check_headers(given, message)
        except RpcError as error:
            await _answer(send, Failure(message.id, error), 400)
            return
        stream = Stream("", numbered=False)
        reply = Reply(lambda: stream)
        task = self._begin(message, connection, reply, self._tasks)
        await self._respond(reply, task, receive, send, cancel=True)

    def _check_headers(self, given: Headers, request: Request) -> None:
        """Raise what is wrong with the request's metadata, in the order of the specification."""
        meta = request.params.get("_meta")
        if not isinstance(meta, dict):
            raise InvalidParams("'_meta' must be an object")
        envelope.check(meta)
        name = request.params.get("name")
        mirrored = self._mirrored(name) if request.method == "tools/call" and isinstance(name, str) else {}
        headers.check(given, request, mirrored)

    async def _in_session(self, given: Headers, message: Inbound | list[Inbound], receive: Receive, send: Send) -> None:
        version = given.get(b"mcp-protocol-version")
        if version is not None and version.decode("latin-1") not in WITH_SESSION:
            known = ", ".join(WITH_SESSION)
            await refuse(send, 400, f"MCP-Protocol-Version must be one of {known}")
            return
        id = given.get(b"mcp-session-id")
        extra: list[tuple[bytes, bytes]] = []
        if id is None:
            if not (isinstance(message, Request) and message.method == "initialize"):
                error = message.error if isinstance(message, Malformed) else InvalidRequest("Mcp-Session-Id is missing")
                await _answer(send, Failure(_id_of(message), error), 400)
                return
            held = self._sessions.open(self._principal(given))
            if held is None:
                await refuse(send, 503, "too many sessions", [(b"retry-after", b"30")])
                return
            extra = [(b"mcp-session-id", held.id.encode())]
        else:
            found = self._sessions.find(id.decode("latin-1"), self._principal(given))
            if found is None:
                await _answer(send, Failure(_id_of(message), InvalidRequest("no such session: initialize anew")), 404)
                return
            held = found
        await self._serve(held, message, receive, send, extra)
        if id is None and held.session.revision is None:
            self._sessions.close(held)  # an initialize that was refused opens no session

    async def _serve(
        self,
        held: HttpSession,
        message: Inbound | list[Inbound],
        receive: Receive,
        send: Send,
        extra: list[tuple[bytes, bytes]],
    ) -> None:
        reply = Reply(held.stream)
        if isinstance(message, Malformed):
            await _answer(send, Failure(message.id, message.error), 400)
        elif _wants_answer(message):
            task = self._begin(message, held.session, reply, held.tasks)
            await self._respond(reply, task, receive, send, held=held, extra=extra)
        else:
            await self._dispatcher.take(message, held.session, reply)
            if reply.answer is not None:  # a batch that could not be accepted
                await _answer(send, reply.answer, 400)
            else:
                await _accept(send)

    def _begin(
        self, message: Inbound | list[Inbound], session: Session, reply: "Reply", tasks: set["asyncio.Task[None]"]
    ) -> "asyncio.Task[None]":
        """Start the work on a message. It belongs to its session, or to nobody but its connection."""
        task = asyncio.get_running_loop().create_task(self._dispatcher.take(message, session, reply))
        for kept in (tasks, self._tasks):
            kept.add(task)
            task.add_done_callback(kept.discard)
        task.add_done_callback(reply.finish)
        return task

    async def _respond(
        self,
        reply: "Reply",
        task: "asyncio.Task[None]",
        receive: Receive,
        send: Send,
        *,
        cancel: bool = False,
        held: HttpSession | None = None,
        extra: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        """One JSON body or an event stream, whichever it turns out to be. `cancel`: hanging up calls the work off."""
        timer = asyncio.get_running_loop().call_later(self._patience, reply.open)
        try:
            await reply.turned
        finally:
            timer.cancel()
        if reply.stream is None:
            answer = reply.answer
            assert answer is not None
            status = STATUS.get(answer.error.code, 200) if held is None and isinstance(answer, Failure) else 200
            await _answer(send, answer, status, extra or [])
            return
        if not await self._pour(reply.stream, 0, receive, send, held, extra or []) and cancel:
            task.cancel()

    # -- streams

    async def _get(self, given: Headers, receive: Receive, send: Send) -> None:
        held = await self._named_session(given, send)
        if held is None:
            return
        if b"text/event-stream" not in given.get(b"accept", b"") and b"*/*" not in given.get(b"accept", b""):
            await refuse(send, 406, "Accept must have text/event-stream")
            return
        last = given.get(b"last-event-id")
        if last is None:
            stream, cursor = held.standing(), 0
        else:
            id, _, number = last.decode("latin-1").partition("-")
            found = held.streams.get(id)
            if found is None or not number.isdigit() or int(number) > found.last:
                await refuse(send, 404, "no such event")
                return
            stream, cursor = found, int(number)
        await self._pour(stream, cursor, receive, send, held, [])

    async def _delete(self, given: Headers, receive: Receive, send: Send) -> None:
        held = await self._named_session(given, send)
        if held is not None:
            self._sessions.close(held)
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async def _named_session(self, given: Headers, send: Send) -> HttpSession | None:
        """The session a GET or DELETE is about. In the stateless era there is none: 405."""
        id = given.get(b"mcp-session-id")
        if id is None:
            version = given.get(b"mcp-protocol-version", b"").decode("latin-1")
            if version and version not in WITH_SESSION:
                await refuse(send, 405, "this revision has POST only", [(b"allow", b"POST")])
            else:
                await refuse(send, 400, "Mcp-Session-Id is missing")
            return None
        held = self._sessions.find(id.decode("latin-1"), self._principal(given))
        if held is None:
            await refuse(send, 404, "no such session: initialize anew")
        return held

    async def _pour(
        self,
        stream: Stream,
        cursor: int,
        receive: Receive,
        send: Send,
        held: HttpSession | None,
        extra: list[tuple[bytes, bytes]],
    ) -> bool:
        """Send what the stream has and gets, until it ends: true; or until the reader goes or is sent away: false."""
        me = object()
        stream.release()
        stream.reader = me
        await send({"type": "http.response.start", "status": 200, "headers": [*EVENTS, *extra]})
        polls = held is not None and held.session.revision is not None and held.session.revision.resumable
        first = stream.primer(RETRY) if polls and not cursor else b": open\r\n\r\n"
        await send({"type": "http.response.body", "body": first, "more_body": True})
        loop = asyncio.get_running_loop()
        watch = loop.create_task(_watch(receive, stream, me))
        timer = loop.call_later(self._poll, stream.release) if polls else None
        self._pulse.add(stream)
        try:
            whole = await _write(stream, cursor, send, me, keep=held is not None)
        finally:
            watch.cancel()
            if timer is not None:
                timer.cancel()
            if stream.reader is me:
                stream.reader = None
            if stream.reader is None:
                self._pulse.discard(stream)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return whole


class Reply:
    """The channel of one POST. Undecided until something comes: then `turned`, with an `answer` or a `stream`."""

    __slots__ = ("_make", "answer", "stream", "turned")

    def __init__(self, make: Callable[[], Stream]) -> None:
        self._make = make
        self.answer: Any = None
        self.stream: Stream | None = None
        self.turned: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, message: Outbound) -> None:
        if self.stream is None and self.answer is None and is_answer(message):
            self.answer = message
            self._turn()
            return
        self.open()
        assert self.stream is not None
        self.stream.send(message)
        if is_answer(message):
            self.stream.end()

    def open(self) -> None:
        """Make it a stream, if it is nothing yet."""
        if self.stream is None and self.answer is None:
            self.stream = self._make()
            self._turn()

    def finish(self, _task: "asyncio.Task[None]") -> None:
        """The work is over, answered or not: a cancelled request ends its stream without an answer."""
        self.open()
        if self.stream is not None:
            self.stream.end()

    def _turn(self) -> None:
        if not self.turned.done():
            self.turned.set_result(None)


async def _write(stream: Stream, cursor: int, send: Send, me: object, *, keep: bool) -> bool:
    while True:
        stream.news.clear()
        if stream.reader is not me:
            return False
        if stream.missed(cursor) and not keep:
            return False  # too slow: what it should have had is gone
        events = stream.after(cursor)
        if stream.pinged and not events:
            events = [PING]
        else:
            cursor = stream.last
        stream.pinged = False
        if events:
            await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})
            if not keep:
                stream.forget(cursor)
        elif stream.ended:
            return True
        else:
            await stream.news.wait()


async def _watch(receive: Receive, stream: Stream, me: object) -> None:
    """Notice that the reader has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if stream.reader is me:
        stream.release()


async def _answer(send: Send, message: Any, status: int, extra: list[tuple[bytes, bytes]] | None = None) -> None:
    body = encode(message)
    told = [JSON, (b"content-length", str(len(body)).encode()), *(extra or ())]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})


async def _accept(send: Send) -> None:
    await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def _unacceptable(given: Headers) -> tuple[int, str] | None:
    kind = given.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        return 415, "Content-Type must be application/json"
    accept = given.get(b"accept", b"*/*")
    if b"*/*" in accept or (b"application/json" in accept and b"text/event-stream" in accept):
        return None
    return 406, "Accept must have application/json and text/event-stream"


def _is_stateless(given: Headers, message: Inbound | list[Inbound]) -> bool:
    version = given.get(b"mcp-protocol-version")
    if version is not None and version.decode("latin-1") not in WITH_SESSION:
        return True
    if not isinstance(message, Request):
        return False
    meta = message.params.get("_meta")
    return isinstance(meta, dict) and envelope.is_one(meta)


def _wants_answer(message: Inbound | list[Inbound]) -> bool:
    if isinstance(message, list):
        return not message or any(isinstance(item, (Request, Malformed)) for item in message)
    return isinstance(message, Request)


def _id_of(message: Any) -> Any:
    return getattr(message, "id", None) if isinstance(message, (Request, Malformed)) else None
