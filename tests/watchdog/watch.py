"""A watched server, its worst requests, and how long each blocked its event loop."""

import contextlib
import itertools
import json
import mmap
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.clients.raw_client import PATIENCE
from tests.server.auth.hostile.target import Target, target_site
from tests.server.auth.minted_tokens import session
from tests.watchdog.watched import SECONDS, SIZE
from toolgate.server.base.principals.scopes import WEB

LONGEST = 0.05  # seconds of CPU time that one callback of the loop may take,
MOST = 5.0  # or yardsticks, on a machine that is slow now
TRIES = 25  # the best counts: the machine does other things, too
YARD = list(range(30_000)), "\u0300".encode() * 2**21  # to JSON and back, and to text: some 10 ms
UNLIMITED = [word for name in ("calls", "calls:tools:shell", "calls:tools:web") for word in ("--limit", f"{name}=0")]

Heads = Sequence[tuple[bytes, bytes]]


def measure_yardstick() -> float:
    """Return the CPU seconds of a fixed work: how fast the machine is now."""
    began = time.thread_time()
    values, text = YARD
    json.loads(json.dumps(values))
    text.decode()  # a large body is as slow as the memory
    return time.thread_time() - began


@dataclass(frozen=True)
class Ask:
    """One request; an `endless` one is answered by an open stream."""

    name: str
    method: str
    path: bytes
    headers: Heads = ()
    body: bytes = b""
    endless: bool = False


@dataclass
class Watched:
    """A watched server; `sessions` are ids by token and revision."""

    target: Target
    folder: Path
    tokens: dict[str, str] = field(default_factory=dict)
    sessions: dict[tuple[str, str], str] = field(default_factory=dict)
    sources: Iterator[int] = field(default_factory=lambda: itertools.cycle(range(2, 250)))

    def __post_init__(self) -> None:
        with (self.folder / "time").open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE)

    @property
    def routes(self) -> list[str]:
        found: list[str] = json.loads((self.folder / "routes").read_text())
        return found

    def session(self, who: str, revision: str = "2025-11-25") -> str:
        if (who, revision) not in self.sessions:
            self.sessions[who, revision] = session(self.target.signed, self.tokens[who], revision)
        return self.sessions[who, revision]

    def too_long(self, asks: Iterable[Ask]) -> list[str]:
        """Return the requests that block the loop for more than LONGEST and MOST, each time."""
        works = [(ask.name, partial(self.send, ask)) for ask in asks]
        return [told for name, work in works if (told := self.describe_block(name, work)) is not None]

    def describe_block(self, name: str, work: Callable[[], object]) -> str | None:
        """Return how long work of the server blocks the loop, if that is more than LONGEST and MOST each time."""
        for _ in range(TRIES):
            seconds, what = self.measure(work)
            if seconds <= LONGEST:
                return None
            yardsticks = seconds / measure_yardstick()
            if yardsticks <= MOST:
                return None
        return f"{name}: {yardsticks:.1f} yardsticks, {seconds * 1000:.0f} ms in {what}"

    def measure(self, work: Callable[[], object]) -> tuple[float, str]:
        """Return the CPU seconds of the longest callback during the work, and which it was."""
        self._memory[:] = bytes(SIZE)
        work()
        self.send(Ask("after it", "GET", b"/health"))
        text = self._memory[SECONDS.size :].rstrip(b"\0").decode(errors="replace")
        return SECONDS.unpack_from(self._memory)[0], text

    def send(self, ask: Ask) -> bytes:
        """Return the answer; of an endless one its beginning. A disconnect is an answer, too."""
        named = {name.lower() for name, _ in ask.headers}
        head = [b"%s %s HTTP/1.1" % (ask.method.encode(), ask.path), b"connection: close"]
        if b"host" not in named:
            head.append(b"host: 127.0.0.1:%d" % self.target.port)
        if ask.body:
            head.append(b"content-length: %d" % len(ask.body))
        head += [b"%s: %s" % header for header in ask.headers]
        source = (f"127.0.0.{next(self.sources)}", 0)
        answer = b""
        with socket.create_connection(("127.0.0.1", self.target.port), PATIENCE, source) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(b"\r\n".join(head) + b"\r\n\r\n")
                connection.sendall(ask.body)
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(2**20):
                    answer += part
                    if ask.endless and b"event-stream" in answer and b"data:" in answer:
                        break
        return answer


@contextlib.contextmanager
def watched_site(folder: Path, *options: str) -> Iterator[Watched]:
    (folder / "time").write_bytes(bytes(SIZE))
    script = Path(__file__).with_name("watched.py")
    with target_site(folder, *UNLIMITED, *options, command=(sys.executable, str(script), str(folder))) as target:
        made = Watched(target, folder)
        made.tokens = {
            "full": target.token("ada", "full"),
            "web": target.token("ada", "web", [WEB]),
        }
        yield made


def opened_sse(watched: Watched, who: str) -> tuple[socket.socket, str]:
    """Return an open stream of HTTP+SSE, and the path for its messages."""
    connection = socket.create_connection(("127.0.0.1", watched.target.port), PATIENCE)
    token = watched.tokens[who]
    connection.sendall(
        b"GET /sse HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nauthorization: Bearer %s\r\n\r\n"
        % (watched.target.port, token.encode())
    )
    told = b""
    while b"session_id=" not in told or not told.endswith(b"\n"):
        told += connection.recv(4_096)
    return connection, told.split(b"data: ")[1].split()[0].decode()
