"""Parse one POST of Streamable HTTP, and reply with one JSON body or an event stream.

Source: RFC 9110 section 12.5.1. The most specific matching range of an Accept header decides; `q=0` excludes; a
malformed range is skipped. Other parameters than q are ignored: each form has one representation.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache, partial
from typing import Any

import msgspec

from toolgate.server.base.http.head import Head
from toolgate.server.base.limits.budget import Budget, Claim
from toolgate.server.base.principals.principal import Principal
from toolgate.server.protocol import request_meta
from toolgate.server.protocol.errors import InvalidRequest, UnsupportedProtocolVersion
from toolgate.server.protocol.interruption import RequestIds
from toolgate.server.protocol.messages import (
    Failure,
    Inbound,
    MalformedMessage,
    Notification,
    Outbound,
    Request,
    encode,
    refuse_too_large,
)
from toolgate.server.protocol.revisions import REVISIONS, WITH_SESSION
from toolgate.server.protocol.session import Channel
from toolgate.transports.http.sessions.event_stream import ANSWER_TYPES, EventStream
from toolgate.transports.http.wire.request import Answer, HttpRequest, PendingResponse, WholeResponse, refuse

SESSION_VERSIONS = frozenset(name.encode() for name in WITH_SESSION)
MAX_VERSION = 40  # characters of a header's revision that an error repeats
SMALL = 64 * 1024  # bytes of an answer that is sent without waiting for its reader
JSON_LINE = b"content-type: application/json\r\n"
QUALITY = re.compile(r"[01](\.[0-9]{0,20})?")
ACCEPTED = WholeResponse(202)
CALLED_OFF = WholeResponse(204)  # the client has cancelled its request
MAX_CACHED = 256  # bytes of an Accept header whose parsed form is cached
MAX_READ = 4_096  # bytes of one: browsers send some 150, and 60 KiB of separators take 35 ms

log = logging.getLogger("toolgate.http")


class ReplyForms(Enum):
    """The accepted forms of a reply: one JSON body, an event stream, either, or neither."""

    NEITHER = False, False
    JSON = True, False
    STREAM = False, True
    EITHER = True, True

    def __init__(self, json: bool, stream: bool) -> None:
        self.has_stream = stream
        self.is_stream_only = stream and not json


FORMS = {form.value: form for form in ReplyForms}
KINDS = (("application/json", "application/*", "*/*"), ("text/event-stream", "text/*", "*/*"))  # of JSON and of streams


class Post(msgspec.Struct, eq=False):
    """A POST and its sender. `claim` is its body's part of a budget, taken over by the work; `answers` bounds unread
    answers."""

    principal: Principal
    accepts: ReplyForms
    message: Inbound | list[Inbound]
    claim: Claim | None
    request: HttpRequest
    answers: Budget

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        return self.request.head.headers

    @property
    def id(self) -> Any:
        """The id of its request or malformed message."""
        return self.message.id if isinstance(self.message, (Request, MalformedMessage)) else None

    @property
    def request_ids(self) -> RequestIds | None:
        """The id of its request, or the ids of a batch's requests."""
        if isinstance(self.message, list):
            return [item.id for item in self.message if isinstance(item, Request)]
        return self.message.id if isinstance(self.message, Request) else None

    @property
    def wants_answer(self) -> bool:
        if isinstance(self.message, list):
            return not self.message or any(isinstance(item, (Request, MalformedMessage)) for item in self.message)
        return isinstance(self.message, Request)

    @property
    def is_stateless(self) -> bool:
        """Whether its header or its request's metadata names a revision without sessions."""
        version = self.headers.get(b"mcp-protocol-version")
        if version is not None and version not in SESSION_VERSIONS:
            return True
        meta = self.message.params.get("_meta") if isinstance(self.message, Request) else None
        return meta is not None and isinstance(meta, dict) and request_meta.is_stateless(meta)

    def take_claim(self) -> Claim | None:
        """Hand the claim over; its new owner releases it."""
        claim, self.claim = self.claim, None
        return claim

    def find_stateless_fault(self) -> Failure | None:
        """Return the error for a message that is no request in a revision without sessions, or None for a
        notification."""
        if isinstance(self.message, MalformedMessage):
            return Failure(self.message.id, self.message.error)
        fault = find_version_fault(self.headers)
        if fault is not None:
            return Failure(None, fault)
        if isinstance(self.message, Notification):
            return None
        return Failure(None, InvalidRequest("this revision accepts only single requests and notifications"))

    def format_answer(self, message: Outbound, status: int, extra: bytes = b"") -> WholeResponse:
        """Return one JSON body, with `extra` header lines. A large answer without room is replaced by an error."""
        body = encode(message)
        if len(body) > SMALL and not self.answers.has_room(self.principal.name, len(body)):
            body = encode(refuse_too_large(message))
        return WholeResponse(status, JSON_LINE + extra, body)


class PostReply(msgspec.Struct, eq=False):
    """The channel of one POST, which ends with an `answer` (JSON) or a `stream`.

    Without `create_stream`, for a client that accepts no stream, only the answer is sent. Questions then go to `aside`,
    if that reaches the client; progress and logs are dropped.
    """

    _create_stream: Callable[[], EventStream] | None
    _aside: Channel | None = None
    answer: Any = None
    stream: EventStream | None = None
    is_decided: bool = False
    _on_decided: Callable[[], None] | None = None

    @property
    def can_ask(self) -> bool:
        return self._create_stream is not None or (self._aside is not None and self._aside.can_ask)

    @property
    def is_full(self) -> bool:
        return self.stream is not None and self.stream.is_full

    def send(self, message: Outbound) -> None:
        if isinstance(message, ANSWER_TYPES) and self.stream is None:
            if self.answer is None:
                self.answer = message
                self._decide()
        elif self._create_stream is None:
            if self._aside is not None and _is_about_question(message):
                self._aside.send(message)
        elif self.answer is None:  # after the answer nothing may follow
            self.open()
            if self.stream is not None:
                self.stream.send(message)
                if isinstance(message, ANSWER_TYPES):
                    self.stream.end()

    def pause(self) -> None:
        self.open()
        if self.stream is not None:
            self.stream.pause()

    def open(self) -> None:
        """Make the reply a stream, if that is undecided and allowed."""
        if self.stream is None and self.answer is None and self._create_stream is not None:
            self.stream = self._create_stream()
            self._decide()

    def finish(self) -> None:
        """End the reply. A cancelled request's stream ends without an answer."""
        if self.answer is not None:
            return
        self.open()
        if self.stream is not None:
            self.stream.end()
        self._decide()

    def answer_with(self, choose: Callable[[], Answer], patience: float) -> Answer:
        """Return the answer that `choose` makes of this reply once it is an answer or a stream: after `patience`
        seconds it is a stream."""
        if self.is_decided:
            return choose()
        later = PendingResponse()
        alarm = None
        if self._create_stream is not None:
            alarm = asyncio.get_running_loop().call_later(patience, self.open)
        self._on_decided = partial(_set_answer, later, choose, alarm)
        return later

    def choose_stream(self, forms: ReplyForms, *, is_refused: bool) -> EventStream | None:
        """Return the stream to send, or None for a JSON body. A client that accepts only streams gets the answer as the
        one event of a stream, but a refusal as JSON."""
        if forms.is_stream_only and self.stream is None and not is_refused and self._create_stream is not None:
            self.stream = self._create_stream()
            self.stream.send(self.answer)
            self.stream.end()
        return self.stream

    def _decide(self) -> None:
        self.is_decided = True
        on_decided, self._on_decided = self._on_decided, None
        if on_decided is not None:
            on_decided()


def _set_answer(later: PendingResponse, choose: Callable[[], Answer], alarm: asyncio.TimerHandle | None) -> None:
    if alarm is not None:
        alarm.cancel()
    try:
        answer = choose()
    except Exception:
        log.exception("an answer can't be formed")
        answer = refuse(500, "an internal error occurred; the server's log has the details", closes=True)
    later.set(answer)


def find_version_fault(headers: Mapping[bytes, bytes]) -> UnsupportedProtocolVersion | None:
    """Return the error for a request whose header names a revision that is not served, or None."""
    version = headers.get(b"mcp-protocol-version")
    if version is None or version.decode("latin-1") in REVISIONS:
        return None
    return request_meta.refuse_version(version.decode("latin-1")[:MAX_VERSION], "MCP-Protocol-Version")


def _is_about_question(message: Outbound) -> bool:
    """Return whether the message asks the client something, or cancels that."""
    return isinstance(message, Request) or (
        isinstance(message, Notification) and message.method == "notifications/cancelled"
    )


def is_json(head: Head) -> bool:
    """Return whether the body is declared as JSON without compression: nothing is decompressed, so no bomb works."""
    kind = head.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return kind == b"application/json" and head.headers.get(b"content-encoding", b"identity").lower() == b"identity"


def parse_accept(accept: bytes | None) -> ReplyForms:
    """Return the accepted forms of a request with this header: either without one, neither if it is too long."""
    if not accept or accept.isspace():
        return ReplyForms.EITHER
    if len(accept) > MAX_READ:
        return ReplyForms.NEITHER
    return _parse_cached(accept) if len(accept) <= MAX_CACHED else _parse(accept)


@lru_cache(256)
def _parse_cached(accept: bytes) -> ReplyForms:
    return _parse(accept)


def _parse(accept: bytes) -> ReplyForms:
    qualities: dict[str, float] = {}
    for item in accept.decode("latin-1").lower().split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        quality = _parse_quality(parameters)
        if quality is not None:
            qualities[kind] = max(quality, qualities.get(kind, 0.0))
    json, stream = (next((qualities[kind] for kind in kinds if kind in qualities), 0.0) > 0 for kinds in KINDS)
    return FORMS[json, stream]


def _parse_quality(parameters: list[str]) -> float | None:
    """Return the weight of a range, or None if it is invalid."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return float(value) if QUALITY.fullmatch(value.strip()) else None
    return 1.0
