"""What a person's identity provider gave, at two servers on one state: refreshed once, and told to nobody else."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.clients.raw_client import PATIENCE
from tests.server.auth import fake_identity_providers
from tests.server.auth.fake_identity_providers import CLIENT, SECRET
from tests.server.features.mounts.grants.enterprise_provider import EnterpriseProvider
from tests.server.state.conftest import each_store as each_store
from tests.server.state.each_store import ON_EACH, with_store
from toolgate.server.auth.login.accounts import Person
from toolgate.server.auth.login.allowlist import UserAllowlist
from toolgate.server.auth.login.provider_tokens import ProviderTokens
from toolgate.server.auth.login.providers import OpenIdProvider
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal, derive_subject
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.grants.identities import Identities
from toolgate.server.features.mounts.kept_secrets.secret_store import SecretStore
from toolgate.server.features.mounts.sign_in.service import SignInService
from toolgate.server.features.mounts.sign_in.store import ConnectionStore
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.server.state.keys.sealing_keys import KeyFolder
from toolgate.tools.api.outbound.fetch import Web

pytestmark = ON_EACH


class Scene:
    """Two servers, and the sign-ins of people at their provider."""

    def __init__(self, idp: EnterpriseProvider, web: Web, store: Any, keys: KeyFolder) -> None:
        self.idp = idp
        self.stores = [ConnectionStore(store, keys) for _ in range(2)]
        self.secrets = SecretStore(store, keys)
        self.servers = [Identities(each, grace=0.0) for each in self.stores]
        for each in self.servers:
            allowlist = UserAllowlist(("*",), ("oidc",))
            each.use(OpenIdProvider(idp.url, CLIENT, SECRET, allowlist, web.fetch), "https://here.example")

    async def sign_in(self, who: str, *, lasts: float = 300, has_refresh: bool = True) -> str:
        """Keep what a sign-in gives, and return the ID token."""
        token, end = self.idp.issue_id_token(sub=who, exp=int(time.time() + lasts)), time.time() + lasts
        tokens = ProviderTokens(token, self.idp.issue(who)["refresh_token"] if has_refresh else "", end)
        await self.servers[0].keep(Person(self.idp.url, who, who), tokens)
        return token

    def principal(self, who: str) -> str:
        return Principal(OWN_ISSUER, derive_subject(self.idp.url, who), "").name


def run(folder: Path, body: Callable[[Scene], Awaitable[None]]) -> None:
    async def with_scene(store: Any) -> None:
        web = Web(["127.0.0.1"])
        try:
            await body(Scene(idp, web, store, KeyFolder(folder / "keys")))
        finally:
            await web.close()

    idp = EnterpriseProvider()
    with fake_identity_providers.provider(idp):
        with_store(folder, with_scene)


def test_fifty_calls_at_two_servers_refresh_once(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        first, who = await scene.sign_in("ada", lasts=0), scene.principal("ada")
        found = await asyncio.gather(*(scene.servers[number % 2].find_id_token(who) for number in range(50)))
        assert set(found) == {scene.idp.id_tokens[-1]} != {first}
        assert len(scene.idp.used) == 1

    run(tmp_path, body)


def test_a_sign_in_replaces_the_one_before_and_is_one_persons(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        await scene.sign_in("ada")
        again, other = await scene.sign_in("ada"), await scene.sign_in("bob")
        for server in scene.servers:
            found = [await server.find_id_token(scene.principal(who)) for who in ("ada", "bob")]
            assert found == [again, other]
            with pytest.raises(MountError, match="IDENTITY_MISSING"):
                await server.find_id_token(scene.principal("eve"))
        assert scene.idp.used == []

    run(tmp_path, body)


def test_a_provider_that_gives_a_refresh_token_once_is_asked_with_that(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        await scene.sign_in("ada")
        again = await scene.sign_in("ada", lasts=0, has_refresh=False)
        assert await scene.servers[0].find_id_token(scene.principal("ada")) == scene.idp.id_tokens[-1] != again
        assert len(scene.idp.used) == 1

    run(tmp_path, body)


def test_a_refresh_token_that_its_provider_ended_ends_the_sign_in(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        await scene.sign_in("ada", lasts=0)
        scene.idp.refresh.clear()
        for server in (*scene.servers, *scene.servers):
            with pytest.raises(MountError, match=r"IDENTITY_MISSING: .* sign out at https://here.example/logout"):
                await server.find_id_token(scene.principal("ada"))
        assert len(scene.idp.used) == 1

    run(tmp_path, body)


def test_what_a_provider_gave_is_no_connection_to_a_mount(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        await scene.sign_in("ada")
        assert await scene.servers[0].find_id_token(scene.principal("ada"))
        assert list(await scene.stores[0].list(scene.principal("ada"))) == []
        assert list(await scene.stores[0].list_all(("", ""), 10)) == []

    run(tmp_path, body)


def test_what_no_mount_asks_for_is_revoked_and_removed(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        server, wiki = scene.servers[0], MountConfig(name="wiki", url="https://wiki.example/mcp")
        server.open_mount(wiki)
        for who in ("ada", "bob"):
            await scene.sign_in(who)
        await scene.sign_in("eve", has_refresh=False)
        service = SignInService(scene.stores[0], scene.secrets, "here", tell_nobody, find_no_label, orphans_every=0.01)
        service.identities = server
        ending = asyncio.create_task(service.end_orphans())
        try:
            assert await server.find_id_token(scene.principal("ada"))
            assert list(await server.remove_unwanted()) == [] and scene.idp.revoked == []
            server.close_mount(wiki)
            async with asyncio.timeout(PATIENCE):
                while server.may_keep:
                    await asyncio.sleep(0.01)
        finally:
            ending.cancel()
            await asyncio.wait([ending])
        assert sorted(scene.idp.revoked) == sorted(scene.idp.refresh)
        with pytest.raises(MountError, match="IDENTITY_MISSING"):
            await server.find_id_token(scene.principal("ada"))

    run(tmp_path, body)


def test_it_stays_for_a_while_where_the_last_mount_is_gone(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        await scene.sign_in("ada")
        waiting = Identities(scene.stores[0], grace=60.0)
        assert waiting.may_keep and list(await waiting.remove_unwanted()) == []
        assert len(await scene.servers[0].remove_unwanted()) == 1

    run(tmp_path, body)


@pytest.mark.parametrize("fault", ["no endpoint", "another provider"])
def test_a_provider_that_can_t_revoke_is_not_asked(tmp_path: Path, fault: str) -> None:
    async def body(scene: Scene) -> None:
        scene.idp.revokes = fault != "no endpoint"
        await scene.sign_in("ada")
        (held,) = await scene.servers[0].remove_unwanted()
        held = replace(held, server="another") if fault == "another provider" else held
        assert not await scene.servers[0].revoke(held)
        assert scene.idp.revoked == []

    run(tmp_path, body)


def tell_nobody(_principal: str, _mount: str, _is_over: bool) -> None: ...


async def find_no_label(_: str) -> str:
    return ""
