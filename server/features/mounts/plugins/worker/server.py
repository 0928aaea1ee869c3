"""Answer for one plugin: MCP's methods for its parts, and a few of our own for the server that mounts it."""

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.base.rpc import frames
from toolgate.server.base.version import VERSION
from toolgate.server.features.mounts.plugins import api, data
from toolgate.server.features.mounts.plugins.data import CallFailure, CallState, ContextData, LoadFailure
from toolgate.server.features.mounts.plugins.worker.calls import CALLS, PartCall, RegistryCall, find_part
from toolgate.server.features.mounts.plugins.worker.context import ContextFactory
from toolgate.server.features.mounts.plugins.worker.link import QuestionAskedError, ServerLink
from toolgate.server.features.mounts.plugins.worker.listing import REVISION, format_part
from toolgate.server.protocol import serialization
from toolgate.server.protocol.dispatcher import NO_SCOPES, Dispatcher, Method
from toolgate.server.protocol.errors import InvalidParams, RpcError
from toolgate.server.protocol.message_ids import Id
from toolgate.server.protocol.messages import decode
from toolgate.server.protocol.revisions import Revision
from toolgate.server.protocol.session import Call, Channel, Session
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import CollisionError, ToolError, drop_tracebacks
from toolgate.tools.api.plugins.discovery import MAX_SOURCE
from toolgate.tools.api.plugins.loader import PluginLoader, PluginLoadError
from toolgate.tools.api.registry import Part, Registry

PAGE = 20  # parts of one answer: their schemas may be large
MAX_STRUCTURE = 2**20  # bytes of the structure of a message: more than a client may send

CAPABILITIES: Mapping[str, Any] = {
    "tools": {},
    "prompts": {},
    "resources": {},
    "completions": {},
    "experimental": {data.CONTEXT: {}},
}
LISTS: Mapping[str, tuple[str, Callable[[Registry], Iterable[Part]]]] = {  # method → field of its answer, and the parts
    "tools/list": ("tools", lambda registry: registry.tools.values()),
    "prompts/list": ("prompts", lambda registry: registry.prompts.values()),
    "resources/list": ("resources", lambda registry: registry.resources.values()),
    "resources/templates/list": ("resourceTemplates", lambda registry: registry.templates.values()),
    "events/list": ("events", lambda registry: registry.events.values()),
}


class CallFailedError(RpcError):
    """A call of a part has no result; `data` is a CallFailure."""

    code = -32000

    def __init__(self, failure: CallFailure) -> None:
        super().__init__("the call has no result", failure)


class LoadFailedError(RpcError):
    """The plugin is not loaded; `data` is a LoadFailure."""

    code = -32000

    def __init__(self, failure: LoadFailure) -> None:
        super().__init__("the plugin is not loaded", failure)


class PluginDispatcher(Dispatcher):
    """A dispatcher that passes what the server answers to `take_answer(data)`, which returns whether it was that.

    What arrives comes from the server, which has measured it: here its limit is wider.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        notifications: Mapping[str, Callable[[Session, dict[str, Any]], None]],
        take_answer: Callable[[bytes | bytearray | memoryview], bool],
    ) -> None:
        super().__init__(methods, notifications, partial(serialization.finish_answer, identity=_format_identity))
        self._take_answer = take_answer

    def handle(
        self, data: bytes | bytearray | memoryview, session: Session, channel: Channel
    ) -> Coroutine[Any, Any, None]:
        if self._take_answer(data):
            return _do_nothing()
        return self.handle_message(decode(data, MAX_STRUCTURE), session, channel)


class PluginServer:
    """The server of one plugin. `session` is that of the server that mounts it."""

    def __init__(self, file: Path, session: Session) -> None:
        self._file = file
        self._modules = PluginLoader(MAX_SOURCE)
        self._registry = Registry()
        self._link = ServerLink(session)
        self._contexts = ContextFactory(self._link)
        self._tasks: dict[Id, asyncio.Task[msgspec.Raw | CallFailure]] = {}
        self._cancelled: set[Id] = set()

    def create_dispatcher(self) -> PluginDispatcher:
        functions: dict[str, Callable[[Call], Any]] = {
            "server/discover": lambda _: {"supportedVersions": [REVISION.name], "capabilities": CAPABILITIES},
            data.LOAD: self._load,
            data.CANCEL: self._cancel,
            data.WATCH: partial(self._answer, self._watch),
            **{method: partial(self._list, *row) for method, row in LISTS.items()},
            **{method: partial(self._answer, self._on_registry(work)) for method, work in CALLS.items()},
        }
        methods = {
            name: Method(function, lambda _params, _principal: NO_SCOPES) for name, function in functions.items()
        }
        handlers = {data.STATE: self._take_state, data.CANCELLED: _cancel_request}
        return PluginDispatcher(methods, handlers, self._link.take_answer)

    # -- the plugin

    async def _load(self, call: Call) -> dict[str, Any]:
        """Import the plugin. Its errors are the server's to log."""
        try:
            parts = (await self._modules.load(self._file)).parts
            self._registry = Registry(parts)
        except CollisionError as error:
            raise LoadFailedError(LoadFailure(str(error))) from None
        except PluginLoadError as error:
            if error.__cause__ is None:
                raise LoadFailedError(LoadFailure(str(error))) from None
            fault = "".join(traceback.format_exception(error.__cause__))
            raise LoadFailedError(LoadFailure(fault, by_plugin=True)) from None
        for event in self._registry.events.values():
            event.sink = partial(self._link.emit, event)
        return {}

    def _list(self, field: str, find_parts: Callable[[Registry], Iterable[Part]], call: Call) -> dict[str, Any]:
        """Return a page of a list; the cursor is the number of its first part."""
        parts, begin = list(find_parts(self._registry)), int(call.params.get("cursor") or 0)
        end = begin + PAGE
        following = {"nextCursor": str(end)} if end < len(parts) else {}
        return {field: [format_part(part) for part in parts[begin:end]], **following}

    # -- calls of its parts

    async def _answer(self, work: PartCall, call: Call) -> msgspec.Raw:
        """Return the result of a call, encoded. Raises CallFailedError."""
        caller = _read_caller(call)
        context = self._contexts.create(call.id, caller)
        task = self._tasks[call.id] = asyncio.get_running_loop().create_task(self._run(work, call, caller, context))
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            del self._tasks[call.id]
            self._contexts.release(call.id)
            self._cancelled.discard(call.id)
        ending = CallFailure(is_cancelled=True) if task.cancelled() else task.result()  # before its first step
        if isinstance(ending, CallFailure):
            raise CallFailedError(ending)
        return ending

    async def _run(
        self, work: PartCall, call: Call, caller: ContextData, context: Context
    ) -> msgspec.Raw | CallFailure:
        """Run one call. An exception of the plugin ends only this call."""
        try:
            result = await work(call.params, context)
            moved = _find_move(caller, context)
            if moved is not None:
                result["_meta"] = {data.CWD: moved}
            return _encode_result(result)
        except asyncio.CancelledError:
            if call.id in self._cancelled:
                failure = CallFailure(is_cancelled=True)
            else:  # the plugin's own cancellation
                failure = CallFailure(fault=traceback.format_exc())
        except ToolError as error:
            failure = CallFailure(error=data.ERRORS.to_data(error))
            drop_tracebacks(error)
        except BaseException as error:  # noqa: BLE001
            questions = find_questions(error)
            failure = CallFailure(questions=questions, fault=None if questions else traceback.format_exc())
            drop_tracebacks(error)
        return msgspec.structs.replace(failure, cwd=_find_move(caller, context))

    def _on_registry(self, work: RegistryCall) -> PartCall:
        """Return the work of a call on the parts of now."""
        return lambda params, context: work(self._registry, params, context)

    async def _watch(self, params: Mapping[str, Any], context: Context) -> dict[str, Any]:
        """Tell of each change of a resource until the call is cancelled."""
        part: Any = find_part(self._registry, params.get("uri"))
        id = params["_meta"]["progressToken"]
        async with contextlib.aclosing(part.watch(params["variables"], context)) as changes:
            async for _ in changes:
                self._link.note(id, data.CHANGED, api.EmptyNotice())
        return {}

    def _cancel(self, call: Call) -> dict[str, Any]:
        """Cancel a call. The answer says that this process lives."""
        id = call.params.get("requestId")
        if id in self._tasks:
            self._cancelled.add(id)
            self._tasks[id].cancel()
        return {}

    def _take_state(self, _: Session, params: dict[str, Any]) -> None:
        self._contexts.update(msgspec.convert(params, CallState))


def find_questions(error: BaseException) -> list[int]:
    """Return the numbers of the questions in an error or in a group of errors."""
    if isinstance(error, QuestionAskedError):
        return [error.number]
    if isinstance(error, BaseExceptionGroup):
        return [number for inner in error.exceptions for number in find_questions(inner)]
    return []


def _read_caller(call: Call) -> ContextData:
    """Return the data of the caller's Context. Raises InvalidParams."""
    try:
        return msgspec.convert(call.meta[data.CALLER], ContextData)
    except (KeyError, msgspec.ValidationError):
        raise InvalidParams(f"'_meta' must have {data.CALLER!r}: only Toolgate calls a plugin") from None


def _encode_result(result: dict[str, Any]) -> msgspec.Raw:
    """Return the result of a call, encoded. Raises ToolError for one that is too large."""
    encoded = frames.encode_raw(serialization.add_result_type(result, _format_identity(REVISION)))
    size = len(bytes(encoded))
    if size > data.MAX_MESSAGE:
        raise ToolError(f"the result is too much for a plugin's own process: {size:,} bytes, over {data.MAX_MESSAGE:,}")
    return encoded


def _find_move(caller: ContextData, context: Context) -> str | None:
    """Return the caller's new folder, if the plugin moved it."""
    cwd = context.caller_state.cwd
    return None if cwd is None or str(cwd) == caller.cwd else str(cwd)


def _cancel_request(session: Session, params: dict[str, Any]) -> None:
    session.cancel(params["requestId"])


def _format_identity(revision: Revision) -> dict[str, Any]:
    return serialization.format_implementation("toolgate-plugin", VERSION, revision)


async def _do_nothing() -> None:
    """An answer was taken."""
