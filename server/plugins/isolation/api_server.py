"""Serve the requests of a plugin in its own process, on behalf of one call.

A table for notes, which need no answer, and one for requests. Methods of a Context's objects are declared in api.py.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.base.rpc import errors, frames
from toolgate.server.base.rpc.frames import create_decoder
from toolgate.server.calls.client import CAPABILITY, InputRequired
from toolgate.server.plugins.isolation import api, messages
from toolgate.server.protocol.revisions import Revision
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import drop_tracebacks
from toolgate.tools.builtin.skills.skills import Skills

log = logging.getLogger("toolgate.plugins")

CAPABILITIES = (*CAPABILITY.values(), "experimental", "tasks", "extensions")  # all of ClientCapabilities
FEATURES = tuple(name for name in Revision.__struct_fields__ if name != "name")
MAX_DATA = 16 * 2**20  # bytes of one answer: what a plugin gets of a file, an output or a page at once
MAX_CHANGES = 64  # files watched by one call


class PluginCall:
    """One call in the process. `news` is set when a watched file has changed, and at the end."""

    def __init__(self, id: int, context: Context) -> None:
        self.id = id
        self.context = context
        # None if the process ended first
        self.result: asyncio.Future[messages.CallResult | None] = asyncio.get_running_loop().create_future()
        self.news = asyncio.Event()
        self.questions: dict[int, InputRequired] = {}  # by the number of the request that asked
        self.requests: dict[int, asyncio.Task[None]] = {}
        self.changes: dict[int, AsyncIterator[object]] = {}  # watches of files, by the process's own numbers


def context_data(context: Context) -> messages.ContextData:
    """Return all data of a Context."""
    place, workspace = context.caller_state, context.workspace
    return messages.ContextData(
        principal=context.principal,
        place=place.key,
        cwd=None if place.cwd is None else str(place.cwd),
        wants_progress=context.wants_progress,
        held=context.hold is not None,
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


def move_caller(context: Context, cwd: str) -> None:
    """Set the caller's working directory to the plugin's, as a plugin in this process could."""
    if cwd.startswith("/") and "\0" not in cwd:
        context.caller_state.cwd = Path(cwd)


# -- notes


NOTES: dict[str, tuple["msgspec.json.Decoder[Any]", Callable[[PluginCall, Any], Awaitable[None] | None]]] = {
    "progress": (
        create_decoder(api.ProgressNote),
        lambda call, note: call.context.progress(note.progress, note.total, note.message),
    ),
    "log": (create_decoder(api.LogNote), lambda call, note: call.context.log(note.level, note.data, note.logger)),
    "updated": (create_decoder(api.UriNote), lambda call, note: call.context.updated(note.uri)),
    "list_changed": (create_decoder(api.EmptyNote), lambda call, _: call.context.list_changed()),
    "close_stream": (create_decoder(api.EmptyNote), lambda call, _: call.context.close_stream()),
    "changed": (create_decoder(api.EmptyNote), lambda call, _: call.news.set()),
}


async def take_note(call: PluginCall, name: str, given: msgspec.Raw) -> None:
    """Handle a note. Raises frames.MalformedFrameError."""
    try:
        decoder, take = NOTES[name]
        result = take(call, decoder.decode(given))
        if result is not None:
            await result
    except Exception as error:  # noqa: BLE001  # a number out of range, an unknown level, …
        raise frames.MalformedFrameError(f"an invalid note, {name!r}: {error!r}"[:300]) from None


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


async def answer_request(call: PluginCall, request: messages.ApiRequest) -> messages.ApiAnswer:
    """Perform a request and return its answer. Raises nothing but CancelledError."""
    try:
        result = frames.encode_raw(await _perform(call, request))
        if len(bytes(result)) > frames.MAX_FRAME - 100:
            raise OverflowError(f"the answer is larger than {frames.MAX_FRAME:,} bytes")
        return messages.ApiAnswer(request.number, result)
    except InputRequired as questions:
        drop_tracebacks(questions)
        call.questions[request.number] = questions
        return messages.ApiAnswer(request.number, ends=True)
    except Exception as error:  # noqa: BLE001  # the plugin is told; our own faults are logged
        data = errors.error_to_data(error) or _log_fault(request.name)
        drop_tracebacks(error)
        return messages.ApiAnswer(request.number, error=data)


async def _perform(call: PluginCall, request: messages.ApiRequest) -> Any:
    if request.name in REQUESTS:
        decoder, work = REQUESTS[request.name]
        return await work(call, decoder.decode(request.arguments))
    method = api.CONTEXT_METHODS.find(request.name)
    if method is None:
        raise LookupError(f"{request.name} is not available in a plugin's own process"[:200])
    owner, _, name = request.name.partition(".")
    given = method.decode_arguments(request.arguments, MAX_DATA)
    return await getattr(getattr(call.context, owner), name)(**given)


def _log_fault(name: str) -> errors.ErrorData:
    reference = secrets.token_hex(6)
    log.exception("reference %s: ctx.%s failed", reference, name)
    return errors.ErrorData("ToolError", f"ctx.{name} failed, reference {reference}")
