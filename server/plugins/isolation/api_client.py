"""Build the Context of a call in a plugin's own process: data is local, the rest is requested from the server."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from toolgate.server.base.rpc.methods import ApiMethod
from toolgate.server.plugins.isolation import api
from toolgate.server.plugins.isolation.messages import ContextData, ContextUpdate
from toolgate.server.protocol.session import LEVELS
from toolgate.tools.api.content import Continuation
from toolgate.tools.api.context.context import Caller, Context
from toolgate.tools.api.context.services import CallerState, Services
from toolgate.tools.api.errors import ToolError
from toolgate.tools.builtin.skills.skills import Skills
from toolgate.tools.workspace.files import access as files


class QuestionAskedError(BaseException):
    """End the call with the question of request `number`. Not an Exception, so that no plugin catches it by mistake."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class ServerLink(Protocol):
    """Sends notes and requests to the server."""

    def note(self, id: int, name: str, given: Any, *, news: bool = False) -> None:
        """Send a note. `news` may be dropped when the server is slow."""
        ...

    async def request(self, id: int, name: str, given: Any) -> msgspec.Raw:
        """Send a request and return its result. Raises the server's exception, and QuestionAskedError."""
        ...


class RemotePeer:
    """Speak to the client of the call `id`."""

    caller = Caller()

    def __init__(self, line: ServerLink, id: int, standing: ContextData) -> None:
        self.wants_progress = standing.wants_progress
        self.is_held = standing.held
        self._line = line
        self._id = id
        self._can = frozenset(standing.can)
        self._knows = frozenset(standing.knows)
        self._done: dict[str, Any] = {}
        self._asking = 0
        self._no_questions = asyncio.Event()
        self._when_changed: list[Callable[[], None]] = []

    def can(self, capability: str) -> bool:
        return capability in self._can

    def knows(self, feature: str) -> bool:
        return feature in self._knows

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self.wants_progress and math.isfinite(progress):
            total = total if total is not None and math.isfinite(total) else None
            self._tell("progress", api.ProgressNote(progress, total, message), news=True)

    def log(self, level: str, data: Any, logger: str | None) -> None:
        LEVELS.index(level)
        self._tell("log", api.LogNote(level, data, logger), news=True)

    def at_once(self, key: str) -> bool:
        return False  # the server's own questions use it

    def close_stream(self) -> None:
        self._tell("close_stream", api.EmptyNote())

    async def as_task(self, required: bool) -> bool:
        is_one: bool = msgspec.json.decode(await self._line.request(self._id, "as_task", api.AsTaskArguments(required)))
        return is_one

    async def follow_as_task(self, continuation: Continuation) -> bool:
        return False  # only built-in tools leave something running

    def when_changed(self, tell: Callable[[], None]) -> None:
        self._when_changed.append(tell)

    def update(self, held: bool, wants_progress: bool) -> None:
        """Apply the server's update."""
        self.is_held, self.wants_progress = held, wants_progress
        for tell in self._when_changed:
            tell()

    async def ask(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        """Ask the client. Questions asked at the same time are sent together, even if they end the call."""
        self._asking += 1
        self._no_questions.clear()
        try:
            answers = await self._line.request(self._id, "ask", api.AskArguments(dict(requests), timeout))
        except BaseException as error:
            self._finish_question()
            if isinstance(error, QuestionAskedError):
                if self._asking:
                    await self._no_questions.wait()
                else:
                    await asyncio.sleep(0)  # waiting calls go first, and none misses its turn
            raise
        self._finish_question()
        found: dict[str, Any] = msgspec.json.decode(answers)
        return found

    async def once(self, key: str, function: Callable[[], Awaitable[Any]]) -> Any:
        if key in self._done:
            return self._done[key]
        known = msgspec.json.decode(await self._line.request(self._id, "recall", api.RecallArguments(key)))
        if known:
            self._done[key] = known[0]
        else:
            value = await function()
            await self._line.request(self._id, "keep", api.KeepArguments(key, value))
            self._done[key] = value
        return self._done[key]

    def _finish_question(self) -> None:
        self._asking -= 1
        if not self._asking:
            self._no_questions.set()

    def _tell(self, name: str, given: msgspec.Struct, *, news: bool = False) -> None:
        """Send a note after checking its shape here: a malformed one would end the process."""
        self._line.note(self._id, name, msgspec.convert(msgspec.structs.asdict(given), type(given)), news=news)


class RemoteObject:
    """An object of the Context with methods that run in the server: those of CONTEXT_METHODS (api.py)."""

    def __init__(self, line: ServerLink, id: int, owner: str) -> None:
        self._line = line
        self._id = id
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        method = api.CONTEXT_METHODS.find(f"{self._owner}.{name}")
        if method is None:
            raise ToolError(f"ctx.{self._owner}.{name} is not available in a plugin's own process")
        return partial(self._call, name, method)

    async def _call(self, name: str, method: ApiMethod, /, *words: Any, **keywords: Any) -> Any:
        given = method.bind(words, keywords)
        return method.result.decode(await self._line.request(self._id, f"{self._owner}.{name}", given))


class RemoteWorkspace(RemoteObject):
    """The workspace; its data and what needs no server are local."""

    def __init__(self, line: ServerLink, id: int, standing: ContextData) -> None:
        super().__init__(line, id, "workspace")
        self.root = Path(standing.root)
        self.sandbox = standing.sandbox
        self.output_folder = Path(standing.output_folder)
        self.private_folder = None if standing.private_folder is None else Path(standing.private_folder)

    def check_file(self, path: str, *, suffix: str) -> None:
        files.split_path(path, self.root, suffix)


class ContextFactory:
    """Make the Context of each call."""

    def __init__(self, line: ServerLink) -> None:
        self._line = line
        self._skills: dict[Sequence[str], Skills] = {}
        self._watches = 0
        self._peers: dict[int, RemotePeer] = {}

    def create(self, id: int, standing: ContextData) -> Context:
        owned: dict[str, Any] = {owner: RemoteObject(self._line, id, owner) for owner in api.CONTEXT_METHODS.objects}
        owned["workspace"] = RemoteWorkspace(self._line, id, standing)
        belongings = Services(
            principal=standing.principal,
            caller_state=CallerState(standing.place, None if standing.cwd is None else Path(standing.cwd)),
            built_in={Skills: self._skills_in(tuple(standing.skills))},
            settings=standing.settings,
            is_read_only=standing.is_read_only,
            notify_list_changed=lambda: self._line.note(id, "list_changed", api.EmptyNote()),
            notify_updated=lambda uri: self._line.note(id, "updated", api.UriNote(str(uri))),
            watch_path=partial(self._changes, id),
            **owned,
        )
        peer = self._peers[id] = RemotePeer(self._line, id, standing)
        return Context(belongings, peer)

    def update(self, news: ContextUpdate) -> None:
        """Apply an update of a call's data; nothing happens if the call has ended."""
        if news.id in self._peers:
            self._peers[news.id].update(news.held, news.wants_progress)

    def release(self, id: int) -> None:
        """Release the call: it has ended."""
        self._peers.pop(id, None)

    def _skills_in(self, folders: Sequence[str]) -> Skills:
        """Return the skills in `folders`: their files are read here, without the server's cache."""
        if folders not in self._skills:
            self._skills[folders] = Skills([Path(folder) for folder in folders])
        return self._skills[folders]

    async def _changes(self, id: int, path: Path) -> AsyncIterator[object]:
        self._watches += 1
        watch = api.WatchArguments(self._watches, path)
        while msgspec.json.decode(await self._line.request(id, "change", watch)):
            yield None
