"""Access tokens for a server process, minted with its own keys, and requests with them: no sign-in is needed."""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tests.clients.raw_client import STATELESS
from tests.clients.raw_http_client import Site, site
from tests.conftest import PROBE
from toolgate.server.app.features import build_host
from toolgate.server.app.host import AppHost
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.access_tokens import TYP
from toolgate.server.auth.tokens.signing_keys import SigningKeys
from toolgate.server.base.principals import scopes
from toolgate.server.config import load
from toolgate.server.state.keys.sealed_state import Sealer
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.store import Store

T = TypeVar("T")

ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}


class Signed:
    """A listening server with sign-in, and tokens for it."""

    def __init__(self, listening: Site, issuer: str | None = None) -> None:
        self.site = listening
        self.issuer = issuer or listening.url
        self.key = self.with_keys(lambda keys: keys.active())
        self._noted: set[tuple[str, str]] = set()

    def with_keys(self, work: Callable[[SigningKeys], Awaitable[T]]) -> T:
        """Run `work` in this process, on the server's own keys."""

        async def run(host: AppHost) -> T:
            keys = host.keys()
            await keys.load()
            return await work(SigningKeys(host.store(), Sealer(keys.find("signing"), None)))

        return self._with_host(run)

    def deny(self, jti: str) -> None:
        """Revoke the token with this id, from this process."""

        def kept(connection: Any) -> None:
            later = time.time() + 900
            grant_rows.add_access_token(
                connection, jti=jti, client="one", subject="ada", grant_id=None, expires_at=later
            )
            grant_rows.deny_access_token(connection, jti)

        self.with_store(lambda store: store.transact(kept))

    def age_refresh_tokens(self, seconds: float) -> None:
        """Set all redemptions so many seconds back."""
        words = f"UPDATE oauth_refresh SET redeemed_at = redeemed_at - {seconds}"
        self.with_store(lambda store: store.transact(lambda connection: connection.exec_driver_sql(words).close()))

    def age_keys(self, seconds: float) -> None:
        """Set all retirements of keys so many seconds back."""
        words = f"UPDATE oauth_key SET retired_at = retired_at - {seconds}"
        self.with_store(lambda store: store.transact(lambda connection: connection.exec_driver_sql(words).close()))

    def with_store(self, work: Callable[[Store], Awaitable[T]]) -> T:
        return self._with_host(lambda host: work(host.store()))

    def _with_host(self, work: Callable[[AppHost], Awaitable[T]]) -> T:
        """Run `work` in this process, on the server's own state."""
        flags = {"http": "true", "state": str(self.site.state)}
        if self.site.shared is not None:
            flags |= {"database": self.site.shared[0], "secret": str(self.site.shared[1])}

        async def done() -> T:
            host, _ = build_host(load.load(flags, {}))
            try:
                return await work(host)
            finally:
                await host.store().aclose()

        with ThreadPoolExecutor(1) as thread:  # in this one the loop of a browser's driver may run
            return thread.submit(asyncio.run, done()).result()

    def claims(self, subject: str = "ada", client: str = "client", granted: Iterable[str] = scopes.SERVED) -> Any:
        """Return the claims of a valid token."""
        now = int(time.time())
        return {
            "iss": self.issuer,
            "aud": f"{self.issuer}/mcp",
            "sub": subject,
            "client_id": client,
            "scope": scopes.format_scopes(granted),
            "iat": now,
            "exp": now + 900,
            "jti": f"{subject}-{client}-{now}",
        }

    def token(
        self,
        subject: str = "ada",
        client: str = "client",
        granted: Iterable[str] = scopes.SERVED,
        *,
        typ: str = TYP,
        key: jose.JoseKey | None = None,
        noted: bool = True,
        **other: Any,
    ) -> str:
        """Return a token; `other` are changed claims, None removes one."""
        if noted:
            self._note(subject, client)
        claims = {**self.claims(subject, client, granted), **other}
        claims = {name: value for name, value in claims.items() if value is not None}
        return jose.sign(claims, key or self.key, typ)

    def _note(self, subject: str, client: str) -> None:
        """Store a token for these two as if the server had issued it; otherwise its sessions soon end."""
        if (subject, client) in self._noted or not subject:  # one that says nobody is good for nothing
            return
        self._noted.add((subject, client))
        row = {"jti": f"noted-{len(self._noted)}", "client": client, "subject": subject, "grant_id": None}
        later = time.time() + 900
        self.with_store(
            lambda store: store.transact(
                lambda connection: grant_rows.add_access_token(connection, expires_at=later, **row)
            )
        )

    def bearer(self, *who: Any, **other: Any) -> str:
        return f"Bearer {self.token(*who, **other)}"


@contextlib.contextmanager
def signed_site(folder: Path, *options: str, **how: Any) -> Iterator[Signed]:
    """Run a server with sign-in and the tools of tests/plugins."""
    with site(folder, *PROBE, "--auth", "oauth", *options, **how) as listening:
        yield Signed(listening)


def request(method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def asked(signed: Signed, token: str, method: str, params: Any = None, **headers: str) -> Any:
    """Send one request of the stateless era with valid headers."""
    body = request(method, {**(params or {}), "_meta": {**ENVELOPE, **(params or {}).get("_meta", {})}})
    told = {"mcp_protocol_version": STATELESS, "mcp_method": method}
    name = (params or {}).get("name" if method in ("tools/call", "prompts/get") else "uri")
    if name is not None and method in ("tools/call", "prompts/get", "resources/read"):
        told["mcp_name"] = name
    return signed.site.ask("POST", "/mcp", body, authorization=f"Bearer {token}", **{**told, **headers})


def session(signed: Signed, token: str, revision: str = "2025-11-25") -> str:
    """Return the id of a new session, after its handshake."""
    hello = request("initialize", {**HELLO, "protocolVersion": revision})
    response, raw, _ = signed.site.ask("POST", "/mcp", hello, authorization=f"Bearer {token}")
    assert response.status == 200, raw
    id = response.getheader("mcp-session-id")
    assert id is not None
    noted = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    signed.site.ask("POST", "/mcp", noted, authorization=f"Bearer {token}", mcp_session_id=id)
    return id


def challenge(response: Any) -> dict[str, str]:
    """Return the parameters of the only Bearer challenge."""
    kind, _, rest = (response.getheader("www-authenticate") or "").partition(" ")
    assert kind == "Bearer"
    return dict(re.findall(r'(\w+)="([^"]*)"', rest))
