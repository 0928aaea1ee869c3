"""One request of a browser or an OAuth client, whole, and the answer to it: forms, cookies, headers. Knows HTTP; knows
neither OAuth nor pages.
"""

import asyncio
import hashlib
import json
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from toolgate.server.budget import Budget
from toolgate.server.state.store import StateError
from toolgate.transports.http import body as bodies
from toolgate.transports.http.host_origin import Headers, Receive, Scope, Send

MAX_FORM = 64 * 1024  # bytes: the largest is a signed assertion of 16 KiB
MAX_FORMS = 8 * 2**20  # bytes of the forms that one path is being sent: 128, each of which counts as the largest
MAX_FIELDS = 100
FORM = b"application/x-www-form-urlencoded"
NONE: frozenset[str] = frozenset()

log = logging.getLogger("toolgate.http")


class BadFormError(Exception):
    """The body, or the query, is not one to be read; the text says why."""

    status = 400


@dataclass(frozen=True, slots=True)
class WebRequest:
    """`peer` is the other end of the connection, which may be a proxy."""

    method: str
    path: str
    query: str
    headers: Headers
    peer: str
    body: bytes = b""

    def cookie(self, name: str) -> str:
        """Its value, or ""; of two with one name the first counts, as in browsers the more specific comes first."""
        found = re.search(rb"(?:^|;)\s*" + re.escape(name.encode()) + rb"=([^;]*)", self.headers.get(b"cookie", b""))
        return found[1].strip().decode("latin-1") if found is not None else ""

    def read_form(self, repeatable: frozenset[str] = NONE, most: int = MAX_FIELDS) -> list[tuple[str, str]]:
        """The fields of a urlencoded body, in order. Raises BadForm, also for a field that is there twice."""
        kind = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != FORM or self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise BadFormError("the body must be application/x-www-form-urlencoded")
        try:
            return parse_fields(self.body.decode(), repeatable, most)
        except UnicodeDecodeError:
            raise BadFormError("the body is not UTF-8") from None

    def read_query(self) -> dict[str, str]:
        """The query's parameters. Raises BadForm."""
        return dict(parse_fields(self.query))


def parse_fields(text: str, repeatable: frozenset[str] = NONE, most: int = MAX_FIELDS) -> list[tuple[str, str]]:
    """The fields of a urlencoded text. Raises BadForm."""
    try:
        found = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=most)
    except UnicodeDecodeError:
        raise BadFormError("a parameter is not UTF-8") from None
    except ValueError:
        raise BadFormError("there are too many parameters") from None
    if any("\0" in name or "\0" in value for name, value in found):
        raise BadFormError("a parameter has a NUL in it")
    names = [name for name, _ in found if name not in repeatable]
    if len(names) != len(set(names)):
        raise BadFormError("a parameter is there twice")
    return found


@dataclass(frozen=True, slots=True)
class WebResponse:
    status: int
    body: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def with_headers(self, *headers: tuple[str, str]) -> "WebResponse":
        return replace(self, headers=[*self.headers, *headers])

    def replace_headers(self, *headers: tuple[str, str]) -> "WebResponse":
        """With these headers in place of any of their names."""
        names = {name.lower() for name, _ in headers}
        return replace(self, headers=[*(held for held in self.headers if held[0].lower() not in names), *headers])


def json_response(body: Any, status: int = 200, *headers: tuple[str, str]) -> WebResponse:
    """JSON."""
    return WebResponse(status, json.dumps(body).encode(), [("content-type", "application/json"), *headers])


def redirect(location: str, status: int = 303) -> WebResponse:
    """To `location`, by GET: 303, so that no form is ever sent on (RFC 9700 section 4.12)."""
    safe = "".join(character for character in location if character.isprintable())
    told = [("location", safe), ("cache-control", "no-store"), ("referrer-policy", "no-referrer")]
    return WebResponse(status, b"", told)


class Cookies:
    """The cookies of one public URL: over https bound to its host (`__Host-`), on http loopback named by its port,
    since ports share their cookies; and where it has a path, named by that, since another server may have another."""

    def __init__(self, public_url: str) -> None:
        parts = urlsplit(public_url)
        path = parts.path.rstrip("/")
        self._secure = parts.scheme == "https"
        self._prefix = "__Host-toolgate-" if self._secure else f"toolgate-{parts.port or 80}-"
        self._prefix += f"{short_hash(path)}-" if path else ""

    def get(self, incoming: WebRequest, name: str) -> str:
        """ "" where there is none, or none that was made here: all of ours are 43 characters of base64url."""
        value = incoming.cookie(self._prefix + name)
        return value if len(value) == 43 and value.replace("-", "").replace("_", "").isalnum() else ""

    def set(self, name: str, value: str, seconds: float) -> tuple[str, str]:
        secure = "; Secure" if self._secure else ""
        told = f"{self._prefix}{name}={value}; Path=/; Max-Age={int(seconds)}; HttpOnly; SameSite=Lax{secure}"
        return "set-cookie", told

    def clear(self, name: str) -> tuple[str, str]:
        return self.set(name, "", 0)


def new_secret() -> str:
    """A secret of 256 bits, as our cookies hold."""
    return secrets.token_urlsafe(32)


def short_hash(text: str) -> str:
    """A short name for what a cookie belongs to: tabs do not share theirs."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


Handle = Callable[[WebRequest], Awaitable[WebResponse]]
Refuse = Callable[[int, str], WebResponse]
Admit = Callable[[WebRequest], Awaitable[WebResponse | None]]


class WebEndpoint:
    """An ASGI application: the handlers of one path, by method. `refuse` makes the answer of what went wrong, or
    `refuse_data` for who asks for JSON. A body has at most `limit` bytes, and is not read where `admit(incoming)` has
    an answer without it. Where too many are being sent, the oldest give way: a small one that comes at once never does.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handle],
        refuse: Refuse,
        shared: bool = False,
        *,
        refuse_data: Refuse | None = None,
        limit: int = MAX_FORM,
        admit: Admit | None = None,
    ) -> None:
        self._handlers = dict(handlers)
        self._refuse_page = refuse
        self._refuse_data = refuse_data or refuse
        self._limit = limit
        self._shared = shared  # any page of any origin may read the answers: nothing here goes by cookies
        self._admit = admit
        self._bodies = bodies.BodyReader(Budget(MAX_FORMS, MAX_FORMS, renews=True), least=MAX_FORM)
        self._allowed = ", ".join(sorted({*handlers, "OPTIONS"}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self._handlers.get(scope["method"])
        headers: Headers = scope["toolgate.headers"]
        if handle is None:
            status = 204 if scope["method"] == "OPTIONS" else 405
            answer = WebResponse(204) if status == 204 else self._refuse(headers, 405, f"only {self._allowed}")
            await self._send(send, answer.with_headers(("allow", self._allowed)), scope["method"])
            return
        peer = scope.get("client") or ("", 0)
        query = scope["query_string"].decode("latin-1")
        incoming = WebRequest(scope["method"], scope["path"], query, headers, peer[0])
        try:
            answer = await self._respond(handle, incoming, receive)
        except bodies.ClientDisconnectedError:
            return
        await self._send(send, answer, scope["method"])

    async def _read_and_respond(self, handle: Handle, incoming: WebRequest, receive: Receive) -> WebResponse:
        """Have a form read and handled. Raises Gone, BadForm, StateError."""
        answer = await self._admit(incoming) if self._admit is not None else None
        if answer is not None:
            return answer
        try:
            body = await self._bodies.read("", incoming.headers, receive, limit=self._limit)
        except bodies.BodyTooLargeError:
            return self._refuse(incoming.headers, 413, f"more than {self._limit} bytes")
        except bodies.BodyTooSlowError:
            return self._refuse(incoming.headers, 408, "the body did not come in time")
        except bodies.BodyBudgetError:
            return self._refuse(incoming.headers, 503, "too much is being sent at once").with_headers(
                ("retry-after", "1")
            )
        try:
            return await handle(replace(incoming, body=body.data))
        finally:
            if body.claim is not None:
                body.claim.release()

    async def _respond(self, handle: Handle, incoming: WebRequest, receive: Receive) -> WebResponse:
        try:
            if incoming.method == "POST":
                return await self._read_and_respond(handle, incoming, receive)
            return await handle(incoming)
        except bodies.ClientDisconnectedError:
            raise
        except BadFormError as error:
            return self._refuse(incoming.headers, error.status, str(error))
        except StateError as error:
            return self._refuse(incoming.headers, 503, str(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            reference = secrets.token_hex(4)
            log.exception("%s %s failed (%s)", incoming.method, incoming.path, reference)
            text = f"something went wrong here; the server's log has it under {reference}"
            return self._refuse(incoming.headers, 500, text)

    def _refuse(self, headers: Headers, status: int, text: str) -> WebResponse:
        refuse = self._refuse_data if b"application/json" in headers.get(b"accept", b"") else self._refuse_page
        return refuse(status, text)

    async def _send(self, send: Send, answer: WebResponse, method: str) -> None:
        headers = [*answer.headers, ("x-content-type-options", "nosniff")]
        if self._shared:
            headers += [
                ("access-control-allow-origin", "*"),
                ("access-control-allow-methods", self._allowed),
                ("access-control-allow-headers", "authorization, content-type, mcp-protocol-version"),
                ("access-control-max-age", "600"),
            ]
        if answer.status != 204:
            headers.append(("content-length", str(len(answer.body))))
        told = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers]
        await send({"type": "http.response.start", "status": HTTPStatus(answer.status).value, "headers": told})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})
