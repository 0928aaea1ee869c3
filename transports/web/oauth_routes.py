"""Route the paths of the authorization server: documents and endpoints for clients, pages for people.

Source: RFC 6749, 7009, 7591, 7662, 8414; OpenID Connect Discovery 1.0 for the second name of the metadata.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from toolgate.server.auth.login.methods import SignInMethods
from toolgate.server.auth.oauth_server.responses import OAuthResponse
from toolgate.server.auth.oauth_server.service import AuthorizationService
from toolgate.server.auth.tokens.signing_keys import CACHED
from toolgate.server.protocol.messages import decode_value
from toolgate.transports.web.account import AccountPage
from toolgate.transports.web.consent import ConsentPages
from toolgate.transports.web.http import (
    BadFormError,
    Handle,
    WebEndpoint,
    content_type,
    json_response,
    parse_fields,
    query_string,
    read_form,
)
from toolgate.transports.web.login import LoginPages
from toolgate.transports.web.sign_in_context import SignInContext
from toolgate.transports.web.templates import ICON, PAIRING, STYLE

if TYPE_CHECKING:
    from toolgate.server.calls.policy.remembered_approvals import RememberedApprovals

METADATA = ("oauth-authorization-server", "openid-configuration")
CACHE_HOUR = {"cache-control": "public, max-age=3600"}
CACHE_KEYS = {"cache-control": f"public, max-age={CACHED}"}  # a new key is published this long before it signs
NO_STORE = {"cache-control": "no-store", "pragma": "no-cache"}  # RFC 6749 section 5.1
REPEATABLE = frozenset(("resource", "audience"))  # may come more than once (RFC 8707, RFC 8693)


class OAuthRoutes:
    """`public_url` is the issuer, without a trailing slash; `server` the displayed name; `sentences` describe the
    scopes. `resources` are the paths of the protected resources, under which some clients look for metadata.
    `approvals` are shown on the account page."""

    def __init__(
        self,
        public_url: str,
        server: str,
        authorization: AuthorizationService,
        sign_in: SignInMethods,
        sentences: Mapping[str, str],
        resources: tuple[str, ...] = (),
        approvals: "RememberedApprovals | None" = None,
    ) -> None:
        self._authorization = authorization
        self._resources = resources
        self.context = SignInContext(public_url, server, authorization, sign_in)
        self._base = self.context.base
        self._login = LoginPages(self.context)
        self._consent = ConsentPages(self.context, sentences, self._login.send_to_provider)
        self._account = AccountPage(self.context, sentences, approvals)

    def client_routes(self) -> Iterator[tuple[str, WebEndpoint]]:
        """Yield each path for OAuth clients with its endpoint."""
        return _with_slashes(self._client_endpoints())

    def page_routes(self) -> Iterator[tuple[str, WebEndpoint]]:
        """Yield each path for browsers with its endpoint."""
        return _with_slashes(self._page_endpoints())

    @property
    def cross_origin_paths(self) -> frozenset[str]:
        """Return the paths that pages of every origin may request: some clients run in a browser."""
        paths = {self._base + path for path in self._client_endpoints()} | set(self._client_endpoints())
        return frozenset(paths | {path + "/" for path in paths})

    def _client_endpoints(self) -> dict[str, WebEndpoint]:
        metadata = WebEndpoint({"GET": self._metadata, "HEAD": self._metadata}, _error, shared=True)
        keys = WebEndpoint({"GET": self._jwks, "HEAD": self._jwks}, _error, shared=True)
        answering: dict[str, Handle] = {
            "/token": self._form(self._authorization.token),
            "/revoke": self._form(self._authorization.revoke),
            "/introspect": self._form(self._authorization.introspect),
            "/register": self._register,
        }
        return {
            **{path: WebEndpoint({"POST": handle}, _error, shared=True) for path, handle in answering.items()},
            "/jwks": keys,
            **dict.fromkeys(self._metadata_paths(), metadata),
        }

    def _metadata_paths(self) -> Iterator[str]:
        """Yield the root path, with the issuer's path inserted behind the well-known part, and appended to it (RFC 8414
        section 3.1, OpenID Connect Discovery section 4).

        Clients of 2025-03-26 look below the resource, as though that were the issuer.
        """
        for name in METADATA:
            known = f"/.well-known/{name}"
            yield known
            for path in ({self._base} - {""}) | {self._base + resource for resource in self._resources}:
                yield known + path
                yield path.removeprefix(self._base) + known

    def _page_endpoints(self) -> dict[str, WebEndpoint]:
        asking, entrance, account = self._consent, self._login, self._account
        handlers: dict[str, dict[str, Handle]] = {
            "/login": _page(entrance.login_page, entrance.login),
            "/consent": _page(asking.consent_page, asking.consent),
            "/account": _page(account.page, account.act),
            "/logout": _page(entrance.logout_page, entrance.logout),
            **{f"/{name}": _page(partial(self._file, name)) for name in (STYLE, ICON, PAIRING)},
            "/authorize": {"GET": asking.authorize},  # no HEAD: these requests change something
            **{back: {"GET": partial(entrance.callback, back)} for back in entrance.callback_paths.values()},
        }
        return {path: WebEndpoint(methods, self.context.error_page) for path, methods in handlers.items()}

    async def _metadata(self, _request: Request) -> Response:
        return json_response(await self._authorization.metadata(), 200, CACHE_HOUR)

    async def _jwks(self, _request: Request) -> Response:
        return json_response(await self._authorization.jwks(), 200, CACHE_KEYS)

    async def _file(self, name: str, _request: Request) -> Response:
        return self.context.pages.static_file(name)

    def _form(self, ask: Callable[..., Awaitable[OAuthResponse]]) -> Handle:
        """Return a handler that takes a form from the body only (RFC 6749 section 3.2): a query may hold no secret."""

        async def handle(request: Request) -> Response:
            if parse_fields(query_string(request)):
                raise BadFormError("send the parameters in the body, not in the query")
            given = await read_form(request, REPEATABLE)
            form = [(name, value) for name, value in given if value]  # an empty one counts as missing
            return _answer(await ask(form, request.headers, self.context.client_address(request)))

        return handle

    async def _register(self, request: Request) -> Response:
        if content_type(request) != "application/json":
            raise BadFormError("the body must be application/json")
        try:
            body = decode_value(await request.body())
        except (ValueError, RecursionError):
            raise BadFormError("the body is not JSON") from None
        return _answer(await self._authorization.register(body, self.context.client_address(request)))


def _with_slashes(endpoints: Mapping[str, WebEndpoint]) -> Iterator[tuple[str, WebEndpoint]]:
    """Yield each path, and again with a slash at its end, so that none needs a redirect."""
    for path, endpoint in endpoints.items():
        yield path, endpoint
        yield path + "/", endpoint


def _page(show: Handle, answer: Handle | None = None) -> dict[str, Handle]:
    """Return the methods of a page, and of its form if it has one."""
    shown = {"GET": show, "HEAD": show}
    return {**shown, "POST": answer} if answer is not None else shown


def _answer(answer: OAuthResponse) -> Response:
    """Return an OAuthResponse as an HTTP response."""
    response = json_response(answer.body, answer.status, answer.headers)
    response.headers.update(NO_STORE)  # replaces Authlib's own, which differ in case
    return response


def _error(status: int, text: str) -> Response:
    error = "invalid_request" if status < 500 else "temporarily_unavailable" if status == 503 else "server_error"
    return json_response({"error": error, "error_description": text}, status, NO_STORE)
