"""The routes of the authorization server: a table of paths, and those of them that programs use. Knows HTTP; what OAuth
is, server/auth/oauth_server knows; what people see, consent.py, login.py and account.py.

Source: RFC 6749, 7009, 7591, 7662, 8414; OpenID Connect Discovery 1.0 for the second name of the metadata.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from toolgate.server.auth.login.methods import SignIn
from toolgate.server.auth.tokens.signing_keys import CACHED
from toolgate.server.protocol.messages import decode_value
from toolgate.transports.web.account import Account
from toolgate.transports.web.consent import Asking
from toolgate.transports.web.http import BadForm, Endpoint, Handle, Incoming, Outgoing, data, pairs
from toolgate.transports.web.login import Entrance
from toolgate.transports.web.signed_in import Desk
from toolgate.transports.web.templates import STYLE

METADATA = ("oauth-authorization-server", "openid-configuration")
FRESH = ("cache-control", "public, max-age=3600")
FRESH_KEYS = ("cache-control", f"public, max-age={CACHED}")  # a new key is announced this long before it signs
NEVER = (("cache-control", "no-store"), ("pragma", "no-cache"))  # RFC 6749 section 5.1
SEVERAL = frozenset(("resource", "audience"))  # may be there more than once (RFC 8707, RFC 8693)


class OAuth:
    """`public_url` is the issuer, without a trailing slash; `server` the name people read; `sentences` what each scope
    means to them; `resources` the paths of what is protected, whose names some clients look for metadata under."""

    def __init__(
        self,
        public_url: str,
        server: str,
        authorization: Any,
        sign_in: SignIn,
        sentences: Mapping[str, str],
        resources: tuple[str, ...] = (),
    ) -> None:
        self._authorization = authorization
        self._resources = resources
        self.desk = Desk(public_url, server, authorization, sign_in)
        self._base = self.desk.base
        self._entrance = Entrance(self.desk)
        self._asking = Asking(self.desk, sentences, self._entrance.send_away)
        self._account = Account(self.desk, sentences)

    def routes(self) -> Iterator[tuple[str, Endpoint]]:
        """Every path with what answers there; each also with a slash at its end, and none by a redirect."""
        for path, endpoint in {**self._for_programs(), **self._for_people()}.items():
            yield path, endpoint
            yield path + "/", endpoint

    @property
    def open_paths(self) -> frozenset[str]:
        """What pages of any origin may ask: clients that run in a browser do."""
        paths = {self._base + path for path in self._for_programs()} | set(self._for_programs())
        return frozenset(paths | {path + "/" for path in paths})

    def _for_programs(self) -> dict[str, Endpoint]:
        metadata = Endpoint({"GET": self._metadata, "HEAD": self._metadata}, _refusal, shared=True)
        keys = Endpoint({"GET": self._jwks, "HEAD": self._jwks}, _refusal, shared=True)
        answering: dict[str, Handle] = {
            "/token": self._form(self._authorization.token),
            "/revoke": self._form(self._authorization.revoke),
            "/introspect": self._form(self._authorization.introspect),
            "/register": self._register,
        }
        return {
            **{path: Endpoint({"POST": handle}, _refusal, shared=True) for path, handle in answering.items()},
            "/jwks": keys,
            **dict.fromkeys(self._metadata_paths(), metadata),
        }

    def _metadata_paths(self) -> Iterator[str]:
        """At the root, with the issuer's path inserted behind the well-known part, and appended to it (RFC 8414
        section 3.1, OpenID Connect Discovery section 4); and as though the resource were the issuer, for clients of
        2025-03-26 that know of nothing else."""
        for name in METADATA:
            known = f"/.well-known/{name}"
            yield known
            for path in ({self._base} - {""}) | {self._base + resource for resource in self._resources}:
                yield known + path
                yield path.removeprefix(self._base) + known

    def _for_people(self) -> dict[str, Endpoint]:
        asking, entrance, account = self._asking, self._entrance, self._account
        handlers: dict[str, dict[str, Handle]] = {
            "/login": _page(entrance.login_page, entrance.login),
            "/consent": _page(asking.consent_page, asking.consent),
            "/account": _page(account.page, account.withdraw),
            "/logout": _page(entrance.logout_page, entrance.logout),
            f"/{STYLE}": _page(self._style),
            "/authorize": {"GET": asking.authorize},  # no page, and no HEAD: both of these change something
            **{back: {"GET": partial(entrance.callback, back)} for back in entrance.backs.values()},
        }
        return {path: Endpoint(methods, self.desk.refused) for path, methods in handlers.items()}

    async def _metadata(self, _incoming: Incoming) -> Outgoing:
        return data(await self._authorization.metadata(), 200, FRESH)

    async def _jwks(self, _incoming: Incoming) -> Outgoing:
        return data(await self._authorization.jwks(), 200, FRESH_KEYS)

    async def _style(self, _incoming: Incoming) -> Outgoing:
        return self.desk.pages.file(STYLE)

    def _form(self, ask: Callable[..., Awaitable[Any]]) -> Handle:
        """An endpoint that takes a form: parameters from its body only (RFC 6749 section 3.2), and never a secret from
        the query."""

        async def handle(incoming: Incoming) -> Outgoing:
            if pairs(incoming.query):
                raise BadForm("parameters belong into the body")
            form = [(name, value) for name, value in incoming.form(SEVERAL) if value]  # without a value: not there
            return _answer(await ask(form, _Headers(incoming), self.desk.address(incoming)))

        return handle

    async def _register(self, incoming: Incoming) -> Outgoing:
        kind = incoming.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            raise BadForm("the body must be application/json")
        try:
            body = decode_value(incoming.body)
        except (ValueError, RecursionError):
            raise BadForm("the body is not JSON") from None
        return _answer(await self._authorization.register(body, self.desk.address(incoming)))


def _page(show: Handle, answer: Handle | None = None) -> dict[str, Handle]:
    """The methods of a page, and of the form on it, if there is one."""
    shown = {"GET": show, "HEAD": show}
    return {**shown, "POST": answer} if answer is not None else shown


class _Headers(Mapping[str, str]):
    """A request's headers, whatever the case of the name."""

    def __init__(self, incoming: Incoming) -> None:
        self._held = incoming.headers

    def __getitem__(self, name: str) -> str:
        return self._held[name.lower().encode()].decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._held)

    def __len__(self) -> int:
        return len(self._held)


def _answer(answer: Any) -> Outgoing:
    """An Answer of server/auth/oauth_server."""
    return data(answer.body, answer.status, *answer.headers.items()).once(*NEVER)


def _refusal(status: int, text: str) -> Outgoing:
    error = "invalid_request" if status < 500 else "temporarily_unavailable" if status == 503 else "server_error"
    return data({"error": error, "error_description": text}, status, *NEVER)
