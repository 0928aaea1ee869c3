"""Servers on one Redis, one PostgreSQL and one node: replicas, of which any answers any request."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

from tests.clients.raw_http_client import Site
from tests.conftest import PROBE
from tests.server.node.nodes import running_node
from tests.servers.balancer import balanced
from tests.servers.postgres import Postgres
from tests.servers.redis_server import RedisProcess, find_free_port, redis_server
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


class Replicas:
    """The servers in `sites`, on one state. `options` are those of each; people sign in under `public_url`."""

    def __init__(
        self, folder: Path, redis: RedisProcess, database: str, *options: str, ports: list[int], public_url: str = ""
    ) -> None:
        self.redis = redis
        self.database = database
        self.ports = ports
        self.public_url = public_url or f"http://127.0.0.1:{ports[0]}"
        self.secret = folder / "secret"
        self._folder = folder
        shared = ("--redis", redis.url, "--database", database, "--secret", str(self.secret))
        self._options = (*shared, *options)
        if "oauth" in options:
            self._options += ("--public-url", self.public_url, "--accept-unsandboxed")
        self.sites = [self._start(place) for place in range(len(ports))]

    def restart(self, place: int) -> Site:
        """Start a server again."""
        self.sites[place].kill()
        self.sites[place] = self._start(place)
        return self.sites[place]

    def close(self) -> None:
        for site in self.sites:
            site.kill()

    def log(self) -> str:
        return "\n".join(site.log() for site in self.sites)

    def with_store(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Run `work` in this process, on the database of the servers."""

        async def run() -> T:
            store = open_store(self._folder, parse_database_url(self.database))
            try:
                return await work(store)
            finally:
                await store.aclose()

        return asyncio.run(run())

    def token(self, subject: str = "ada") -> str:
        """Return an access token of this person."""

        async def mint(store: Store) -> str:
            keys = KeyTable(store, _read_sealing_secret(self.secret))
            await keys.load()
            key = await SigningKeys(store, Sealer(keys.find("signing"), None)).active()
            now = int(time.time())
            jti = f"{subject}-{secrets.token_hex(4)}"
            claims: dict[str, Any] = {"iss": self.public_url, "aud": f"{self.public_url}/mcp", "sub": subject}
            claims |= {"client_id": "client", "iat": now, "exp": now + 900, "jti": jti}
            claims |= {"scope": scopes.format_scopes(scopes.SERVED)}
            row = {"jti": jti, "client": "client", "subject": subject, "grant_id": None, "expires_at": now + 900.0}
            await store.transact(lambda rows: grant_rows.add_access_token(rows, **row), alone="oauth")
            return jose.sign(claims, key, TYP)

        return self.with_store(mint)

    def _start(self, place: int) -> Site:
        folder = self._folder / secrets.token_hex(4)
        folder.mkdir()
        return Site(folder, *PROBE, "--port", str(self.ports[place]), *self._options, workspace=False)


def _read_sealing_secret(file: Path) -> bytes:
    """Return what the servers make of the file."""
    secret = read_secret(load.load({"http": "true", "database": "postgresql:///x", "secret": str(file)}))
    assert secret is not None
    return secret


@contextlib.contextmanager
def running_replicas(
    folder: Path, postgres: Postgres, *options: str, count: int = 2, public_url: str = ""
) -> Generator[Replicas]:
    """Run servers, and what they share. Their logs must have no traceback."""
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_bytes(secrets.token_bytes(32))
    ports = [find_free_port() for _ in range(count)]
    with redis_server() as redis, running_node(folder / "node", "--sandbox", "none") as node:
        words = ("--node", str(node.address), *options)
        replicas = Replicas(folder, redis, postgres.create_database(), *words, ports=ports, public_url=public_url)
        try:
            yield replicas
            assert "Traceback" not in replicas.log(), replicas.log()
        finally:
            replicas.close()


@contextlib.contextmanager
def replicas_behind_nginx(
    folder: Path, postgres: Postgres, *options: str, count: int = 2
) -> Generator[tuple[Replicas, int]]:
    """Run servers, and nginx that asks them in turn. Yield them and its port."""
    front = find_free_port()
    public_url = f"http://127.0.0.1:{front}"
    with (
        running_replicas(folder, postgres, *options, count=count, public_url=public_url) as replicas,
        balanced(folder / "nginx", front, replicas.ports),
    ):
        yield replicas, front
