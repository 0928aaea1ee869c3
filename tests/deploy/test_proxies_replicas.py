"""Two servers on one state behind the real Caddy and nginx, with the shipped files for several servers.

Restarts lose no call, no call is made twice, and events come as they are sent. A third address refuses connections."""

import contextlib
import http.client
import json
import ssl
import sys
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, eventually
from tests.clients.raw_http_client import Site
from tests.clients.surviving_client import META
from tests.deploy.proxies import DEPLOY, Proxy, changed, etc, running, told_caddy, worded, words
from tests.interop.sign_in_server import certified
from tests.server.cli.commands.test_user_and_client import PASSWORD, granted, registered
from tests.server.features.replicas.test_replicas_of_people import manage
from tests.server.features.telemetry.test_metrics import told, value
from tests.servers.postgres import Postgres
from tests.servers.replicas import Replicas, running_replicas
from tests.servers.reserved_port import kept_ports
from tests.transports.test_rolling_restart import MODERN, Load, call_wait

NAMES = ("caddy", "nginx")


@dataclass
class Balanced:
    replicas: Replicas
    fronts: dict[str, int]  # proxy → port
    trust: ssl.SSLContext
    headers: dict[str, str]

    def connect(self, name: str) -> http.client.HTTPConnection:
        return http.client.HTTPSConnection("localhost", self.fronts[name], timeout=PATIENCE, context=self.trust)

    @contextlib.contextmanager
    def post(self, name: str, message: Any) -> Generator[http.client.HTTPResponse]:
        called = {**self.headers, "Mcp-Name": message["params"]["name"]}
        with contextlib.closing(self.connect(name)) as connection:
            connection.request("POST", "/mcp", json.dumps(message), called)
            with connection.getresponse() as response:
                yield response


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Balanced]:
    folder = tmp_path_factory.mktemp("balanced")
    authority = folder / "authority.pem"
    certificate = certified(authority)
    at_caddy, at_nginx, *plain, nobody = kept_ports(5)
    options = ("--auth", "oauth", "--trusted-proxies", "127.0.0.1", "--drain", "10", "--limit", "calls=1000000")
    with running_replicas(folder, postgres, *options) as replicas:
        assert manage(replicas, "user", "add", "ada", stdin=PASSWORD).returncode == 0
        token = granted(replicas.sites[0], registered(replicas.sites[0]))["access_token"]
        upstreams = (nobody, *replicas.ports)
        with running(
            caddy_of(folder / "caddy", upstreams, (at_caddy, plain[0]), certificate),
            nginx_of(folder / "nginx", upstreams, (at_nginx, plain[1]), certificate),
        ):
            headers = {**MODERN, "Authorization": f"Bearer {token}"}
            trust = ssl.create_default_context(cafile=str(authority))
            yield Balanced(replicas, {"caddy": at_caddy, "nginx": at_nginx}, trust, headers)


def caddy_of(folder: Path, upstreams: tuple[int, ...], listening: tuple[int, int], certificate: Path) -> Proxy:
    folder.mkdir()
    environment = told_caddy(folder, 0, listening, certificate)
    environment["TOOLGATE_UPSTREAMS"] = " ".join(f"127.0.0.1:{port}" for port in upstreams)
    file = DEPLOY / "caddy" / "Caddyfile.replicas"
    command = [str(Path(sys.executable).with_name("caddy")), "run", "--config", str(file), "--adapter", "caddyfile"]
    return Proxy(command, folder / "log", environment, *listening)


def nginx_of(folder: Path, upstreams: tuple[int, ...], listening: tuple[int, int], certificate: Path) -> Proxy:
    etc(folder)
    own = words("toolgate.conf", 0, listening, certificate)
    del own["server 127.0.0.1:8080;"]
    own |= {f"server 10.0.0.{5 + place}:8080": f"server 127.0.0.1:{port}" for place, port in enumerate(upstreams)}
    text = changed((DEPLOY / "nginx" / "toolgate-replicas.conf").read_text(), own)
    (folder / "conf.d" / "toolgate.conf").write_text(text)
    (folder / "snippets" / "toolgate.conf").write_text((DEPLOY / "nginx" / "snippets" / "toolgate.conf").read_text())
    return Proxy(worded(folder), folder / "log", {"PATH": "/usr/bin"}, *listening)


@pytest.mark.soak  # tests/server/features/replicas/test_replicas_behind_nginx.py has a short one
@pytest.mark.parametrize("restarts", [20])
def test_a_rolling_restart_loses_no_call(balanced: Balanced, restarts: int) -> None:
    with contextlib.ExitStack() as stack:
        loads = {
            name: stack.enter_context(Load(lambda name=name: balanced.connect(name), balanced.headers))  # type: ignore[misc]
            for name in NAMES
        }
        for turn in range(restarts):
            time.sleep(0.2)  # there are calls to each
            assert balanced.replicas.sites[turn % 2].stop() == 0
            balanced.replicas.restart(turn % 2)
    for name, load in loads.items():
        assert not load.failures, (name, load.failures)
        assert load.answered > 3 * restarts, name  # a busy machine answers few


@pytest.mark.parametrize("name", NAMES)
def test_events_come_as_they_are_sent(balanced: Balanced, name: str) -> None:
    message = call_wait(0.8)
    message["params"]["_meta"] = {**META, "progressToken": "p"}
    with balanced.post(name, message) as response:
        arrived = [(time.monotonic(), line) for line in response if line.startswith((b"data: {", b"{"))]
    assert b"progress" in arrived[0][1] and b'"result"' in arrived[-1][1]
    assert arrived[-1][0] - arrived[0][0] > 0.3


@pytest.mark.brief("nginx")
@pytest.mark.parametrize("name", NAMES)
def test_a_call_whose_server_dies_is_not_made_again(balanced: Balanced, name: str, tmp_path: Path) -> None:
    command = f"echo begun >> {tmp_path}/calls; sleep 60"
    params = {"name": "Bash", "arguments": {"command": command}, "_meta": META}
    statuses: list[object] = []

    def call() -> None:
        try:
            with balanced.post(name, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}) as got:
                statuses.append(got.status if got.status != 200 else got.read())
        except (OSError, http.client.HTTPException) as error:
            statuses.append(error)

    calls = tmp_path / "calls"
    for _ in range(5):  # on a busy machine no server may take the connection within the proxy's second
        statuses.clear()
        calling = threading.Thread(target=call)
        calling.start()
        assert eventually(lambda: calls.exists() or bool(statuses)), "neither begun nor answered"
        if calls.exists():
            break
    assert calls.exists(), statuses
    at = next(at for at, site in enumerate(balanced.replicas.sites) if is_busy(site))
    balanced.replicas.sites[at].kill()
    calling.join(PATIENCE)
    balanced.replicas.restart(at)
    assert statuses and statuses != [200], statuses
    assert calls.read_text() == "begun\n"


def is_busy(site: Site) -> bool:
    return value(told(site), "toolgate_requests_running", transport="http") > 0
