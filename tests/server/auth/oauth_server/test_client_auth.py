"""Guesses at clients' secrets are slow, and lock no client out (RFC 6749 section 2.3.1)."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.server.auth.authorization_in_process import basic
from tests.server.auth.sign_in_server import PageAnswer, SignInServer, sign_in_server
from toolgate.server.auth.clients.model import CLIENT_CREDENTIALS, OAuthClient
from toolgate.server.base.bus.memory_keys import MemoryKeys
from toolgate.server.state.rows.grants import hash_secret

SECRET = "sixteen letters!"
ENDPOINTS = {"/token": {"grant_type": CLIENT_CREDENTIALS}, "/revoke": {"token": "x"}, "/introspect": {"token": "x"}}


def client(id: str) -> OAuthClient:
    return OAuthClient(
        id,
        "configured",
        id,
        (),
        "client_secret_basic",
        frozenset((CLIENT_CREDENTIALS,)),
        ("tools:read",),
        hash_secret(SECRET),
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SignInServer]:
    """Run a server for which no time passes between guesses: on a busy machine some would come late enough."""
    clients = {id: client(id) for id in ("batch", *(f"other{n}" for n in range(100)))}
    options = {"configured_clients": clients, "create_counters": partial(MemoryKeys, lambda: 0.0)}
    with sign_in_server(tmp_path, trusted_proxies=("127.0.0.1",), **options) as made:
        yield made


def ask(server: SignInServer, path: str, source: str, secret: str, id: str = "batch") -> PageAnswer:
    headers = {name.lower(): value for name, value in basic(id, secret).items()}
    return server.browser(x_forwarded_for=source).post(path, ENDPOINTS[path], **headers)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_one_clients_secret_is_guessed_slowly_from_wherever(path: str, server: SignInServer) -> None:
    got = [ask(server, path, f"10.{n}.0.1", f"wrong {n}") for n in range(60)]
    assert [one.status for one in got[:20]] == [401] * 20
    assert [one.status for one in got].count(401) < 25
    assert got[-1].status == 429
    assert json.loads(got[-1].body)["error"] == "too_many_requests"
    assert int(got[-1].headers["retry-after"]) >= 1
    assert ask(server, path, "10.99.0.1", SECRET).status == 429  # else the answers would tell the right guess


def test_one_address_guesses_at_all_clients_slowly(server: SignInServer) -> None:
    statuses = [ask(server, "/token", "192.0.2.1", "wrong", f"other{n}").status for n in range(70)]
    assert statuses[:50] == [401] * 50
    assert 429 in statuses[50:]
    assert ask(server, "/token", "198.51.100.1", SECRET, "other1").status == 200


def test_guesses_at_a_clients_secret_do_not_lock_it_out(server: SignInServer) -> None:
    assert ask(server, "/token", "192.0.2.1", SECRET).status == 200
    assert [ask(server, "/token", f"10.{n}.0.1", "wrong").status for n in range(30)][-1] == 429
    assert {ask(server, "/token", "192.0.2.1", SECRET).status for _ in range(60)} == {200}


def test_a_client_that_is_right_is_never_slowed_down(server: SignInServer) -> None:
    assert {ask(server, "/token", "192.0.2.1", SECRET, f"other{n}").status for n in range(100)} == {200}


def test_unknown_clients_slow_down_no_other_client(server: SignInServer) -> None:
    """A platform asks for many people from one address, also for removed clients."""
    assert {ask(server, "/token", "192.0.2.1", "wrong", f"gone{n}").status for n in range(70)} == {401}
    assert ask(server, "/token", "192.0.2.1", SECRET).status == 200
