"""Answer the POSTs of a revision without sessions: each carries all data about its client.

Its headers must match its body. Disconnecting cancels the work.
Source: MCP 2026-07-28 basic/transports/streamable-http, also "Request Metadata" and "Server Validation".
"""

import asyncio
import base64
import binascii
import re
from collections.abc import Collection, Iterator
from decimal import Decimal
from functools import partial
from typing import Any

from toolgate.server.auth.scopes import usable_scopes
from toolgate.server.principal import GrantKey, Principal
from toolgate.server.protocol import request_meta
from toolgate.server.protocol.errors import HeaderMismatch, InvalidParams, RpcError
from toolgate.server.protocol.messages import Failure, RepeatedMeta, Request
from toolgate.server.protocol.request_meta import VERSION
from toolgate.server.protocol.session import Session
from toolgate.transports.http.asgi import Headers, Pending
from toolgate.transports.http.event_stream import EventStream
from toolgate.transports.http.post import Post, PostReply, find_version_fault, send_accepted
from toolgate.transports.http.stream_response import StreamSender
from toolgate.transports.http.transport import RunningMessages, TransportServices

NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")  # 42.0 is 42, too
BEGIN, END = "=?base64?", "?="

STATUS = {  # of refusals; the rest is 200
    -32700: 400,
    -32600: 400,
    -32601: 404,
    -32020: 400,
    -32021: 400,
    -32022: 400,
}


class StatelessPosts:
    """The POSTs of the stateless era. An answer that takes longer than `patience` seconds becomes a stream."""

    def __init__(
        self, services: TransportServices, running: RunningMessages, streams: StreamSender, patience: float
    ) -> None:
        self._services = services
        self._running = running
        self._streams = streams
        self._patience = patience
        self._callers: dict[asyncio.Task[None], Principal] = {}  # running work → its principal

    def rights(self) -> Iterator[GrantKey]:
        """Yield the grants that have open calls and subscriptions."""
        return (principal.grant_key for principal in self._callers.values())

    def end_by_rights(self, rights: Collection[GrantKey]) -> None:
        """End the work of these grants."""
        for task, principal in list(self._callers.items()):
            if principal.grant_key in rights:
                task.cancel()

    def serve(self, post: Post) -> Pending:
        """Answer one POST."""
        request = post.message
        if not isinstance(request, Request):
            fault = post.find_stateless_fault()
            # None: a notification, of which this revision defines none over HTTP
            return send_accepted(post.send) if fault is None else post.begin_answer(fault, 400)
        known = self._find_session(post, request)
        try:
            self._check_headers(post, request, is_checked=known is not None)
        except RpcError as error:
            return post.begin_answer(Failure(request.id, error), 400)
        create_stream = partial(self._create_stream, post.principal) if post.accepts.has_stream else None
        reply = PostReply(create_stream)
        session = known or self._create_session(post.principal)
        task = self._running.start_reply(post, session, reply)
        if task is not None:
            self._callers[task] = post.principal
            task.add_done_callback(self._callers.pop)
        elif known is None and post.head is not None and session.revision is not None:  # nothing of it goes on
            post.head.session = post.principal, request.params.get("_meta"), session
        if reply.is_one_body(post.accepts):
            return post.begin_answer(reply.answer, _status_of(reply.answer))
        return self._send_reply(post, reply, task)

    async def _send_reply(self, post: Post, reply: PostReply, task: "asyncio.Task[None] | None") -> None:
        """Send the reply of a `task` that takes a while, or a stream."""
        if not await reply.wait_decided(self._patience, post.receive):
            if task is not None:
                task.cancel()
            return
        status = _status_of(reply.answer)
        stream = reply.choose_stream(post.accepts, is_refused=status != 200)
        if stream is not None:
            post.headers = {}  # frees memory: a thousand subscriptions may stay open for days
            try:
                is_whole = await self._streams.send(stream, 0, post.principal, post.scope, post.send, keep=False)
                if task is not None and not is_whole:
                    task.cancel()
            finally:
                stream.close()
        elif reply.answer is None:
            await send_accepted(post.send, 204)  # the client has called it off
        else:
            await post.send_answer(reply.answer, status)

    def _find_session(self, post: Post, request: Request) -> Session | None:
        """Return the session of the last call with the same head if a new one would equal it, or None."""
        head = post.head
        if head is None or head.session is None:
            return None
        session: Session
        principal, known, session = head.session
        meta = request.params.get("_meta")
        if principal is not post.principal or session.in_flight:
            return None
        if known is not meta:
            try:
                if known != meta:
                    return None
            except RecursionError:  # nested too deeply to say
                return None
            head.session = principal, meta, session
            head.meta = head.meta or RepeatedMeta()
            if head.meta.spelling is not None:
                head.meta.value = meta
        session.meta = meta
        return session

    def _create_session(self, principal: Principal) -> Session:
        return Session(
            principal.name,
            stateless=True,
            owner=principal.owner,
            right=principal.grant_key,
            scopes=usable_scopes(principal.scopes),
            granted=usable_scopes(principal.grant_scopes),
            until=principal.until,
            client=principal.client,
            transport=self._services.row.name,
        )

    def _create_stream(self, principal: Principal) -> EventStream:
        """Return a stream for one request, which can't be resumed."""
        return EventStream("", numbered=False, claim=self._services.budgets.events.claim(principal.name))

    def _check_headers(self, post: Post, request: Request, *, is_checked: bool) -> None:
        """Raise the first fault of the metadata, in the specification's order. `is_checked`: the `_meta` has none."""
        meta: Any = request.params.get("_meta")
        if not is_checked:
            fault = find_version_fault(post.headers) if not isinstance(meta, dict) or VERSION not in meta else None
            if fault is not None:
                raise fault
            if not isinstance(meta, dict):
                raise InvalidParams("'_meta' must be an object")
            request_meta.check_meta(meta)
        method, params, head = request.method, request.params, post.head
        last = None if head is None else head.repeated  # what the headers repeated of the last body
        if (
            last is None
            or last[0] != meta[VERSION]
            or last[1] != method
            or (last[2] and last[3] != params.get(last[2]))
        ):
            parameter = self._services.dispatcher.name_parameter(method)
            repeated = meta[VERSION], method, parameter, parameter and params.get(parameter)
            _check_repeated(post.headers, *repeated)
            if head is not None:
                head.repeated = repeated
        name = params.get("name")
        if method == "tools/call" and isinstance(name, str):
            for header, path in self._services.mirrored_headers(name).items():
                _check_mirrored(post.headers, header, _argument_at(params.get("arguments"), path))


def _status_of(answer: object) -> int:
    return STATUS.get(answer.error.code, 200) if isinstance(answer, Failure) else 200


def _check_repeated(headers: Headers, version: str, method: str, parameter: str | None, name: Any) -> None:
    """Raise HeaderMismatch if a header that repeats a part of the body is missing or wrong."""
    _check_equal(headers, b"mcp-protocol-version", version, "MCP-Protocol-Version")
    _check_equal(headers, b"mcp-method", method, "Mcp-Method")
    if parameter is not None:
        _check_equal(headers, b"mcp-name", name, "Mcp-Name", encoded=True)


def _decode_value(value: str) -> str:
    """Return a header's decoded value: `=?base64?…?=` is UTF-8 in base64. Raises HeaderMismatch."""
    if not (value.startswith(BEGIN) and value.endswith(END) and len(value) >= len(BEGIN) + len(END)):
        return value
    try:
        return base64.b64decode(value[len(BEGIN) : -len(END)].encode("ascii"), validate=True).decode()
    except (binascii.Error, ValueError):
        raise HeaderMismatch("a header has invalid base64") from None


def _check_equal(headers: Headers, name: bytes, wanted: Any, title: str, *, encoded: bool = False) -> None:
    given = headers.get(name)
    if given is None:
        raise HeaderMismatch(f"the {title} header is missing")
    if isinstance(wanted, str) and given == wanted.encode() and given.isascii() and not given.startswith(b"=?"):
        return  # nearly always; the code below handles encoded, padded and non-ASCII values
    value = _read_text(given, title)
    if (_decode_value(value) if encoded else value) != wanted:
        raise HeaderMismatch(f"the {title} header does not match the body")


def _check_mirrored(headers: Headers, name: str, value: Any) -> None:
    """Raise HeaderMismatch unless a given parameter is mirrored, and a missing one is not."""
    title = f"Mcp-Param-{name}"
    given = headers.get(b"mcp-param-" + name.encode())
    if value is None:
        if given is not None:
            raise HeaderMismatch(f"the {title} header matches no argument")
        return
    if given is None:
        raise HeaderMismatch(f"the {title} header is missing")
    said = _decode_value(_read_text(given, title))
    if isinstance(value, bool):
        same = said == ("true" if value else "false")
    elif isinstance(value, (int, float)):
        same = NUMBER.fullmatch(said) is not None and Decimal(said) == value
    else:
        same = said == value
    if not same:
        raise HeaderMismatch(f"the {title} header does not match the body")


def _read_text(given: bytes, title: str) -> str:
    """Return visible ASCII, spaces and tabs, without surrounding white space (RFC 9110 section 5.5)."""
    value = given.strip(b" \t").decode("latin-1")
    if not (value.isascii() and value.replace("\t", " ").isprintable()):
        raise HeaderMismatch(f"the {title} header has characters that headers may not contain")
    return value


def _argument_at(arguments: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        if not isinstance(arguments, dict):
            return None
        arguments = arguments.get(step)
    return arguments
