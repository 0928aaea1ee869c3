"""Describe one POST of Streamable HTTP: who sends what, and which answer the message and its headers ask for."""

from dataclasses import dataclass
from typing import Any

from toolgate.server.budget import Claim
from toolgate.server.principal import Principal
from toolgate.server.protocol import request_meta
from toolgate.server.protocol.errors import InvalidRequest, UnsupportedProtocolVersion
from toolgate.server.protocol.messages import Failure, Inbound, MalformedMessage, Notification, Request
from toolgate.server.protocol.revisions import STATELESS, SUPPORTED, WITH_SESSION
from toolgate.transports.http.accept import ReplyForms, parse_accept
from toolgate.transports.http.asgi import Headers, Receive, Send
from toolgate.transports.http.event_ids import RequestIds

LISTEN = "subscriptions/listen"


@dataclass(eq=False, slots=True)
class Post:
    """`claim` is what its body holds of a budget; the work that begins takes it over."""

    principal: Principal
    headers: Headers
    message: Inbound | list[Inbound]
    claim: Claim | None
    receive: Receive
    send: Send

    @property
    def accepts(self) -> ReplyForms:
        return parse_accept(self.headers.get(b"accept"))

    @property
    def id(self) -> Any:
        """Of its request, or of what was malformed."""
        return self.message.id if isinstance(self.message, (Request, MalformedMessage)) else None

    @property
    def request_ids(self) -> RequestIds | None:
        """The request, or those of a batch, that have an id to answer to."""
        if isinstance(self.message, list):
            return [item.id for item in self.message if isinstance(item, Request)]
        return self.message.id if isinstance(self.message, Request) else None

    @property
    def wants_answer(self) -> bool:
        if isinstance(self.message, list):
            return not self.message or any(isinstance(item, (Request, MalformedMessage)) for item in self.message)
        return isinstance(self.message, Request)

    @property
    def needs_stream(self) -> bool:
        return isinstance(self.message, Request) and self.message.method == LISTEN

    @property
    def is_stateless(self) -> bool:
        """Whether it is of a revision without sessions, by its header or by the request's own metadata."""
        version = self.headers.get(b"mcp-protocol-version")
        if version is not None and version.decode("latin-1") not in WITH_SESSION:
            return True
        meta = self.message.params.get("_meta") if isinstance(self.message, Request) else None
        return isinstance(meta, dict) and request_meta.is_stateless(meta)

    def take_claim(self) -> Claim | None:
        """Hand the claim over: it is released elsewhere."""
        claim, self.claim = self.claim, None
        return claim

    def find_stateless_fault(self) -> Failure | None:
        """What a revision without sessions refuses of a message that is no request; None for a notification."""
        version = self.headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        if isinstance(self.message, MalformedMessage):
            return Failure(self.message.id, self.message.error)
        if version not in STATELESS:
            data = {"supported": list(SUPPORTED), "requested": version[:40]}
            return Failure(None, UnsupportedProtocolVersion("MCP-Protocol-Version is not served", data))
        if isinstance(self.message, Notification):
            return None
        return Failure(None, InvalidRequest("this revision knows requests and notifications only, one at a time"))
