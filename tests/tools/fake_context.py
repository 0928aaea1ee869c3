"""A fake context for workflow tools, with the real state behind it and a person who answers as the test says."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from toolgate.server.state.rows.callback_timer import CallbackTimer
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.server.state.rows.plans import PlanStore
from toolgate.server.state.rows.todos import TodoStore
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.tools.api.content import Continuation, Output, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.context.services import CallerState, Services, Settings
from toolgate.tools.api.tool import Tool
from toolgate.tools.builtin.callbacks import Firings
from toolgate.tools.builtin.skills.skills import BUILT_IN, Skills
from toolgate.tools.workspace.files import access as files


class Person:
    """The client's end: `answer` gets the form's params and returns the result, or raises."""

    wants_progress = False
    is_held = True

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Any] | None = None,
        features: frozenset[str] = frozenset(),
        hasty: bool = False,
    ) -> None:
        self.answer = answer
        self.features = features
        self.hasty = hasty
        self.asked: list[dict[str, Any]] = []

    def can(self, capability: str) -> bool:
        return capability == "elicitation" and self.answer is not None

    def knows(self, feature: str) -> bool:
        return feature in self.features

    def progress(self, progress: float, total: float | None, message: str | None) -> None: ...

    def log(self, level: str, data: Any, logger: str | None) -> None: ...

    def close_stream(self) -> None: ...

    def complete_link(self, key: str) -> None: ...

    def at_once(self, key: str) -> bool:
        return self.hasty

    async def as_task(self, required: bool) -> bool:
        return False

    async def follow_as_task(self, continuation: Continuation) -> bool:
        return False

    def when_changed(self, tell: Callable[[], None]) -> None: ...

    async def ask(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        assert self.answer is not None
        ((key, request),) = requests.items()
        assert request["method"] == "elicitation/create"
        self.asked.append(request["params"])
        return {key: self.answer(request["params"])}

    async def once(self, key: str, function: Callable[[], Awaitable[Any]]) -> Any:
        return await function()


class FakeWorkspace:
    """A fake workspace, as far as PlanMode needs one."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def check_file(self, path: str, *, suffix: str) -> None:
        files.split_path(path, self.root, suffix)

    async def write_file(self, path: str, data: bytes, *, suffix: str) -> Path:
        return files.write(path, data, self.root, suffix)


class FakeServices:
    """A principal's services, in a session or (with session "") without one."""

    def __init__(self, folder: Path, principal: str = "a", session: str = "s", person: Person | None = None) -> None:
        self.time = 1_000_000.0
        self.folder = folder
        self.person = person or Person()
        self.store = SqliteStore(folder / "state")
        self.clock = CallbackTimer(self.store, lambda _: None, now=lambda: self.time)
        callbacks = CallbackStore(self.store, self.clock, principal, session)
        self.belongings = Services(
            principal=principal,
            caller_state=CallerState(session),
            workspace=cast(Any, FakeWorkspace(folder)),  # PlanMode needs no more
            todos=TodoStore(self.store, principal, session),
            plan=PlanStore(self.store, principal, session),
            callbacks=callbacks,
            web=cast(Any, None),
            settings=Settings(),
            built_in={Skills: Skills([folder / "skills", BUILT_IN]), Firings: callbacks},
        )

    async def call(self, tool: Tool, **arguments: Any) -> Output:
        output = await tool.run(arguments, Context(self.belongings, self.person))
        if output.structured is not None:
            assert tool.output is not None
            from toolgate.tools.api.schema import schema

            built = msgspec.to_builtins(output.structured)
            assert schema.compile_check(tool.output)(built) is None
        return output

    async def __aenter__(self) -> "FakeServices":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.clock.stop()
        self.store.close()


def run(body: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(body, 20)

    asyncio.run(bounded())


def said(output: Output) -> str:
    """Return the text of an answer that is not an error."""
    assert not output.is_error, output
    return _text(output)


def refused(output: Output) -> str:
    """Return the text of an error."""
    assert output.is_error, output
    return _text(output)


def data(output: Output) -> Any:
    return msgspec.to_builtins(output.structured)


def _text(output: Output) -> str:
    (block,) = output.content
    assert isinstance(block, Text)
    return block.text
