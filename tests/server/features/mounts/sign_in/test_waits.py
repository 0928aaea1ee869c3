"""A call that has waited for a sign-in goes on only where it may still be made."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import mcp_types as types
import pytest

from tests.server.features.mounts.choices.chooser import Chooser
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn
from tests.server.features.mounts.sign_in.test_elicitation import App, each_era, far, run, scene
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene
from toolgate.server.features.mounts.control import MountControl

__all__ = ["far", "scene"]  # fixtures

Change = Callable[[App], Awaitable[None]]


async def call_and_change(scene: Scene, mode: str, change: Change, *, connects: bool = True) -> str:
    """Return what a call is told that waits while something changes, and whose person connects then."""
    agreed = asyncio.Event()

    async def accept(_: types.ElicitRequestURLParams) -> str:
        agreed.set()
        return "accept"

    async with App(scene, scene.ada, mode, accept).open() as app:
        await app.know()
        calling = asyncio.create_task(app.call())
        await agreed.wait()
        await change(app)
        if connects:
            await asyncio.to_thread(scene.connect, scene.ada)
        return await calling


@each_era
@pytest.mark.parametrize("what", ["mount", "tool"])
def test_what_is_switched_off_meanwhile_is_not_called(scene: Scene, mode: str, what: str) -> None:
    def switch_off() -> None:
        chooser = Chooser(scene.ada.browser())
        answer = chooser.switch("far", off=True) if what == "mount" else chooser.choose("far", ["whoami"])
        assert answer.status in (200, 303), answer.text

    async def change(_: App) -> None:
        await asyncio.to_thread(switch_off)

    async def main() -> None:
        assert (await call_and_change(scene, mode, change)).startswith("SWITCHED_OFF: ")

    run(main())


@each_era
def test_what_an_operator_refuses_meanwhile_is_not_called(scene: Scene, mode: str) -> None:
    async def change(app: App) -> None:
        await asyncio.to_thread(scene.change, "UPDATE mount_pin SET standing = 'refused' WHERE name = 'whoami'")
        await asyncio.to_thread(MountControl(scene.state).wish, "pins", "far")
        while [tool for tool in (await app.client.list_tools()).tools if tool.name == "far__whoami"]:
            await asyncio.sleep(0.05)

    async def main() -> None:
        assert (await call_and_change(scene, mode, change)).startswith("HELD: ")

    run(main())


def test_a_plan_that_begins_meanwhile_holds_the_call(scene: Scene) -> None:
    async def change(app: App) -> None:
        await app.client.call_tool("PlanMode", {"action": "enter", "goal": "look"})

    async def main() -> None:
        assert "refused while a plan is active" in await call_and_change(scene, "legacy", change)

    run(main())


@pytest.mark.parametrize("lines", [None, ('timeout = "5s"',)], ids=["removed", "changed"])
def test_a_mount_that_is_removed_or_changed_ends_the_wait(
    scene: Scene, far: FarSignIn, tmp_path: Path, lines: tuple[str, ...] | None
) -> None:
    async def change(_: App) -> None:
        write_config(tmp_path, "" if lines is None else url_mount(f"{far.origin}/mcp", "far", *AUTH, *lines))

    async def main() -> None:
        told = await call_and_change(scene, "legacy", change, connects=False)
        assert told.startswith("CONNECT_FAILED: it was removed or changed here"), told

    run(main())
