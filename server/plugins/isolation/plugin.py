"""Plugins that run in processes of their own: the same parts, and what blocks, crashes or takes all memory stays there.

Each plugin has one process, started again when it is needed after it has gone. Knows nothing of what is said to it
(server/plugins/isolation/process.py), nor of which plugins are to be run so.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from toolgate.server.calls.client import InputRequired
from toolgate.server.plugins.isolation import api_server, messages
from toolgate.server.plugins.isolation.messages import Ended, Told
from toolgate.server.plugins.isolation.process import Flight, Host, Unloaded
from toolgate.server.plugins.isolation.remote_parts import part
from toolgate.server.plugins.loader import LoadError
from toolgate.tools.api.context import Context
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.registry import Part

log = logging.getLogger("toolgate.plugins")

UNWIND = 10.0  # seconds a function that was cancelled may take to end
MAX_DEATHS = 3  # in a row of a process that answered nothing
REST = 30.0  # seconds it is left alone then: each start costs a third of a second of a processor
MAX_STARTS = 4  # processes started at once: each takes a processor for a third of a second
RESUME = 5.0  # seconds after which a watch begins again whose process has gone

T = TypeVar("T")


class Fault(Exception):
    """A plugin raised what it should not; the text is its traceback."""


class Lost(ToolError):
    """The plugin's process ended before the call did, or could not be started."""


class Isolation:
    """All plugins with processes of their own. `environment` is what the processes get; `rest`: see REST."""

    def __init__(
        self, environment: Mapping[str, str], *, verbose: bool = False, style: str = "text", rest: float = REST
    ) -> None:
        self.environment = environment
        self.logged = ("verbose" if verbose else "", style)
        self.rest = rest
        self.hosts: set[Host] = set()
        self.starts = asyncio.Semaphore(MAX_STARTS)
        self.closed = False

    async def load(self, file: Path) -> "Plugin":
        """Load a plugin in a process of its own. Raises LoadError."""
        plugin = Plugin(file, self)
        try:
            await plugin.open()
        except BaseException as error:
            plugin.retire()
            if isinstance(error, Lost) or (isinstance(error, Unloaded) and not error.raised):
                raise LoadError(str(error)) from None
            if isinstance(error, Exception):
                raise LoadError("it failed to load in its own process") from error
            raise
        return plugin

    async def close(self) -> None:
        """End all processes, and wait until they are gone. None is started from now on."""
        self.closed = True
        for host in self.hosts:
            host.kill("the server stopped")
        if self.hosts:
            await asyncio.wait([host.gone for host in self.hosts], timeout=2.0)


class Plugin:
    """One plugin file and the process it runs in."""

    def __init__(self, file: Path, isolation: Isolation) -> None:
        self.file = file
        self.name = file.parent.name if file.name == "__init__.py" else file.stem
        self.parts: Sequence[Part] = ()
        self._isolation = isolation
        self._host: Host | None = None
        self._starting = asyncio.Lock()
        self._calls = 0
        self._retired = False
        self._deaths = 0
        self._rested = 0.0  # when it may be started again

    async def open(self) -> None:
        """Start the process and learn of the parts."""
        self.parts = [part(told, self) for told in await self._start()]
        for each in self.parts:
            each.verify()

    def retire(self) -> None:
        """No new calls will come: the process ends when the last one has."""
        self._retired = True
        self._leave()

    async def call(self, verb: str, kind: str, key: str, given: Any, context: Context, gives: type[T] | Any) -> Any:
        """Have the process do something with a part, and give what comes of it.

        Raises what the plugin raises: ToolError and its kinds, InputRequired, and Fault for everything else.
        """
        with self._taken():
            host, flight = await self._begun(verb, kind, key, given, context)
            try:
                await _ended(host, flight)
                return self._outcome(host, flight, gives)
            finally:
                host.release(flight)

    async def watch(self, key: str, variables: Mapping[str, str], context: Context) -> AsyncIterator[object]:
        """Gives something each time the resource has changed, and once when its process had to be started again."""
        with self._taken():
            while not self._retired:
                try:
                    async for change in self._watched(key, variables, context):
                        yield change
                    return
                except Lost as lost:
                    log.warning("the watch on %s rests: %s", key[:200], lost.text)
                await asyncio.sleep(RESUME)
                yield None

    async def _watched(self, key: str, variables: Mapping[str, str], context: Context) -> AsyncIterator[object]:
        host, flight = await self._begun("watch", "resources", key, dict(variables), context)
        try:
            while True:
                await flight.news.wait()
                flight.news.clear()
                if flight.ended.done():
                    self._outcome(host, flight, None)
                    return
                yield None
        finally:
            host.cancel(flight)
            host.release(flight)

    # -- calls

    @contextmanager
    def _taken(self) -> Generator[None, None, None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._leave()

    async def _begun(self, verb: str, kind: str, key: str, given: Any, context: Context) -> tuple[Host, Flight]:
        host = await self._living()
        try:
            return host, await host.begin(verb, kind, key, given, context)
        except ConnectionError:
            raise self._lost(host) from None
        except OverflowError as error:
            raise ToolError(f"that is too much for a plugin's own process: {error}") from None

    def _outcome(self, host: Host, flight: Flight, gives: Any) -> Any:
        ended = flight.ended.result()
        if ended is None:
            raise self._lost(host)
        if ended.cwd is not None:
            api_server.move(flight.context, ended.cwd)
        if ended.error is not None:
            error = messages.raised(ended.error)
            raise error if isinstance(error, ToolError) else Fault(repr(error))
        if ended.asked:
            raise _questions(flight, ended)
        if ended.cancelled:
            raise asyncio.CancelledError
        if ended.fault is not None:
            raise Fault(f"plugin {self.name}: {ended.fault}")
        try:
            return msgspec.json.decode(ended.result, type=gives)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Fault(f"plugin {self.name} gave what is no {gives}: {error}") from None

    def _lost(self, host: Host) -> Lost:
        if host.doom is not None:
            return Lost(f"plugin {self.name!r} was stopped: {host.doom}")
        return Lost(f"plugin {self.name!r} crashed ({host.status or 'its process ended'})")

    # -- the process

    async def _living(self) -> Host:
        host = self._host
        if host is None or not host.lives:
            try:
                await self._start()
            except Unloaded as error:  # what it was loaded from is gone, or another
                log.error("plugin %s can't be started again: %s", self.file, error)
                raise Lost(f"plugin {self.name!r} could not be started again") from None
            host = self._host
            assert host is not None
        return host

    async def _start(self) -> Sequence[Told]:
        """Start the process, unless another call just did. Raises Lost and Unloaded."""
        async with self._starting:
            if self._host is not None and self._host.lives:
                return ()
            left = self._rested - time.monotonic()
            if left > 0:
                raise Lost(f"plugin {self.name!r} crashed {self._deaths} times in a row: not started for {left:.0f} s")
            async with self._isolation.starts:
                host = self._started()
                told = await host.load()
            self._host = host
            return told

    def _started(self) -> Host:
        if self._isolation.closed:
            raise Lost(f"plugin {self.name!r}: the server is shutting down")
        try:
            host = Host(self.file, self._isolation.environment, self._isolation.logged, self._gone)
        except OSError as error:
            raise Lost(f"plugin {self.name!r}: no process can be started ({error.strerror})") from None
        self._isolation.hosts.add(host)
        return host

    def _gone(self, host: Host) -> None:
        self._isolation.hosts.discard(host)
        if host.doom is None:
            log.error("plugin %s: its process %d crashed: %s", self.file, host.pid, host.status)
        elif not (self._retired or self._isolation.closed):
            log.warning("plugin %s: its process %d was stopped: %s", self.file, host.pid, host.doom)
        if host.answered:
            self._deaths = 0
        elif host.doom is None or not host.loaded:
            self._deaths += 1
            if self._deaths >= MAX_DEATHS:
                self._rested = time.monotonic() + self._isolation.rest
                log.error("plugin %s: left alone for %g s", self.file, self._isolation.rest)

    def _leave(self) -> None:
        if self._retired and not self._calls and self._host is not None:
            self._host.kill("the plugin was changed or removed")


async def _ended(host: Host, flight: Flight) -> None:
    """Wait for the end of a call. Cancelled, have it cancelled there: its function may clean up, and even answer."""
    try:
        await asyncio.wait([flight.ended])
    except asyncio.CancelledError:
        host.cancel(flight)
        await asyncio.wait([flight.ended], timeout=UNWIND)
        if not flight.ended.done() or flight.ended.result() is None:
            raise


def _questions(flight: Flight, ended: Ended) -> BaseException:
    """What asks the client, all at once: only what was asked through the server."""
    requests: dict[str, dict[str, Any]] = {}
    for number in ended.asked:
        if number in flight.questions:
            requests |= flight.questions[number].requests
    return InputRequired(requests) if requests else Fault("a call ended by a question that was not asked")
