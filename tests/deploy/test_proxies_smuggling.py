"""Behind each real proxy, a request has one end and a header one sender: nobody reads another's answer or token, and
nobody signs in as another.

Each attack is made with the shipped file, and with one that passes on what the shipped file removes."""

import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.clients.raw_client import eventually
from tests.clients.raw_http_client import Site, site
from tests.deploy.hostile_clients import (
    ADMIN,
    QUESTION,
    Door,
    User,
    Watch,
    chunk,
    unfinished_form,
    unfinished_head,
    whole_call,
)
from tests.deploy.hostile_proxies import MAKERS, SECRET
from tests.deploy.proxies import running
from tests.interop.sign_in_server import certified
from tests.server.auth.sign_in_server import PASSWORD, Browser
from tests.server.cli.commands.test_user_and_client import command

OFFERS = [
    "Connection: Upgrade\r\nUpgrade: x",
    "Connection: keep-alive, Upgrade\r\nUpgrade: websocket",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
    "Expect: 100-continue",
    "Accept: */*",  # a refusal may come before the body
]
FILLS = [65_536, 4_096]  # pairs of line ends: more than Traefik's buffer, and more than Caddy's
FORGED = "203.0.113.9"
TARGETS = ["POST /mcp", "POST /nowhere", "DELETE /mcp"]

rounds = pytest.mark.parametrize("rounds", [8, pytest.param(200, marks=pytest.mark.soak)])


@dataclass
class Town:
    site: Site
    users: dict[str, User] = field(default_factory=dict[str, User])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificate") / "authority.pem"
    certified(made)
    return made


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("town")
    (folder / "secret").write_text(SECRET)
    header = ("--login", "header=X-Remote-User", "--login-header-secret", str(folder / "secret"), "--allow-users", "*")
    limits = ("--limit", "calls=1000000")
    for name in ("ada", "bob"):
        assert command(folder, "user", "add", name, stdin=f"{PASSWORD}\n{PASSWORD}\n").returncode == 0
    options = ("--auth", "oauth", "--trusted-proxies", "127.0.0.1", "--login", "password", *header, *limits)
    with site(folder, *options) as at:
        yield Town(at, {name: User(at, name) for name in ("ada", "bob")})


# `make test` tries each program, and what is most open: with upgrades, and without a buffer
BRIEF = ("caddy", "debian-caddy-with-upgrades", "nginx-with-upgrades-unbuffered", "haproxy", "traefik-with-upgrades")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in BRIEF else pytest.mark.soak) for name in MAKERS],
)
def door(
    request: pytest.FixtureRequest, town: Town, authority: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp(request.param) / "proxy"
    proxy = MAKERS[request.param](folder, town.site.port, authority.with_name("server.pem"))
    with running(proxy):
        made = Door(town.site, proxy.listening[0], authority)
        assert eventually(made.is_open), proxy.log()
        yield made


def attack(door: Door, town: Town, smuggled: bytes, rounds: int) -> None:
    """Send so many requests with `smuggled` in their bodies, while ada calls, and compare all answers."""
    with Watch(door, town.users["ada"]) as watch:
        for number in range(rounds):
            target, offer = TARGETS[number // 3 % len(TARGETS)], OFFERS[number % len(OFFERS)]
            head = f"{target} HTTP/1.1\r\n{offer}\r\nContent-Type: application/json\r\n"
            fill = b"\r\n" * FILLS[number // len(OFFERS) % len(FILLS)]
            door.smuggle(head, fill, smuggled, is_chunked=number % 4 == 3)
            assert door.is_healthy()
    assert not watch.wrong and watch.answered


@rounds
def test_a_request_inside_a_body_is_not_carried_out(door: Door, town: Town, rounds: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    attack(door, town, whole_call(door, town.users["bob"], f"touch {mark}"), rounds)
    assert not mark.exists()


@rounds
def test_nobodys_request_completes_a_head_inside_a_body(door: Door, town: Town, rounds: int) -> None:
    attack(door, town, unfinished_head(door), rounds)
    assert ADMIN not in town.site.log()


@rounds
def test_nobodys_token_completes_a_form_inside_a_body(door: Door, town: Town, rounds: int) -> None:
    bob = town.users["bob"]
    bob.call("AskUserQuestion", questions_json=QUESTION)
    attack(door, town, unfinished_form(door, bob), rounds)
    assert "unanswered so far" in bob.call("AskUserQuestion", questions_json=QUESTION)


# -- trailers


def refuse_trailer(door: Door, head: str, body: bytes, trailer: str, source: str = "127.0.0.1") -> tuple[int, bytes]:
    """Return status and body of the answer to a request with a trailer."""
    name = trailer.partition(":")[0]
    lines = f"{head}Host: {door.host}\r\nTrailer: {name}\r\nTransfer-Encoding: chunked\r\n\r\n"
    return door.ask(lines.encode() + chunk(body) + f"0\r\n{trailer}\r\n\r\n".encode(), source)


def test_a_trailer_brings_no_token(door: Door, town: Town) -> None:
    body, headers = town.users["ada"].request("PlanMode", {"action": "status"})
    token = headers.pop("Authorization")
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    assert refuse_trailer(door, f"POST /mcp HTTP/1.1\r\n{lines}", body, f"Authorization: {token}")[0] == 401


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_trailer_names_nobody_to_sign_in(door: Door, method: str) -> None:
    head = f"{method} /account HTTP/1.1\r\nAccept: text/html\r\n"
    status, page = refuse_trailer(door, head, b"a", f"X-Remote-User: {ADMIN}")
    assert status >= 300 and ADMIN.encode() not in page
    assert ADMIN not in door.site.log()


def test_a_trailer_changes_no_address(door: Door, town: Town) -> None:
    """The last address in the header counts, and the trailer would come after the proxy's."""
    browser = Browser(town.site.port, {"accept": "text/html"})
    page = browser.get("/login")
    fields = {name: page.field(name) for name in ("csrf", "question")}
    form = urllib.parse.urlencode({**fields, "username": "nobody", "password": "wrong"})
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    lines = f"Origin: http://{door.host}\r\nCookie: {cookies}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    before = town.site.log().count("from 127.0.0.7 by password")
    trailer = f"X-Forwarded-For: {FORGED}"
    refuse_trailer(door, f"POST /login HTTP/1.1\r\n{lines}", form.encode(), trailer, source="127.0.0.7")
    assert town.site.log().count("from 127.0.0.7 by password") == before + 1
    assert FORGED not in town.site.log()
