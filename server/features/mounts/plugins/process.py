"""Pass calls to a plugin's process over MCP, and end the process when it breaks its promises.

Input from the process is not trusted: it is bounded, typed, and valid only for a running call.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from toolgate.server.base.rpc import frames
from toolgate.server.features.mounts.lists.list_store import fetch_lists
from toolgate.server.features.mounts.plugins import api, calls, data
from toolgate.server.features.mounts.plugins.calls import CallFlight, PluginCall
from toolgate.server.features.mounts.plugins.data import ListedPart, LoadFailure, PluginEvent
from toolgate.server.features.mounts.plugins.program import PluginProgram
from toolgate.server.features.mounts.upstream import messages
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamRefusedError
from toolgate.server.features.mounts.upstream.handshake import shake_hands
from toolgate.server.features.mounts.upstream.peer import FlightRequest, UpstreamPeer
from toolgate.server.features.mounts.upstream.program import ProgramWire
from toolgate.server.features.mounts.upstream.session import ForwardedParams, UpstreamSession
from toolgate.tools.api.context.context import Context

log = logging.getLogger("toolgate.plugins")

LOAD_WITHIN = 20.0  # seconds: an import beyond the loader's own patience is stuck
UNLOADED = "it could not be loaded"
CANCEL_TIME = 2.0  # seconds for the process to confirm a cancellation
EXIT_WITHIN = 2.0  # seconds for the exit of a process whose stream has ended
ENDED = frozenset(("STDIO_EXITED", "STDIO_CLOSED"))  # it has ended by itself, or was killed
MAX_REQUESTS = 1_000  # unanswered; a process with more is broken or hostile
MAX_REQUESTED = 128 * 2**20  # bytes in these
MAX_DATA_REQUESTS = 8  # requests for data at once: each may hold MAX_DATA a few times
MAX_OF_PRINCIPAL = 2  # of these: one who waits for slow pages holds up no other


class PluginNotLoadedError(Exception):
    """The plugin could not be loaded. The text says why: with `by_plugin`, a traceback."""

    def __init__(self, text: str, *, by_plugin: bool = False) -> None:
        super().__init__(text)
        self.by_plugin = by_plugin


class PluginProcess:
    """The conversation with one process. `on_end(process)` is called after the process has ended, and `on_event(event)`
    with each event of a principal that it knows."""

    def __init__(
        self,
        file: Path,
        program: PluginProgram,
        on_end: "Callable[[PluginProcess], None]",
        on_event: Callable[[PluginEvent], None],
    ) -> None:
        self.file = file
        self.is_loaded = False
        self.answered_calls = 0  # calls that ended normally
        self.exited = program.exited
        self.principals: set[str] = set()  # whose calls it has seen
        self._kill_reason: str | None = None
        self._program = program
        self._on_event = on_event
        self._peer = UpstreamPeer(self._take_notice, names_requests=True)
        self._peer.wire = ProgramWire(program, self._peer, ())
        self._session: UpstreamSession | None = None
        self._cancellations: set[asyncio.Task[None]] = set()
        self._request_count = 0
        self._request_size = 0  # bytes
        self._data_requests = asyncio.Semaphore(MAX_DATA_REQUESTS)
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # of these, by principal
        program.exited.add_done_callback(lambda _: on_end(self))

    @property
    def pid(self) -> int:
        return self._program.pid

    @property
    def status(self) -> str:
        """How it has ended, or ""."""
        return self._program.status

    @property
    def kill_reason(self) -> str | None:
        """Why the server killed it, which completes "it was stopped: …", or None."""
        failure = self._peer.failure
        if self._kill_reason is None and failure is not None and failure.code not in ENDED:
            return failure.sentence
        return self._kill_reason

    @property
    def is_alive(self) -> bool:
        return self.kill_reason is None and not self.exited.done() and self._peer.failure is None

    async def load(self) -> list[ListedPart]:
        """Have the plugin loaded, and return its parts. Raises PluginNotLoadedError."""
        try:
            async with asyncio.timeout(LOAD_WITHIN):  # before the limits of each request
                session = await shake_hands(self._peer, "modern", data.CLIENT, 2 * LOAD_WITHIN)
                await session.request(data.LOAD, {}, 2 * LOAD_WITHIN)
                parts = await _list_parts(session)
        except (MountError, UpstreamRefusedError, TimeoutError) as error:
            failure = await self._describe_failure(error)
            self.kill(UNLOADED)
            raise PluginNotLoadedError(failure.fault, by_plugin=failure.by_plugin) from None
        except BaseException:
            self.kill(UNLOADED)
            raise
        self._session = session
        self.is_loaded = True
        return parts

    async def begin(self, method: str, params: Mapping[str, Any], context: Context) -> PluginCall:
        """Begin a call; `release` ends it. Raises ConnectionError and OverflowError."""
        caller, state = frames.encode_raw(calls.create_context_data(context)), calls.read_state(context)
        encoded = {name: frames.encode_raw(value) for name, value in params.items()}
        size = sum(len(bytes(value)) for value in (caller, *encoded.values()))
        if size > data.MAX_MESSAGE:
            raise OverflowError(f"{size:,} bytes, over {data.MAX_MESSAGE:,}")
        if self._session is None or not self.is_alive:
            raise ConnectionResetError
        call = PluginCall(CallFlight(), context)
        self.principals.add(context.principal)
        try:
            sent = {**encoded, "_meta": {data.CALLER: caller}}
            await self._session.forward(ForwardedParams(method, sent), call.flight, with_progress=True)
        except MountError:
            raise ConnectionResetError from None
        context.when_changed(lambda: self._send_state(call))
        if calls.read_state(context) != state:  # it changed meanwhile
            self._send_state(call)
        call.ending = asyncio.get_running_loop().create_task(call.follow(self._serve))
        return call

    def cancel(self, call: PluginCall) -> None:
        """Cancel the call, and kill a process that does not confirm in time."""
        if self.is_alive and not call.is_over and not call.is_cancelled:
            call.is_cancelled = True
            task = asyncio.get_running_loop().create_task(self._cancel(call))
            self._cancellations.add(task)
            task.add_done_callback(self._cancellations.discard)

    def release(self, call: PluginCall) -> None:
        """Forget the call: its requests get no answers."""
        self._peer.cancel(call.flight, "no longer needed")
        for task in [call.ending, *call.requests.values()]:
            if task is not None:
                task.cancel()

    async def describe_end(self) -> str:
        """Return how the process has ended, which it is about to: "exit status 7"."""
        await asyncio.wait([self.exited], timeout=EXIT_WITHIN)
        return self.status

    def kill(self, why: str) -> None:
        if self.kill_reason is None and not self.exited.done():
            self._kill_reason = why
        self._program.end()

    async def _describe_failure(self, error: Exception) -> LoadFailure:
        """Return why the plugin is not loaded."""
        failure = self._peer.failure
        match error:
            case UpstreamRefusedError():
                return _read_refusal(error)
            case MountError() if failure is not None and failure.code in ENDED:
                ended = await self.describe_end() or self.kill_reason
                return LoadFailure(f"its process ended as it was loaded: {ended}")
            case MountError():
                return LoadFailure(error.text)
            case _:
                return LoadFailure(f"not loaded within {LOAD_WITHIN:g} s")

    # -- its messages

    def _send_state(self, call: PluginCall) -> None:
        if self.is_alive and not call.is_over:
            state = data.CallState(call.flight.id, *calls.read_state(call.context))
            self._peer.tell(data.STATE, msgspec.to_builtins(state))

    async def _cancel(self, call: PluginCall) -> None:
        assert self._session is not None  # a call has begun
        try:
            await self._session.request(data.CANCEL, {"requestId": call.flight.id}, CANCEL_TIME)
        except TimeoutError:
            if not call.has_answered:
                self.kill("a call in it did not react to being cancelled")
        except (MountError, UpstreamRefusedError) as error:  # it has ended meanwhile
            log.debug("plugin %s: a cancellation is not confirmed: %s", self.file, error)

    def _take_notice(self, method: str, params: dict[str, Any]) -> None:
        """Take what concerns no call: an event."""
        try:
            event = msgspec.convert(params, PluginEvent) if method == data.EVENT else None
        except msgspec.ValidationError:
            event = None
        if event is not None and event.principal in self.principals:
            self._on_event(event)
        else:
            log.debug("plugin %s: ignored a message of its process about no running call", self.file)

    def _serve(self, call: PluginCall, request: FlightRequest) -> None:
        """Answer a request of a call."""
        if type(request.id) is not int or request.id in call.requests:
            self.kill("its process sent a request without a number of its own")
            return
        name = str(messages.read_value(request.params.get("name", msgspec.UNSET)))
        size = sum(len(bytes(value)) for value in request.params.values())
        self._request_size += size
        self._request_count += 1
        if self._request_count > MAX_REQUESTS or self._request_size > MAX_REQUESTED:
            self.kill("its process sent too many requests at once")
        task = asyncio.get_running_loop().create_task(self._answer(call, request, name))
        call.requests[request.id] = task
        task.add_done_callback(lambda task: self._finish_request(task, call, request.id, size))

    def _finish_request(self, task: "asyncio.Task[None]", call: PluginCall, id: int, size: int) -> None:
        self._request_size -= size
        self._request_count -= 1
        del call.requests[id]
        if not task.cancelled() and task.exception() is not None:  # the process ended meanwhile
            log.debug("plugin %s: an answer was not delivered", self.file, exc_info=task.exception())

    async def _answer(self, call: PluginCall, request: FlightRequest, name: str) -> None:
        if api.CONTEXT_METHODS.returns_data(name):
            share = self._shares.setdefault(call.context.principal, asyncio.Semaphore(MAX_OF_PRINCIPAL))
            async with share, self._data_requests:
                await self._send_answer(call, request, name)
        else:
            await self._send_answer(call, request, name)

    async def _send_answer(self, call: PluginCall, request: FlightRequest, name: str) -> None:
        answer = await calls.answer_request(call, request, name)
        await self._peer.reply(request.id, answer)


async def _list_parts(session: UpstreamSession) -> list[ListedPart]:
    """Return the parts that the process lists. Raises MountError, UpstreamRefusedError, PluginNotLoadedError."""
    lists = await fetch_lists(session)
    events = await session.list_all("events/list", "events")
    items = [*lists.tools, *lists.prompts, *lists.resources, *lists.templates, *events.items]
    try:
        return msgspec.convert(items, list[ListedPart])
    except msgspec.ValidationError as error:
        raise PluginNotLoadedError(f"its process listed something else than parts: {error}") from None


def _read_refusal(error: UpstreamRefusedError) -> LoadFailure:
    try:
        return msgspec.convert(error.refusal.data, LoadFailure)
    except msgspec.ValidationError:
        return LoadFailure(f"its process refused to load it: {error}")
