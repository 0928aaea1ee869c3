"""Answer the POSTs of a revision without sessions: each carries all data about its client.

Its headers must match its body. Disconnecting cancels the work.
Source: MCP 2026-07-28 basic/transports/streamable-http, also "Request Metadata" and "Server Validation".
"""

import asyncio
import base64
import binascii
import re
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from toolgate.server.base.principals.principal import GrantKey, Principal
from toolgate.server.base.principals.scopes import usable_scopes
from toolgate.server.protocol import request_meta
from toolgate.server.protocol.dispatcher import create_failure
from toolgate.server.protocol.errors import HeaderMismatch, InvalidParams, RpcError
from toolgate.server.protocol.messages import Failure, Request
from toolgate.server.protocol.request_meta import VERSION
from toolgate.server.protocol.session import Session
from toolgate.transports.http.requests.post import ACCEPTED, CALLED_OFF, Post, PostReply, find_version_fault
from toolgate.transports.http.sessions.event_stream import EventStream
from toolgate.transports.http.stream_response import StreamSender
from toolgate.transports.http.transport import RunningMessages, TransportServices
from toolgate.transports.http.wire.request import Answer, HttpRequest, StreamedResponse
from toolgate.transports.http.wire.writer import AnswerWriter

NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")  # 42.0 is 42, too
Headers = Mapping[bytes, bytes]
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

    def serve(self, post: Post) -> Answer:
        """Answer one POST."""
        request = post.message
        if not isinstance(request, Request):
            fault = post.find_stateless_fault()
            # None: a notification, of which this revision defines none over HTTP
            return ACCEPTED if fault is None else post.format_answer(fault, 400)
        try:
            self._check_headers(post.headers, request)
        except RpcError as error:
            return post.format_answer(create_failure(request.id, error), 400)
        create_stream = partial(self._create_stream, post.principal) if post.accepts.has_stream else None
        reply = PostReply(create_stream)
        post.request.ends_with_client = True
        task = self._running.start_reply(post, self._create_session(post.principal), reply)
        if task is not None:
            self._callers[task] = post.principal
            task.add_done_callback(self._callers.pop)
            post.request.watch_client(task.cancel)
        return reply.answer_with(partial(self._choose_answer, post, reply, task), self._patience)

    def _choose_answer(self, post: Post, reply: PostReply, task: "asyncio.Task[None] | None") -> Answer:
        """Return the answer that a decided reply is."""
        status = _status_of(reply.answer)
        stream = reply.choose_stream(post.accepts, is_refused=status != 200)
        if stream is not None:
            return StreamedResponse(partial(self._stream, post.principal, post.request, stream, task))
        return CALLED_OFF if reply.answer is None else post.format_answer(reply.answer, status)

    async def _stream(
        self,
        principal: Principal,
        request: HttpRequest,
        stream: EventStream,
        task: "asyncio.Task[None] | None",
        writer: AnswerWriter,
    ) -> None:
        try:
            is_whole = await self._streams.send(stream, 0, principal, request, writer, keep=False)
            if task is not None and not is_whole:
                task.cancel()
        finally:
            stream.close()

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

    def _check_headers(self, headers: Headers, request: Request) -> None:
        """Raise the first fault of the metadata, in the specification's order."""
        method, params = request.method, request.params
        meta: Any = params.get("_meta")
        fault = find_version_fault(headers) if not isinstance(meta, dict) or VERSION not in meta else None
        try:
            if fault is not None:
                raise fault
        finally:
            del fault  # its traceback holds this frame
        if not isinstance(meta, dict):
            raise InvalidParams("'_meta' must be an object")
        request_meta.check_meta(meta)
        parameter = self._services.dispatcher.name_parameter(method)
        _check_repeated(headers, meta[VERSION], method, parameter, parameter and params.get(parameter))
        name = params.get("name")
        if method == "tools/call" and isinstance(name, str):
            for header, value in self._services.mirrored_headers(name, params.get("arguments")).items():
                _check_mirrored(headers, header, value)


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
