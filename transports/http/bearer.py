"""The gate of a protected resource: who has no good token is sent away before anything is read, and who lacks a scope
before anything is done. Knows HTTP; knows nothing of how tokens are verified or what a message needs.

Source: RFC 6750; RFC 9728 section 5; MCP 2026-07-28 basic/authorization, "Access Token Usage", "Error Handling".
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote_plus

from toolgate.server.auth.protected_resource import ProtectedResource
from toolgate.server.auth.scopes import has_scopes
from toolgate.server.auth.tokens.access_tokens import TemporarilyUnavailableError, TokenVerifier
from toolgate.server.auth.tokens.jose import InvalidTokenError
from toolgate.server.principal import LOCAL, Principal
from toolgate.server.protocol.messages import Inbound, Request, Result
from toolgate.transports.http.asgi import Application, Receive, Scope, Send, refuse

TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # RFC 6750 section 2.1
IN_BAND = "openai/"  # in the `_meta` of a call: a host that reads challenges in results, and not those of a 403

MISSING_TEXT = "this takes a permission that was not given; sign in again and allow it"

InboundMessages = Inbound | list[Inbound]


class BearerAuth:
    """In front of the transport at `path`: lets through who has a token, as `scope["toolgate.principal"]`. `refused`
    counts those who are not, by why."""

    def __init__(
        self, app: Application, path: str, verifier: TokenVerifier, resource: ProtectedResource, refused: Counter[str]
    ) -> None:
        self._app = app
        self._refused = refused
        self._path = path
        self._verifier = verifier
        self._resource = resource

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "OPTIONS":  # a preflight carries no token, and tells nothing
            await self._app(scope, receive, send)
            return
        given = scope["toolgate.headers"].get(b"authorization", b"")
        if given.startswith(b"Bearer ") and not scope["query_string"]:  # as nearly all come; the others are good below
            known = self._verifier.find_cached(given[7:])
            if known is not None:
                scope["toolgate.principal"] = known
                await self._app(scope, receive, send)
                return
        kind, _, token = given.partition(b" ")
        has_one = kind.lower() == b"bearer"
        if scope["query_string"] and _has_token_in_query(scope["query_string"]):
            status, text = (400 if has_one else 401), "a token belongs in the Authorization header, never in a URL"
            await self._challenge(send, status, text, "invalid_request")
        elif not has_one:
            await self._challenge(send, 401, "sign in first: this needs an access token")
        else:
            principal = await self._verify_or_refuse(token.strip(b" "), send)
            if principal is not None:
                scope["toolgate.principal"] = principal
                await self._app(scope, receive, send)

    async def _verify_or_refuse(self, token: bytes, send: Send) -> Principal | None:
        """Who calls; None when the request has been refused."""
        try:
            if not TOKEN.fullmatch(token):
                raise InvalidTokenError("the token is malformed")
            return await self._verifier.verify(token.decode("ascii"))
        except InvalidTokenError as error:
            await self._challenge(send, 401, str(error), "invalid_token")
        except TemporarilyUnavailableError as error:
            self._refused["it can't be verified now"] += 1
            await refuse(send, 503, str(error), [(b"retry-after", str(max(1, round(error.wait))).encode())])
        return None

    async def _challenge(self, send: Send, status: int, text: str, error: str | None = None) -> None:
        self._refused[text] += 1  # fixed words, all of them
        challenge = self._resource.challenge(self._path, None, error, text if error is not None else None)
        headers = [(b"www-authenticate", challenge.encode()), (b"cache-control", b"no-store")]
        await refuse(send, status, text, headers)


@dataclass(frozen=True, slots=True)
class MissingScopes:
    """Why a message is not served: its caller lacks a scope. `answer` is what to say in a 200 instead, to a host that
    would make nothing of the 403."""

    challenge: str
    text: str
    answer: Result | None

    async def refuse(self, send: Send) -> None:
        headers = [(b"www-authenticate", self.challenge.encode()), (b"cache-control", b"no-store")]
        await refuse(send, 403, self.text, headers)


class ScopeCheck:
    """Says what a caller lacks for a message. `needed(message)` gives the scopes it takes; `told(request, challenge,
    text)` a result that carries the challenge. `refused(principal, message)` hears of what was not served."""

    def __init__(
        self,
        path: str,
        resource: ProtectedResource,
        needed: Callable[[InboundMessages], frozenset[str]],
        told: Callable[[Request, str, str], Result],
        refused: Callable[[Principal, InboundMessages], None] | None = None,
    ) -> None:
        self._path = path
        self._resource = resource
        self._needed = needed
        self._told = told
        self._refused = refused

    def find_missing(self, principal: Principal, message: InboundMessages) -> MissingScopes | None:
        """None when the message may be served."""
        if principal.scopes is None:
            return None
        wanted = self._needed(message)
        if has_scopes(principal.scopes, wanted):
            return None
        if self._refused is not None:
            self._refused(principal, message)
        challenge = self._challenge(wanted)
        answer = (
            self._told(message, challenge, MISSING_TEXT)
            if isinstance(message, Request) and _reads_challenge_in_result(message)
            else None
        )
        return MissingScopes(challenge, MISSING_TEXT, answer)

    def required_scopes(self, message: InboundMessages) -> frozenset[str]:
        """The scopes that it takes."""
        return self._needed(message)

    def compare_scopes(self, principal: Principal, wanted: frozenset[str]) -> MissingScopes | None:
        """None when the caller has all these scopes."""
        return (
            None if has_scopes(principal.scopes, wanted) else MissingScopes(self._challenge(wanted), MISSING_TEXT, None)
        )

    def _challenge(self, wanted: frozenset[str]) -> str:
        return self._resource.challenge(self._path, wanted, "insufficient_scope", MISSING_TEXT)


def authenticated_principal(scope: Scope) -> Principal:
    """Whom the gate let through; without a gate in front this fails, and nobody is served."""
    principal: Principal = scope["toolgate.principal"]
    return principal


def local_principal(_scope: Scope) -> Principal:
    """`--auth none`."""
    return LOCAL


def _reads_challenge_in_result(request: Request) -> bool:
    meta = request.params.get("_meta")
    return request.method == "tools/call" and isinstance(meta, dict) and any(key.startswith(IN_BAND) for key in meta)


def _has_token_in_query(query: bytes) -> bool:
    names = (part.partition("=")[0] for part in query.decode("latin-1").replace(";", "&").split("&"))
    return any(unquote_plus(name).strip().lower() == "access_token" for name in names)
