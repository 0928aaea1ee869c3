"""A stranger's request costs the server no more than its size justifies, on every route."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.auth.authorization_in_process import basic
from tests.server.auth.hostile.target import FORM
from tests.server.auth.sign_in_server import DOCUMENT, Browser, SignInServer, sign_in_server
from toolgate.server.auth.login.accounts import Accounts, SignInError
from toolgate.server.state.sqlite.store import SqliteStore

MOST = 0.5  # seconds of processor time, the test's own too; a name took 4 and more
# Marks of two classes, which Unicode's canonical order mixes: to sort n of them takes n * n steps
MARKS = "a" + "\u0300" * 15_000 + "\u0316" * 15_000
FIELDS = {"code": "x", "code_verifier": "v" * 43, "redirect_uri": "https://app.example/back"}


@contextlib.contextmanager
def at_little_cost() -> Iterator[None]:
    begun = time.process_time()
    yield
    assert time.process_time() - begun < MOST


def raw(browser: Browser, path: str, **fields: str) -> int:
    """Send a form without percent-encoding, which would triple it, and return the status."""
    body = "&".join(f"{name}={value}" for name, value in fields.items()).encode()
    return browser.ask("POST", path, body, content_type=FORM).status


def sign_in(server: SignInServer, **fields: str) -> int:
    browser = server.browser()
    csrf = browser.get("/login").field("csrf")
    return raw(browser, "/login", **{"csrf": csrf, "question": "", "username": "ada", "password": "x", **fields})


def redeem(server: SignInServer, **fields: str) -> int:
    return raw(
        server.browser(), "/token", grant_type="authorization_code", **{"client_id": DOCUMENT, **FIELDS, **fields}
    )


DOORS: dict[str, tuple[Callable[[SignInServer], int], set[int]]] = {
    "name": (lambda server: sign_in(server, username=MARKS), {403}),
    "name of several letters": (lambda server: sign_in(server, username=MARKS[:300] * 100), {403}),
    "password": (lambda server: sign_in(server, password=MARKS), {403}),
    "pairing code": (lambda server: sign_in(server, code=MARKS), {403}),
    "client": (lambda server: redeem(server, client_id=f"https://{MARKS}/client.json"), {401}),
    "resource": (lambda server: redeem(server, resource=f"https://{MARKS}/mcp"), {400}),
    "cookie": (lambda server: server.browser().get("/login", cookie="a;" * 30_000).status, {200}),
    "where from": (lambda server: server.browser().get("/login", x_forwarded_for="127.0.0.1," * 6_000).status, {200}),
}


@pytest.mark.parametrize("door", DOORS)
def test_no_form_costs_more_than_its_size_deserves(door: str, tmp_path: Path) -> None:
    knock, statuses = DOORS[door]
    with sign_in_server(tmp_path, trusted_proxies=("127.0.0.1",)) as server:
        server.add()
        assert sign_in(server) == 403  # what the first costs, all pay once
        with at_little_cost():
            assert knock(server) in statuses


def test_a_first_account_costs_no_more_either(tmp_path: Path) -> None:
    with sign_in_server(tmp_path) as server, at_little_cost():
        assert sign_in(server, code="x", username=MARKS) == 403


def test_a_throttled_sign_in_stays_cheap(server: SignInServer) -> None:
    statuses = [sign_in(server, username="ada") for _ in range(6)]
    assert statuses[-1] == 429
    with at_little_cost():
        assert sign_in(server, username=MARKS) in (403, 429)


@pytest.mark.parametrize("long", [{"name": MARKS}, {"password": MARKS}])
def test_no_account_has_a_long_name_or_password(long: dict[str, str], tmp_path: Path) -> None:
    given = {"name": "ada", "password": "correct horse", **long}
    with at_little_cost(), pytest.raises(SignInError, match="characters"):
        asyncio.run(Accounts(SqliteStore(tmp_path / "state")).add(**given))


def test_a_client_secret_costs_no_more_either(server: SignInServer) -> None:
    form = {"grant_type": "client_credentials", "client_id": "a", "client_secret": MARKS}
    with at_little_cost():
        assert raw(server.browser(), "/token", **form) == 401
        headers = {name.lower(): value for name, value in basic("a", "b" * 40_000).items()}
        assert server.browser().post("/token", {"grant_type": "client_credentials"}, **headers).status in (
            400,
            401,
            431,
        )
