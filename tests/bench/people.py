"""A server behind sign-in whose principals have sandboxes, and timed calls of theirs."""

import itertools
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from tests.bench.driver import PATIENCE, Cores
from tests.bench.http.driver import FIRST_ID, SESSIONS, Client, Site
from tests.bench.sides import BIN, environment
from tests.server.auth.minted_tokens import Signed

UIDS = "30000-39999"  # separate from other servers' on this machine, which end their users' processes


class Person:
    """A client with one session."""

    def __init__(self, port: int, bearer: str) -> None:
        self._client = Client(port, replace(SESSIONS, headers={**SESSIONS.headers, "Authorization": bearer}))
        self._client.socket.settimeout(PATIENCE)
        self._client.open()
        self._ids = itertools.count(FIRST_ID + 1)

    def request(self, method: str, params: Mapping[str, Any]) -> tuple[float, Any]:
        """Return the seconds until the answer, and its result. Raises RuntimeError for an error."""
        message = self._encode(method, params)
        begun = time.perf_counter()
        answer = self._client.exchange(message)
        taken = time.perf_counter() - begun
        body = answer.body
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            body = [line for line in body.splitlines() if line.startswith(b"data:")][-1][5:]
        said = msgspec.json.decode(body)
        if "result" not in said:
            raise RuntimeError(f"{method} was refused: {body[:500]!r}")
        return taken, said["result"]

    def send(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a request whose answer is not read."""
        self._client.socket.sendall(self._encode(method, params))

    def _encode(self, method: str, params: Mapping[str, Any]) -> bytes:
        before, after = self._client.request(method, params)
        return b"%b%d%b" % (before, next(self._ids), after)

    def call(self, name: str, **arguments: Any) -> tuple[float, Any]:
        return self.request("tools/call", {"name": name, "arguments": arguments})

    def close(self) -> None:
        self._client.close()


class SandboxServer:
    """A server and its clients."""

    def __init__(self, site: Site, state: Path) -> None:
        self.site = site
        listening: Any = SimpleNamespace(shared=None, state=state, url=f"http://127.0.0.1:{site.port}")
        self._signed = Signed(listening)
        self._people: list[Person] = []

    def person(self, name: str) -> Person:
        self._people.append(Person(self.site.port, self._signed.bearer(name)))
        return self._people[-1]

    def close(self) -> None:
        for each in self._people:
            each.close()


@contextmanager
def town(folder: Path, cores: Cores, *options: str) -> Generator[SandboxServer, None, None]:
    folder.mkdir(exist_ok=True)
    state = folder / "state"
    words = ["-t", "--auth", "oauth", "--port", "0", "--state", str(state)]
    sandbox = [] if "--sandbox" in options or "--node" in options else ["--sandbox", "bwrap", "--sandbox-uids", UIDS]
    lifted = ["--limit", "calls=0", "--limit", "calls:tools:shell=0"]  # a minute's calls are made in a second
    site = Site([str(BIN / "toolgate"), *words, *sandbox, *lifted, *options], environment(folder), folder, cores)
    try:
        with closing(SandboxServer(site, state)) as made:
            yield made
    finally:
        site.end()
        site.close()
