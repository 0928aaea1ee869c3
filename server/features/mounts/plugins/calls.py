"""Serve what a plugin in its own process tells and requests, on behalf of one call.

A table for notices, which need no answer, and one for requests. Methods of a Context's objects are declared in api.py.
The process is not trusted: all is typed, bounded, and for a call that is under way.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.base.rpc import frames
from toolgate.server.base.rpc.errors import ErrorData
from toolgate.server.base.rpc.frames import create_decoder
from toolgate.server.calls.client import InputRequired
from toolgate.server.calls.client_questions import CAPABILITY
from toolgate.server.features.mounts.plugins import api, data
from toolgate.server.features.mounts.plugins.data import ContextAnswer, ContextData
from toolgate.server.features.mounts.upstream.errors import UpstreamFault, UpstreamRefusal
from toolgate.server.features.mounts.upstream.messages import Members
from toolgate.server.features.mounts.upstream.peer import (
    LOG,
    PROGRESS,
    Flight,
    FlightRequest,
    MountNotice,
    Question,
)
from toolgate.server.protocol.revisions import Revision
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import drop_tracebacks
from toolgate.tools.builtin.skills.skills import Skills

log = logging.getLogger("toolgate.plugins")

CAPABILITIES = (*CAPABILITY.values(), "experimental", "tasks", "extensions")  # all of ClientCapabilities
FEATURES = tuple(name for name in Revision.__struct_fields__ if name != "name")
MAX_DATA = 16 * 2**20  # bytes of one answer: what a plugin gets of a file, an output or a page at once
MAX_CHANGES = 64  # files watched by one call

Ending = Members | UpstreamFault | UpstreamRefusal


class CallFlight(Flight):
    """The request of one call. The process is read no faster than notices are taken, so none is dropped."""

    def note(self, notice: MountNotice) -> None:
        self.events.put_nowait(notice)


class PluginCall:
    """One call in the process. `news` is set when a watched resource has changed, and at the end."""

    def __init__(self, flight: CallFlight, context: Context) -> None:
        self.flight = flight
        self.context = context
        self.ending: asyncio.Task[Ending] | None = None  # once it has begun
        self.is_cancelled = False
        self.news = asyncio.Event()
        self.questions: dict[int, InputRequired] = {}  # by the id of the request that asked
        self.requests: dict[int, asyncio.Task[None]] = {}
        self.changes: dict[int, AsyncIterator[object]] = {}  # watches of files, by the process's own numbers

    @property
    def is_over(self) -> bool:
        return self.flight.is_over

    @property
    def has_answered(self) -> bool:
        """Whether it has ended by itself."""
        return self.ending is not None and self.ending.done() and not self.ending.cancelled()

    async def follow(self, serve: "Callable[[PluginCall, FlightRequest], None]") -> Ending:
        """Take what the process tells and requests, and return how the call has ended."""
        try:
            while True:
                event = await self.flight.events.get()
                match event:
                    case MountNotice():
                        await take_notice(self, event)
                    case FlightRequest():
                        serve(self, event)
                    case Question():
                        pass  # no client is said to answer any
                    case _:
                        return event
        finally:
            self.news.set()


def create_context_data(context: Context) -> ContextData:
    """Return all data of a Context."""
    place, workspace = context.caller_state, context.workspace
    held, wants_progress = read_state(context)
    return ContextData(
        principal=context.principal,
        place=place.key,
        cwd=None if place.cwd is None else str(place.cwd),
        wants_progress=wants_progress,
        held=held,
        can=[name for name in CAPABILITIES if context.can(name)],
        knows=[name for name in FEATURES if context.knows(name)],
        settings=context.settings,
        is_read_only=context.is_read_only,
        root=str(workspace.root),
        sandbox=workspace.sandbox,
        output_folder=str(workspace.output_folder),
        private_folder=None if workspace.private_folder is None else str(workspace.private_folder),
        skills=[str(folder) for folder in context.service(Skills).folders],
    )


def read_state(context: Context) -> tuple[bool, bool]:
    """Return what may change during a call: whether it is held, and whether it wants progress."""
    return context.hold is not None, context.wants_progress


def move_caller(context: Context, cwd: str) -> None:
    """Set the caller's working directory to the plugin's, as a plugin in this process could."""
    if cwd.startswith("/") and "\0" not in cwd:
        context.caller_state.cwd = Path(cwd)


# -- notices


def _withdraw(call: PluginCall, notice: api.CancelNotice) -> None:
    task = call.requests.get(notice.request_id)
    if task is not None:
        task.cancel()


NOTICES: dict[str, tuple[type, Callable[[PluginCall, Any], Awaitable[None] | None]]] = {
    PROGRESS: (
        api.ProgressNotice,
        lambda call, notice: call.context.progress(notice.progress, notice.total, notice.message),
    ),
    LOG: (api.LogNotice, lambda call, notice: call.context.log(notice.level, notice.data, notice.logger)),
    data.UPDATED: (api.UriNotice, lambda call, notice: call.context.updated(notice.uri)),
    data.LIST_CHANGED: (api.EmptyNotice, lambda call, _: call.context.list_changed()),
    data.CLOSE_STREAM: (api.EmptyNotice, lambda call, _: call.context.close_stream()),
    data.CHANGED: (api.EmptyNotice, lambda call, _: call.news.set()),
    data.CANCELLED: (api.CancelNotice, _withdraw),
}


async def take_notice(call: PluginCall, notice: MountNotice) -> None:
    """Take a notice. One that is wrong is left out."""
    try:
        kind, take = NOTICES[notice.method]
        result = take(call, msgspec.convert(notice.params, kind))
        if result is not None:
            await result
    except Exception as error:  # noqa: BLE001  # a number out of range, an unknown level, …
        log.debug("a plugin's process sent a wrong notice, %.100r: %.200r", notice.method, error)


# -- requests


class _NotRememberedError(Exception):
    """Nothing is stored under the key."""


async def _recall(call: PluginCall, given: api.RecallArguments) -> Any:
    """Return what `once` has stored, in a list; an empty one if nothing is."""

    async def unknown() -> Any:
        raise _NotRememberedError

    try:
        return [await call.context.once(given.key, unknown)]
    except _NotRememberedError:
        return []


async def _keep(call: PluginCall, given: api.KeepArguments) -> Any:
    async def value() -> Any:
        return given.value

    return await call.context.once(given.key, value)


async def _change(call: PluginCall, given: api.WatchArguments) -> Any:
    """Return whether the file changed again; False if it can't be watched."""
    if given.number not in call.changes and len(call.changes) >= MAX_CHANGES:
        raise OverflowError(f"more than {MAX_CHANGES} files watched by one call")
    changes = call.changes.setdefault(given.number, call.context.watch_path(given.path))
    async for _ in changes:
        return True
    return False


REQUESTS: dict[str, tuple["msgspec.json.Decoder[Any]", Callable[[PluginCall, Any], Awaitable[Any]]]] = {
    "ask": (
        create_decoder(api.AskArguments),
        lambda call, given: call.context.ask(given.requests, timeout=given.timeout),
    ),
    "recall": (create_decoder(api.RecallArguments), _recall),
    "keep": (create_decoder(api.KeepArguments), _keep),
    "as_task": (create_decoder(api.AsTaskArguments), lambda call, given: call.context.as_task(required=given.required)),
    "change": (create_decoder(api.WatchArguments), _change),
}


async def answer_request(call: PluginCall, request: FlightRequest, name: str) -> ContextAnswer:
    """Perform a request and return its answer. Raises nothing but CancelledError."""
    try:
        result = frames.encode_raw(await _perform(call, name, request.params.get("arguments", frames.NOTHING)))
        if len(bytes(result)) > data.MAX_MESSAGE:
            raise OverflowError(f"the answer is larger than {data.MAX_MESSAGE:,} bytes")
        return ContextAnswer(result)
    except InputRequired as questions:
        drop_tracebacks(questions)
        call.questions[request.id] = questions
        return ContextAnswer(ends=True)
    except Exception as error:  # noqa: BLE001  # the plugin is told; our own faults are logged
        fault = data.ERRORS.to_data(error) or _log_fault(name)
        drop_tracebacks(error)
        return ContextAnswer(error=fault)


async def _perform(call: PluginCall, name: str, arguments: msgspec.Raw) -> Any:
    if name in REQUESTS:
        decoder, work = REQUESTS[name]
        return await work(call, decoder.decode(arguments))
    method = api.CONTEXT_METHODS.find(name)
    if method is None:
        raise LookupError(f"{name} is not available in a plugin's own process"[:200])
    owner, _, attribute = name.partition(".")
    given = method.decode_arguments(arguments, MAX_DATA)
    return await getattr(getattr(call.context, owner), attribute)(**given)


def _log_fault(name: str) -> ErrorData:
    reference = secrets.token_hex(6)
    log.exception("reference %s: ctx.%s failed", reference, name)
    return ErrorData("ToolError", f"ctx.{name} failed, reference {reference}")
