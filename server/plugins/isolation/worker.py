"""Run a plugin in a process of its own.

A program: `python -m toolgate.server.plugins.isolation.worker SOCKET LINE FILE VERBOSE STYLE`. It loads the plugin as
the server would, tells what parts there are, and runs calls of them. The socket is a descriptor it inherits; when the
other end closes this process ends at once, whatever it is doing. What it started is ended by its guard
(server/plugins/isolation/reaper.py), whose line to the server is the other descriptor.
"""

import asyncio
import contextlib
import io
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server import run_loop
from toolgate.server.plugins.discovery import MAX_SOURCE
from toolgate.server.plugins.isolation import api, messages, reaper
from toolgate.server.plugins.isolation.api_client import Asked, Lender
from toolgate.server.plugins.isolation.messages import (
    Answer,
    Begin,
    Cancel,
    Changed,
    Ended,
    Told,
    ToldPrompt,
    ToldResource,
    ToldTool,
)
from toolgate.server.plugins.loader import LoadError, Modules
from toolgate.server.telemetry import logging as logs
from toolgate.tools.api.context import Context
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.prompt import Prompt
from toolgate.tools.api.registry import Part
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.tool import Tool

log = logging.getLogger("toolgate.plugins")

PR_SET_PDEATHSIG = 1  # linux/prctl.h
MAX_UNSENT = 16 * 2**20  # bytes the server has not taken: news beyond them is dropped


async def _run(part: Any, given: Any, context: Context) -> Any:
    return await part.run(given, context)


async def _get(part: Any, given: Any, context: Context) -> Any:
    return await part.get(given, context)


async def _read(part: Any, given: Any, context: Context) -> Any:
    return await part.read(given["uri"], given["variables"], context)


async def _list(part: Any, given: Any, context: Context) -> Any:
    return await part.listed(context)


async def _complete(part: Any, given: Any, context: Context) -> Any:
    return await part.completions.complete(given["name"], given["value"], given["arguments"], context)


VERBS: dict[str, Callable[[Any, Any, Context], Awaitable[Any]]] = {
    "run": _run,
    "get": _get,
    "read": _read,
    "list": _list,
    "complete": _complete,
}


class Serving:
    """The calls of one plugin. `note` and `request` are the calls' way to the server."""

    def __init__(self, channel: socket.socket, file: Path) -> None:
        self._channel = channel
        self._file = file
        self._modules = Modules(MAX_SOURCE)
        self._parts: dict[tuple[str, str], Part] = {}
        self._tasks: dict[int, asyncio.Task[Ended]] = {}
        self._cancelled: set[int] = set()
        self._requests: dict[int, asyncio.Future[Answer]] = {}
        self._last_number = 0
        self._lender = Lender(self)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def run(self) -> None:
        """Serve until the server is gone."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._channel)
        try:
            parts = (await self._modules.load(self._file)).parts
            self._parts = {(part.kind, part.key): part for part in parts}
            self._send(messages.Ready([told(part) for part in parts]))
        except LoadError as error:
            if error.__cause__ is None:
                self._send(messages.Unready(str(error)))
            else:  # what the plugin raised
                self._send(messages.Unready("".join(traceback.format_exception(error.__cause__)), raised=True))
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                self._take(await messages.received(reader, messages.FROM_SERVER))

    def note(self, id: int, name: str, given: Any, *, news: bool = False) -> None:
        message = messages.Note(id, name, messages.raw(given))
        if threading.get_ident() == self._thread:
            self._send(message, news=news)
        else:  # of a plain function
            self._loop.call_soon_threadsafe(self._send, message)

    async def request(self, id: int, name: str, given: Any) -> msgspec.Raw:
        self._last_number += 1
        number = self._last_number
        message = messages.Request(id, number, name, messages.raw(given))
        answered: asyncio.Future[Answer] = self._loop.create_future()
        self._requests[number] = answered
        try:
            self._send(message)
            answer = await answered
        except asyncio.CancelledError:
            self._send(messages.Withdrawn(id, number))
            raise
        finally:
            del self._requests[number]
        if answer.ends:
            raise Asked(number)
        if answer.error is not None:
            raise messages.raised(answer.error)
        return answer.result

    def _take(self, message: Begin | Cancel | Changed | Answer) -> None:
        match message:
            case Begin(id):
                task = self._loop.create_task(self._work(message, self._lender.context(id, message.standing)))
                self._tasks[id] = task
                task.add_done_callback(lambda task: self._done(id, task))
            case Cancel(id):
                if id in self._tasks:
                    self._cancelled.add(id)
                    self._tasks[id].cancel()
                self._send(messages.Heard(id))
            case Changed():
                self._lender.changed(message)
            case Answer(number):
                waiting = self._requests.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)

    async def _work(self, begin: Begin, context: Context) -> Ended:
        """Do what is asked. Whatever the plugin raises, it costs this call alone."""
        try:
            ended = Ended(begin.id, messages.raw(await self._verb(begin, context)))
        except asyncio.CancelledError:
            if begin.id in self._cancelled:
                ended = Ended(begin.id, cancelled=True)
            else:  # of something it had cancelled itself
                ended = Ended(begin.id, fault=traceback.format_exc())
        except ToolError as error:
            ended = Ended(begin.id, error=messages.told(error))
        except BaseException as error:  # noqa: BLE001
            ended = Ended(begin.id, asked=asked(error)) if asked(error) else Ended(begin.id, fault=fault())
        cwd = context.place.cwd
        if cwd is not None and str(cwd) != begin.standing.cwd:
            ended = msgspec.structs.replace(ended, cwd=str(cwd))
        return ended

    async def _verb(self, begin: Begin, context: Context) -> Any:
        part = self._parts.get((begin.kind, begin.key))
        if part is None:
            raise ToolError(f"the plugin has no {begin.key!r} any more")
        given = msgspec.json.decode(begin.given)
        if begin.verb == "watch":
            return await self._watch(begin.id, part, given, context)
        return await VERBS[begin.verb](part, given, context)

    async def _watch(self, id: int, part: Any, variables: dict[str, str], context: Context) -> None:
        async with contextlib.aclosing(part.watch(variables, context)) as changes:
            async for _ in changes:
                self.note(id, "changed", api.Nothing())

    def _done(self, id: int, task: "asyncio.Task[Ended]") -> None:
        del self._tasks[id]
        self._lender.release(id)
        self._cancelled.discard(id)
        ended = Ended(id, cancelled=True) if task.cancelled() else task.result()  # cancelled before its first step
        try:
            self._send(ended)
        except OverflowError as error:
            refusal = messages.Error("ToolError", f"the result is too much for a plugin's own process: {error}")
            self._send(Ended(id, error=refusal, cwd=ended.cwd))

    def _send(self, message: msgspec.Struct, *, news: bool = False) -> None:
        if not news or self._writer.transport.get_write_buffer_size() < MAX_UNSENT:
            self._writer.write(messages.framed(message))


def told(part: Part) -> Told:
    """The part, as the server needs it."""
    words = (part.name, part.title, part.description)
    match part:
        case Tool():
            icons, meta = _plain(part.icons), _plain(part.meta)
            return ToldTool(
                *words,
                part.annotations,
                part.input,
                part.output,
                part.scope,
                part.source,
                icons,
                meta,
                as_task=part.as_task,
                lean=part.lean,
                has_context=part.function.context is not None,
            )
        case Prompt():
            icons, meta = _plain(part.icons), _plain(part.meta)
            return ToldPrompt(*words, part.role, list(part.arguments), part.scope, part.source, icons, meta)
        case Resource():
            does = (part.lists is not None, part.watches is not None)
            extras = [_plain(extra) for extra in (part.annotations, part.icons, part.meta)]
            return ToldResource(part.uri, *words, part.mime_type, part.scope, part.source, *does, *extras)


def asked(error: BaseException) -> list[int]:
    """The questions that an error, or a group of errors, holds."""
    if isinstance(error, Asked):
        return [error.number]
    if isinstance(error, BaseExceptionGroup):
        return [number for inner in error.exceptions for number in asked(inner)]
    return []


def fault() -> str:
    return traceback.format_exc()


def _plain(value: Any) -> Any:
    return None if value is None else msgspec.to_builtins(value)


def watch_over(channel: socket.socket) -> None:
    """In a thread: when the server is gone, so is this process and all that it started."""
    ends = select.poll()
    ends.register(channel.fileno(), getattr(select, "POLLRDHUP", 0) | select.POLLHUP)
    while not ends.poll():
        pass
    leave()


def leave() -> None:
    with contextlib.suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(0)


def yield_first() -> None:
    """On Linux: end with the server even when nothing of Python runs any more, and before anything else when memory is
    short."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if sys.platform == "linux":
        import ctypes  # start-up: there is no other way to it

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    descriptor, line, file, verbose, style = sys.argv[1:]
    channel = socket.socket(fileno=int(descriptor))
    reaper.stand(socket.socket(fileno=int(line)), channel)
    channel.set_inheritable(False)
    threading.Thread(target=watch_over, args=(channel,), daemon=True).start()
    yield_first()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what is held back would be lost at the end
    logs.start(bool(verbose), None, style)

    async def serve() -> None:
        await Serving(channel, Path(file)).run()

    try:
        run_loop.run(serve, asyncio.new_event_loop)
    finally:
        leave()


if __name__ == "__main__":
    main()
