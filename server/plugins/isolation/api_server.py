"""What the server does for a plugin in a process of its own, on behalf of one call: exactly what a Context offers.

A table of notes, which need no answer, and one of requests, which do; methods of what the caller owns come from
server/plugins/isolation/api.py. Knows nothing of processes.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from toolgate.server.calls.client import CAPABILITY, InputRequired
from toolgate.server.plugins.isolation import api, messages
from toolgate.server.plugins.isolation.messages import Answer, Changed, Error, Malformed, Request, Standing
from toolgate.server.protocol.revisions import Revision
from toolgate.tools.api.context import Context

log = logging.getLogger("toolgate.plugins")

CAPABILITIES = (*CAPABILITY.values(), "experimental", "tasks", "extensions")  # all of ClientCapabilities
FEATURES = tuple(name for name in Revision.__struct_fields__ if name != "name")
MAX_BROUGHT = 16 * 2**20  # bytes of one answer: what a plugin gets of a file, an output or a page at once
MAX_CHANGES = 64  # files watched by one call


class Flight(Protocol):
    """The call on whose behalf it is."""

    context: Context
    questions: dict[int, InputRequired]
    changes: dict[int, AsyncIterator[object]]
    news: Any  # an asyncio.Event


def standing(context: Context) -> Standing:
    """All of a Context that is data."""
    place, workspace = context.place, context.workspace
    return Standing(
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
        skills=[str(folder) for folder in context.skills.folders],
    )


def now(id: int, context: Context) -> Changed:
    """What of it may have changed."""
    return Changed(id, context.hold is not None, context.wants_progress)


def move(context: Context, cwd: str) -> None:
    """The caller stands elsewhere now: the plugin's word, as it would be in this process."""
    if cwd.startswith("/") and "\0" not in cwd:
        context.place.cwd = Path(cwd)


# -- notes


async def _progress(flight: Flight, given: api.Progress) -> None:
    await flight.context.progress(given.progress, given.total, given.message)


async def _log(flight: Flight, given: api.Line) -> None:
    await flight.context.log(given.level, given.data, given.logger)


async def _updated(flight: Flight, given: api.Uri) -> None:
    flight.context.updated(given.uri)


async def _list_changed(flight: Flight, given: api.Nothing) -> None:
    flight.context.list_changed()


async def _close_stream(flight: Flight, given: api.Nothing) -> None:
    flight.context.close_stream()


async def _changed(flight: Flight, given: api.Nothing) -> None:
    flight.news.set()


async def _told(flight: Flight, given: api.Told) -> None:
    flight.context.workspace.told(given.run)


NOTES: dict[str, tuple["msgspec.json.Decoder[Any]", Callable[[Flight, Any], Awaitable[None]]]] = {
    "progress": (messages.decoder(api.Progress), _progress),
    "log": (messages.decoder(api.Line), _log),
    "updated": (messages.decoder(api.Uri), _updated),
    "list_changed": (messages.decoder(api.Nothing), _list_changed),
    "close_stream": (messages.decoder(api.Nothing), _close_stream),
    "changed": (messages.decoder(api.Nothing), _changed),
    "workspace.told": (messages.decoder(api.Told), _told),
}


async def note(flight: Flight, name: str, given: msgspec.Raw) -> None:
    """Take a note. Raises Malformed."""
    try:
        decoder, take = NOTES[name]
        await take(flight, decoder.decode(given))
    except Exception as error:  # noqa: BLE001  # a number beyond all bounds, a level that is none, …
        raise Malformed(f"a note that is none, {name!r}: {error!r}"[:300]) from None


# -- requests


class _Unknown(Exception):
    """Nothing is remembered under the key."""


async def _ask(flight: Flight, given: api.Questions) -> Any:
    return await flight.context.ask(given.requests, timeout=given.timeout)


async def _recall(flight: Flight, given: api.Key) -> Any:
    """What `once` has remembered: in a list, which is empty when that is nothing."""

    async def unknown() -> Any:
        raise _Unknown

    try:
        return [await flight.context.once(given.key, unknown)]
    except _Unknown:
        return []


async def _keep(flight: Flight, given: api.Kept) -> Any:
    async def value() -> Any:
        return given.value

    return await flight.context.once(given.key, value)


async def _as_task(flight: Flight, given: api.Task) -> Any:
    return await flight.context.as_task(required=given.required)


async def _change(flight: Flight, given: api.Watch) -> Any:
    """Whether there was another change of the file; not so when nobody finds out."""
    if given.number not in flight.changes and len(flight.changes) >= MAX_CHANGES:
        raise OverflowError(f"more than {MAX_CHANGES} files watched by one call")
    changes = flight.changes.setdefault(given.number, flight.context.changes(given.path))
    async for _ in changes:
        return True
    return False


REQUESTS: dict[str, tuple["msgspec.json.Decoder[Any]", Callable[[Flight, Any], Awaitable[Any]]]] = {
    "ask": (messages.decoder(api.Questions), _ask),
    "recall": (messages.decoder(api.Key), _recall),
    "keep": (messages.decoder(api.Kept), _keep),
    "as_task": (messages.decoder(api.Task), _as_task),
    "change": (messages.decoder(api.Watch), _change),
}


def brings(name: str) -> bool:
    """Whether the answer holds data, as much as was asked for."""
    method = api.method(name)
    return method is not None and method.brings


async def answer(flight: Flight, request: Request) -> Answer:
    """Do what is asked, and say what came of it. Raises nothing but CancelledError."""
    try:
        result = messages.raw(await _done(flight, request))
        if len(bytes(result)) > messages.MAX_FRAME - 100:
            raise OverflowError(f"the answer is larger than {messages.MAX_FRAME:,} bytes")
        return Answer(request.number, result)
    except InputRequired as questions:
        flight.questions[request.number] = questions
        return Answer(request.number, ends=True)
    except Exception as error:  # noqa: BLE001  # it is told; a fault of ours is logged
        return Answer(request.number, error=messages.told(error) or _fault(request.name))


async def _done(flight: Flight, request: Request) -> Any:
    if request.name in REQUESTS:
        decoder, work = REQUESTS[request.name]
        return await work(flight, decoder.decode(request.given))
    method = api.method(request.name)
    if method is None:
        raise LookupError(f"{request.name} can't be had in a plugin's own process"[:200])
    given = method.given.decode(request.given)
    if method.brings:
        given.limit = min(given.limit, MAX_BROUGHT)
    owner, _, name = request.name.partition(".")
    keywords = {field: getattr(given, field) for field in given.__struct_fields__}
    return await getattr(getattr(flight.context, owner), name)(**keywords)


def _fault(name: str) -> Error:
    reference = secrets.token_hex(6)
    log.exception("reference %s: ctx.%s failed", reference, name)
    return Error("ToolError", f"ctx.{name} failed, reference {reference}")
