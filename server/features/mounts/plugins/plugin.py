"""Run a plugin in a process of its own, so that one that blocks, crashes or fills the memory harms no other.

Each plugin has one process, for all callers. After it ends, the next call starts it again.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.calls.client import InputRequired
from toolgate.server.features.mounts.plugins import calls, data
from toolgate.server.features.mounts.plugins.calls import PluginCall
from toolgate.server.features.mounts.plugins.data import CallFailure, ListedPart, PluginEvent
from toolgate.server.features.mounts.plugins.parts import PluginFaultError, create_remote_part
from toolgate.server.features.mounts.plugins.process import PluginNotLoadedError, PluginProcess
from toolgate.server.features.mounts.plugins.program import start_program
from toolgate.server.features.mounts.upstream.errors import UpstreamFault, UpstreamRefusal
from toolgate.server.features.mounts.upstream.messages import Members, read_object
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.event import EventType
from toolgate.tools.api.registry import Part

log = logging.getLogger("toolgate.plugins")

UNWIND = 10.0  # seconds a function that was cancelled may take to end
MAX_DEATHS = 3  # in a row without an answer
REST = 30.0  # seconds without a restart after that: a start costs a fifth of a second of a processor
MAX_STARTS = 4  # concurrent ones: each occupies a processor for a fifth of a second
RESUME = 5.0  # seconds before a watch resumes after its process died


class PluginLostError(ToolError):
    """The plugin's process ended before the call did, or could not be started."""


class ProcessSet:
    """The processes of all plugins, which get `environment` and log as the server does. `rest`: see REST."""

    def __init__(self, environment: Mapping[str, str], log_arguments: Sequence[str], rest: float) -> None:
        self.environment = environment
        self.log_arguments = log_arguments
        self.rest = rest
        self.running: set[PluginProcess] = set()
        self.starts = asyncio.Semaphore(MAX_STARTS)
        self.is_closed = False


class IsolatedPlugin:
    """One plugin file and the process it runs in."""

    def __init__(self, file: Path, processes: ProcessSet) -> None:
        self.file = file
        self.name = file.parent.name if file.name == "__init__.py" else file.stem
        self.parts: Sequence[Part] = ()
        self._processes = processes
        self._process: PluginProcess | None = None
        self._starting = asyncio.Lock()
        self._calls = 0
        self._retired = False
        self._deaths = 0
        self._rest_until = 0.0  # loop time of the next allowed start

    async def open(self) -> None:
        """Start the process and create the parts that it lists."""
        self.parts = [create_remote_part(item, self) for item in await self._start()]
        for each in self.parts:
            each.verify()

    def retire(self) -> None:
        """Retire the plugin: the process ends with its last call."""
        self._retired = True
        self._end_if_unused()

    async def call(self, method: str, params: Mapping[str, Any], context: Context) -> Members:
        """Return the result of a method of a part, its members as they came.

        Raises what the plugin raises: ToolError and its kinds, InputRequired, and PluginFaultError for everything else.
        """
        with self._count_call():
            process, call = await self._begin(method, params, context)
            try:
                await _wait_ended(process, call)
                return await self._read_ending(process, call)
            finally:
                process.release(call)

    async def watch(self, uri: str, variables: Mapping[str, str], context: Context) -> AsyncIterator[object]:
        """Yield each time the resource has changed, and once when its process had to be started again."""
        with self._count_call():
            while not self._retired:
                try:
                    async for change in self._watch_once({"uri": uri, "variables": dict(variables)}, context):
                        yield change
                    return
                except PluginLostError as lost:
                    log.warning("the watch on %s rests: %s", uri[:200], lost.text)
                await asyncio.sleep(RESUME)
                yield None

    async def _watch_once(self, params: Mapping[str, Any], context: Context) -> AsyncIterator[object]:
        process, call = await self._begin(data.WATCH, params, context)
        try:
            while True:
                await call.news.wait()
                call.news.clear()
                if call.is_over:
                    await self._read_ending(process, call)
                    return
                yield None
        finally:
            process.cancel(call)
            process.release(call)

    # -- calls

    @contextmanager
    def _count_call(self) -> Generator[None, None, None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._end_if_unused()

    async def _begin(
        self, method: str, params: Mapping[str, Any], context: Context
    ) -> tuple[PluginProcess, PluginCall]:
        process = await self._running_process()
        try:
            return process, await process.begin(method, params, context)
        except ConnectionError:
            raise await self._create_lost_error(process) from None
        except OverflowError as error:
            raise ToolError(f"this exceeds the limits of a plugin's own process: {error}") from None

    async def _read_ending(self, process: PluginProcess, call: PluginCall) -> Members:
        """Return the result of a call that has ended, or raise what it has ended with."""
        assert call.ending is not None  # it has begun
        event = await call.ending
        if isinstance(event, UpstreamFault):
            if process.is_alive:  # it says nothing else of this answer
                raise ToolError(f"the result is too much for a plugin's own process: {event.sentence}")
            raise await self._create_lost_error(process)
        process.answered_calls += 1
        if isinstance(event, UpstreamRefusal):
            raise self._to_exception(call, event)
        _move_caller(call, event)
        return event

    def _to_exception(self, call: PluginCall, refusal: UpstreamRefusal) -> BaseException:
        """Return what a call raises that has no result."""
        try:
            failure = msgspec.convert(refusal.data, CallFailure)
        except msgspec.ValidationError:
            return PluginFaultError(f"plugin {self.name}: {refusal.message}")
        if failure.cwd is not None:
            calls.move_caller(call.context, failure.cwd)
        if failure.error is not None:
            error = data.ERRORS.to_error(failure.error)
            return error if isinstance(error, ToolError) else PluginFaultError(repr(error))
        if failure.questions:
            return _to_questions(call, failure.questions)
        if failure.is_cancelled:
            return asyncio.CancelledError()
        return PluginFaultError(f"plugin {self.name}: {failure.fault}")

    async def _create_lost_error(self, process: PluginProcess) -> PluginLostError:
        ended = await process.describe_end()
        if process.kill_reason is not None:
            return PluginLostError(f"plugin {self.name!r} was stopped: {process.kill_reason}")
        return PluginLostError(f"plugin {self.name!r} crashed ({ended or 'its process ended'})")

    # -- the process

    async def _running_process(self) -> PluginProcess:
        process = self._process
        if process is None or not process.is_alive:
            try:
                await self._start()
            except PluginNotLoadedError as error:  # its files are gone or changed
                log.error("plugin %s can't be started again: %s", self.file, error)
                raise PluginLostError(f"plugin {self.name!r} could not be started again") from None
            process = self._process
            assert process is not None
        return process

    async def _start(self) -> Sequence[ListedPart]:
        """Start the process, unless another call just did. Raises PluginLostError and PluginNotLoadedError."""
        async with self._starting:
            if self._process is not None and self._process.is_alive:
                return ()
            left = self._rest_until - time.monotonic()
            if left > 0:
                raise PluginLostError(
                    f"plugin {self.name!r} crashed {self._deaths} times in a row: not started for {left:.0f} s"
                )
            async with self._processes.starts:
                process = await self._create_process()
                items = await process.load()
            self._process = process
            return items

    async def _create_process(self) -> PluginProcess:
        processes = self._processes
        if processes.is_closed:
            raise PluginLostError(f"plugin {self.name!r}: the server is shutting down")
        try:
            program = await start_program(self.file, processes.environment, processes.log_arguments)
        except OSError as error:
            raise PluginLostError(f"plugin {self.name!r}: no process can be started ({error.strerror})") from None
        process = PluginProcess(self.file, program, self._handle_exit, self._emit)
        processes.running.add(process)
        if processes.is_closed:
            process.kill("the server stopped")
        return process

    def _emit(self, event: PluginEvent) -> None:
        """Emit an event of a type of this plugin."""
        type = next((part for part in self.parts if isinstance(part, EventType) and part.name == event.name), None)
        try:
            if type is not None:
                type.emit(event.principal, event.payload, event.key)
        except ValueError as error:
            log.warning("plugin %s: an event is dropped: %s", self.file, error)

    def _handle_exit(self, process: PluginProcess) -> None:
        self._processes.running.discard(process)
        if process.kill_reason is None:
            log.error("plugin %s: its process %d crashed: %s", self.file, process.pid, process.status)
        elif not (self._retired or self._processes.is_closed):
            log.warning("plugin %s: its process %d was stopped: %s", self.file, process.pid, process.kill_reason)
        if process.answered_calls:
            self._deaths = 0
        elif process.kill_reason is None or not process.is_loaded:
            self._deaths += 1
            if self._deaths >= MAX_DEATHS:
                self._rest_until = time.monotonic() + self._processes.rest
                log.error("plugin %s: not started for %g s", self.file, self._processes.rest)

    def _end_if_unused(self) -> None:
        if self._retired and not self._calls and self._process is not None:
            self._process.kill("the plugin was changed or removed")


async def _wait_ended(process: PluginProcess, call: PluginCall) -> None:
    """Wait for the end of a call. A cancellation is passed to the process, which may still answer."""
    assert call.ending is not None  # it has begun
    try:
        await asyncio.wait([call.ending])
    except asyncio.CancelledError:
        process.cancel(call)
        await asyncio.wait([call.ending], timeout=UNWIND)
        if not call.ending.done() or isinstance(call.ending.result(), UpstreamFault):
            raise


def _move_caller(call: PluginCall, result: Members) -> None:
    meta = read_object(result.get("_meta", msgspec.UNSET))
    cwd = meta.get(data.CWD)
    if isinstance(cwd, str):
        calls.move_caller(call.context, cwd)


def _to_questions(call: PluginCall, ids: Sequence[int]) -> BaseException:
    """Return one error with all questions, which were asked through the server."""
    requests: dict[str, dict[str, Any]] = {}
    for id in ids:
        if id in call.questions:
            requests |= call.questions[id].requests
    return InputRequired(requests) if requests else PluginFaultError("a call ended with an unknown question")
