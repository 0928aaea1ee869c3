"""URLs that a caller chooses (a client's id, keys, logo) never lead to a private address."""

import asyncio
import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.server.auth.hostile.target import BACK, Target, refused, shut_out
from toolgate.tools.api.outbound.errors import AddressRefusedError
from toolgate.tools.api.outbound.fetch import Web

PRIVATE = [
    "127.0.0.1",
    "127.1",
    "0.0.0.0",
    "0",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.0.1",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "[::1]",
    "[::]",
    "[fe80::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[2002:a9fe:a9fe::1]",
    "[2002:a00:1::1]",
    "[2001:0:7f00:1::]",
    "localhost",
    "localhost.localdomain",
    "metadata.google.internal",
]


@dataclass
class Canary:
    """A server on loopback that must get no request."""

    port: int
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def canary() -> Iterator[Canary]:
    made = Canary(0)

    class Heard(http.server.BaseHTTPRequestHandler):
        def handle(self) -> None:
            made.asked.append(str(self.client_address))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Heard) as server:
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield made
        server.shutdown()
        thread.join(PATIENCE)
    assert made.asked == []


@pytest.fixture(autouse=True)
def _source(target: Target, request: pytest.FixtureRequest) -> Iterator[None]:
    """Give each test its own address: the fetches an address can cause are limited."""
    number = sum(request.node.name.encode()) + len(request.node.name)
    target.source = f"127.{1 + number % 200}.{number // 200 % 200}.1"
    yield
    target.source = "127.0.0.1"


@pytest.mark.parametrize("host", PRIVATE)
def test_rg_07_mcp_04_no_client_id_makes_us_ask_what_is_not_public(target: Target, canary: Canary, host: str) -> None:
    for id in (f"https://{host}:{canary.port}/client.json", f"https://{host}/client.json"):
        shut_out(target.browser().get(target.asking(target.verifier(), client_id=id)), 400, 401)
        refused(target.exchange("x", "v" * 43, client_id=id), "invalid_client")
    assert canary.asked == []


IDS = [
    "http://127.0.0.1:{port}/client.json",
    "HTTPS://127.0.0.1:{port}/client.json",
    "https://user@localhost:{port}/client.json",
    "https://user:pass@localhost:{port}/client.json",
    "https://public.example@localhost:{port}/client.json",
    "https://localhost:{port}",
    "https://localhost:{port}/",
    "https://localhost:{port}/client.json?x=1",
    "https://localhost:{port}/client.json#x",
    "https://localhost:{port}/a/../client.json",
    "https://localhost:{port}/%2e%2e/client.json",
    "https://LOCALHOST:{port}/client.json",
    "https://localhost.:{port}/client.json",
    "https:\\\\localhost:{port}\\client.json",
    "https://localhost:{port}\\@public.example/client.json",
    "https:localhost:{port}/client.json",
    "//localhost:{port}/client.json",
    "file:///etc/passwd",
    "gopher://localhost:{port}/x",
    "ftp://localhost:{port}/client.json",
    "jar:https://localhost:{port}/client.json",
    "https://localhost:{port}/client.json\r\nX: y",
    "https://localhost:{port}/client json",
    "https://①②⑦.⓪.⓪.①:{port}/client.json",
    "https://localhost:99999/client.json",
]


@pytest.mark.parametrize("id", IDS)
def test_rg_06_mcp_04_what_is_no_plain_https_url_is_not_asked(target: Target, canary: Canary, id: str) -> None:
    given = id.format(port=canary.port)
    shut_out(target.browser().get(target.asking(target.verifier(), client_id=given)), 400, 401)
    refused(target.exchange("x", "v" * 43, client_id=given), "invalid_client")
    assert canary.asked == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"]
)
@pytest.mark.parametrize("scheme", ["https", "http"])
def test_rg_08_mcp_04_no_address_in_a_registration_is_asked(
    target: Target, canary: Canary, host: str, scheme: str
) -> None:
    url = f"{scheme}://{host}:{canary.port}/x"
    links = dict.fromkeys(("logo_uri", "client_uri", "tos_uri", "policy_uri", "sector_identifier_uri"), url)
    got = target.register(jwks_uri=url, token_endpoint_auth_method="private_key_jwt", **links)
    assert got.status in (201, 400)
    if got.status == 201:
        id = json.loads(got.body)["client_id"]
        assert target.ada is not None
        assert target.ada.get(target.ada.get(target.asking(target.verifier(), client_id=id)).location).status == 200
        kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        for assertion in ("a.b.c", target.token(subject=id, iss=id, typ="JWT", aud=f"{target.url}/token")):
            proof = {"client_assertion": assertion, "client_assertion_type": kind, "client_id": id}
            refused(
                target.form("/token", {"grant_type": "authorization_code", "code": "x", "redirect_uri": BACK, **proof})
            )
    assert canary.asked == []


MAY = "127.0.0.2"  # in these tests what is public elsewhere, so that nothing off this machine is aimed at
REBINDING = {
    "loopback beside": [[MAY, "127.0.0.1"]],
    "loopback first": [["127.0.0.1", MAY]],
    "NAT64": [["64:ff9b::7f00:1"]],
    "6to4": [["2002:7f00:1::"]],
    "mapped": [["::ffff:127.0.0.1"]],
    "metadata": [["169.254.169.254"]],
    "carrier": [["100.64.0.1"]],
    "none": [["0.0.0.0"]],
}


@pytest.mark.parametrize("answers", REBINDING.values(), ids=REBINDING)
def test_rg_07_mcp_04_a_name_with_an_answer_that_is_not_public_is_not_asked(
    canary: Canary, answers: list[list[str]]
) -> None:
    with public(canary.port) as asked:
        assert fetched(canary.port, answers) == ["refused"]
    assert canary.asked == asked == []


def test_rg_07_mcp_04_a_name_is_resolved_once_and_what_was_vetted_is_asked(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker controls every resolver: a second look-up would lead to the canary."""
    system: list[str] = []
    known = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
        system.append(str(host))
        return known("127.0.0.1" if "evil" in str(host) else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with public(canary.port) as asked:
        assert fetched(canary.port, [[MAY], ["127.0.0.1"]]) == ["welcome", "refused"]
    assert asked == ["/x"]
    assert not [host for host in system if "evil" in host]
    assert canary.asked == []


def fetched(port: int, answers: list[list[str]]) -> list[str]:
    """Return the result of a fetch for each answer of the resolver."""
    left = list(answers)

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return left.pop(0)

    async def run() -> list[str]:
        web, found = Web([MAY], resolve=resolve), list[str]()
        try:
            while left:
                try:
                    page = await web.fetch(
                        f"http://evil.example:{port}/x", headers=None, limit=10, timeout=PATIENCE, redirects=0
                    )
                    found.append(page.body.decode())
                except AddressRefusedError:
                    found.append("refused")
        finally:
            await web.close()
        return found

    return asyncio.run(run())


@contextlib.contextmanager
def public(port: int) -> Iterator[list[str]]:
    """Run a server at `MAY`, on the canary's port; yield the requested paths."""
    asked: list[str] = []

    class Heard(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)  # and closes: the next fetch has to connect
            self.end_headers()
            self.wfile.write(b"welcome")

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer((MAY, port), Heard) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield asked
        server.shutdown()
        thread.join(PATIENCE)
