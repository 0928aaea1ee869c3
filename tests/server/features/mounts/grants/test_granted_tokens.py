"""The tokens of one mount in one process: asked for once for all who wait, before their end, and not while it fails."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.server.features.mounts.grants.far_grants import CLIENT, SECRET, FarGrants, far_grants
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.grants.client_credentials import ClientCredentials
from toolgate.server.features.mounts.grants.granted_tokens import PAUSE, GrantedTokens, OwnerTokens
from toolgate.server.features.mounts.kept_secrets.resolver import ResolvedMount
from toolgate.server.features.mounts.upstream.errors import MountError


class Scene:
    """A mount's tokens under a clock of the test."""

    def __init__(self, far: FarGrants) -> None:
        self.far = far
        self.now = 1_000.0
        self.config = MountConfig(
            name="far",
            url=f"{far.origin}/mcp",
            auth="client_credentials",
            client_id=CLIENT,
            client_secret=SECRET,
            token_url=f"{far.origin}/token",
        )
        self.limit()

    def limit(self, **limits: Any) -> None:
        self.tokens = GrantedTokens(ClientCredentials(self.config.token_url), lambda: self.now, **limits)

    def of(self, owner: str = "", **changed: str) -> OwnerTokens:
        return self.tokens.for_mount(ResolvedMount(replace(self.config, **changed), owner=owner))


def run(body: Callable[[Scene], Awaitable[None]]) -> None:
    with far_grants() as far:
        asyncio.run(body(Scene(far)))


def test_fifty_requests_ask_once_and_so_do_fifty_whose_token_was_rejected() -> None:
    async def body(scene: Scene) -> None:
        scene.far.refresh_takes = 0.3
        found = await asyncio.gather(*(scene.of().find() for _ in range(50)))
        assert set(found) == {scene.far.last} and len(scene.far.asked) == 1
        renewed = await asyncio.gather(*(scene.of().renew(found[0]) for _ in range(50)))
        assert set(renewed) == {scene.far.last} != set(found) and len(scene.far.asked) == 2

    run(body)


def test_a_caller_that_leaves_keeps_nobody_waiting() -> None:
    async def body(scene: Scene) -> None:
        scene.far.refresh_takes = 0.3
        first = asyncio.create_task(scene.of().find())
        while not scene.far.asked:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(scene.of().find())
        first.cancel()
        assert await second == scene.far.last

    run(body)


def test_a_token_is_renewed_before_its_end_and_used_to_its_end_where_that_fails() -> None:
    async def body(scene: Scene) -> None:
        scene.far.lifetime = 600
        first = await scene.of().find()
        scene.now += 569
        assert await scene.of().find() == first
        scene.now += 2
        scene.far.answers = [(503, {})]
        assert await scene.of().find() == await scene.of().find() == first and len(scene.far.asked) == 2
        scene.now += PAUSE
        assert await scene.of().find() != first and len(scene.far.asked) == 3

    run(body)


def test_a_token_without_an_end_is_used_until_it_is_rejected() -> None:
    async def body(scene: Scene) -> None:
        scene.far.lifetime = None
        first = await scene.of().find()
        scene.now += 10_000_000
        assert await scene.of().find() == first
        assert await scene.of().renew(first) != first and len(scene.far.asked) == 2

    run(body)


def test_what_failed_is_asked_again_after_a_pause() -> None:
    async def body(scene: Scene) -> None:
        scene.far.answers = [(400, {"error": "invalid_scope"})]
        for _ in range(3):
            with pytest.raises(MountError, match=r"TOKEN_REFUSED: .* check scopes of"):
                await scene.of().find()
        assert len(scene.far.asked) == 1
        scene.now += PAUSE
        assert await scene.of().find() == scene.far.last

    run(body)


def test_a_fresh_token_that_is_rejected_makes_a_pause() -> None:
    async def body(scene: Scene) -> None:
        first = await scene.of().find()
        second = await scene.of().renew(first)
        refused = await scene.of().refuse_token(second)
        assert refused.code == "TOKEN_REFUSED"
        for _ in range(3):
            with pytest.raises(MountError, match=r"TOKEN_REFUSED: it rejects what 127\.0\.0\.1"):
                await scene.of().find()
        assert len(scene.far.asked) == 2
        scene.now += PAUSE
        assert await scene.of().find() not in (first, second)

    run(body)


def test_no_owner_has_anothers_token_though_their_secrets_are_the_same() -> None:
    async def body(scene: Scene) -> None:
        found = [await scene.of(owner).find() for owner in ("", "ada", "bob")]
        assert len(set(found)) == 3 and len(scene.far.asked) == 3
        assert [sorted(scene.tokens.list_recent(who)) for who in ("ada", "eve")] == [sorted(found[:2]), [found[0]]]

    run(body)


def test_another_secret_gets_another_token() -> None:
    async def body(scene: Scene) -> None:
        scene.far.subjects |= {"another": "others"}
        first = await scene.of().find()
        second = await scene.of(client_secret="another").find()
        assert [scene.far.access[token][0] for token in (first, second)] == ["the-team", "others"]

    run(body)


def test_an_endpoint_that_takes_too_long_gives_no_token() -> None:
    async def body(scene: Scene) -> None:
        scene.limit(within=0.2)
        scene.far.refresh_takes = 1.0
        with pytest.raises(MountError, match=r"CONNECT_FAILED: .* gives no token in 0.2 s"):
            await scene.of().find()

    run(body)


def test_of_too_many_owners_the_first_asks_again() -> None:
    async def body(scene: Scene) -> None:
        scene.limit(most=2)
        found = {who: await scene.of(who).find() for who in ("ada", "bob", "eve")}
        assert await scene.of("eve").find() == found["eve"] and await scene.of("bob").find() == found["bob"]
        assert await scene.of("ada").find() != found["ada"]

    run(body)
