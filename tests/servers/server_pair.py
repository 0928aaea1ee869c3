"""Two server processes with sign-in on one Redis, PostgreSQL and node, and requests to each as one person."""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.clients.raw_client import STATELESS
from tests.clients.raw_http_client import NAMED, Site, site
from tests.clients.raw_task_client import KNOWS
from tests.conftest import PROBE
from tests.server.auth.minted_tokens import ENVELOPE, request
from tests.server.node.nodes import running_node
from tests.servers.postgres import Postgres
from tests.servers.redis_server import RedisProcess, redis_server
from toolgate.server.auth import scopes
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.access_tokens import TYP
from toolgate.server.auth.tokens.signing_keys import SigningKeys
from toolgate.server.config import load
from toolgate.server.config.secret_file import read_secret
from toolgate.server.state import grant_rows
from toolgate.server.state.database_url import parse_database_url
from toolgate.server.state.key_table import KeyTable
from toolgate.server.state.sealed_state import Sealer
from toolgate.server.state.store import Store
from toolgate.server.state.stores import open_store

T = TypeVar("T")
ISSUER = "https://gate.example"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


@dataclass
class Pair:
    """The two servers, and what they share."""

    first: Site
    second: Site
    redis: RedisProcess
    database: str
    folder: Path

    def with_store(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Run `work` in this process, on the database of the two."""

        async def run() -> T:
            store = open_store(self.folder, parse_database_url(self.database))
            try:
                return await work(store)
            finally:
                await store.aclose()

        return asyncio.run(run())

    def token(self, subject: str = "ada") -> str:
        """Return an access token of this person."""

        async def mint(store: Store) -> str:
            keys = KeyTable(store, _read_sealing_secret(self.folder / "secret"))
            await keys.load()
            key = await SigningKeys(store, Sealer(keys.find("signing"), None)).active()
            now = int(time.time())
            jti = f"{subject}-{secrets.token_hex(4)}"
            claims = {"iss": ISSUER, "aud": f"{ISSUER}/mcp", "sub": subject, "client_id": "client", "iat": now}
            claims |= {"scope": scopes.format_scopes(scopes.SERVED), "exp": now + 900, "jti": jti}
            row = {"jti": jti, "client": "client", "subject": subject, "grant_id": None, "expires_at": now + 900.0}
            await store.transact(lambda rows: grant_rows.add_access_token(rows, **row), alone="oauth")
            return jose.sign(claims, key, TYP)

        return self.with_store(mint)


def ask(server: Site, token: str, method: str, **params: Any) -> Any:
    """Return the result of one request of the stateless era, or its error."""
    meta = {**ENVELOPE, CAPABILITIES: KNOWS}
    headers = {"mcp_protocol_version": STATELESS, "mcp_method": method, "authorization": f"Bearer {token}"}
    if method in NAMED:
        headers["mcp_name"] = params[NAMED[method]]
    response, raw, said = server.ask("POST", "/mcp", request(method, {**params, "_meta": meta}), **headers)
    if said is None:
        assert response.status == 200, (response.status, raw, server.log())
        said = json.loads(raw.decode().rpartition("data: ")[2])
    return said.get("result", said.get("error"))


def call(server: Site, token: str, tool: str, arguments: dict[str, Any] | None = None, **params: Any) -> Any:
    """Return the result of a call."""
    return ask(server, token, "tools/call", name=tool, arguments=arguments or {}, **params)


def text(result: Any) -> str:
    """Return all text of a result."""
    assert "content" in result, result
    return "\n".join(part.get("text", "") for part in result["content"])


def _read_sealing_secret(file: Path) -> bytes:
    """Return what the servers make of the file."""
    secret = read_secret(load.load({"http": "true", "database": "postgresql:///x", "secret": str(file)}))
    assert secret is not None
    return secret


@contextlib.contextmanager
def running_pair(folder: Path, postgres: Postgres, *options: str) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        node = stack.enter_context(running_node(folder / "node", "--sandbox", "none"))
        database = postgres.create_database()
        secret = folder / "secret"
        secret.touch(0o600)
        secret.write_bytes(secrets.token_bytes(32))
        words = ("--auth", "oauth", "--public-url", ISSUER, "--node", str(node.address), "--database", database)
        words += ("--secret", str(folder / "secret"), "--redis", redis.unix_url)
        words += ("--accept-unsandboxed",)
        first, second = (
            stack.enter_context(site(folder / name, *PROBE, *words, *options, workspace=False))
            for name in ("first", "second")
        )
        yield Pair(first, second, redis, database, folder)
