"""Authenticate a transport's caller by bearer token, and compare its scopes with those that a message needs.

A request without a valid token is refused before its body is read.
Source: RFC 6750; RFC 9728 section 5; MCP 2026-07-28 basic/authorization, "Access Token Usage", "Error Handling".
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote_plus

import msgspec
from msgspec.structs import replace

from toolgate.server.auth.protected_resource import ProtectedResource
from toolgate.server.auth.scopes import has_scopes
from toolgate.server.auth.tokens.access_tokens import TokenVerifier, UnavailableError, hash_token
from toolgate.server.auth.tokens.jose import InvalidTokenError
from toolgate.server.calls.observers import Observers
from toolgate.server.principal import LOCAL, Principal
from toolgate.server.protocol import serialization
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.messages import Inbound, Request, Result
from toolgate.server.protocol.request_meta import VERSION
from toolgate.server.protocol.revisions import STATELESS, Revision
from toolgate.server.telemetry.log_format import LOG_CONTEXT
from toolgate.transports.http.asgi import EagerApplication, Pending, Receive, Scope, Send, finish, is_browser, refuse
from toolgate.transports.http.cors import HeaderLines
from toolgate.transports.http.known_head import KnownHead

TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # RFC 6750 section 2.1
IN_BAND = "openai/"  # in a call's `_meta`: this host reads challenges in results, not those of a 403

MISSING_TEXT = "this needs a permission that was not granted: sign in again and allow it"

InboundMessages = Inbound | list[Inbound]
SendPage = Callable[[Send, int, HeaderLines], Awaitable[None]]  # answers a browser, with this status and these headers


class LocalAuth:
    """Passes every request on as the local principal: `--auth none`. A browser gets a page."""

    def __init__(self, app: EagerApplication, send_page: SendPage | None = None) -> None:
        self._app = app
        self._send_page = send_page

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Pending:
        if scope["method"] == "GET" and self._send_page is not None and is_browser(scope):
            return self._send_page(send, 406, [])
        set_principal(scope, LOCAL)
        return self._app(scope, receive, send)


class BearerAuth:
    """Passes requests with a valid token to the transport at `path`; `refused` counts the others by reason.

    A browser without a token gets a page, with the same challenge.
    """

    def __init__(
        self,
        app: EagerApplication,
        path: str,
        verifier: TokenVerifier,
        resource: ProtectedResource,
        refused: Counter[str],
        send_page: SendPage,
    ) -> None:
        self._app = app
        self._refused = refused
        self._send_page = send_page
        self._path = path
        self._verifier = verifier
        self._resource = resource

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Pending:
        if scope["method"] == "OPTIONS":  # a preflight carries no token, and its answer reveals nothing
            return self._app(scope, receive, send)
        head: KnownHead | None = scope.get("toolgate.head")
        held = None if head is None else head.token
        if held is None or not self._verifier.is_current(held):
            key = _find_token_key(scope)
            held = self._verifier.find_cached(key) if key is not None else None
            if held is None:
                return self._authenticate_and_pass(scope, receive, send)
            if head is not None:
                head.token = held
        set_principal(scope, held.principal)
        return self._app(scope, receive, send)

    async def _authenticate_and_pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = await self._authenticate(scope, send)
        if principal is not None:
            set_principal(scope, principal)
            await finish(self._app(scope, receive, send))

    async def _authenticate(self, scope: Scope, send: Send) -> Principal | None:
        """Return the principal, or None after refusing the request."""
        kind, _, token = scope["toolgate.headers"].get(b"authorization", b"").partition(b" ")
        is_bearer = kind.lower() == b"bearer"
        query: bytes = scope["query_string"]
        if query and _has_token_in_query(query):
            text = "send the token in the Authorization header, not in the URL"
            await self._challenge(send, 400 if is_bearer else 401, text, "invalid_request")
        elif not is_bearer:
            page = self._send_page if is_browser(scope) else None
            await self._challenge(send, 401, "sign in first: this needs an access token", page=page)
        else:
            return await self._verify_or_refuse(token.strip(b" "), send)
        return None

    async def _verify_or_refuse(self, token: bytes, send: Send) -> Principal | None:
        """Return the principal, or None after refusing the request."""
        try:
            if not TOKEN.fullmatch(token):
                raise InvalidTokenError("the token is malformed")
            return await self._verifier.verify(token.decode("ascii"))
        except InvalidTokenError as error:
            await self._challenge(send, 401, str(error), "invalid_token")
        except UnavailableError as error:
            self._refused["the token can't be verified now"] += 1
            await refuse(send, 503, str(error), [(b"retry-after", str(max(1, round(error.wait))).encode())])
        return None

    async def _challenge(
        self, send: Send, status: int, text: str, error: str | None = None, page: SendPage | None = None
    ) -> None:
        self._refused[text] += 1  # fixed words, all of them
        challenge = self._resource.challenge(self._path, None, error, text if error is not None else None)
        headers = [(b"www-authenticate", challenge.encode())]
        if page is not None:
            await page(send, status, headers)
        else:
            await refuse(send, status, text, [*headers, (b"cache-control", b"no-store")])


def _find_token_key(scope: Scope) -> bytes | None:
    """Return the hash of the request's token, or None if it does not come as nearly all do."""
    line: bytes = scope["toolgate.headers"].get(b"authorization", b"")
    return None if not line.startswith(b"Bearer ") or scope["query_string"] else hash_token(line[7:])


def set_principal(scope: Scope, principal: Principal) -> None:
    """Record the principal for the transport, the log and the connection. No transport serves a scope without it."""
    scope["toolgate.principal"] = principal
    context = LOG_CONTEXT.get()
    if context is not None:
        context.principal = principal.name
    connection = scope.get("toolgate.connection")
    if connection is not None:
        connection.principal = principal.name


class MissingScopes(msgspec.Struct, frozen=True):
    """Why a message is refused. `answer` is sent with a 200 to a host that ignores a 403's challenge."""

    challenge: str
    text: str
    answer: Result | None

    async def refuse(self, send: Send) -> None:
        headers = [(b"www-authenticate", self.challenge.encode()), (b"cache-control", b"no-store")]
        await refuse(send, 403, self.text, headers)


class ScopeCheck:
    """Compares callers' scopes with those that messages to the transport at `path` need. `identity(revision)` is the
    server's, for results. `needed_scopes()` are those that any message may need: who has them all lacks none."""

    def __init__(
        self,
        path: str,
        resource: ProtectedResource,
        dispatcher: Dispatcher,
        observers: Observers,
        identity: Callable[[Revision], dict[str, Any]],
        needed_scopes: Callable[[], frozenset[str]],
    ) -> None:
        self.required_scopes = dispatcher.scopes_of
        self._path = path
        self._resource = resource
        self._observers = observers
        self._identity = identity
        self._needed_scopes = needed_scopes

    def find_missing(self, principal: Principal, message: InboundMessages) -> MissingScopes | None:
        """Return the scopes that the caller lacks for a message, or None."""
        if principal.scopes is None or self._needed_scopes() <= principal.scopes:
            return None
        wanted = self.required_scopes(message)
        if wanted <= principal.scopes or has_scopes(principal.scopes, wanted):
            return None
        for request in message if isinstance(message, list) else (message,):
            if isinstance(request, Request):
                self._observers.scope_missing(principal.name, principal.client, request)
        missing = MissingScopes(self._challenge(wanted), MISSING_TEXT, None)
        if isinstance(message, Request) and _reads_challenge_in_result(message):
            return replace(missing, answer=self._format_result(message, missing))
        return missing

    def compare_scopes(self, principal: Principal, wanted: frozenset[str]) -> MissingScopes | None:
        """Return which of these scopes the caller lacks, or None."""
        if has_scopes(principal.scopes, wanted):
            return None
        return MissingScopes(self._challenge(wanted), MISSING_TEXT, None)

    def _challenge(self, wanted: frozenset[str]) -> str:
        return self._resource.challenge(self._path, wanted, "insufficient_scope", MISSING_TEXT)

    def _format_result(self, request: Request, missing: MissingScopes) -> Result:
        """Return a call's result with the challenge in it."""
        meta = {"mcp/www_authenticate": [missing.challenge]}
        content = [{"type": "text", "text": missing.text}]
        result: dict[str, Any] = {"content": content, "isError": True, "_meta": meta}
        version = request.params.get("_meta", {}).get(VERSION)
        revision = STATELESS.get(version) if isinstance(version, str) else None
        if revision is not None:
            result = serialization.add_result_type(result, self._identity(revision))
        return Result(request.id, result)


def _reads_challenge_in_result(request: Request) -> bool:
    meta = request.params.get("_meta")
    return request.method == "tools/call" and isinstance(meta, dict) and any(key.startswith(IN_BAND) for key in meta)


def _has_token_in_query(query: bytes) -> bool:
    names = (part.partition("=")[0] for part in query.decode("latin-1").replace(";", "&").split("&"))
    return any(unquote_plus(name).strip().lower() == "access_token" for name in names)
