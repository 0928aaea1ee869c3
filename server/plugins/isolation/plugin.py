"""Run plugins in their own processes, so that one that blocks, crashes or fills the memory harms no other.

Each plugin has one process. After it ends, the next call starts it again.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from toolgate.server.base.rpc import errors
from toolgate.server.calls.client import InputRequired
from toolgate.server.plugins.isolation import api_server
from toolgate.server.plugins.isolation.api_server import PluginCall
from toolgate.server.plugins.isolation.messages import CallResult, EventNote, PartData
from toolgate.server.plugins.isolation.process import PluginNotLoadedError, PluginProcess
from toolgate.server.plugins.isolation.remote_parts import create_remote_part
from toolgate.server.plugins.isolation.spawner import Spawner
from toolgate.server.plugins.loader import PluginLoadError
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.event import EventType
from toolgate.tools.api.registry import Part

log = logging.getLogger("toolgate.plugins")

UNWIND = 10.0  # seconds a function that was cancelled may take to end
MAX_DEATHS = 3  # in a row without an answer
REST = 30.0  # seconds without a restart after that: a start costs a third of a second of a processor
MAX_STARTS = 4  # concurrent starts: each occupies a processor for a third of a second
RESUME = 5.0  # seconds before a watch resumes after its process died

T = TypeVar("T")


class PluginFaultError(Exception):
    """A plugin raised an unexpected exception; the text is its traceback."""


class PluginLostError(ToolError):
    """The plugin's process ended before the call did, or could not be started."""


class Isolation:
    """All plugins with their own processes, which get `environment`. `rest`: see REST."""

    def __init__(
        self, environment: Mapping[str, str], *, verbose: bool = False, style: str = "text", rest: float = REST
    ) -> None:
        self.spawner = Spawner(environment)
        self.log_arguments = ("verbose" if verbose else "", style)
        self.rest = rest
        self.processes: set[PluginProcess] = set()
        self.starts = asyncio.Semaphore(MAX_STARTS)
        self.is_closed = False

    async def load(self, file: Path) -> "IsolatedPlugin":
        """Load a plugin in a process of its own. Raises PluginLoadError."""
        plugin = IsolatedPlugin(file, self)
        try:
            await plugin.open()
        except BaseException as error:
            plugin.retire()
            if isinstance(error, PluginLostError) or (isinstance(error, PluginNotLoadedError) and not error.by_plugin):
                raise PluginLoadError(str(error)) from None
            if isinstance(error, Exception):
                raise PluginLoadError("it failed to load in its own process") from _own_trace(error)
            raise
        return plugin

    async def close(self) -> None:
        """End all processes, wait for them, and start no more."""
        self.is_closed = True
        for process in self.processes:
            process.kill("the server stopped")
        if self.processes:
            await asyncio.wait([process.exited for process in self.processes], timeout=2.0)
        await self.spawner.close()


def _own_trace(error: Exception) -> Exception:
    """Return the error without our frames where its text has the traceback of the plugin's process."""
    return error.with_traceback(None) if isinstance(error, PluginNotLoadedError) else error


class IsolatedPlugin:
    """One plugin file and the process it runs in."""

    def __init__(self, file: Path, isolation: Isolation) -> None:
        self.file = file
        self.name = file.parent.name if file.name == "__init__.py" else file.stem
        self.parts: Sequence[Part] = ()
        self._isolation = isolation
        self._process: PluginProcess | None = None
        self._starting = asyncio.Lock()
        self._calls = 0
        self._retired = False
        self._deaths = 0
        self._rest_until = 0.0  # loop time of the next allowed start

    async def open(self) -> None:
        """Start the process and create the parts it describes."""
        self.parts = [create_remote_part(told, self) for told in await self._start()]
        for each in self.parts:
            each.verify()

    def retire(self) -> None:
        """Retire the plugin: the process ends with its last call."""
        self._retired = True
        self._end_if_unused()

    async def call(self, verb: str, kind: str, key: str, given: Any, context: Context, gives: type[T] | Any) -> Any:
        """Have the process perform `verb` with a part, and return its result.

        Raises what the plugin raises: ToolError and its kinds, InputRequired, and PluginFaultError for everything else.
        """
        with self._count_call():
            process, call = await self._begin(verb, kind, key, given, context)
            try:
                await _wait_ended(process, call)
                return self._outcome(process, call, gives)
            finally:
                process.release(call)

    async def watch(self, key: str, variables: Mapping[str, str], context: Context) -> AsyncIterator[object]:
        """Yield each time the resource has changed, and once when its process had to be started again."""
        with self._count_call():
            while not self._retired:
                try:
                    async for change in self._watch_once(key, variables, context):
                        yield change
                    return
                except PluginLostError as lost:
                    log.warning("the watch on %s rests: %s", key[:200], lost.text)
                await asyncio.sleep(RESUME)
                yield None

    async def _watch_once(self, key: str, variables: Mapping[str, str], context: Context) -> AsyncIterator[object]:
        process, call = await self._begin("watch", "resources", key, dict(variables), context)
        try:
            while True:
                await call.news.wait()
                call.news.clear()
                if call.result.done():
                    self._outcome(process, call, None)
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
        self, verb: str, kind: str, key: str, given: Any, context: Context
    ) -> tuple[PluginProcess, PluginCall]:
        process = await self._running_process()
        try:
            return process, await process.begin(verb, kind, key, given, context)
        except ConnectionError:
            raise self._lost_error(process) from None
        except OverflowError as error:
            raise ToolError(f"this exceeds the limits of a plugin's own process: {error}") from None

    def _outcome(self, process: PluginProcess, call: PluginCall, gives: Any) -> Any:
        ended = call.result.result()
        if ended is None:
            raise self._lost_error(process)
        if ended.cwd is not None:
            api_server.move_caller(call.context, ended.cwd)
        if ended.error is not None:
            error = errors.data_to_error(ended.error)
            raise error if isinstance(error, ToolError) else PluginFaultError(repr(error))
        if ended.questions:
            raise _to_questions(call, ended)
        if ended.is_cancelled:
            raise asyncio.CancelledError
        if ended.fault is not None:
            raise PluginFaultError(f"plugin {self.name}: {ended.fault}")
        try:
            return msgspec.json.decode(ended.result, type=gives)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PluginFaultError(f"plugin {self.name} returned an invalid {gives}: {error}") from None

    def _lost_error(self, process: PluginProcess) -> PluginLostError:
        if process.kill_reason is not None:
            return PluginLostError(f"plugin {self.name!r} was stopped: {process.kill_reason}")
        return PluginLostError(f"plugin {self.name!r} crashed ({process.status or 'its process ended'})")

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

    async def _start(self) -> Sequence[PartData]:
        """Start the process, unless another call just did. Raises PluginLostError and PluginNotLoadedError."""
        async with self._starting:
            if self._process is not None and self._process.is_alive:
                return ()
            left = self._rest_until - time.monotonic()
            if left > 0:
                raise PluginLostError(
                    f"plugin {self.name!r} crashed {self._deaths} times in a row: not started for {left:.0f} s"
                )
            async with self._isolation.starts:
                process = await self._create_process()
                told = await process.load()
            self._process = process
            return told

    async def _create_process(self) -> PluginProcess:
        isolation = self._isolation
        if isolation.is_closed:
            raise PluginLostError(f"plugin {self.name!r}: the server is shutting down")
        try:
            spawned = await isolation.spawner.spawn(self.file, isolation.log_arguments)
        except OSError as error:
            raise PluginLostError(f"plugin {self.name!r}: no process can be started ({error.strerror})") from None
        process = PluginProcess(self.file, spawned, self._handle_exit, self._emit)
        isolation.processes.add(process)
        if isolation.is_closed:
            process.kill("the server stopped")
        return process

    def _emit(self, note: EventNote) -> None:
        """Emit an event of a type of this plugin."""
        type = next((part for part in self.parts if isinstance(part, EventType) and part.name == note.name), None)
        try:
            if type is not None:
                type.emit(note.principal, note.payload, note.key)
        except ValueError as error:
            log.warning("plugin %s: an event is dropped: %s", self.file, error)

    def _handle_exit(self, process: PluginProcess) -> None:
        self._isolation.processes.discard(process)
        if process.kill_reason is None:
            log.error("plugin %s: its process %d crashed: %s", self.file, process.pid, process.status)
        elif not (self._retired or self._isolation.is_closed):
            log.warning("plugin %s: its process %d was stopped: %s", self.file, process.pid, process.kill_reason)
        if process.answered_calls:
            self._deaths = 0
        elif process.kill_reason is None or not process.is_loaded:
            self._deaths += 1
            if self._deaths >= MAX_DEATHS:
                self._rest_until = time.monotonic() + self._isolation.rest
                log.error("plugin %s: not started for %g s", self.file, self._isolation.rest)

    def _end_if_unused(self) -> None:
        if self._retired and not self._calls and self._process is not None:
            self._process.kill("the plugin was changed or removed")


async def _wait_ended(process: PluginProcess, call: PluginCall) -> None:
    """Wait for the end of a call. A cancellation is passed to the process, which may still answer."""
    try:
        await asyncio.wait([call.result])
    except asyncio.CancelledError:
        process.cancel(call)
        await asyncio.wait([call.result], timeout=UNWIND)
        if not call.result.done() or call.result.result() is None:
            raise


def _to_questions(call: PluginCall, ended: CallResult) -> BaseException:
    """Return one error with all questions, which were asked through the server."""
    requests: dict[str, dict[str, Any]] = {}
    for number in ended.questions:
        if number in call.questions:
            requests |= call.questions[number].requests
    return InputRequired(requests) if requests else PluginFaultError("a call ended with an unknown question")
