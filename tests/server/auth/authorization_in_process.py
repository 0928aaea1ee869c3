"""Run the authorization server without HTTP, in this process, on a real state, with a fake clock and a fake web."""

import asyncio
import base64
import contextlib
import functools
import hashlib
import json
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.clients.raw_client import PATIENCE
from toolgate.server.auth.grants import list_denied_tokens
from toolgate.server.auth.login.accounts import Person
from toolgate.server.auth.oauth_server.consent_requests import ConsentRequest
from toolgate.server.auth.oauth_server.responses import ErrorPage, OAuthResponse, Redirect
from toolgate.server.auth.oauth_server.service import AuthorizationService
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.access_tokens import OwnTokens
from toolgate.server.auth.tokens.jose import JoseKey
from toolgate.server.auth.tokens.signing_keys import SigningKeys
from toolgate.server.base.principals import scopes
from toolgate.server.state.keys.file import KeyFile
from toolgate.server.state.keys.sealed_state import Sealer
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store
from toolgate.tools.api.context.services import Page
from toolgate.tools.api.outbound.errors import PageUnreachableError

URL = "https://tools.example"
MCP = f"{URL}/mcp"
BACK = "https://app.example/back"
START = 1_800_000_000.0
ADA = Person("https://login.example", "ada", "Ada")
BOB = Person("https://login.example", "bob", "Bob")
ALL = frozenset(scopes.SERVED)
VERIFIER = "v" * 43


def challenge(verifier: str = VERIFIER) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


class Clock:
    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass
class Pages:
    """A fake web: URL → JSON value, bytes, a whole page, or an error. Other URLs are unreachable."""

    held: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    limits: list[tuple[int, float, int]] = field(default_factory=list)

    async def fetch(
        self, url: str, *, headers: Mapping[str, str] | None, limit: int, timeout: float, redirects: int
    ) -> Page:
        self.asked.append(url)
        self.limits.append((limit, timeout, redirects))
        page = self.held.get(url)
        if page is None:
            raise PageUnreachableError(f"could not fetch {url}: no such host")
        if isinstance(page, Exception):
            raise page
        if isinstance(page, Page):
            return page
        body = page if isinstance(page, bytes) else json.dumps(page).encode()
        return Page(url, 200, {"content-type": "application/json"}, body[:limit], len(body) > limit)


@dataclass
class AuthServer:
    authorization: AuthorizationService
    store: Store
    keys: SigningKeys
    tokens: OwnTokens
    clock: Clock
    pages: Pages

    async def registered(self, **more: Any) -> dict[str, Any]:
        """Register a new public client."""
        body = {"redirect_uris": [BACK], "token_endpoint_auth_method": "none", "client_name": "Fernhill", **more}
        answer = await self.authorization.register(body, "192.0.2.1")
        assert answer.status == 201, answer
        return answer.body

    async def client(self, **more: Any) -> str:
        return str((await self.registered(**more))["client_id"])

    async def asked(self, client: str, **more: str | None) -> ConsentRequest | Redirect | ErrorPage:
        return await self.authorization.open_consent(query(client, **more))

    async def code(self, client: str, person: Person = ADA, **more: str | None) -> str:
        """Return a code for everything requested."""
        question = await self.asked(client, **more)
        assert isinstance(question, ConsentRequest), question
        answered = await self.authorization.answer_consent(question.id, person, frozenset(question.scopes))
        assert isinstance(answered, Redirect), answered
        return told(answered)["code"]

    async def redeem(self, client: str, code: str, **more: str | None) -> OAuthResponse:
        return await self.token(
            grant_type="authorization_code",
            **{"client_id": client, "code": code, "redirect_uri": BACK, "code_verifier": VERIFIER, **more},
        )

    async def granted(self, client: str, person: Person = ADA, **more: str | None) -> dict[str, Any]:
        """Return tokens."""
        answer = await self.redeem(client, await self.code(client, person, **more))
        assert answer.status == 200, answer
        return answer.body

    async def refresh(self, client: str, token: str, **more: str | None) -> OAuthResponse:
        return await self.token(grant_type="refresh_token", **{"client_id": client, "refresh_token": token, **more})

    async def token(self, headers: Mapping[str, str] | None = None, **form: str | None) -> OAuthResponse:
        return await self.authorization.token(pairs(form), headers or {})

    async def works(self, token: str) -> bool:
        """Return whether a server that has not cached it accepts an access token."""
        fresh = verifier(self.store, self.keys, self.clock)
        try:
            await fresh.verify(token)
        except jose.InvalidTokenError:
            return False
        return True

    async def rows(self, table: str) -> int:
        return await self.store.transact(
            lambda connection: int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())
        )


def pairs(form: Mapping[str, str | None]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in form.items() if value is not None]


def query(client: str, **more: str | None) -> str:
    given = {
        "client_id": client,
        "redirect_uri": BACK,
        "response_type": "code",
        "state": "s-1",
        "code_challenge": challenge(),
        "code_challenge_method": "S256",
        **more,
    }
    return urlencode(pairs(given))


def told(redirect: object) -> dict[str, str]:
    """Return the parameters of a redirect to the client."""
    assert isinstance(redirect, Redirect), redirect
    return {name: value[0] for name, value in parse_qs(urlsplit(redirect.location).query).items()}


def verifier(store: Store, keys: SigningKeys, clock: Clock, url: str = URL) -> OwnTokens:
    return OwnTokens(url, (f"{url}/mcp", f"{url}/sse"), keys, lambda: list_denied_tokens(store, clock), now=clock)


@functools.cache
def empty_database() -> bytes:
    """Return a database with its tables, which take as long to create as the rest of a test."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:  # a browser's loop runs in this one
        store = SqliteStore(Path(folder))
        thread.submit(asyncio.run, store.read(lambda _: None)).result(PATIENCE)
        store.close()
        return store.path.read_bytes()


def put_database(state: Path) -> None:
    """Put an empty database into a new state."""
    if not state.exists():
        state.mkdir(0o700, parents=True)
        (state / "state.db").write_bytes(empty_database())
        (state / "state.db").chmod(0o600)


@contextlib.asynccontextmanager
async def auth_server(folder: Path, clock: Clock | None = None, **options: Any) -> AsyncIterator[AuthServer]:
    clock, pages = clock or Clock(), Pages()
    url = options.pop("public_url", URL)
    store = SqliteStore(folder / "state")
    keys = SigningKeys(store, Sealer(KeyFile(folder / "state" / "keys" / "signing"), None), clock)
    tokens = verifier(store, keys, clock, url)
    served = options.pop("served", lambda: scopes.SERVED)
    questions = KeyFile(folder / "state" / "keys" / "questions")
    options = {"can_sign_in": lambda _person: True, **options}
    authorization = AuthorizationService(url, store, keys, questions, tokens, served, pages.fetch, now=clock, **options)
    try:
        yield AuthServer(authorization, store, keys, tokens, clock, pages)
    finally:
        await authorization.close()
        store.close()


def with_auth_server(folder: Path, body: Callable[[AuthServer], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE), auth_server(folder, **options) as made:
            await body(made)

    put_database(folder / "state")
    asyncio.run(run())


def assertion(client: str, key: JoseKey, now: float = START, typ: str = "JWT", **more: Any) -> str:
    """Return a client's signed assertion."""
    claims = {"iss": client, "sub": client, "aud": f"{URL}/token", "iat": int(now), "exp": int(now) + 60}
    claims |= {"jti": secrets.token_urlsafe(8), **more}
    return jose.sign({name: value for name, value in claims.items() if value is not None}, key, typ)


def basic(client: str, secret: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode()}
