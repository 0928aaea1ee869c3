"""A real Redis server without persistence, which tests may kill, stop and start again at the same addresses."""

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.reserved_port import reserved_port

PROGRAM = "redis-server"
STARTS_WITHIN = 10.0


class RedisProcess:
    """A server at a port of loopback and at a Unix socket."""

    def __init__(self, folder: Path, port: int, *options: str) -> None:
        self.port = port
        self.socket = folder / "redis"
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.unix_url = f"unix://{self.socket}"
        self._log = folder / "log"
        self._command = (
            *(PROGRAM, "--bind", "127.0.0.1", "--port", str(self.port), "--unixsocket", str(self.socket)),
            *("--save", "", "--appendonly", "no", "--dir", str(folder), "--logfile", str(self._log), *options),
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + STARTS_WITHIN
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < until, self._log.read_text()
            time.sleep(0.01)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(10)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop it for a while: connections stay open, and nothing answers."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def run(self, *words: str) -> bytes:
        """Return the raw reply to a command."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
            connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
            return connection.recv(2**20)

    def _answers(self) -> bool:
        try:
            return b"PONG" in self.run("PING") or b"NOAUTH" in self.run("PING")
        except OSError:
            return False


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[RedisProcess]:
    """Run a server with these options. Fail without the program."""
    if shutil.which(PROGRAM) is None:
        pytest.fail(f"programs are missing: apt-get install {PROGRAM}", pytrace=False)
    with reserved_port() as port, tempfile.TemporaryDirectory(prefix="redis-") as folder:  # a socket's name is short
        server = RedisProcess(Path(folder), port, *options)
        server.start()
        try:
            yield server
        finally:
            server.kill()
