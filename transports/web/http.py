"""Answer the requests of browsers and OAuth clients: forms, cookies, and an endpoint that bounds what it reads."""

import asyncio
import hashlib
import json
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request as Request  # features have pages through this door
from starlette.responses import Response as Response

from toolgate.server.base.errors import StateError
from toolgate.server.base.limits.budget import Budget
from toolgate.transports.http.requests import body as bodies
from toolgate.transports.http.requests import cors
from toolgate.transports.http.requests.asgi import Message, Receive, Scope, Send
from toolgate.transports.http.wire.body import BodyTooSlowError, ClientDisconnectedError

MAX_FORM = 64 * 1024  # bytes: the largest is a signed assertion of 16 KiB
MAX_FORMS = 8 * 2**20  # bytes of all forms that one path receives at a time: 128, each counted as the largest
MAX_FIELDS = 100
FORM_TYPE = "application/x-www-form-urlencoded"

log = logging.getLogger("toolgate.http")


class BadFormError(Exception):
    """A form or query that is refused; the text says why."""

    status = 400


def content_type(request: Request) -> str:
    """Return the media type of the body in lower case, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def accepts(request: Request, media_type: str) -> bool:
    return media_type in request.headers.get("accept", "")


def read_query(request: Request) -> dict[str, str]:
    """Return the parameters of the query. Raises BadFormError."""
    return dict(parse_fields(query_string(request)))


def query_string(request: Request) -> str:
    return str(request.scope["query_string"], "latin-1")


async def read_form(
    request: Request, repeatable: frozenset[str] = frozenset(), most: int = MAX_FIELDS
) -> list[tuple[str, str]]:
    """Return the fields of a urlencoded body, in order. Raises BadFormError, also for a field that came twice."""
    if content_type(request) != FORM_TYPE or request.headers.get("content-encoding", "identity").lower() != "identity":
        raise BadFormError(f"the body must be {FORM_TYPE}")
    try:
        text = (await request.body()).decode()
    except UnicodeDecodeError:
        raise BadFormError("the body is not valid UTF-8") from None
    if len(text) <= MAX_FORM:
        return parse_fields(text, repeatable, most)
    return await asyncio.to_thread(parse_fields, text, repeatable, most)  # up to 0.1 s


def parse_fields(text: str, repeatable: frozenset[str] = frozenset(), most: int = MAX_FIELDS) -> list[tuple[str, str]]:
    """Return the fields of a urlencoded text. Raises BadFormError."""
    try:
        fields = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=most)
    except UnicodeDecodeError:
        raise BadFormError("a parameter is not valid UTF-8") from None
    except ValueError:
        raise BadFormError("there are too many parameters") from None
    if any("\0" in name or "\0" in value for name, value in fields):
        raise BadFormError("a parameter contains a NUL character")
    names = [name for name, _ in fields if name not in repeatable]
    if len(names) != len(set(names)):
        raise BadFormError("a parameter came twice")
    return fields


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(body), status, headers, "application/json")


def redirect(location: str) -> Response:
    """Redirect to `location` by GET: with 303 a browser never sends the form on (RFC 9700 section 4.12)."""
    safe = "".join(character for character in location if character.isprintable())
    headers = {"location": safe.encode("latin-1", "replace").decode("latin-1")}
    return Response(None, 303, headers | {"cache-control": "no-store", "referrer-policy": "no-referrer"})


def with_headers(response: Response, *headers: tuple[str, str]) -> Response:
    """Add headers to a response, beside those of the same name."""
    for name, value in headers:
        response.headers.append(name, value)
    return response


KEY_FORM = r"[A-Za-z0-9_-]{43}"  # the form of most cookies: that of `new_secret`


class Cookies:
    """The cookies of one public URL. Over https they are bound to its host (`__Host-`). On http loopback the name has
    the port, since ports share cookies. A path is in the name too: another path may be another server."""

    def __init__(self, public_url: str) -> None:
        parts = urlsplit(public_url)
        path = parts.path.rstrip("/")
        self._secure = parts.scheme == "https"
        self._prefix = "__Host-toolgate-" if self._secure else f"toolgate-{parts.port or 80}-"
        self._prefix += f"{short_hash(path)}-" if path else ""

    def get(self, request: Request, name: str, form: str = KEY_FORM) -> str:
        """Return the cookie's value; "" if it is missing or not ours: it has another form. Of two with one name the
        first counts: browsers send the more specific one first."""
        pattern = r"(?:^|;)\s*" + re.escape(self._prefix + name) + r"=([^;]*)"
        found = re.search(pattern, request.headers.get("cookie", ""))
        value = found[1].strip() if found is not None else ""
        return value if re.fullmatch(form, value) else ""

    def set(self, name: str, value: str, seconds: float) -> tuple[str, str]:
        """Return the header that sets the cookie."""
        secure = "; Secure" if self._secure else ""
        attributes = f"Path=/; Max-Age={int(seconds)}; HttpOnly; SameSite=Lax{secure}"
        return "set-cookie", f"{self._prefix}{name}={value}; {attributes}"

    def clear(self, name: str) -> tuple[str, str]:
        """Return the header that removes the cookie."""
        return self.set(name, "", 0)


def new_secret() -> str:
    """Return 256 random bits, as a cookie holds them."""
    return secrets.token_urlsafe(32)


def short_hash(text: str) -> str:
    """Return a short name for what a cookie belongs to, so that tabs do not share one."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


Handle = Callable[[Request], Awaitable[Response]]
Refuse = Callable[[int, str], Response]
Admit = Callable[[Request], Awaitable[Response | None]]


class WebEndpoint:
    """An ASGI application that answers one path, with a handler for each method.

    `refuse` makes the answer to a faulty request, `refuse_data` the one for clients that accept JSON. A body has at
    most `limit` bytes. It is not read if `admit(request)` returns an answer without it. If too many are being sent,
    the oldest give way; a small one that comes at once is always read. `shared` allows the pages of every origin, so
    nothing here may depend on cookies.
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
        self._handlers = handlers
        self._refuse_page = refuse
        self._refuse_data = refuse_data or refuse
        self._limit = limit
        self._admit = admit
        self._bodies = bodies.BodyReader(Budget(MAX_FORMS, MAX_FORMS, renews=True), least=MAX_FORM)
        self._allowed = ", ".join(sorted({*handlers, "OPTIONS"}))
        self._headers = {"x-content-type-options": "nosniff"}
        if shared:
            lines = cors.allow_any_origin(self._allowed.encode())
            self._headers |= {name.decode(): value.decode() for name, value in lines}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except ClientDisconnectedError:
            return
        response.headers.update(self._headers)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        handle = self._handlers.get(request.method)
        if handle is None:
            response = Response(None, 204)  # of a preflight
            if request.method != "OPTIONS":
                response = self._refuse(request, 405, f"the method must be one of {self._allowed}")
            return with_headers(response, ("allow", self._allowed))
        try:
            return await (self._read_and_respond if request.method == "POST" else handle)(request)
        except ClientDisconnectedError:
            raise
        except BadFormError as error:
            return self._refuse(request, error.status, str(error))
        except StateError as error:
            return self._refuse(request, 503, str(error))
        except Exception:
            reference = secrets.token_hex(4)
            log.exception("%s %s failed (%s)", request.method, request.scope["path"], reference)
            text = f"an internal error occurred; the server's log has the details under {reference}"
            return self._refuse(request, 500, text)

    async def _read_and_respond(self, request: Request) -> Response:
        """Read the form and handle it. Raises ClientDisconnectedError, BadFormError, StateError."""
        response = await self._admit(request) if self._admit is not None else None
        if response is not None:
            return response
        try:
            body = await self._bodies.read("", request.scope["toolgate.request"], limit=self._limit)
        except bodies.BodyTooLargeError:
            return self._refuse(request, 413, f"the body has more than {self._limit} bytes")
        except BodyTooSlowError:
            response = self._refuse(request, 408, "the body did not arrive in time")
            return with_headers(response, ("connection", "close"))
        except bodies.BodyBudgetError:
            response = self._refuse(request, 503, "too much data is being sent at once: try again later")
            return with_headers(response, ("retry-after", "1"), ("connection", "close"))

        async def receive() -> Message:
            return {"type": "http.request", "body": body.data}

        try:
            return await self._handlers["POST"](Request(request.scope, receive))
        finally:
            if body.claim is not None:
                body.claim.release()

    def _refuse(self, request: Request, status: int, text: str) -> Response:
        refuse = self._refuse_data if accepts(request, "application/json") else self._refuse_page
        return refuse(status, text)
