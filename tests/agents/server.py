"""Start a Toolgate that listens, kill it, and restart it at the same address."""

import contextlib
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.agents.drive import Scene
from tests.clients.raw_client import PATIENCE, eventually
from tests.servers.forked_command import COMMAND


class HttpServer:
    """A server at `url`, for `tests.server.auth.http_browser.Person`."""

    def __init__(self, scene: Scene, options: Sequence[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._words = [COMMAND, "-t", "--port", str(self.port), *options]
        self._work = scene.work
        self._home = scene.folder / "home"
        self._log = scene.folder / "server.log"
        self._process = self._start()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def restart(self) -> None:
        """Kill the server by kill -9, and start it again."""
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
