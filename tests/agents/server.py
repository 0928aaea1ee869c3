"""Start a Toolgate that listens, or three that share their state behind nginx, kill them, and restart them."""

import contextlib
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tests.agents.drive import Scene
from tests.clients.raw_client import PATIENCE, eventually
from tests.servers.balancer import balanced
from tests.servers.forked_command import COMMAND
from tests.servers.postgres import running_postgres
from tests.servers.redis_server import redis_server
from tests.servers.reserved_port import kept_port, kept_ports

REPLICAS = 3


class ListeningServer(Protocol):
    """What listens at `url`, for `tests.server.auth.http_browser.Person`."""

    @property
    def url(self) -> str: ...

    def log(self) -> str: ...

    def restart(self) -> None:
        """Kill the server by kill -9, and start it again."""
        ...

    def stop(self) -> None: ...


class HttpServer:
    """One server."""

    def __init__(self, scene: Scene, options: Sequence[str]) -> None:
        self.port = kept_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._words = [COMMAND, "-t", "--port", str(self.port), *options]
        self._work = scene.work
        self._home = scene.folder / "home"
        self._log = scene.folder / "server.log"
        self._process = self._start()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def restart(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)

    def _start(self) -> "subprocess.Popen[bytes]":
        process = _start_process(self._words, self._log, self._work, self._home)
        assert eventually(lambda: self._is_ready() or process.poll() is not None)
        assert process.poll() is None, self.log()
        return process

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/ready", timeout=PATIENCE) as response:
            return bool(response.status == 200)
        return False


class Replicas:
    """Servers on one state, behind nginx at `url`. They are killed one after the other."""

    def __init__(self, url: str, servers: Sequence[HttpServer]) -> None:
        self.url = url
        self._servers = servers

    def log(self) -> str:
        return self._servers[0].log()

    def restart(self) -> None:
        for server in self._servers:
            server.restart()

    def stop(self) -> None:
        for server in self._servers:
            server.stop()


@contextlib.contextmanager
def running_replicas(scene: Scene, options: Sequence[str]) -> Iterator[Replicas]:
    """Run three servers with these options on one PostgreSQL and Redis, and nginx that asks them in turn."""
    secret = scene.folder / "secret"
    secret.touch(0o600)
    secret.write_bytes(os.urandom(32))
    [front] = kept_ports(1)
    url = f"http://127.0.0.1:{front}"
    with contextlib.ExitStack() as stack:
        redis, postgres = stack.enter_context(redis_server()), stack.enter_context(running_postgres())
        shared = ["--redis", redis.url, "--database", postgres.create_database(), "--secret", str(secret)]
        servers: list[HttpServer] = []
        replicas = Replicas(url, servers)
        stack.callback(replicas.stop)
        for _ in range(REPLICAS):
            servers.append(HttpServer(scene, [*options, *shared, "--public-url", url]))
        stack.enter_context(balanced(scene.folder / "nginx", front, [server.port for server in servers]))
        yield replicas


@contextlib.contextmanager
def running_node(scene: Scene) -> Iterator[str]:
    """Run a node, and yield its address."""
    log = scene.folder / "node.log"
    words = [COMMAND, "node", "--sandbox", "none", *scene.node_options]
    process = _start_process(words, log, scene.work, scene.folder / "home")
    socket_file = scene.folder / "node" / "node.sock"
    try:
        assert eventually(lambda: socket_file.exists() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield f"unix:{socket_file}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _start_process(words: Sequence[str], log: Path, work: Path, home: Path) -> "subprocess.Popen[bytes]":
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    with log.open("ab") as file:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=work, env=environment)
