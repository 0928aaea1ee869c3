"""What of a mount's lists is served, however its pins come to be known."""

import asyncio
import logging
from pathlib import Path

import pytest

from tests.server.features.mounts.pins.gated import form, gated

BASE = form(0)
FIRST_LISTS = "its first lists"


def test_two_mounts_that_only_warn_are_read_once_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        for _ in range(2):  # the second is a restart
            async with gated(tmp_path) as mounts:
                both = [await mounts.mount(name, "warn", is_read=False) for name in ("b", "c")]
                for mount in both:
                    mount.lists["{}"] = BASE
                    mount.gate.begin()
                both[0].say(form(1))
                await mounts.settle()
                assert mounts.store.reads <= 4
                assert both[0].serves(form(1)) == ["form 1"] and both[1].serves(BASE) == ["form 0"]

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert caplog.text.count(FIRST_LISTS) == 2, "of each mount, at the first start alone"


def test_a_mount_that_comes_while_the_state_is_away_is_held(tmp_path: Path) -> None:
    async def run() -> None:
        async with gated(tmp_path) as mounts:
            (await mounts.mount("far", "hold")).say(BASE)
            await mounts.settle()
        async with gated(tmp_path) as mounts:
            await mounts.mount("other", "hold")
            mounts.store.is_away = True
            far = await mounts.mount("far", "hold", is_read=False)
            far.lists["{}"] = form(1)
            far.gate.begin()
            assert far.serves(form(1)) == []
            mounts.store.is_away = False
            await mounts.settle()
            assert far.serves(form(1)) == [] and far.serves(BASE) == ["form 0"]

    asyncio.run(run())
