"""Serve one plugin in its own process.

A program: `python -m toolgate.server.plugins.isolation.worker SOCKET LINE FILE VERBOSE STYLE`. It loads the plugin as
the server would, describes its parts, and runs their calls. SOCKET is an inherited descriptor; when the server closes
its end, this process ends at once. Its reaper ends what it started; LINE is the reaper's descriptor to the server.
"""

import asyncio
import contextlib
import io
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.base import run_loop
from toolgate.server.base.rpc import errors, frames
from toolgate.server.plugins.discovery import MAX_SOURCE
from toolgate.server.plugins.isolation import api, messages
from toolgate.server.plugins.isolation.api_client import ContextFactory, QuestionAskedError
from toolgate.server.plugins.loader import PluginLoader, PluginLoadError
from toolgate.server.telemetry import logging as logs
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import ToolError, drop_tracebacks
from toolgate.tools.api.event import EventType
from toolgate.tools.api.prompt import Prompt
from toolgate.tools.api.registry import Part
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.schema.schema import compile_check
from toolgate.tools.api.tool import Tool
from toolgate.tools.workspace.processes import process_tree, supervisor
from toolgate.tools.workspace.processes.supervisor import IGNORED_SIGNALS, Supervisor

log = logging.getLogger("toolgate.plugins")

PR_SET_PDEATHSIG = 1  # linux/prctl.h
MAX_UNSENT = 16 * 2**20  # bytes the server has not read: further news is dropped


# The verbs of BeginCall.
VERBS: dict[str, Callable[[Any, Any, Context], Awaitable[Any]]] = {
    "run": lambda part, given, context: part.run(given, context),
    "get": lambda part, given, context: part.get(given, context),
    "read": lambda part, given, context: part.read(given["uri"], given["variables"], context),
    "list": lambda part, _, context: part.list_links(context),
    "complete": lambda part, given, context: part.completions.complete(**given, context=context),
}


class PluginWorker:
    """Run the calls of one plugin; `note` and `request` are their link to the server."""

    def __init__(self, channel: socket.socket, file: Path) -> None:
        self._channel = channel
        self._file = file
        self._modules = PluginLoader(MAX_SOURCE)
        self._parts: dict[tuple[str, str], Part] = {}
        self._tasks: dict[int, asyncio.Task[messages.CallResult]] = {}
        self._cancelled: set[int] = set()
        self._requests: dict[int, asyncio.Future[messages.ApiAnswer]] = {}
        self._last_number = 0
        self._lender = ContextFactory(self)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def run(self) -> None:
        """Serve until the server is gone."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._channel)
        try:
            parts = (await self._modules.load(self._file)).parts
            self._parts = {(part.kind, part.key): part for part in parts}
            for part in parts:
                if isinstance(part, EventType):
                    part.sink = partial(self._emit, part)
            self._send(messages.PluginReady([describe_part(part) for part in parts]))
        except PluginLoadError as error:
            if error.__cause__ is None:
                self._send(messages.LoadFailure(str(error)))
            else:  # raised by the plugin
                self._send(messages.LoadFailure("".join(traceback.format_exception(error.__cause__)), by_plugin=True))
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                self._take(await frames.read_frame(reader, messages.FROM_SERVER))

    def note(self, id: int, name: str, given: Any, *, news: bool = False) -> None:
        message = messages.ApiNote(id, name, frames.encode_raw(given))
        if threading.get_ident() == self._thread:
            self._send(message, news=news)
        else:  # of a plain function
            self._loop.call_soon_threadsafe(self._send, message)

    def _emit(self, type: EventType, principal: str, payload: Any, key: str | None) -> None:
        """Send an event to the server. The plugin learns here that a payload does not fit."""
        data = frames.encode_raw(payload)
        finding = type.check_payload(msgspec.json.decode(data))
        if finding is not None:
            raise ValueError(f"the payload of {type.name}: {finding}")
        message = messages.EventNote(type.name, principal, data, key)
        if threading.get_ident() == self._thread:
            self._send(message)
        else:
            self._loop.call_soon_threadsafe(self._send, message)

    async def request(self, id: int, name: str, given: Any) -> msgspec.Raw:
        self._last_number += 1
        number = self._last_number
        message = messages.ApiRequest(id, number, name, frames.encode_raw(given))
        answered: asyncio.Future[messages.ApiAnswer] = self._loop.create_future()
        self._requests[number] = answered
        try:
            self._send(message)
            answer = await answered
        except asyncio.CancelledError:
            self._send(messages.RequestWithdrawn(id, number))
            raise
        finally:
            del self._requests[number]
        if answer.ends:
            raise QuestionAskedError(number)
        if answer.error is not None:
            raise errors.data_to_error(answer.error)
        return answer.result

    def _take(
        self, message: messages.BeginCall | messages.CancelCall | messages.ContextUpdate | messages.ApiAnswer
    ) -> None:
        match message:
            case messages.BeginCall(id):
                task = self._loop.create_task(self._work(message, self._lender.create(id, message.context)))
                self._tasks[id] = task
                task.add_done_callback(lambda task: self._finish_call(id, task))
            case messages.CancelCall(id):
                if id in self._tasks:
                    self._cancelled.add(id)
                    self._tasks[id].cancel()
                self._send(messages.CancelReceived(id))
            case messages.ContextUpdate():
                self._lender.update(message)
            case messages.ApiAnswer(number):
                waiting = self._requests.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)

    async def _work(self, begin: messages.BeginCall, context: Context) -> messages.CallResult:
        """Run one call and return its result. An exception of the plugin ends only this call."""
        try:
            ended = messages.CallResult(begin.id, frames.encode_raw(await self._verb(begin, context)))
        except asyncio.CancelledError:
            if begin.id in self._cancelled:
                ended = messages.CallResult(begin.id, is_cancelled=True)
            else:  # the plugin's own cancellation
                ended = messages.CallResult(begin.id, fault=traceback.format_exc())
        except ToolError as error:
            ended = messages.CallResult(begin.id, error=errors.error_to_data(error))
            drop_tracebacks(error)
        except BaseException as error:  # noqa: BLE001
            questions = find_questions(error)
            fault = None if questions else traceback.format_exc()
            ended = messages.CallResult(begin.id, questions=questions, fault=fault)
            drop_tracebacks(error)
        cwd = context.caller_state.cwd
        if cwd is not None and str(cwd) != begin.context.cwd:
            ended = msgspec.structs.replace(ended, cwd=str(cwd))
        return ended

    async def _verb(self, begin: messages.BeginCall, context: Context) -> Any:
        part = self._parts.get((begin.kind, begin.key))
        if part is None:
            raise ToolError(f"the plugin no longer has {begin.key!r}")
        given = msgspec.json.decode(begin.arguments)
        if begin.verb == "watch":
            return await self._watch(begin.id, part, given, context)
        return await VERBS[begin.verb](part, given, context)

    async def _watch(self, id: int, part: Any, variables: dict[str, str], context: Context) -> None:
        async with contextlib.aclosing(part.watch(variables, context)) as changes:
            async for _ in changes:
                self.note(id, "changed", api.EmptyNote())

    def _finish_call(self, id: int, task: "asyncio.Task[messages.CallResult]") -> None:
        del self._tasks[id]
        self._lender.release(id)
        self._cancelled.discard(id)
        # a task is cancelled itself only before its first step
        ended = messages.CallResult(id, is_cancelled=True) if task.cancelled() else task.result()
        try:
            self._send(ended)
        except OverflowError as error:
            refusal = errors.ErrorData("ToolError", f"the result is too much for a plugin's own process: {error}")
            self._send(messages.CallResult(id, error=refusal, cwd=ended.cwd))

    def _send(self, message: msgspec.Struct, *, news: bool = False) -> None:
        if not news or self._writer.transport.get_write_buffer_size() < MAX_UNSENT:
            self._writer.write(frames.encode_frame(message))


def describe_part(part: Part) -> messages.PartData:
    """Return the description of a part for the server."""
    words = (part.name, part.title, part.description)
    match part:
        case Tool():
            icons, meta = _plain(part.icons), _plain(part.meta)
            return messages.ToolData(
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
                in_plan=part.in_plan,
                has_context=part.function.context is not None,
                parameters=part.parameters,
            )
        case Prompt():
            icons, meta = _plain(part.icons), _plain(part.meta)
            return messages.PromptData(*words, part.role, list(part.arguments), part.scope, part.source, icons, meta)
        case Resource():
            does = (part.lists is not None, part.watches is not None)
            extras = [_plain(extra) for extra in (part.annotations, part.icons, part.meta)]
            return messages.ResourceData(part.uri, *words, part.mime_type, part.scope, part.source, *does, *extras)
        case EventType():
            return messages.EventData(*words, part.input, part.payload, part.scope, part.source, _plain(part.meta))


def find_questions(error: BaseException) -> list[int]:
    """Return the numbers of the questions in an error or in a group of errors."""
    if isinstance(error, QuestionAskedError):
        return [error.number]
    if isinstance(error, BaseExceptionGroup):
        return [number for inner in error.exceptions for number in find_questions(inner)]
    return []


def _plain(value: Any) -> Any:
    return None if value is None else msgspec.to_builtins(value)


def watch_server(channel: socket.socket) -> None:
    """End this process and all it started when the server has ended. Runs in a thread."""
    ends = select.poll()
    ends.register(channel.fileno(), getattr(select, "POLLRDHUP", 0) | select.POLLHUP)
    while not ends.poll():
        pass
    kill_group()


def kill_group() -> None:
    with contextlib.suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(0)


def die_with_server() -> None:
    """End with the server even if no Python runs any more, and be killed first if memory is short (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if sys.platform == "linux":
        import ctypes  # start-up: the only way

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class PluginReaper(Supervisor):
    """A supervisor that ends with its first process, and kills the rest; `code` is that process's exit code."""

    code = 0

    def say(self, line: str) -> bool:
        word, *rest = line.split()
        if word == "exited":
            self.code = int(rest[0])
            self.abandoned = self.deadline = time.monotonic()
        return True


def fork_under_reaper(line: socket.socket, channel: socket.socket) -> None:
    """Return in a child. The parent ends like it once nothing that it started is left, at the latest when the server
    closes its end of `line`, which carries no data. `channel` is the child's.

    Call it before there are threads.
    """
    deaf = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED_SIGNALS}
    process_tree.become_subreaper()
    child = os.fork()
    if child == 0:
        line.close()
        for number, before in deaf.items():
            signal.signal(number, before)
        os.setsid()
        return
    channel.close()  # so that the server sees its end when the child closes it
    wake, _ = supervisor.wake_on_child()
    guard = PluginReaper(line, wake)
    guard.shell = child
    guard.watch()
    _exit_like(guard.code)


def _exit_like(code: int) -> None:
    """Exit like the child, without a second core dump."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def prepare() -> None:
    """Load what each plugin needs at its start or its first call."""
    asyncio.new_event_loop().close()
    compile_check({"type": "object"})


def main() -> None:
    descriptor, line, file, verbose, style = sys.argv[1:]
    channel = socket.socket(fileno=int(descriptor))
    fork_under_reaper(socket.socket(fileno=int(line)), channel)
    channel.set_inheritable(False)
    threading.Thread(target=watch_server, args=(channel,), daemon=True).start()
    die_with_server()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # buffered output would be lost at the end
    logs.start(bool(verbose), None, style)

    async def serve() -> None:
        await PluginWorker(channel, Path(file)).run()

    try:
        run_loop.run_server(serve, asyncio.new_event_loop)
    finally:
        kill_group()


if __name__ == "__main__":
    main()
