"""A call that has waited for a sign-in goes on only where it may still be made."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import asked
from tests.server.features.mounts.choices.chooser import Chooser
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.app import App, accept, connect, disconnect, each_era, open_app, run
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn
from tests.server.features.mounts.sign_in.test_elicitation import far, opened_scene, scene
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene
from toolgate.server.cli import main
from toolgate.server.features.mounts.control import MountControl

__all__ = ["far", "scene"]  # fixtures

Capsys = pytest.CaptureFixture[str]
Change = Callable[[App], Awaitable[None]]


async def call_and_change(scene: Scene, mode: str, change: Change, *, connects: bool = True) -> str:
    """Return what a call is told that waits while something changes, and whose person connects then."""
    async with open_app(scene, mode, accept) as app:
        calling = asyncio.create_task(app.call())
        await app.is_asked.wait()
        await change(app)
        if connects:
            await app.connect()
        return await calling


def is_recorded(scene: Scene, capsys: Capsys, decision: str) -> bool:
    """Return whether the audit log has a call of the mount with this word."""
    words = ("audit", "--tool", "far__whoami", "--decision", decision, "--json", "--state", str(scene.state))

    def has_entry() -> bool:
        capsys.readouterr()
        return main.run(words) == 0 and bool(capsys.readouterr().out.strip())

    return eventually(has_entry)


@pytest.mark.pairs
@each_era
@pytest.mark.parametrize("what", ["mount", "tool"])
def test_what_is_switched_off_meanwhile_is_not_called(scene: Scene, mode: str, what: str, capsys: Capsys) -> None:
    def switch_off() -> None:
        chooser = Chooser(scene.ada.browser())
        answer = chooser.switch("far", off=True) if what == "mount" else chooser.choose("far", ["whoami"])
        assert answer.status in (200, 303), answer.text

    async def change(_: App) -> None:
        await asyncio.to_thread(switch_off)

    async def main() -> None:
        assert (await call_and_change(scene, mode, change)).startswith("SWITCHED_OFF: ")

    run(main())
    assert is_recorded(scene, capsys, "switched_off")


@each_era
def test_what_an_operator_refuses_meanwhile_is_not_called(scene: Scene, mode: str, capsys: Capsys) -> None:
    async def change(app: App) -> None:
        await asyncio.to_thread(scene.change, "UPDATE mount_pin SET standing = 'refused' WHERE name = 'whoami'")
        await asyncio.to_thread(MountControl(scene.state).wish, "pins", "far")
        while [tool for tool in (await app.client.list_tools()).tools if tool.name == "far__whoami"]:
            await asyncio.sleep(0.05)

    async def main() -> None:
        assert (await call_and_change(scene, mode, change)).startswith("HELD: ")

    run(main())
    assert is_recorded(scene, capsys, "held")


def test_a_plan_that_begins_meanwhile_holds_the_call(scene: Scene, capsys: Capsys) -> None:
    async def change(app: App) -> None:
        await app.client.call_tool("PlanMode", {"action": "enter", "goal": "look"})

    async def main() -> None:
        assert "refused while a plan is active" in await call_and_change(scene, "legacy", change)

    run(main())
    assert is_recorded(scene, capsys, "plan")


@pytest.mark.parametrize("lines", [None, ('timeout = "5s"',)], ids=["removed", "changed"])
def test_a_mount_that_is_removed_or_changed_ends_the_wait(
    scene: Scene, far: FarSignIn, tmp_path: Path, lines: tuple[str, ...] | None, capsys: Capsys
) -> None:
    async def change(_: App) -> None:
        write_config(tmp_path, "" if lines is None else url_mount(f"{far.origin}/mcp", "far", *AUTH, *lines))

    async def main() -> None:
        told = await call_and_change(scene, "legacy", change, connects=False)
        assert told.startswith("CONNECT_FAILED: it was removed or changed here"), told

    run(main())
    assert is_recorded(scene, capsys, "closed")


@each_era
def test_a_call_that_waits_counts_once_against_the_limit_of_its_mount(
    tmp_path: Path, far: FarSignIn, mode: str
) -> None:
    async def main(scene: Scene) -> None:
        async with open_app(scene, mode, connect) as app:
            assert await app.call() == "ada-there"
            assert (await app.call()).startswith("LIMITED: ")

    with opened_scene(tmp_path, far, lines=["limits = { calls = 1 }"]) as scene:
        run(main(scene))


@each_era
def test_a_call_whose_server_asks_counts_once_against_its_limit(tmp_path: Path, far: FarSignIn, mode: str) -> None:
    far.asks = "pay"

    async def call(scene: Scene) -> None:
        async with App(scene, mode, accept).open() as app:
            await app.connect()
            await app.wait_listed()
            assert await app.call() == "ada-there" and len(app.asked) == 1
            assert (await app.call()).startswith("LIMITED: ")

    with opened_scene(tmp_path, far, lines=["limits = { calls = 1 }"]) as scene:
        run(call(scene))


def test_a_state_that_is_sent_again_is_a_new_call(tmp_path: Path, far: FarSignIn) -> None:
    meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"url": {}}}}
    call: dict[str, Any] = {"name": "far__whoami", "arguments": {}, "_meta": meta}

    with opened_scene(tmp_path, far, lines=["limits = { calls = 2 }"]) as scene:

        def ask(method: str, **params: Any) -> Any:
            _, raw, said = asked(scene.signed, scene.ada.token, method, {"_meta": meta, **params})
            assert said is not None and "result" in said, raw
            return said["result"]

        def answer() -> str:
            told: str = ask("tools/call", **call, **again)["content"][0]["text"]
            return told

        scene.connect(scene.ada)
        assert eventually(lambda: "far__whoami" in {tool["name"] for tool in ask("tools/list")["tools"]})
        disconnect(scene.ada)
        first = ask("tools/call", **call)
        responses = {name: {"action": "accept"} for name in first["inputRequests"]}
        again = {"inputResponses": responses, "requestState": first["requestState"]}
        scene.connect(scene.ada)
        assert [answer(), answer()] == ["ada-there", "ada-there"]
        assert answer().startswith("LIMITED: ")
