"""Authenticate a transport's caller by bearer token, and compare its scopes with those that a message needs.

A request without a valid token is refused before its body is read.
Source: RFC 6750; RFC 9728 section 5; MCP 2026-07-28 basic/authorization, "Access Token Usage", "Error Handling".
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_plus

import msgspec
from msgspec.structs import replace

from toolgate.server.auth.protected_resource import ProtectedResource
from toolgate.server.auth.tokens.access_tokens import TokenVerifier, UnavailableError, hash_token
from toolgate.server.auth.tokens.jose import InvalidTokenError
from toolgate.server.base.http.head import Head
from toolgate.server.base.log_format import LOG_CONTEXT
from toolgate.server.base.principals.principal import LOCAL, Principal
from toolgate.server.base.principals.scopes import has_scopes
from toolgate.server.protocol import serialization
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.messages import Inbound, Request, Result
from toolgate.server.protocol.request_meta import VERSION
from toolgate.server.protocol.revisions import STATELESS, Revision
from toolgate.transports.http.requests.asgi import is_browser
from toolgate.transports.http.requests.cors import HeaderLines
from toolgate.transports.http.wire.request import Answer, HttpRequest, WholeResponse, refuse

TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # RFC 6750 section 2.1
IN_BAND = "openai/"  # in a call's `_meta`: this host reads challenges in results, not those of a 403

MISSING_TEXT = "this needs a permission that was not granted: sign in again and allow it"

InboundMessages = Inbound | list[Inbound]
SignedInHandler = Callable[[Principal, HttpRequest], Answer]
EndpointPage = Callable[[int, HeaderLines], WholeResponse]  # answers a browser, with this status and these headers
NO_STORE = (b"cache-control", b"no-store")


class LocalAuth:
    """Passes every request on as the local principal: `--auth none`. A browser gets a page."""

    def __init__(self, endpoint: SignedInHandler, page: EndpointPage | None = None) -> None:
        self._endpoint = endpoint
        self._page = page

    def __call__(self, request: HttpRequest) -> Answer:
        if self._page is not None and is_browser(request.head.method, request.headers):
            return self._page(406, [])
        set_principal(request, LOCAL)
        return self._endpoint(LOCAL, request)


class BearerAuth:
    """Passes requests with a valid token to the transport at `path`; `refused` counts the others by reason.

    A browser without a token gets a page, with the same challenge.
    """

    def __init__(
        self,
        endpoint: SignedInHandler,
        path: str,
        verifier: TokenVerifier,
        resource: ProtectedResource,
        refused: Counter[str],
        page: EndpointPage,
    ) -> None:
        self._endpoint = endpoint
        self._refused = refused
        self._page = page
        self._path = path
        self._verifier = verifier
        self._resource = resource

    def __call__(self, request: HttpRequest) -> Answer:
        if request.head.method == "OPTIONS":  # a preflight carries no token, and its answer reveals nothing
            return self._endpoint(LOCAL, request)
        key = _find_token_key(request.head)
        verified = self._verifier.find_cached(key) if key is not None else None
        if verified is None:
            return self._authenticate_and_pass(request)
        set_principal(request, verified.principal)
        return self._endpoint(verified.principal, request)

    async def _authenticate_and_pass(self, request: HttpRequest) -> Answer:
        principal = await self._authenticate(request.head)
        if isinstance(principal, WholeResponse):
            return principal
        set_principal(request, principal)
        return self._endpoint(principal, request)

    async def _authenticate(self, head: Head) -> Principal | WholeResponse:
        """Return the principal, or the answer that refuses the request."""
        kind, _, token = head.headers.get(b"authorization", b"").partition(b" ")
        is_bearer = kind.lower() == b"bearer"
        if head.query and _has_token_in_query(head.query):
            text = "send the token in the Authorization header, not in the URL"
            return self._challenge(400 if is_bearer else 401, text, "invalid_request")
        if not is_bearer:
            page = self._page if is_browser(head.method, head.headers) else None
            return self._challenge(401, "sign in first: this needs an access token", page=page)
        try:
            token = token.strip(b" \t")
            if not TOKEN.fullmatch(token):
                raise InvalidTokenError("the token is malformed")
            return await self._verifier.verify(token.decode("ascii"))
        except InvalidTokenError as error:
            return self._challenge(401, str(error), "invalid_token")
        except UnavailableError as error:
            self._refused["the token can't be verified now"] += 1
            return refuse(503, str(error), [(b"retry-after", str(max(1, round(error.wait))).encode())])

    def _challenge(
        self, status: int, text: str, error: str | None = None, page: EndpointPage | None = None
    ) -> WholeResponse:
        self._refused[text] += 1  # fixed words, all of them
        challenge = self._resource.challenge(self._path, None, error, text if error is not None else None)
        headers = [(b"www-authenticate", challenge.encode())]
        return page(status, headers) if page is not None else refuse(status, text, [*headers, NO_STORE])


def _find_token_key(head: Head) -> bytes | None:
    """Return the hash of the request's token, or None if it does not come as nearly all do."""
    line = head.headers.get(b"authorization", b"")
    return None if not line.startswith(b"Bearer ") or head.query else hash_token(line[7:])


def set_principal(request: HttpRequest, principal: Principal) -> None:
    """Record the principal for the log and the connection."""
    request.principal = principal.name
    context = LOG_CONTEXT.get()
    if context is not None:
        context.principal = principal.name


class MissingScopes(msgspec.Struct, frozen=True):
    """Why a message is refused. `answer` is sent with a 200 to a host that ignores a 403's challenge."""

    challenge: str
    text: str
    answer: Result | None

    def refuse(self) -> WholeResponse:
        return refuse(403, self.text, [(b"www-authenticate", self.challenge.encode()), NO_STORE])


class ScopeCheck:
    """Compares callers' scopes with those that messages to the transport at `path` need. `identity(revision)` is the
    server's, for results. `needed_scopes()` are those that any message may need: who has them all lacks none.
    `on_missing(principal, client, request)` is called for each request that is refused."""

    def __init__(
        self,
        path: str,
        resource: ProtectedResource,
        dispatcher: Dispatcher,
        on_missing: Callable[[str, str, Request], None],
        identity: Callable[[Revision], dict[str, Any]],
        needed_scopes: Callable[[], frozenset[str]],
    ) -> None:
        self.required_scopes = dispatcher.scopes_of
        self._path = path
        self._resource = resource
        self._on_missing = on_missing
        self._identity = identity
        self._needed_scopes = needed_scopes

    def find_missing(self, principal: Principal, message: InboundMessages) -> MissingScopes | None:
        """Return the scopes that the caller lacks for a message, or None."""
        if principal.scopes is None or self._needed_scopes() <= principal.scopes:
            return None
        wanted = self.required_scopes(message, principal.name)
        if wanted <= principal.scopes or has_scopes(principal.scopes, wanted):
            return None
        for request in message if isinstance(message, list) else (message,):
            if isinstance(request, Request):
                self._on_missing(principal.name, principal.client, request)
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
