"""A call without a connection has the person make one, and goes on: the official Python client, in both eras."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from tests.clients.raw_client import PATIENCE, STATELESS, eventually
from tests.server.auth.minted_tokens import Signed, signed_site
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn, far_sign_in
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene
from tests.servers.home_page_server import AppUser
from tests.transports.web.test_home import _csrf as find_csrf

Answer = Callable[[types.ElicitRequestURLParams], Awaitable[str]]

each_era = pytest.mark.parametrize("mode", ["legacy", STATELESS])


class App:
    """One client of a person, what it was asked and what it was told. `answer` gives the action."""

    def __init__(self, scene: Scene, who: AppUser, mode: str, answer: Answer | None) -> None:
        self.asked: list[types.ElicitRequestURLParams] = []
        self.completed: list[str] = []
        self.most_at_once = 0
        self._at_once = 0
        self._scene = scene
        self._who = who
        self._mode = mode
        self._answer = answer

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["App"]:
        headers = {"Authorization": f"Bearer {self._who.token}"}
        async with asyncio.timeout(3 * PATIENCE), create_mcp_http_client(headers) as http:
            transport = streamable_http_client(f"{self._who.url}/mcp", http_client=http)
            how: dict[str, Any] = {} if self._answer is None else {"elicitation_callback": self._have_answered}
            async with Client(transport, mode=self._mode, message_handler=self._hear, cache=None, **how) as self.client:
                yield self

    async def know(self) -> None:
        """List the tools while the person is connected, and end the connection."""
        await asyncio.to_thread(self._scene.connect, self._who)
        while not [tool for tool in (await self.client.list_tools()).tools if tool.name == "far__whoami"]:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(disconnect, self._who)

    async def call(self) -> str:
        """Return the text of the result, or of the error."""
        result = await self.client.call_tool("far__whoami", {})
        (part,) = result.content
        assert isinstance(part, types.TextContent)
        return part.text

    async def _have_answered(self, _context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams) and self._answer is not None
        self.asked.append(params)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            action: Any = await self._answer(params)
        finally:
            self._at_once -= 1
        return types.ElicitResult(action=action)

    async def _hear(self, message: Any) -> None:
        if isinstance(message, types.ElicitCompleteNotification):
            self.completed.append(message.params.elicitation_id)


def disconnect(who: AppUser) -> None:
    browser = who.browser()
    token = find_csrf(browser.get("/").text)
    assert browser.post("/", {"csrf": token, "disconnect": "far"}).status == 200


@pytest.fixture
def far() -> Iterator[FarSignIn]:
    with far_sign_in() as opened:
        yield opened


@contextlib.contextmanager
def opened_scene(folder: Path, far: FarSignIn, *options: str) -> Iterator[Scene]:
    table = url_mount(f"{far.origin}/mcp", "far", *AUTH)
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
