"""SetCallback: send a message back to the model later, once or repeatedly."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Literal, Protocol

import msgspec

from toolgate.tools.api.content import Continuation, Output, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.context.services import Callback
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.resource import resource
from toolgate.tools.api.text.cleaning import format_number, refuse_control_characters
from toolgate.tools.api.tool import tool

SLOTS = 8
MAX_MESSAGE = 2_048  # characters
MAX_REPEATS = 1_000_000  # eleven days at one a second: more means for ever, which is -1
INBOX_URI = "callback://inbox"

Delay = Annotated[int | None, msgspec.Meta(ge=1, le=3600), "seconds between firings, 1 to 3600"]


class CallbackRow(msgspec.Struct, frozen=True):
    callback_id: int
    message: str
    fires_in_ms: int
    left: int
    delay_seconds: int


class CallbackList(msgspec.Struct, frozen=True, omit_defaults=True):
    callbacks: list[CallbackRow]
    note: str | None = None  # what was done


class InboxEntry(msgspec.Struct, frozen=True):
    callback_id: int
    fired_at: datetime
    message: str


class Inbox(msgspec.Struct, frozen=True):
    fired: list[InboxEntry]  # newest first


class AwaitedCallback(msgspec.Struct, frozen=True):
    """A callback whose firing is waited for. `since`: seconds since the epoch; it was set after that."""

    slot: int
    message: str
    since: float


class Firings(Protocol):
    """Wait for the firings of the caller's callbacks."""

    def now(self) -> float: ...  # seconds since the epoch, by the clock that fires
    async def wait(self, slot: int, message: str, since: float) -> bool: ...  # False: it was cancelled


@resource(
    INBOX_URI,
    name="inbox",
    title="Inbox of callbacks",
    mime_type="application/json",
    scope="tools:workflow",
    owns_scheme=True,
    tool="SetCallback",
)
async def inbox(ctx: Context) -> Inbox:
    """The last callbacks that fired, newest first."""
    return Inbox([InboxEntry(fired.id, fired.at, fired.message) for fired in await ctx.callbacks.list_fired()])


@tool(
    name="SetCallback",
    title="Set callback",
    open_world=False,
    output=CallbackList,
    scope="tools:workflow",
    in_plan=True,
)
async def set_callback(
    action: Literal["set", "list", "cancel"],
    ctx: Context,
    message: Annotated[str | None, "up to 2048 characters"] = None,
    delay_seconds: Delay = None,
    repeat_count: Annotated[int, "firings, default 20; 1: once, -1: until cancelled"] = 20,
    callback_id: Annotated[int | None, "0 to 7; cancel without it cancels all"] = None,
) -> Output:
    """Get a message back after a delay, once or repeatedly: a reminder to look at what takes time.

    It comes with the result of your next tool call after it fired. There are 8 callbacks; they survive a restart. list
    shows them, cancel ends them.
    """
    match action:
        case "set":
            return await _set(ctx, message, delay_seconds, repeat_count, callback_id)
        case "list":
            held = await ctx.callbacks.list()
            lines = "\n".join(map(_line, held)) or "No callbacks are set."
            return Output([Text(lines)], _to_list(held))
        case "cancel":
            return await _cancel(ctx, callback_id)


async def _set(ctx: Context, message: str | None, delay: int | None, repeats: int, callback_id: int | None) -> Output:
    if not message or not message.strip() or delay is None:
        raise ToolError("set needs message and delay_seconds (1 to 3600)")
    refuse_control_characters(message=message)
    if len(message) > MAX_MESSAGE:
        raise ToolError(f"message has {len(message)} characters, at most {MAX_MESSAGE} are allowed")
    if not -1 <= repeats <= MAX_REPEATS:
        raise ToolError(f"repeat_count must be -1 (for ever) or 0 to {MAX_REPEATS}, not {format_number(repeats)}")
    if callback_id is not None:
        raise ToolError("set takes the next free slot: leave callback_id out; to change a callback cancel it first")
    since = ctx.service(Firings).now()
    try:
        made = await ctx.callbacks.set(message, delay, repeats or 1)
    except OverflowError:
        raise ToolError(f"all {SLOTS} callbacks (0 to {SLOTS - 1}) are taken: cancel one first") from None
    said = _output(f"Callback scheduled: {_describe_schedule(made)}.", [made])
    return Output(said.content, said.structured, continuation=_to_continuation(made, since))


def _to_continuation(made: Callback, since: float) -> Continuation:
    """Return how a callback goes on: to its first firing. With that its notice is needless, unless it repeats."""
    key = notice_key(made.id) if made.repeats_left == 1 else f"{notice_key(made.id)}-first"
    message = f"callback {made.id} {_describe_schedule(made)}; SetCallback cancels it"
    return Continuation(key, message, msgspec.json.encode(AwaitedCallback(made.id, made.message, since)).decode())


@set_callback.following
async def follow_callback(state: str, ctx: Context) -> Output:
    """Wait until a callback fires, and return its message."""
    awaited = msgspec.json.decode(state, type=AwaitedCallback)
    has_fired = await ctx.service(Firings).wait(awaited.slot, awaited.message, awaited.since)
    left = await ctx.callbacks.list()
    if not has_fired:
        return _output(f"callback {awaited.slot} was cancelled before it fired: {awaited.message}", left)
    again = next((held for held in left if (held.id, held.message) == (awaited.slot, awaited.message)), None)
    more = (
        "" if again is None else f"\n(it fires again, every {again.delay}s: that comes with a result of a later call)"
    )
    return _output(f"{fired_text(awaited.slot, awaited.message)}{more}", left)


@set_callback.stopping
async def stop_callback(state: str, ctx: Context) -> None:
    awaited = msgspec.json.decode(state, type=AwaitedCallback)
    if any((held.id, held.message) == (awaited.slot, awaited.message) for held in await ctx.callbacks.list()):
        with suppress(KeyError):  # it has fired meanwhile
            await ctx.callbacks.cancel(awaited.slot)


def notice_key(slot: int) -> str:
    """Return the key of the notice that a callback has fired."""
    return f"callback-{slot}"


def fired_text(slot: int, message: str) -> str:
    """Return what the model is told when a callback fires."""
    return f"callback {slot} fired: {message}"


async def _cancel(ctx: Context, callback_id: int | None) -> Output:
    try:
        cancelled = await ctx.callbacks.cancel(callback_id)
    except KeyError:
        held = ", ".join(str(callback.id) for callback in await ctx.callbacks.list()) or "none"
        raise ToolError(
            f"callback {format_number(callback_id)} is not set (of 0 to {SLOTS - 1} there are: {held})"
        ) from None
    ids = ", ".join(str(callback.id) for callback in cancelled)
    text = f"Cancelled: {ids}." if ids else "No callbacks are set, so there was nothing to cancel."
    return _output(text, await ctx.callbacks.list())


def _describe_schedule(callback: Callback) -> str:
    if callback.repeats_left == 1:
        return f"fires once in {callback.delay}s"
    times = "until cancelled" if callback.repeats_left < 0 else f"{callback.repeats_left} times"
    return f"fires every {callback.delay}s, repeats {times}"


def _line(callback: Callback) -> str:
    message = " ".join(callback.message.split())
    first = f"{callback.id}: in {callback.fires_in_ms / 1000:.0f}s"
    if callback.repeats_left == 1:
        return f"{first}, once: {message}"
    left = "until cancelled" if callback.repeats_left < 0 else f"{callback.repeats_left} left"
    return f"{first}, every {callback.delay}s, {left}: {message}"


def _output(text: str, callbacks: Sequence[Callback]) -> Output:
    return Output([Text(text)], _to_list(callbacks, text))


def _to_list(callbacks: Sequence[Callback], note: str | None = None) -> CallbackList:
    rows = [CallbackRow(held.id, held.message, held.fires_in_ms, held.repeats_left, held.delay) for held in callbacks]
    return CallbackList(rows, note)
