"""A call without a connection has the person make one, and goes on: the official Python client, in both eras."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from tests.clients.raw_client import PATIENCE, STATELESS, eventually
from tests.server.auth.minted_tokens import HELLO, asked, request, signed_site
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn, far_sign_in
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene
from tests.servers.home_page_server import AppUser
from tests.transports.web.test_home import _csrf as find_csrf
from toolgate.server.protocol.request_meta import TASKS

Answer = Callable[[types.ElicitRequestURLParams], Awaitable[str]]

each_era = pytest.mark.parametrize("mode", ["legacy", STATELESS])


class App:
    """One client of a person, what it was asked and what it was told. `answer` gives the action."""

    def __init__(self, scene: Scene, who: AppUser, mode: str, answer: Answer | None) -> None:
        self.asked: list[types.ElicitRequestURLParams] = []
        self.completed: list[str] = []
        self.changed = asyncio.Event()  # it was told that its list of tools has changed
        self.running: set[int] = set()  # the calls that have taken a second
        self._calls = 0
        self._scene = scene
        self._who = who
        self._mode = mode
        self._answer = answer

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["App"]:
        headers = {"Authorization": f"Bearer {self._who.token}"}
        async with asyncio.timeout(PATIENCE), create_mcp_http_client(headers) as http:
            transport = streamable_http_client(f"{self._who.url}/mcp", http_client=http)
            how: dict[str, Any] = {} if self._answer is None else {"elicitation_callback": self._have_answered}
            async with Client(transport, mode=self._mode, message_handler=self._hear, cache=None, **how) as self.client:
                yield self

    async def know(self) -> None:
        """List the tools while the person is connected, and end the connection."""
        await asyncio.to_thread(self._scene.connect, self._who)
        while "far__whoami" not in await self.list_far():
            await asyncio.sleep(0.05)
        await asyncio.to_thread(disconnect, self._who)

    async def list_far(self) -> set[str]:
        """Return the names of the mount's tools."""
        return {tool.name for tool in (await self.client.list_tools()).tools if tool.name.startswith("far__")}

    async def call(self, tool: str = "far__whoami") -> str:
        """Return the text of the result, or of the error."""

        async def note(*_: Any) -> None:
            self.running.add(number)

        self._calls += 1
        number = self._calls
        result = await self.client.call_tool(tool, {}, progress_callback=note)
        (part,) = result.content
        assert isinstance(part, types.TextContent)
        return part.text

    async def _have_answered(self, _context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams) and self._answer is not None
        self.asked.append(params)
        action: Any = await self._answer(params)
        return types.ElicitResult(action=action)

    async def _hear(self, message: Any) -> None:
        if isinstance(message, types.ElicitCompleteNotification):
            self.completed.append(message.params.elicitation_id)
        elif isinstance(message, types.ToolListChangedNotification):
            self.changed.set()


def disconnect(who: AppUser) -> None:
    browser = who.browser()
    token = find_csrf(browser.get("/").text)
    assert browser.post("/", {"csrf": token, "disconnect": "far"}).status == 200


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


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        await work

    asyncio.run(main())


@each_era
def test_a_call_has_its_person_connect_and_goes_on(scene: Scene, mode: str) -> None:
    async def connect(_: types.ElicitRequestURLParams) -> str:
        await asyncio.to_thread(scene.connect, scene.ada)
        return "accept"

    async def main() -> None:
        async with App(scene, scene.ada, mode, connect).open() as app:
            await app.know()
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
    agreed = asyncio.Event()

    async def accept(_: types.ElicitRequestURLParams) -> str:
        agreed.set()
        return "accept"

    async def main() -> None:
        async with App(scene, scene.ada, mode, accept).open() as app:
            await app.know()
            calling = asyncio.create_task(app.call())
            await agreed.wait()
            await asyncio.to_thread(scene.connect, scene.ada)
            assert await calling == "ada-there" and len(app.asked) == 1

    run(main())


@each_era
@pytest.mark.parametrize(("action", "told"), [("decline", "and declined"), ("cancel", "and closed the question")])
def test_one_who_does_not_agree_ends_the_call_with_the_link(scene: Scene, mode: str, action: str, told: str) -> None:
    async def refuse(_: types.ElicitRequestURLParams) -> str:
        return action

    async def main() -> None:
        async with App(scene, scene.ada, mode, refuse).open() as app:
            await app.know()
            link = f"connect it at {scene.url}/mounts/connect?name=far, then try once more"
            assert await app.call() == f"SIGN_IN_REQUIRED: {link} (the person was asked, {told})"
            assert await app.call() and len(app.asked) == 2 and not app.completed  # another call asks again

    run(main())


@each_era
def test_a_client_that_opens_no_links_gets_the_link_as_text(scene: Scene, mode: str) -> None:
    async def main() -> None:
        async with App(scene, scene.ada, mode, None).open() as app:
            await app.know()
            link = f"{scene.url}/mounts/connect?name=far"
            assert await app.call() == f"SIGN_IN_REQUIRED: connect it at {link}, then try once more"

    run(main())


@each_era
def test_fifty_calls_at_once_ask_once_and_all_go_on(scene: Scene, mode: str) -> None:
    async def connect(_: types.ElicitRequestURLParams) -> str:
        await asyncio.to_thread(scene.connect, scene.ada)
        return "accept"

    async def main() -> None:
        async with App(scene, scene.ada, mode, connect).open() as app:
            await app.know()
            found = await asyncio.gather(*(app.call() for _ in range(50)))
            assert set(found) == {"ada-there"} and len(app.asked) == 1

    run(main())


@each_era
def test_one_who_declines_has_declined_for_all_calls_that_wait(scene: Scene, mode: str) -> None:
    asked = asyncio.Event()
    decided = asyncio.Event()

    async def decline(_: types.ElicitRequestURLParams) -> str:
        asked.set()
        await decided.wait()
        return "decline"

    async def main() -> None:
        async with App(scene, scene.ada, mode, decline).open() as app:
            await app.know()
            calls = [asyncio.create_task(app.call()) for _ in range(8)]
            await asked.wait()
            while len(app.running) < (8 if mode == "legacy" else 7):  # there the one that asked is not under way
                await asyncio.sleep(0.02)
            decided.set()
            found = await asyncio.gather(*calls)
            assert all("and declined" in told for told in found) and len(app.asked) == 1, found

    run(main())


@each_era
def test_a_question_is_its_persons_alone(scene: Scene, mode: str) -> None:
    connected = asyncio.Event()

    async def wait(_: types.ElicitRequestURLParams) -> str:
        await connected.wait()
        return "accept"

    async def never(_: types.ElicitRequestURLParams) -> str:
        raise AssertionError("another person was asked")

    async def main() -> None:
        mine, theirs = App(scene, scene.ada, mode, wait), App(scene, scene.bob, mode, never)
        async with mine.open(), theirs.open():
            await mine.know()
            calling = asyncio.create_task(mine.call())
            while not mine.asked:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(scene.connect, scene.bob, "bob-there")  # who opens the link of another
            while not [tool for tool in (await theirs.client.list_tools()).tools if tool.name == "far__whoami"]:
                await asyncio.sleep(0.05)
            assert await theirs.call() == "bob-there" and not calling.done()
            await asyncio.to_thread(scene.connect, scene.ada)
            connected.set()
            assert await calling == "ada-there" and not theirs.asked

    run(main())


def test_a_call_that_is_cancelled_leaves_no_question_behind(scene: Scene) -> None:
    gone = asyncio.Event()

    async def answer(_: types.ElicitRequestURLParams) -> str:
        if not gone.is_set():
            await asyncio.Event().wait()
        await asyncio.to_thread(scene.connect, scene.ada)
        return "accept"

    async def main() -> None:
        async with App(scene, scene.ada, "legacy", answer).open() as app:
            await app.know()
            calling = asyncio.create_task(app.call())
            while not app.asked:
                await asyncio.sleep(0.02)
            calling.cancel()
            await asyncio.wait([calling])
            gone.set()
            assert await app.call() == "ada-there" and len(app.asked) == 2

    run(main())


@each_era
def test_a_connection_that_is_made_while_the_question_is_open_is_enough(scene: Scene, mode: str) -> None:
    async def ponder(_: types.ElicitRequestURLParams) -> str:
        await asyncio.to_thread(scene.connect, scene.ada)
        if mode == "legacy":
            await asyncio.Event().wait()
        return "accept"

    async def main() -> None:
        async with App(scene, scene.ada, mode, ponder).open() as app:
            await app.know()
            assert await app.call() == "ada-there"

    run(main())


@each_era
def test_a_server_that_wants_more_rights_or_a_new_sign_in_is_connected_again(scene: Scene, mode: str) -> None:
    async def connect(_: types.ElicitRequestURLParams) -> str:
        await asyncio.to_thread(scene.connect, scene.ada)
        return "accept"

    async def main() -> None:
        async with App(scene, scene.ada, mode, connect).open() as app:
            await app.know()
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
    async def answer(asked: types.ElicitRequestURLParams) -> str:
        if asked.url == f"{scene.far.origin}/pay":
            return "decline"
        await asyncio.to_thread(scene.connect, scene.ada)
        return "accept"

    async def main() -> None:
        scene.far.asks = "mounted-sign-in"
        async with App(scene, scene.ada, mode, answer).open() as app:
            await app.know()
            assert await app.call() == "ada-there"
            assert [asked.message for asked in app.asked[1:]] == ["Pay there."]
            assert scene.far.answered == [{"mounted-sign-in": {"action": "decline"}}]

    run(main())


@each_era
def test_what_the_other_side_says_is_a_short_line_of_the_question(scene: Scene, mode: str) -> None:
    async def connect(_: types.ElicitRequestURLParams) -> str:
        await asyncio.to_thread(scene.connect, scene.ada)
        return "accept"

    async def main() -> None:
        async with App(scene, scene.ada, mode, connect).open() as app:
            await app.know()
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
    async def connect(_: types.ElicitRequestURLParams) -> str:
        await asyncio.to_thread(scene.connect, scene.ada)
        return "accept"

    async def main() -> None:
        async with App(scene, scene.ada, mode, connect).open() as app:
            await app.know()
            assert await app.call() == "ada-there"
            scene.far.grants = "read"  # whatever it is asked for
            scene.far.needed_scope = "write"
            assert "it wants more rights: write" in await app.call()
            assert len(app.asked) == 2  # for a connection, and for its rights

    run(main())


@pytest.mark.parametrize(("mode", "action"), [("legacy", "accept"), ("legacy", "nothing"), (STATELESS, "accept")])
def test_one_who_never_comes_back_gets_the_link_as_text(tmp_path: Path, far: FarSignIn, mode: str, action: str) -> None:
    async def stay(_: types.ElicitRequestURLParams) -> str:
        if action == "nothing":
            await asyncio.Event().wait()
        return action

    async def main(scene: Scene) -> None:
        async with App(scene, scene.ada, mode, stay).open() as app:
            await app.know()
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
    async def connect(_: types.ElicitRequestURLParams) -> str:
        await asyncio.to_thread(scene.connect, scene.ada)
        return "accept"

    async def main() -> None:
        async with App(scene, scene.ada, mode, connect).open() as app:
            await app.know()
            (message,) = (await app.client.get_prompt("far__hello")).messages
            assert isinstance(message.content, types.TextContent) and message.content.text == "ada-there"
            assert len(app.asked) == 1

    run(main())


def test_a_call_that_waits_becomes_a_task_where_the_client_has_tasks(tmp_path: Path, far: FarSignIn) -> None:
    declared = {"elicitation": {"url": {}}, "extensions": {TASKS: {}}}
    meta = {"io.modelcontextprotocol/clientCapabilities": declared}

    with opened_scene(tmp_path, far, "--task-after", "0.2") as scene:

        def ask(method: str, **params: Any) -> Any:
            names = {"mcp_name": params["taskId"]} if "taskId" in params else {}
            _, raw, said = asked(scene.signed, scene.ada.token, method, {**params, "_meta": meta}, **names)
            assert said is not None and "result" in said, raw
            return said["result"]

        scene.connect(scene.ada)
        assert eventually(lambda: "far__whoami" in {tool["name"] for tool in ask("tools/list")["tools"]})
        disconnect(scene.ada)
        call: dict[str, Any] = {"name": "far__whoami", "arguments": {}}
        first = ask("tools/call", **call)
        responses = {name: {"action": "accept"} for name in first["inputRequests"]}
        task = ask("tools/call", **call, inputResponses=responses, requestState=first["requestState"])
        assert task["resultType"] == "task"
        assert ask("tasks/get", taskId=task["taskId"])["status"] == "working"
        scene.connect(scene.ada)
        assert eventually(lambda: ask("tasks/get", taskId=task["taskId"])["status"] == "completed")
        (part,) = ask("tasks/get", taskId=task["taskId"])["result"]["content"]
        assert part["text"] == "ada-there"
