"""The lists of a mount are fetched once for all who ask, and the end of one of them ends nobody else's wait."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.features.mounts.mount.test_pool import Sessions
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.kept_secrets.resolver import ResolvedMount
from toolgate.server.features.mounts.lists.list_store import ListStore
from toolgate.server.features.mounts.mount.mount import Mount
from toolgate.server.features.mounts.mount.pool import SessionKey
from toolgate.server.features.mounts.mount.profile import NOTHING
from toolgate.server.features.mounts.pins.book import PinBook
from toolgate.server.features.mounts.pins.gate import PinGate
from toolgate.server.features.mounts.upstream.session import UpstreamSession
from toolgate.server.state.sqlite.store import SqliteStore

ADA, BOB = SessionKey("ada", NOTHING), SessionKey("bob", NOTHING)


class SlowForAda:
    """Opens conversations, but none for Ada."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._sessions = Sessions()

    async def open(
        self, key: SessionKey, mount: ResolvedMount, on_notice: Callable[[str, dict[str, Any]], None]
    ) -> UpstreamSession:
        self.asked.append(key.principal)
        if key == ADA:
            await asyncio.Event().wait()
        return await self._sessions.open(key, None)

    def list_tokens(self, principal: str) -> list[str]:
        return []

    async def close(self) -> None: ...


def create_mount(folder: Path, config: MountConfig, opener: SlowForAda) -> Mount:
    store, book = ListStore(folder, config), PinBook(lambda: SqliteStore(folder), lambda: None)
    return Mount(config, store, PinGate(config, "allow", book, lambda: store.all), opener)


@pytest.mark.parametrize(("before", "meanwhile"), [([ADA], [BOB]), ([BOB, ADA], [])])
def test_lists_that_others_wait_for_are_fetched_for_one_of_these(
    tmp_path: Path, before: list[SessionKey], meanwhile: list[SessionKey]
) -> None:
    async def body() -> None:
        config, opener = MountConfig(name="far", command="far", prefix="far__"), SlowForAda()
        mount = create_mount(tmp_path, config, opener)
        waiting = {mount.refresh(key) for key in before}
        while not opener.asked:
            await asyncio.sleep(0)
        waiting |= {mount.refresh(key) for key in meanwhile}
        assert len(waiting) == 1
        mount.end_principal("ada")
        await asyncio.gather(*waiting)
        assert opener.asked == ["ada", "bob"]
        assert mount.find_lists(BOB) is not None
        await mount.close()

    asyncio.run(asyncio.wait_for(body(), 40))


def test_lists_that_nobody_else_waits_for_are_fetched_no_more(tmp_path: Path) -> None:
    async def body() -> None:
        config, opener = MountConfig(name="far", command="far", prefix="far__"), SlowForAda()
        mount = create_mount(tmp_path, config, opener)
        waiting = mount.refresh(ADA)
        while not opener.asked:
            await asyncio.sleep(0)
        mount.end_principal("ada")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await mount.refresh(BOB)
        assert mount.find_lists(BOB) is not None
        await mount.close()

    asyncio.run(asyncio.wait_for(body(), 40))
