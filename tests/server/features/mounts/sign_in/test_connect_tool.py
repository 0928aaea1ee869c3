"""Somebody who never connected to a mounted server is shown a tool that has them do so, and nothing else of it."""

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS, eventually
from tests.clients.raw_http_client import POSTED, events
from tests.server.auth.minted_tokens import ENVELOPE, asked, request
from tests.server.features.mounts.choices.chooser import Chooser
from tests.server.features.mounts.mounted import write_config
from tests.server.features.mounts.sign_in.app import App, connect, each_era, open_app, run
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn
from tests.server.features.mounts.sign_in.test_elicitation import far, opened_scene, scene
from tests.server.features.mounts.sign_in.test_sign_in import CONNECT, Scene
from tests.servers.home_page_server import AppUser

__all__ = ["far", "scene"]  # fixtures

CONNECTED = "far is connected, and has 2 tools for you now. List the tools again if you do not see them."
LISTED = {"far__whoami", "far__of_ada_there"}
LISTEN = "subscriptions/listen"


@each_era
def test_it_has_its_person_connect_and_gives_way_to_what_they_have_then(scene: Scene, mode: str) -> None:
    async def main() -> None:
        async with App(scene, mode, connect).open() as app:
            assert await app.list_far() == {CONNECT}
            assert await app.call(CONNECT) == CONNECTED
            (question,) = app.asked
            assert question.url == f"{scene.url}/mounts/connect?name=far"
            assert await app.list_far() == LISTED
            if mode == "legacy":
                await app.changed.wait()
            assert await app.call() == "ada-there"
            assert await app.call(CONNECT) == CONNECTED and len(app.asked) == 1

    run(main())


@each_era
def test_it_does_not_come_back_when_the_connection_ends(scene: Scene, mode: str) -> None:
    async def main() -> None:
        async with open_app(scene, mode, None) as app:
            assert await app.list_far() == LISTED
            assert (await app.call(CONNECT)).startswith("SIGN_IN_REQUIRED: ")

    run(main())


@each_era
def test_a_client_that_opens_no_links_gets_the_link_as_its_text(scene: Scene, mode: str) -> None:
    async def main() -> None:
        async with App(scene, mode, None).open() as app:
            link = f"{scene.url}/mounts/connect?name=far"
            assert await app.call(CONNECT) == f"SIGN_IN_REQUIRED: connect it at {link}, then try once more"

    run(main())


def test_its_description_names_the_server_and_its_place(scene: Scene) -> None:
    (tool,) = find_far(scene.ada)
    host = scene.far.origin.removeprefix("http://")
    assert tool["description"].startswith(f"far is a server at {host}. Its tools are not listed yet: ")
    assert tool["inputSchema"] == {"type": "object", "properties": {}, "additionalProperties": False}


def test_those_who_connect_on_the_page_are_told_of_their_tools(scene: Scene) -> None:
    """Somebody else has the same tools already, so that the lists of all are as before."""
    scene.connect(scene.bob)
    scene.wait_listed(scene.bob)

    async def main() -> None:
        async with App(scene, "legacy", None).open() as app:
            assert await app.list_far() == {CONNECT}
            app.changed.clear()
            await asyncio.to_thread(scene.connect, scene.ada)
            await app.changed.wait()
            assert await app.list_far() == LISTED

    run(main())


def test_those_who_listen_without_a_session_are_told_too(scene: Scene) -> None:
    def is_listed() -> bool:
        _, _, said = asked(scene.signed, scene.ada.token, "tools/list")
        return {tool["name"] for tool in said["result"]["tools"]} >= LISTED

    key = {"authorization": f"Bearer {scene.ada.token}"}
    assert scene.signed.site.ask("DELETE", "/mcp", mcp_session_id=scene.ada.session, **key)[0].status == 204
    assert not is_listed()
    told = {**key, "mcp-protocol-version": STATELESS, "mcp-method": LISTEN}
    body = request(LISTEN, {"notifications": {"toolsListChanged": True}, "_meta": ENVELOPE})
    with contextlib.closing(scene.signed.site.connect()) as connection:
        connection.request("POST", "/mcp", json.dumps(body), {**POSTED, **told})
        stream = events(connection.getresponse())

        def wait_told(words: str) -> None:
            until = time.monotonic() + PATIENCE
            assert any(words in event.get("data", "") for event in stream if is_in_time(until))

        wait_told("acknowledged")
        scene.connect(scene.ada)
        wait_told("tools/list_changed")
        while not is_listed():
            wait_told("tools/list_changed")


def is_in_time(until: float) -> bool:
    assert time.monotonic() < until, "told of nothing"
    return True


def test_a_tool_of_the_server_never_takes_its_name(scene: Scene) -> None:
    scene.far.tools = ("connect",)
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    (theirs,) = scene.list_far(scene.ada) - LISTED
    assert theirs.startswith(f"{CONNECT}_") and scene.call(scene.ada, theirs) == "ada-there"
    assert scene.list_far(scene.bob) == {CONNECT}


def test_a_person_who_switches_the_mount_off_has_no_such_tool(scene: Scene) -> None:
    Chooser(scene.ada.browser()).switch("far", off=True)
    assert scene.list_far(scene.ada) == set()
    assert scene.call(scene.ada, CONNECT).startswith("SWITCHED_OFF: ")
    assert scene.list_far(scene.bob) == {CONNECT}


def test_a_plan_does_not_hold_it(scene: Scene) -> None:
    scene.ada.call("PlanMode", action="enter", goal="look")
    assert scene.call(scene.ada, CONNECT).startswith("SIGN_IN_REQUIRED: ")


def test_it_needs_the_scope_of_its_mount(scene: Scene) -> None:
    token = scene.signed.token(granted=["tools:read"])
    _, _, said = asked(scene.signed, token, "tools/list")
    assert CONNECT in {tool["name"] for tool in said["result"]["tools"]}
    response, _, _ = asked(scene.signed, token, "tools/call", {"name": CONNECT, "arguments": {}})
    assert response.status == 403


def test_calls_of_it_count_against_the_limit_of_its_mount(tmp_path: Path, far: FarSignIn) -> None:
    with opened_scene(tmp_path, far, lines=["limits = { calls = 1 }"]) as scene:
        assert scene.call(scene.ada, CONNECT).startswith("SIGN_IN_REQUIRED: ")
        assert scene.call(scene.ada, CONNECT).startswith("LIMITED: ")


@pytest.mark.parametrize(
    ("lines", "listed"),
    [
        ('tools = ["whoami"]', set[str]()),
        ('tools = ["!connect"]', set[str]()),
        ('tools = ["whoami", "connect"]', {CONNECT}),
        ('prefix = "a_"', set[str]()),
    ],
)
def test_patterns_and_the_prefix_hold_for_it(tmp_path: Path, far: FarSignIn, lines: str, listed: set[str]) -> None:
    with opened_scene(tmp_path, far, lines=[lines]) as scene:
        assert scene.list_far(scene.ada) == listed
        if "prefix" in lines:
            assert scene.call(scene.ada, "a_connect").startswith("SIGN_IN_REQUIRED: ")


@pytest.mark.parametrize("rule", ["mount:far", "far__connect"])
def test_a_rule_can_deny_it(tmp_path: Path, far: FarSignIn, rule: str) -> None:
    with opened_scene(tmp_path, far, "--deny", rule) as scene:
        assert scene.list_far(scene.ada) == set()
        assert f"is refused here by the rule --deny {rule}" in scene.call(scene.ada, CONNECT)


def test_a_mount_that_is_removed_takes_it_along(scene: Scene, tmp_path: Path) -> None:
    assert scene.list_far(scene.ada) == {CONNECT}
    write_config(tmp_path, "")
    assert eventually(lambda: scene.list_far(scene.ada) == set())
    assert scene.call(scene.ada, CONNECT).startswith("unknown tool: ")


def find_far(who: AppUser) -> list[dict[str, Any]]:
    _, _, said = who.ask("tools/list")
    return [tool for tool in said["result"]["tools"] if tool["name"].startswith("far__")]
