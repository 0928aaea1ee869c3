"""Build the Context of a call in a plugin's own process: data is local, the rest is requested from the server."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.base.rpc.methods import ApiMethod
from toolgate.server.features.mounts.plugins import api
from toolgate.server.features.mounts.plugins.data import CLOSE_STREAM, LIST_CHANGED, UPDATED, CallState, ContextData
from toolgate.server.features.mounts.plugins.worker.link import QuestionAskedError, ServerLink
from toolgate.server.features.mounts.upstream.peer import LOG, PROGRESS
from toolgate.server.protocol.message_ids import Id
from toolgate.server.protocol.session import LEVELS
from toolgate.tools.api.content import Continuation
from toolgate.tools.api.context.context import Caller, Context
from toolgate.tools.api.context.services import CallerState, Services
from toolgate.tools.api.errors import ToolError
from toolgate.tools.builtin.skills.skills import Skills
from toolgate.tools.workspace.files import access as files


class RemotePeer:
    """Speak to the client of the call `id`."""

    caller = Caller()

    def __init__(self, link: ServerLink, id: Id, caller: ContextData) -> None:
        self.wants_progress = caller.wants_progress
        self.is_held = caller.held
        self._link = link
        self._id = id
        self._can = frozenset(caller.can)
        self._knows = frozenset(caller.knows)
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
            self._tell(PROGRESS, api.ProgressNotice(progress, total, message))

    def log(self, level: str, data: Any, logger: str | None) -> None:
        LEVELS.index(level)
        self._tell(LOG, api.LogNotice(level, data, logger))

    def complete_link(self, key: str) -> None: ...  # the server's own questions have links

    def at_once(self, key: str) -> bool:
        return False  # the server's own questions use it

    def close_stream(self) -> None:
        self._tell(CLOSE_STREAM, api.EmptyNotice())

    async def as_task(self, required: bool) -> bool:
        is_one: bool = msgspec.json.decode(await self._link.request(self._id, "as_task", api.AsTaskArguments(required)))
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
            answers = await self._link.request(self._id, "ask", api.AskArguments(dict(requests), timeout))
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
        known = msgspec.json.decode(await self._link.request(self._id, "recall", api.RecallArguments(key)))
        if known:
            self._done[key] = known[0]
        else:
            value = await function()
            await self._link.request(self._id, "keep", api.KeepArguments(key, value))
            self._done[key] = value
        return self._done[key]

    def _finish_question(self) -> None:
        self._asking -= 1
        if not self._asking:
            self._no_questions.set()

    def _tell(self, method: str, notice: msgspec.Struct) -> None:
        """Send a notice after checking its shape here, so that the plugin learns what is wrong with it."""
        self._link.note(self._id, method, msgspec.convert(msgspec.structs.asdict(notice), type(notice)))


class RemoteObject:
    """An object of the Context with methods that run in the server: those of CONTEXT_METHODS (api.py)."""

    def __init__(self, link: ServerLink, id: Id, owner: str) -> None:
        self._link = link
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
        return method.result.decode(await self._link.request(self._id, f"{self._owner}.{name}", given))


class RemoteWorkspace(RemoteObject):
    """The workspace; its data and what needs no server are local."""

    def __init__(self, link: ServerLink, id: Id, caller: ContextData) -> None:
        super().__init__(link, id, "workspace")
        self.root = Path(caller.root)
        self.sandbox = caller.sandbox
        self.output_folder = Path(caller.output_folder)
        self.private_folder = None if caller.private_folder is None else Path(caller.private_folder)

    def check_file(self, path: str, *, suffix: str) -> None:
        files.split_path(path, self.root, suffix)


class ContextFactory:
    """Make the Context of each call."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        self._skills: dict[Sequence[str], Skills] = {}
        self._watches = 0
        self._peers: dict[Id, RemotePeer] = {}

    def create(self, id: Id, caller: ContextData) -> Context:
        owned: dict[str, Any] = {owner: RemoteObject(self._link, id, owner) for owner in api.CONTEXT_METHODS.objects}
        owned["workspace"] = RemoteWorkspace(self._link, id, caller)
        belongings = Services(
            principal=caller.principal,
            caller_state=CallerState(caller.place, None if caller.cwd is None else Path(caller.cwd)),
            built_in={Skills: self._skills_in(tuple(caller.skills))},
            settings=caller.settings,
            is_read_only=caller.is_read_only,
            notify_list_changed=lambda: self._link.note(id, LIST_CHANGED, api.EmptyNotice()),
            notify_updated=lambda uri: self._link.note(id, UPDATED, api.UriNotice(str(uri))),
            watch_path=partial(self._changes, id),
            **owned,
        )
        peer = self._peers[id] = RemotePeer(self._link, id, caller)
        return Context(belongings, peer)

    def update(self, state: CallState) -> None:
        """Apply a change of a call's data; nothing happens if the call has ended."""
        if state.request_id in self._peers:
            self._peers[state.request_id].update(state.held, state.wants_progress)

    def release(self, id: Id) -> None:
        """Release the call: it has ended."""
        self._peers.pop(id, None)

    def _skills_in(self, folders: Sequence[str]) -> Skills:
        """Return the skills in `folders`: their files are read here, without the server's cache."""
        if folders not in self._skills:
            self._skills[folders] = Skills([Path(folder) for folder in folders])
        return self._skills[folders]

    async def _changes(self, id: Id, path: Path, _since: float | None) -> AsyncIterator[object]:
        self._watches += 1
        watch = api.WatchArguments(self._watches, path)
        while msgspec.json.decode(await self._link.request(id, "change", watch)):
            yield None
