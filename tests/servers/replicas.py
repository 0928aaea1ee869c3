"""Servers on one Redis, one PostgreSQL and one node: replicas, of which any answers any request."""

import contextlib
import functools
import re
import secrets
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.clients.raw_client import PATIENCE
from tests.clients.raw_http_client import Site
from tests.conftest import PROBE
from tests.server.auth.minted_tokens import Signed
from tests.server.features.nodes.nodes import NodeProcess, running_node
from tests.servers.balancer import balanced
from tests.servers.postgres import Postgres, running_postgres
from tests.servers.redis_server import RedisProcess, redis_server
from tests.servers.reserved_port import kept_ports

TRACEBACK = re.compile(r"^ *Traceback.*\n(?: .*\n?)*", re.MULTILINE)  # the lines after it are indented, too


class Replicas:
    """The servers in `sites`, on one state.

    options: those of each server
    ports: where each listens
    public_url: where people sign in
    how: further arguments of `Site`, also of servers that start later
    """

    def __init__(
        self,
        folder: Path,
        redis: RedisProcess,
        node: NodeProcess,
        database: str,
        *options: str,
        ports: list[int],
        public_url: str,
        **how: Any,
    ) -> None:
        self.redis = redis
        self.node = node
        self.database = database
        self.ports = ports
        self.public_url = public_url
        self._folder = folder
        self.secret = folder / "secret"
        if not self.secret.exists():  # else the same database is served again
            self.secret.touch(0o600)
            self.secret.write_bytes(secrets.token_bytes(32))
        self._options = ("--redis", redis.url, "--database", database, "--secret", str(self.secret))
        self._options += ("--node", str(node.address), "--accept-unsandboxed", *options)
        if "--auth" in options and "--public-url" not in options:
            self._options += ("--public-url", self.public_url)
        self.how = how
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

    def tracebacks(self) -> list[str]:
        """Return the tracebacks in the logs, without those of tests/plugins, which fail on purpose."""
        return [each for each in TRACEBACK.findall(self.log()) if "/tests/plugins/" not in each]

    @functools.cached_property
    def _signed(self) -> Signed:
        return Signed(self.sites[0], self.public_url)

    def token(self, subject: str = "ada") -> str:
        """Return an access token of this person."""
        return self._signed.token(subject)

    def _start(self, place: int) -> Site:
        folder = self._folder / secrets.token_hex(4)
        folder.mkdir()
        words = ("--port", str(self.ports[place]), *self._options)
        site = Site(folder, *words, **{**self.how, "workspace": False})
        site.shared = self.database, self.secret
        return site


@contextlib.contextmanager
def running_replicas(
    folder: Path, postgres: Postgres, *options: str, count: int = 2, public_url: str = "", **how: Any
) -> Generator[Replicas]:
    """Run servers with the tools of tests/plugins, and what they share. Their logs must have no traceback."""
    database = postgres.create_database()
    with _running(
        folder, database, *PROBE, *options, ports=kept_ports(count), public_url=public_url, **how
    ) as replicas:
        yield replicas
        assert not replicas.tracebacks()


@contextlib.contextmanager
def _running(
    folder: Path, database: str, *options: str, ports: list[int], public_url: str, **how: Any
) -> Generator[Replicas]:
    public_url = public_url or f"http://127.0.0.1:{ports[0]}"
    with redis_server() as redis, running_node(folder / "node", "--sandbox", "none") as node:
        shared = (folder, redis, node, database)
        replicas = Replicas(*shared, *options, ports=ports, public_url=public_url, **how)
        try:
            yield replicas
        finally:
            replicas.close()


@contextlib.contextmanager
def replicas_behind_nginx(
    folder: Path, postgres: Postgres, *options: str, count: int = 2, **how: Any
) -> Generator[tuple[Replicas, int]]:
    """Run servers with the tools of tests/plugins, and nginx that asks them in turn. Yield them and its port."""
    database = postgres.create_database()
    with _behind_nginx(folder, database, *PROBE, *options, count=count, **how) as (replicas, front):
        yield replicas, front
        assert not replicas.tracebacks()


@contextlib.contextmanager
def _behind_nginx(
    folder: Path, database: str, *options: str, count: int, **how: Any
) -> Generator[tuple[Replicas, int]]:
    front, *behind = kept_ports(1 + count)
    public_url = f"http://127.0.0.1:{front}"
    with (
        _running(folder, database, *options, ports=behind, public_url=public_url, **how) as replicas,
        balanced(folder / "nginx", front, behind),
    ):
        yield replicas, front


class ReplicatedSite(Site):
    """Servers behind nginx at `front`, which tests use as if they were one. Its state is the node's, where the
    workspaces are; its process is that of the first server."""

    def __init__(self, replicas: Replicas, front: int, folder: Path) -> None:
        self._replicas = replicas
        self.state = replicas.node.state
        self.stderr = folder / "stderr.log"
        self.stderr.touch()
        self.shared = replicas.sites[0].shared
        self.process = replicas.sites[0].process
        self.port = front
        self.url = f"http://127.0.0.1:{front}"

    def log(self) -> str:
        return self._replicas.log()

    def stop(self, number: int = signal.SIGTERM, timeout: float = PATIENCE) -> int:
        return max(site.stop(number, timeout) for site in self._replicas.sites)

    def kill(self) -> None:
        self._replicas.close()


class ReplicatedSites:
    """Opens so many servers instead of each one that a test starts, on one PostgreSQL. A folder has one database, as it
    has one state."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._stack = contextlib.ExitStack()
        self._postgres: Postgres | None = None
        self._databases: dict[Path, str] = {}

    @contextlib.contextmanager
    def open(self, folder: Path, *options: str, **how: Any) -> Generator[Site]:
        if self._postgres is None:
            self._postgres = self._stack.enter_context(running_postgres())
        if folder not in self._databases:
            self._databases[folder] = self._postgres.create_database()
        home = folder / "home"  # one for all: skills are the same in all
        home.mkdir(exist_ok=True)
        how["env"] = {"HOME": str(home), **(how.get("env") or {})}
        with _behind_nginx(folder, self._databases[folder], *options, count=self._count, **how) as (replicas, front):
            yield ReplicatedSite(replicas, front, folder)
            assert "Exception in ASGI" not in replicas.log(), replicas.log()

    def close(self) -> None:
        self._stack.close()
