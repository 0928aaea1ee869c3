"""Two servers behind nginx, which asks them in turn and keeps no client at one: restarts of each lose no call."""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.clients.raw_http_client import POSTED, Site
from tests.clients.surviving_client import META
from tests.conftest import PROBE
from tests.servers.balancer import balanced
from tests.servers.reserved_port import kept_ports

CALLERS = 4
MODERN = {**POSTED, "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "wait"}


def call_wait(seconds: float) -> dict[str, Any]:
    """Return a call of 2026-07-28 that takes so long."""
    params = {"name": "wait", "arguments": {"seconds": seconds}, "_meta": META}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


class Load:
    """Calls of 2026-07-28, one after the other on each of CALLERS connections. Nothing is tried again."""

    def __init__(self, connect: Callable[[], http.client.HTTPConnection], headers: Mapping[str, str] = MODERN) -> None:
        self.answered = 0
        self.failures = list[str]()
        self._connect = connect
        self._headers = dict(headers)
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(place,)) for place in range(CALLERS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _call(self, place: int) -> None:
        connection = self._connect()
        with contextlib.closing(connection):
            while not self._ending.is_set():
                try:
                    connection.request("POST", "/mcp", json.dumps(call_wait(0.02 * place)), self._headers)
                    response = connection.getresponse()
                    content = response.read()
                except (OSError, http.client.HTTPException) as error:
                    connection.close()
                    self.failures.append(repr(error))
                    continue
                if response.status == 200 and b'"result"' in content and b'"isError":true' not in content:
                    self.answered += 1
                else:
                    self.failures.append(f"{response.status} {content[:80]!r}")


@pytest.mark.parametrize("restarts", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_a_rolling_restart_behind_nginx_loses_no_call(tmp_path: Path, restarts: int) -> None:
    answered, failures = restart_in_turn(tmp_path, restarts, "--drain", "10")
    assert not failures, failures
    assert answered > 3 * restarts  # a busy machine answers few


def restart_in_turn(folder: Path, restarts: int, *options: str) -> tuple[int, list[str]]:
    """Return how many calls were answered, and what the others got."""
    first, second, front = kept_ports(3)
    sites = dict[int, Site]()

    def start(port: int) -> None:
        (folder / str(port)).mkdir(exist_ok=True)
        sites[port] = Site(folder / str(port), *PROBE, "--port", str(port), *options)

    try:
        start(first)
        start(second)
        connect = partial(http.client.HTTPConnection, "127.0.0.1", front, timeout=PATIENCE)
        with balanced(folder / "nginx", front, [first, second]), Load(connect) as load:
            for turn in range(restarts):
                time.sleep(0.2)  # there are calls to each
                port = (first, second)[turn % 2]
                assert sites[port].stop() == 0, sites[port].log()
                start(port)
        print("answered", load.answered, "failed", len(load.failures))
        return load.answered, load.failures
    finally:
        for server in sites.values():
            server.kill()
