"""Do for a plugin in a process of its own what a Context offers, on behalf of one call.

Notes need no answer, requests do: a table of each. Methods of a Context's objects are declared in api.py.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from toolgate.server.calls.client import CAPABILITY, InputRequired
from toolgate.server.plugins.isolation import api, messages
from toolgate.server.plugins.isolation.messages import (
    ApiAnswer,
    ApiRequest,
    ContextData,
    ContextUpdate,
    ErrorData,
    MalformedFrameError,
)
from toolgate.server.protocol.revisions import Revision
from toolgate.tools.api.context import Context
from toolgate.tools.builtin.skills.skills import Skills
from toolgate.tools.workspace.workspace import Workspace

log = logging.getLogger("toolgate.plugins")

CAPABILITIES = (*CAPABILITY.values(), "experimental", "tasks", "extensions")  # all of ClientCapabilities
FEATURES = tuple(name for name in Revision.__struct_fields__ if name != "name")
MAX_DATA = 16 * 2**20  # bytes of one answer: what a plugin gets of a file, an output or a page at once
MAX_CHANGES = 64  # files watched by one call


class CallState(Protocol):
    """The call on whose behalf notes and requests come."""

    context: Context
    questions: dict[int, InputRequired]
    changes: dict[int, AsyncIterator[object]]
    news: Any  # an asyncio.Event


def context_data(context: Context) -> ContextData:
    """Return all of a Context that is data."""
    place, workspace = context.caller_state, context.workspace
    return ContextData(
        principal=context.principal,
        place=place.key,
        cwd=None if place.cwd is None else str(place.cwd),
        wants_progress=context.wants_progress,
        held=context.hold is not None,
        can=[name for name in CAPABILITIES if context.can(name)],
        knows=[name for name in FEATURES if context.knows(name)],
        settings=context.settings,
        root=str(workspace.root),
        sandbox=workspace.sandbox,
        skills=[str(folder) for folder in context.service(Skills).folders],
    )


def context_update(id: int, context: Context) -> ContextUpdate:
    """Return what of a Context's data may have changed."""
    return ContextUpdate(id, context.hold is not None, context.wants_progress)


def move_caller(context: Context, cwd: str) -> None:
    """Move the caller to the folder that the plugin moved it to, as a plugin in this process could."""
    if cwd.startswith("/") and "\0" not in cwd:
        context.caller_state.cwd = Path(cwd)


# -- notes


async def _progress(call: CallState, given: api.ProgressNote) -> None:
    await call.context.progress(given.progress, given.total, given.message)


async def _log(call: CallState, given: api.LogNote) -> None:
    await call.context.log(given.level, given.data, given.logger)


async def _note_update(call: CallState, given: api.UriNote) -> None:
    call.context.updated(given.uri)


async def _list_changed(call: CallState, given: api.EmptyNote) -> None:
    call.context.list_changed()


async def _close_stream(call: CallState, given: api.EmptyNote) -> None:
    call.context.close_stream()


async def _note_change(call: CallState, given: api.EmptyNote) -> None:
    call.news.set()


async def _note_run(call: CallState, given: api.RunNote) -> None:
    call.context.service(Workspace).drop_notice(given.run)


NOTES: dict[str, tuple["msgspec.json.Decoder[Any]", Callable[[CallState, Any], Awaitable[None]]]] = {
    "progress": (messages.create_decoder(api.ProgressNote), _progress),
    "log": (messages.create_decoder(api.LogNote), _log),
    "updated": (messages.create_decoder(api.UriNote), _note_update),
    "list_changed": (messages.create_decoder(api.EmptyNote), _list_changed),
    "close_stream": (messages.create_decoder(api.EmptyNote), _close_stream),
    "changed": (messages.create_decoder(api.EmptyNote), _note_change),
    "workspace.drop_notice": (messages.create_decoder(api.RunNote), _note_run),
}


async def take_note(call: CallState, name: str, given: msgspec.Raw) -> None:
    """Handle a note. Raises MalformedFrameError."""
    try:
        decoder, take = NOTES[name]
        await take(call, decoder.decode(given))
    except Exception as error:  # noqa: BLE001  # a number beyond all bounds, a level that is none, …
        raise MalformedFrameError(f"a note that is none, {name!r}: {error!r}"[:300]) from None


# -- requests


class _UnknownKeyError(Exception):
    """Nothing is remembered under the key."""


async def _ask(call: CallState, given: api.AskArguments) -> Any:
    return await call.context.ask(given.requests, timeout=given.timeout)


async def _recall(call: CallState, given: api.RecallArguments) -> Any:
    """Return what `once` has remembered, in a list: empty when that is nothing."""

    async def unknown() -> Any:
        raise _UnknownKeyError

    try:
        return [await call.context.once(given.key, unknown)]
    except _UnknownKeyError:
        return []


async def _keep(call: CallState, given: api.KeepArguments) -> Any:
    async def value() -> Any:
        return given.value

    return await call.context.once(given.key, value)


async def _as_task(call: CallState, given: api.AsTaskArguments) -> Any:
    return await call.context.as_task(required=given.required)


async def _change(call: CallState, given: api.WatchArguments) -> Any:
    """Whether the file changed again; False where changes can't be watched."""
    if given.number not in call.changes and len(call.changes) >= MAX_CHANGES:
        raise OverflowError(f"more than {MAX_CHANGES} files watched by one call")
    changes = call.changes.setdefault(given.number, call.context.watch_path(given.path))
    async for _ in changes:
        return True
    return False


REQUESTS: dict[str, tuple["msgspec.json.Decoder[Any]", Callable[[CallState, Any], Awaitable[Any]]]] = {
    "ask": (messages.create_decoder(api.AskArguments), _ask),
    "recall": (messages.create_decoder(api.RecallArguments), _recall),
    "keep": (messages.create_decoder(api.KeepArguments), _keep),
    "as_task": (messages.create_decoder(api.AsTaskArguments), _as_task),
    "change": (messages.create_decoder(api.WatchArguments), _change),
}


def returns_data(name: str) -> bool:
    """Whether the answer to a request holds as many bytes of data as the plugin wants."""
    method = api.find_method(name)
    return method is not None and method.returns_data


async def answer_request(call: CallState, request: ApiRequest) -> ApiAnswer:
    """Perform a request and return its answer. Raises nothing but CancelledError."""
    try:
        result = messages.encode_raw(await _perform(call, request))
        if len(bytes(result)) > messages.MAX_FRAME - 100:
            raise OverflowError(f"the answer is larger than {messages.MAX_FRAME:,} bytes")
        return ApiAnswer(request.number, result)
    except InputRequired as questions:
        call.questions[request.number] = questions
        return ApiAnswer(request.number, ends=True)
    except Exception as error:  # noqa: BLE001  # it is told; a fault of ours is logged
        return ApiAnswer(request.number, error=messages.error_to_data(error) or _log_fault(request.name))


async def _perform(call: CallState, request: ApiRequest) -> Any:
    if request.name in REQUESTS:
        decoder, work = REQUESTS[request.name]
        return await work(call, decoder.decode(request.arguments))
    method = api.find_method(request.name)
    if method is None:
        raise LookupError(f"{request.name} can't be had in a plugin's own process"[:200])
    given = method.arguments.decode(request.arguments)
    if method.returns_data:
        given.limit = min(given.limit, MAX_DATA)
    owner, _, name = request.name.partition(".")
    keywords = {field: getattr(given, field) for field in given.__struct_fields__}
    return await getattr(getattr(call.context, owner), name)(**keywords)


def _log_fault(name: str) -> ErrorData:
    reference = secrets.token_hex(6)
    log.exception("reference %s: ctx.%s failed", reference, name)
    return ErrorData("ToolError", f"ctx.{name} failed, reference {reference}")
