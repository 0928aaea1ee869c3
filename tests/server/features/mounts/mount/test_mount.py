"""The lists of a mount are fetched once for all who ask, and the end of one of them ends nobody else's wait."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.features.mounts.mount.test_pool import Sessions
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.kept_secrets.resolver import ResolvedMount
from toolgate.server.features.mounts.mount.lists import ListStore
from toolgate.server.features.mounts.mount.mount import Mount
from toolgate.server.features.mounts.mount.pool import SessionKey
from toolgate.server.features.mounts.mount.profile import NOTHING
from toolgate.server.features.mounts.upstream.session import UpstreamSession

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

    async def close(self) -> None: ...


@pytest.mark.parametrize(("before", "meanwhile"), [([ADA], [BOB]), ([BOB, ADA], [])])
def test_lists_that_others_wait_for_are_fetched_for_one_of_these(
    tmp_path: Path, before: list[SessionKey], meanwhile: list[SessionKey]
) -> None:
    async def body() -> None:
        config, opener = MountConfig(name="far", command="far", prefix="far__"), SlowForAda()
        mount = Mount(config, ListStore(tmp_path, config), opener)
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
        mount = Mount(config, ListStore(tmp_path, config), opener)
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
