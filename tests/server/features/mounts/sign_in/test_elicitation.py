"""A call without a connection has the person make one, and goes on: the official Python client, in both eras."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from tests.clients.raw_client import STATELESS, eventually
from tests.server.auth.minted_tokens import HELLO, asked, request, signed_site
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.app import (
    App,
    accept,
    both_eras,
    connect,
    disconnect,
    each_era,
    open_app,
    run,
)
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn, far_sign_in
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene
from toolgate.server.protocol.request_meta import TASKS


@pytest.fixture
def far() -> Iterator[FarSignIn]:
    with far_sign_in() as opened:
        yield opened


@contextlib.contextmanager
def opened_scene(folder: Path, far: FarSignIn, *options: str, lines: Sequence[str] = ()) -> Iterator[Scene]:
    """Run a server with these options. `lines`: of the mount, too."""
    table = url_mount(f"{far.origin}/mcp", "far", *AUTH, *lines)
    with signed_site(folder / "server", *options, *write_config(folder, table)) as signed:
        yield Scene(signed, far)


@pytest.fixture
def scene(tmp_path: Path, far: FarSignIn) -> Iterator[Scene]:
    with opened_scene(tmp_path, far) as opened:
        yield opened


@each_era
def test_a_call_has_its_person_connect_and_goes_on(scene: Scene, mode: str) -> None:
    async def main() -> None:
        async with open_app(scene, mode, connect) as app:
            assert await app.call() == "ada-there"
            (asked,) = app.asked
            assert asked.url == f"{scene.url}/mounts/connect?name=far"
            host = scene.far.origin.removeprefix("http://")
            assert asked.message == (
                f"far ({host}) wants you to sign in. Open the link as ada, and connect it there: "
                "the call goes on by itself."
            )
            if mode == "legacy":
                assert app.completed == [asked.elicitation_id]
            assert await app.call() == "ada-there" and len(app.asked) == 1

    run(main())


@each_era
def test_a_call_waits_for_one_who_agreed_and_comes_back_later(scene: Scene, mode: str) -> None:
    async def main() -> None:
        async with open_app(scene, mode, accept) as app:
            calling = asyncio.create_task(app.call())
            await app.is_asked.wait()
            await app.connect()
            assert await calling == "ada-there" and len(app.asked) == 1

    run(main())


@pytest.mark.pairs
@each_era
@pytest.mark.parametrize(("action", "told"), [("decline", "and declined"), ("cancel", "and closed the question")])
def test_one_who_does_not_agree_ends_the_call_with_the_link(scene: Scene, mode: str, action: str, told: str) -> None:
    async def refuse(_: App) -> str:
        return action

    async def main() -> None:
        async with open_app(scene, mode, refuse) as app:
            link = f"connect it at {scene.url}/mounts/connect?name=far, then try once more"
            assert await app.call() == f"SIGN_IN_REQUIRED: {link} (the person was asked, {told})"
            assert await app.call() and len(app.asked) == 2 and not app.completed  # another call asks again

    run(main())


@each_era
def test_a_client_that_opens_no_links_gets_the_link_as_text(scene: Scene, mode: str) -> None:
    async def main() -> None:
        async with open_app(scene, mode, None) as app:
            link = f"{scene.url}/mounts/connect?name=far"
            assert await app.call() == f"SIGN_IN_REQUIRED: connect it at {link}, then try once more"
            await app.connect()
            assert await app.call() == "ada-there"

    run(main())


@each_era
def test_fifty_calls_at_once_ask_once_and_all_go_on(scene: Scene, mode: str) -> None:
    async def main() -> None:
        async with open_app(scene, mode, connect) as app:
            found = await asyncio.gather(*(app.call() for _ in range(50)))
            assert set(found) == {"ada-there"} and len(app.asked) == 1

    run(main())


@each_era
def test_one_who_declines_has_declined_for_all_calls_that_wait(scene: Scene, mode: str) -> None:
    decided = asyncio.Event()

    async def decline(_: App) -> str:
        await decided.wait()
        return "decline"

    async def main() -> None:
        async with open_app(scene, mode, decline) as app:
            calls = [asyncio.create_task(app.call()) for _ in range(8)]
            await app.is_asked.wait()
            while len(app.running) < (8 if mode == "legacy" else 7):  # there the one that asked is not under way
                await asyncio.sleep(0.02)
            decided.set()
            found = await asyncio.gather(*calls)
            assert all("and declined" in told for told in found) and len(app.asked) == 1, found

    run(main())


@both_eras
def test_a_question_is_its_persons_alone(scene: Scene, mode: str) -> None:
    connected = asyncio.Event()

    async def wait(_: App) -> str:
        await connected.wait()
        return "accept"

    async def never(_: App) -> str:
        raise AssertionError("another person was asked")

    async def main() -> None:
        async with open_app(scene, mode, wait) as mine, App(scene, mode, never, scene.bob).open() as theirs:
            calling = asyncio.create_task(mine.call())
            await mine.is_asked.wait()
            await asyncio.to_thread(scene.connect, scene.bob, "bob-there")  # who opens the link of another
            await theirs.wait_listed()
            assert await theirs.call() == "bob-there" and not calling.done()
            await mine.connect()
            connected.set()
            assert await calling == "ada-there" and not theirs.asked

    run(main())


def test_a_call_that_is_cancelled_leaves_no_question_behind(scene: Scene) -> None:
    gone = asyncio.Event()

    async def answer(app: App) -> str:
        if not gone.is_set():
            await asyncio.Event().wait()
        return await connect(app)

    async def main() -> None:
        async with open_app(scene, "legacy", answer) as app:
            calling = asyncio.create_task(app.call())
            await app.is_asked.wait()
            calling.cancel()
            await asyncio.wait([calling])
            gone.set()
            assert await app.call() == "ada-there" and len(app.asked) == 2

    run(main())


@each_era
def test_a_connection_that_is_made_while_the_question_is_open_is_enough(scene: Scene, mode: str) -> None:
    async def ponder(app: App) -> str:
        await app.connect()
        if mode == "legacy":
            await asyncio.Event().wait()
        return "accept"

    async def main() -> None:
        async with open_app(scene, mode, ponder) as app:
            assert await app.call() == "ada-there"

    run(main())


@each_era
def test_a_server_that_wants_more_rights_or_a_new_sign_in_is_connected_again(scene: Scene, mode: str) -> None:
    async def main() -> None:
        async with open_app(scene, mode, connect) as app:
            assert await app.call() == "ada-there"
            scene.far.needed_scope = "write"
            assert await app.call() == "ada-there"
            assert "wants more rights for this: write. Open" in app.asked[-1].message
            scene.far.needed_scope = ""
            scene.far.end_access()
            scene.far.refresh.clear()
            assert await app.call() == "ada-there"
            assert "wants you to sign in again: it says invalid_grant. Open" in app.asked[-1].message
            assert len(app.asked) == 3

    run(main())


@each_era
def test_a_mounted_server_gets_no_answer_of_the_sign_in(scene: Scene, mode: str) -> None:
    async def answer(app: App) -> str:
        return "decline" if app.asked[-1].url == f"{scene.far.origin}/pay" else await connect(app)

    async def main() -> None:
        scene.far.asks = "mounted-sign-in"
        async with open_app(scene, mode, answer) as app:
            assert await app.call() == "ada-there"
            assert [asked.message for asked in app.asked[1:]] == ["Pay there."]
            assert scene.far.answered == [{"mounted-sign-in": {"action": "decline"}}]

    run(main())


@each_era
def test_what_the_other_side_says_is_a_short_line_of_the_question(scene: Scene, mode: str) -> None:
    async def main() -> None:
        async with open_app(scene, mode, connect) as app:
            assert await app.call() == "ada-there"
            words = [f"right-{number}-{'x' * 70}" for number in range(20)]
            scene.far.needed_scope = " ".join(words)
            scene.far.grants = "read"
            await app.call()
            message = app.asked[-1].message
            assert f"wants more rights for this: {words[0]}" in message and words[2] not in message
            assert len(message) < 400 and message.isprintable()

    run(main())


@each_era
def test_a_sign_in_that_does_not_help_is_asked_for_once(scene: Scene, mode: str) -> None:
    async def main() -> None:
        async with open_app(scene, mode, connect) as app:
            assert await app.call() == "ada-there"
            scene.far.grants = "read"  # whatever it is asked for
            scene.far.needed_scope = "write"
            assert "it wants more rights: write" in await app.call()
            assert len(app.asked) == 2  # for a connection, and for its rights

    run(main())


@pytest.mark.brief("legacy-nothing", f"{STATELESS}-accept")
@pytest.mark.parametrize(("mode", "action"), [("legacy", "accept"), ("legacy", "nothing"), (STATELESS, "accept")])
def test_one_who_never_comes_back_gets_the_link_as_text(tmp_path: Path, far: FarSignIn, mode: str, action: str) -> None:
    async def stay(_: App) -> str:
        if action == "nothing":
            await asyncio.Event().wait()
        return action

    async def main(scene: Scene) -> None:
        async with open_app(scene, mode, stay) as app:
            told = await app.call()
            assert f"connect it at {scene.url}/mounts/connect?name=far" in told and len(app.asked) == 1, told

    with opened_scene(tmp_path, far, "--hold", "2") as scene:
        run(main(scene))


def test_a_client_that_no_request_reaches_gets_the_error_with_the_link(scene: Scene) -> None:
    """It takes no event stream, and asks the person itself (2025-11-25, "URL Elicitation Required Error")."""
    who = scene.ada
    hello = {**HELLO, "capabilities": {"elicitation": {"url": {}}}}
    response, _, _ = scene.signed.site.ask(
        "POST", "/mcp", request("initialize", hello), authorization=f"Bearer {who.token}"
    )
    who.session = response.getheader("mcp-session-id")
    scene.connect(who)
    scene.wait_listed(who)
    disconnect(who)
    told = {"authorization": f"Bearer {who.token}", "mcp_session_id": who.session, "accept": "application/json"}
    asked = request("tools/call", {"name": "far__whoami", "arguments": {}}, 99)
    _, raw, said = scene.signed.site.ask("POST", "/mcp", asked, **told)
    link = f"{scene.url}/mounts/connect?name=far"
    assert said["error"]["code"] == -32042, raw
    assert said["error"]["message"] == f"SIGN_IN_REQUIRED: connect it at {link}, then try once more"
    (elicitation,) = said["error"]["data"]["elicitations"]
    assert (elicitation["mode"], elicitation["url"]) == ("url", link)
    assert elicitation["elicitationId"] and "wants you to sign in" in elicitation["message"]


@each_era
def test_a_prompt_without_a_connection_asks_too(scene: Scene, mode: str) -> None:
    async def main() -> None:
        async with open_app(scene, mode, connect) as app:
            (message,) = (await app.client.get_prompt("far__hello")).messages
            assert isinstance(message.content, types.TextContent) and message.content.text == "ada-there"
            assert len(app.asked) == 1

    run(main())


@pytest.mark.parametrize("seconds", ["0.001", "0.2"])  # a quick machine asks before 0.2 s, no machine before 0.001
def test_a_call_that_waits_becomes_a_task_where_the_client_has_tasks(
    tmp_path: Path, far: FarSignIn, seconds: str
) -> None:
    declared = {"elicitation": {"url": {}}, "extensions": {TASKS: {}}}
    meta = {"io.modelcontextprotocol/clientCapabilities": declared}

    with opened_scene(tmp_path, far, "--task-after", seconds) as scene:

        def ask(method: str, **params: Any) -> Any:
            names = {"mcp_name": params["taskId"]} if "taskId" in params else {}
            _, raw, said = asked(scene.signed, scene.ada.token, method, {**params, "_meta": meta}, **names)
            assert said is not None and "result" in said, raw
            return said["result"]

        scene.connect(scene.ada)
        assert eventually(lambda: "far__whoami" in {tool["name"] for tool in ask("tools/list")["tools"]})
        disconnect(scene.ada)
        call: dict[str, Any] = {"name": "far__whoami", "arguments": {}}

        def get() -> Any:
            return ask("tasks/get", taskId=task["taskId"])

        def accept_all(result: Any) -> Any:
            return {name: {"action": "accept"} for name in result["inputRequests"]}

        task = ask("tools/call", **call)
        if task["resultType"] == "input_required":
            state = task["requestState"]
            task = ask("tools/call", **call, inputResponses=accept_all(task), requestState=state)
        else:
            assert eventually(lambda: get()["status"] == "input_required")
            ask("tasks/update", taskId=task["taskId"], inputResponses=accept_all(get()))
        assert task["resultType"] == "task"
        assert get()["status"] == "working"
        scene.connect(scene.ada)
        assert eventually(lambda: get()["status"] == "completed")
        (part,) = get()["result"]["content"]
        assert part["text"] == "ada-there"
