"""The token of a repeated head names its own principal, and is looked up again at each request."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.auth.forged_tokens import AUDIENCE, ISSUER, KEY, OTHER, START, Clock, good
from tests.server.auth.tokens.test_access_tokens import Stored
from tests.transports.http.test_protocol import Served, post, settle, with_connection
from toolgate.server.auth.protected_resource import ProtectedResource
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.access_tokens import FRESH, LIFETIME, OwnTokens
from toolgate.transports.http.bearer import BearerAuth
from toolgate.transports.http.guard import RequestGuard
from toolgate.transports.http.protocol import HttpProtocol


class SignedSite:
    """A server with sign-in, whose only answer is 204. `callers`: the subject of each request that passed."""

    def __init__(self) -> None:
        self.callers: list[str] = []
        self.clock = Clock()
        self.stored = Stored(KEY)
        self.tokens = OwnTokens(ISSUER, AUDIENCE, self.stored, self.stored.list_denied, now=self.clock)
        resource = ProtectedResource("https://x", ISSUER, lambda: ())
        refuses: Any = None  # no browser calls
        gate = BearerAuth(self._answer, "/mcp", self.tokens, resource, Counter(), refuses)
        self.app = RequestGuard(gate, ["x"], [], loopback=True, behind_proxy=True)

    async def _answer(self, scope: Any, _receive: Any, send: Any) -> None:
        self.callers.append(scope["toolgate.principal"].subject)
        assert send.send_whole(204, b"", b"")

    async def call(self, protocol: HttpProtocol, served: Served, token: str) -> bytes:
        """Return the status of the answer."""
        before = len(served.writes)
        protocol.data_received(signed_post(token))
        async with asyncio.timeout(20):
            while len(served.writes) == before:
                await asyncio.sleep(0)
        await settle()
        return served.writes[before][1].split(b" ")[1]


def signed_post(token: str) -> bytes:
    return post(b"x", b"Authorization: Bearer %b\r\n" % token.encode()).replace(b"?c=d", b"", 1)


def token_of(subject: str) -> str:
    return jose.sign(good(sub=subject, jti=f"j-{subject}"), KEY, "at+jwt")


def deny_here(site: SignedSite) -> None:
    site.tokens.deny(["j-ada"])


def deny_elsewhere(site: SignedSite) -> None:
    site.stored.denied = ["j-ada"]
    site.clock.now += FRESH


def remove_its_key(site: SignedSite) -> None:
    site.stored.keys = [OTHER]
    site.clock.now += FRESH


def let_it_expire(site: SignedSite) -> None:
    site.clock.now = START + LIFETIME


@pytest.mark.parametrize("end", [deny_here, deny_elsewhere, remove_its_key, let_it_expire])
def test_a_token_that_ended_is_refused_at_the_next_request_with_a_known_head(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[SignedSite], None]
) -> None:
    site = SignedSite()

    async def body(protocol: HttpProtocol, served: Served) -> None:
        ada = token_of("ada")
        assert [await site.call(protocol, served, ada) for _ in range(4)] == [b"204"] * 4
        assert protocol.principal.startswith("u-")
        end(site)
        assert [await site.call(protocol, served, ada) for _ in range(2)] == [b"401"] * 2
        assert served.parsed == 2  # the head was known, and stays so
        assert protocol.principal == ""

    with_connection(monkeypatch, body, site.app)


def test_a_token_that_never_passed_is_refused_with_a_known_head(monkeypatch: pytest.MonkeyPatch) -> None:
    site = SignedSite()

    async def body(protocol: HttpProtocol, served: Served) -> None:
        assert [await site.call(protocol, served, "eve") for _ in range(4)] == [b"401"] * 4
        assert (served.parsed, site.callers) == (2, [])

    with_connection(monkeypatch, body, site.app)


def test_a_token_in_the_url_is_refused_beside_a_good_one(monkeypatch: pytest.MonkeyPatch) -> None:
    site = SignedSite()

    async def body(protocol: HttpProtocol, served: Served) -> None:
        ada = token_of("ada")
        assert await site.call(protocol, served, ada) == b"204"
        for _ in range(3):
            protocol.data_received(signed_post(ada).replace(b"/a%20b ", b"/a%20b?access_token=x ", 1))
            await settle()
        assert [data.split(b" ")[1] for _, data in served.writes] == [b"204"] + [b"400"] * 3

    with_connection(monkeypatch, body, site.app)


def test_each_request_of_a_connection_has_the_principal_of_its_own_token(monkeypatch: pytest.MonkeyPatch) -> None:
    site = SignedSite()
    order = ["ada", "ada", "ada", "ben", "ada", "ben", "ben", "ben", "ada"]

    async def body(protocol: HttpProtocol, served: Served) -> None:
        tokens = {name: token_of(name) for name in ("ada", "ben")}
        assert len({len(token) for token in tokens.values()}) == 1  # the heads are of one length
        for name in order:
            assert await site.call(protocol, served, tokens[name]) == b"204"
        assert site.callers == order
        assert served.parsed < len(order)

    with_connection(monkeypatch, body, site.app)
