"""Signing keys: made, rotated, kept as long as their tokens, shared by processes, sealed on disk; and upgrades of older
state databases."""

import asyncio
from pathlib import Path

import pytest

from tests.server.auth.authorization_in_process import ADA, MCP, URL, AuthServer, Clock, auth_server, with_auth_server
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.access_tokens import FRESH, LIFETIME
from toolgate.server.auth.tokens.signing_keys import AGE, ANNOUNCE_TIME, CACHED, KEEP, LOOK


def kids(jwks: object) -> list[str]:
    assert isinstance(jwks, dict)
    return [key["kid"] for key in jwks["keys"]]


def test_as_05_the_key_set_holds_public_parts_only(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        told = await auth.authorization.jwks()
        (key,) = told["keys"]
        assert set(key) == {"kty", "crv", "x", "y", "kid", "use", "alg"}
        assert (key["kty"], key["crv"], key["use"], key["alg"]) == ("EC", "P-256", "sig", "ES256")
        assert jose.load_key(key).material.thumbprint() == key["kid"]

    with_auth_server(tmp_path, body)


def test_as_05_a_key_is_replaced_after_thirty_days_and_known_as_long_as_it_matters(tmp_path: Path) -> None:
    """OpenID Connect's suite calls it server-rotate-keys."""
    assert KEEP >= CACHED + LIFETIME and ANNOUNCE_TIME >= CACHED + LOOK

    async def body(auth: AuthServer) -> None:
        (first,) = kids(await auth.authorization.jwks())
        auth.clock.now += AGE - 1
        client = await auth.client()
        old = (await auth.granted(client))["access_token"]
        assert jose.read_header(old)["kid"] == first
        auth.clock.now += 1
        told = kids(await auth.authorization.jwks())
        assert told[0] == first and len(told) == 2
        auth.clock.now += ANNOUNCE_TIME - 1  # whoever has a cached copy of the set fetches it anew within this time
        assert jose.read_header((await auth.granted(client))["access_token"])["kid"] == first
        auth.clock.now += 1
        new = (await auth.granted(client))["access_token"]
        second = jose.read_header(new)["kid"]
        assert second == told[1]
        assert kids(await auth.authorization.jwks()) == [second, first]
        assert await auth.works(old) and await auth.works(new)
        auth.clock.now += KEEP
        assert kids(await auth.authorization.jwks()) == [second, first]
        auth.clock.now += LOOK + 1
        assert kids(await auth.authorization.jwks()) == [second]

    with_auth_server(tmp_path, body)


def test_a_key_is_replaced_on_demand_and_what_it_signed_stays_good(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        old = (await auth.granted(client))["access_token"]
        await auth.tokens.verify(old)
        kid = await auth.keys.rotate()
        assert kids(await auth.authorization.jwks()) == [jose.read_header(old)["kid"], kid]
        auth.clock.now += ANNOUNCE_TIME
        new = (await auth.granted(client))["access_token"]
        assert jose.read_header(new)["kid"] == kid
        assert kids(await auth.authorization.jwks())[0] == kid
        auth.clock.now += FRESH
        assert await auth.works(old) and await auth.works(new)

    with_auth_server(tmp_path, body)


def test_a_second_rotation_meanwhile_leaves_one_key_after_the_other(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        (first,) = kids(await auth.authorization.jwks())
        second = await auth.keys.rotate()
        auth.clock.now += 100
        third = await auth.keys.rotate()
        signing = [(await auth.keys.active()).kid]
        for _ in range(2):
            auth.clock.now += ANNOUNCE_TIME - 100
            signing.append((await auth.keys.active()).kid)
        assert signing == [first, second, third]

    with_auth_server(tmp_path, body)


def test_a_retired_key_makes_no_valid_token(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        stolen = await auth.keys.active()
        await auth.keys.rotate()

        def forged(issued: float, seconds: float = LIFETIME) -> str:
            claims = {"iss": URL, "aud": MCP, "sub": "p-nobody", "client_id": "c", "scope": "tools:shell"}
            times = {"iat": int(issued), "exp": int(issued + seconds), "jti": "of nobody's making"}
            return jose.sign({**claims, **times}, stolen, "at+jwt")

        retired = auth.clock.now + ANNOUNCE_TIME
        assert not await auth.works(forged(auth.clock.now, 115 * 86_400))
        auth.clock.now = retired + 60
        assert not await auth.works(forged(auth.clock.now))
        assert not await auth.works(forged(retired - 1, 10 * LIFETIME))
        auth.clock.now = retired + LIFETIME  # from here on there is nothing left to say about when it was issued
        assert not any([await auth.works(forged(retired + moment)) for moment in range(-60, LIFETIME, 60)])

    with_auth_server(tmp_path, body)


def test_all_keys_are_dropped_at_once_and_clients_refresh(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with auth_server(tmp_path, clock) as one, auth_server(tmp_path, clock) as two:
            client = await one.client()
            tokens = await one.granted(client)
            await one.tokens.verify(tokens["access_token"])
            await two.keys.rotate()
            kid = await two.keys.rotate(drop_old=True)
            assert kids(await two.authorization.jwks()) == [kid]
            clock.now += FRESH
            with pytest.raises(jose.InvalidTokenError):
                await one.tokens.verify(tokens["access_token"])
            renewed = (await one.refresh(client, tokens["refresh_token"])).body["access_token"]
            assert jose.read_header(renewed)["kid"] == kid
            await one.tokens.verify(renewed)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_as_05_two_processes_and_a_restart_serve_the_same_keys(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with auth_server(tmp_path, clock) as one, auth_server(tmp_path, clock) as two:
            both = await asyncio.gather(one.authorization.jwks(), two.authorization.jwks())
            assert both[0] == both[1]
            client = await one.client()
            kid = await two.keys.rotate()
            clock.now += LOOK
            assert kid in kids(await one.authorization.jwks())
            clock.now += ANNOUNCE_TIME - LOOK
            token = (await two.granted(client))["access_token"]
            clock.now += FRESH
            await one.tokens.verify(token)
            assert kids(await one.authorization.jwks())[0] == kid
            before = await one.authorization.jwks()
            (grant,) = await one.authorization.grants.list_grants(ADA)
            await two.authorization.grants.revoke_grant(ADA, grant.id)
            clock.now += FRESH
            with pytest.raises(jose.InvalidTokenError):
                await one.tokens.verify(token)
        async with auth_server(tmp_path, clock) as again:
            assert await again.authorization.jwks() == before

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_key_file_that_was_lost_costs_the_tokens_out_there_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with auth_server(tmp_path) as before:
            client = await before.client()
            tokens = await before.granted(client)
        (tmp_path / "state" / "keys" / "signing").unlink()
        async with auth_server(tmp_path) as after:
            assert not await after.works(tokens["access_token"])
            renewed = await after.refresh(client, tokens["refresh_token"])
            assert await after.works(renewed.body["access_token"])

    asyncio.run(asyncio.wait_for(run(), 20))
    assert "can't be opened" in caplog.text
