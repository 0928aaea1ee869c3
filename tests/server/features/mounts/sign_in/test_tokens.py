"""A person's tokens at two servers on one state: refreshed once, and nobody's when the answer comes too late."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn, far_sign_in
from tests.server.state.conftest import each_store as each_store
from tests.server.state.each_store import ON_EACH, with_store
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.kept_secrets.secret_store import SecretStore
from toolgate.server.features.mounts.pins.gate import digest_server
from toolgate.server.features.mounts.sign_in.service import SignInService
from toolgate.server.features.mounts.sign_in.store import ConnectionStore, Departure, FarClient, SignedIn, SignInFault
from toolgate.server.features.mounts.sign_in.tokens import MountTokens
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.server.state.keys.sealing_keys import KeyFolder

pytestmark = ON_EACH
LINK = "https://here.example/mounts/connect?name=far"


class Scene:
    """Two servers, and a person who is signed in at the far one, whose token is over."""

    def __init__(self, far: FarSignIn, store: Any, keys: KeyFolder) -> None:
        self.far = far
        self.config = MountConfig(name="far", url=f"{far.origin}/mcp", auth="oauth")
        self.stores = [ConnectionStore(store, keys) for _ in range(2)]
        self.secrets = SecretStore(store, keys)
        self.servers = [MountTokens(self.config, "digest", each, lambda: LINK, find_no_secret) for each in self.stores]

    async def connect(self, server: str = "digest") -> None:
        store, told = self.stores[0], self.far.issue("ada-there", "read")
        signed_in = SignedIn(
            self.far.origin,
            f"{self.far.origin}/token",
            f"{self.far.origin}/revoke",
            FarClient("c-0"),
            self.config.url,
            "read",
            told["access_token"],
            told["refresh_token"],
        )
        state = await store.depart("ada", Departure("far", server, "verifier", LINK, True, signed_in))
        departure = await store.take_departure("ada", state)
        assert departure is not None and await store.keep("ada", departure, signed_in, 1.0)

    async def find_label(self, principal: str) -> str:
        return principal


def run(folder: Path, body: Callable[[Scene], Awaitable[None]]) -> None:
    async def with_scene(store: Any) -> None:
        scene = Scene(far, store, KeyFolder(folder / "keys"))
        await scene.connect()
        await body(scene)

    with far_sign_in() as far:
        with_store(folder, with_scene)


def test_fifty_calls_at_two_servers_refresh_once(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        scene.far.refresh_takes = 0.5
        found = await asyncio.gather(*(scene.servers[number % 2].find("ada") for number in range(50)))
        assert set(found) == {scene.far.last} and (scene.far.refreshes, scene.far.reused) == (1, 0)

    run(tmp_path, body)


def test_a_caller_that_leaves_ends_no_refresh(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        scene.far.refresh_takes = 0.5
        first = asyncio.create_task(scene.servers[0].find("ada"))
        while not scene.far.refreshes:
            await asyncio.sleep(0.01)
        first.cancel()
        assert await scene.servers[0].find("ada") == await scene.servers[1].find("ada") == scene.far.last
        assert (scene.far.refreshes, scene.far.reused) == (1, 0)

    run(tmp_path, body)


def test_the_end_of_a_server_waits_for_no_refresh_that_takes_too_long(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        scene.far.refresh_may_end.clear()
        asking = asyncio.create_task(scene.servers[0].find("ada"))
        while not scene.far.refreshes:
            await asyncio.sleep(0.01)
        await scene.servers[0].close(within=0.0)
        assert not asking.done()
        scene.far.refresh_may_end.set()
        assert await asking == scene.far.last

    run(tmp_path, body)


def test_a_mount_that_is_closed_lets_a_refresh_store_its_answer(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        store, config = scene.stores[0], scene.config
        service = SignInService(store, scene.secrets, "here", lambda *_: None, scene.find_label)
        tokens = service.open_tokens(config)
        await scene.connect(digest_server(config))
        scene.far.refresh_takes = 0.2
        asking = asyncio.create_task(tokens.find("ada"))
        while not scene.far.refreshes:
            await asyncio.sleep(0.01)
        await service.close_tokens(config)
        held = await store.find("ada", "far")
        assert held is not None and held.signed_in is not None and held.refreshing_since is None
        assert held.signed_in.access_token == scene.far.last == await asking

    run(tmp_path, body)


def test_a_sign_in_that_ends_after_the_account_is_not_kept(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        store = scene.stores[0]
        held = await store.find("ada", "far")
        assert held is not None and held.signed_in is not None
        state = await store.depart("ada", Departure("far", "digest", "verifier", LINK, True, held.signed_in))
        departure = await store.take_departure("ada", state)
        assert departure is not None and await store.take_departure("ada", state) is None
        await store.remove("ada")  # with the account
        assert not await store.keep("ada", departure, held.signed_in, None)
        assert await store.find("ada", "far") is None and await scene.servers[0].find("ada") == ""

    run(tmp_path, body)


def test_what_has_ended_stays_ended(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        scene.far.refresh.clear()
        for server in scene.servers:
            with pytest.raises(MountError, match=f"connect it again .* at {LINK.partition('?')[0]}"):
                await server.find("ada")
        assert scene.far.refreshes == 1

    run(tmp_path, body)


def test_a_secret_that_its_operator_has_not_set_ends_no_connection(tmp_path: Path) -> None:
    async def find_secret(_: MountConfig) -> str:
        raise SignInFault("the secret FAR is not set: its operator has to")

    async def body(scene: Scene) -> None:
        store = scene.stores[0]
        config = replace(scene.config, client_id="c-0", client_secret="${secret:FAR}")
        tokens = MountTokens(config, "digest", store, lambda: LINK, find_secret)
        held = await store.find("ada", "far")
        assert held is not None and held.signed_in is not None
        with pytest.raises(MountError, match="the secret FAR is not set"):
            await tokens.find("ada", held.signed_in.access_token)
        assert await store.find("ada", "far") == held and not scene.far.refreshes
        assert await scene.servers[0].find("ada") == scene.far.last

    run(tmp_path, body)


def test_scopes_that_a_call_lacks_during_a_refresh_lose_no_tokens(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        scene.far.refresh_takes = 0.5
        held = await scene.stores[0].find("ada", "far")
        assert held is not None
        refreshed = asyncio.create_task(scene.servers[0].find("ada"))
        while not scene.far.refreshes:
            await asyncio.sleep(0.01)
        await scene.stores[1].note_wanted(held, "write")
        assert await refreshed == await scene.servers[1].find("ada") == scene.far.last
        after = await scene.stores[1].find("ada", "far")
        assert after is not None and after.signed_in is not None
        await scene.stores[1].note_wanted(after, "write")
        noted = await scene.stores[0].find("ada", "far")
        assert noted is not None and noted.signed_in == replace(after.signed_in, wanted="write")

    run(tmp_path, body)


@pytest.mark.parametrize(("rejected_for", "ends"), [(0.0, True), (600.0, False)])
def test_new_tokens_that_are_rejected_end_a_connection_after_a_while(
    tmp_path: Path, rejected_for: float, ends: bool
) -> None:
    async def body(scene: Scene) -> None:
        tokens = MountTokens(
            scene.config, "digest", scene.stores[0], lambda: LINK, find_no_secret, rejected_for=rejected_for
        )
        first = await tokens.note_rejected("ada", await tokens.find("ada"))
        tokens.note_accepted("ada")
        again = await tokens.note_rejected("ada", await tokens.find("ada"))
        assert first.code == again.code == "CONNECT_FAILED"
        last = await tokens.note_rejected("ada", await tokens.find("ada"))
        held = await scene.stores[0].find("ada", "far")
        assert held is not None
        assert (last.code, bool(held.ended)) == (("SIGN_IN_REQUIRED", True) if ends else ("CONNECT_FAILED", False))

    run(tmp_path, body)


def test_a_later_connection_of_another_server_is_noticed_at_the_next_look(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        newer: list[str] = []
        tokens = MountTokens(
            scene.config, "digest", scene.stores[0], lambda: LINK, find_no_secret, note_newer=newer.append
        )
        before = await tokens.find("ada")
        tokens.forget_all()
        assert await tokens.find("ada") == before and newer == []
        await scene.connect()
        assert await tokens.find("ada") == before  # for some seconds
        tokens.forget_all()
        assert await tokens.find("ada") == scene.far.last != before and newer == ["ada"]

    run(tmp_path, body)


def test_what_is_to_be_revoked_is_taken_by_one_server(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        (before,) = await scene.stores[0].remove("ada")
        assert await scene.stores[0].find("ada", "far") is None and list(await scene.stores[0].list("ada")) == []
        first, second = await asyncio.gather(*(store.take_due(10) for store in scene.stores))
        (ended,) = (*first, *second)
        assert (ended.held.mount, ended.held.signed_in) == ("far", before.signed_in)
        assert await scene.stores[0].has_any() and list(await scene.stores[0].list_all(("", ""), 10)) == []
        assert list(await scene.stores[1].remove("ada")) == []
        await scene.stores[1].forget_ended(ended)
        assert not await scene.stores[0].has_any()

    run(tmp_path, body)


async def find_no_secret(_: MountConfig) -> str:
    return ""
