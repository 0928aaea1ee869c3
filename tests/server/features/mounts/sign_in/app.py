"""The official Python client of a person whom a call asks to open a link, in both eras."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from tests.clients.raw_client import PATIENCE, STATELESS
from tests.server.auth.sign_in_server import PageAnswer
from tests.servers.home_page_server import AppUser
from tests.transports.web.test_home import _csrf as find_csrf

both_eras = pytest.mark.parametrize("mode", ["legacy", STATELESS])


def each_era(test: Any) -> Any:
    """Run a test in both eras; `make test` runs each test of a module in the next one."""
    return pytest.mark.rotated(1)(both_eras(test))


class SignInScene(Protocol):
    """A server with the mount `far`, and a person. `connect` walks a person's browser there and back."""

    ada: AppUser

    def connect(self, who: AppUser) -> PageAnswer: ...


class App:
    """What the client was asked and told, and its calls. `answer` gives the person's action; without it, the client
    opens no links."""

    def __init__(
        self,
        scene: SignInScene,
        mode: str,
        answer: "Answer | None",
        who: AppUser | None = None,
        tool: str = "far__whoami",
        **arguments: Any,
    ) -> None:
        self.who = who or scene.ada
        self.asked: list[types.ElicitRequestURLParams] = []
        self.is_asked = asyncio.Event()
        self.completed: list[str] = []
        self.changed = asyncio.Event()  # it was told that its list of tools has changed
        self.running: set[int] = set()  # the calls that have taken a second
        self._calls = 0
        self._scene = scene
        self._mode = mode
        self._answer = answer
        self._tool = tool
        self._arguments = arguments

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["App"]:
        headers = {"Authorization": f"Bearer {self.who.token}"}
        async with asyncio.timeout(PATIENCE), create_mcp_http_client(headers) as http:
            transport = streamable_http_client(f"{self.who.url}/mcp", http_client=http)
            how: dict[str, Any] = {} if self._answer is None else {"elicitation_callback": self._have_answered}
            async with Client(transport, mode=self._mode, message_handler=self._hear, cache=None, **how) as self.client:
                yield self

    async def connect(self) -> None:
        await asyncio.to_thread(self._scene.connect, self.who)

    async def list_far(self) -> set[str]:
        """Return the names of the mount's tools."""
        return {tool.name for tool in (await self.client.list_tools()).tools if tool.name.startswith("far__")}

    async def wait_listed(self) -> None:
        while self._tool not in await self.list_far():
            await asyncio.sleep(0.05)

    async def call(self, tool: str | None = None) -> str:
        """Return the text of the result, or of the error. `tool`: in place of the app's, without arguments."""

        async def note(*_: Any) -> None:
            self.running.add(number)

        self._calls += 1
        number = self._calls
        what = (self._tool, self._arguments) if tool is None else (tool, {})
        result = await self.client.call_tool(*what, progress_callback=note)
        (part,) = result.content
        assert isinstance(part, types.TextContent)
        return part.text

    async def _have_answered(self, _context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams) and self._answer is not None
        self.asked.append(params)
        self.is_asked.set()
        action: Any = await self._answer(self)
        return types.ElicitResult(action=action)

    async def _hear(self, message: Any) -> None:
        if isinstance(message, types.ElicitCompleteNotification):
            self.completed.append(message.params.elicitation_id)
        elif isinstance(message, types.ToolListChangedNotification):
            self.changed.set()


Answer = Callable[[App], Awaitable[str]]


async def connect(app: App) -> str:
    """Answer a question as a person who connects at once."""
    await app.connect()
    return "accept"


async def accept(_: App) -> str:
    """Answer a question as a person who connects later."""
    return "accept"


@contextlib.asynccontextmanager
async def open_app(
    scene: SignInScene,
    mode: str,
    answer: Answer | None,
    tool: str = "far__whoami",
    **arguments: Any,
) -> AsyncIterator[App]:
    """Yield an app that lists the tool, of a person who is not connected."""
    async with App(scene, mode, answer, scene.ada, tool, **arguments).open() as app:
        await app.connect()
        await app.wait_listed()
        await asyncio.to_thread(disconnect, app.who)
        yield app


def disconnect(who: AppUser) -> None:
    """End the person's connection on the first page."""
    browser = who.browser()
    token = find_csrf(browser.get("/").text)
    ended = browser.post("/", {"csrf": token, "disconnect": "far"})
    assert (ended.status, "The connection was ended." in ended.text) == (200, True), ended.text


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        await work

    asyncio.run(main())
