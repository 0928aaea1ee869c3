"""Start a plugin's process, pass calls to it, and end it.

Input from the process is not trusted: it is bounded, typed, and valid only for a running call.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.base.rpc import errors, frames
from toolgate.server.plugins.isolation import api, api_server, messages
from toolgate.server.plugins.isolation.api_server import PluginCall
from toolgate.server.plugins.isolation.spawner import SpawnedProcess
from toolgate.tools.api.context.context import Context
from toolgate.tools.workspace.processes import process_tree

log = logging.getLogger("toolgate.plugins")

LOAD_WITHIN = 20.0  # seconds: an import beyond the loader's own patience is stuck
CANCEL_TIME = 2.0  # seconds for the process to confirm a cancellation
LATE = 0.5  # seconds for the reaper to end the tree; after that it is stopped, and the server does it
GONE_WITHIN = 2.0  # seconds; SIGKILL takes milliseconds, freeing memory longer
CHUNK = 2**16  # bytes read ahead: the share of a flooding process in each turn of the loop
TURN = 100  # messages of one process before others get their turn
MAX_REQUESTS = 1_000  # unanswered; a process with more is broken or hostile
MAX_REQUESTED = 2 * frames.MAX_FRAME  # bytes in these
MAX_UNREAD = 4 * frames.MAX_FRAME  # bytes a process leaves unread
MAX_DATA_REQUESTS = 4  # requests for data at once: each may hold MAX_BROUGHT a few times


class PluginNotLoadedError(Exception):
    """The plugin could not be loaded. The text says why: with `by_plugin`, a traceback."""

    def __init__(self, text: str, *, by_plugin: bool = False) -> None:
        super().__init__(text)
        self.by_plugin = by_plugin


class PluginProcess:
    """One process that has been started; `on_end(process)` is called after it and its calls have ended, and
    `on_event(note)` with each event of a principal that it knows."""

    def __init__(
        self,
        file: Path,
        spawned: SpawnedProcess,
        on_end: "Callable[[PluginProcess], None]",
        on_event: Callable[[messages.EventNote], None],
    ) -> None:
        self.file = file
        self.is_loaded = False
        self.answered_calls = 0  # calls that ended normally
        self.kill_reason: str | None = None  # why the server killed it; completes "it was stopped: …"
        self.status = ""  # how it ended
        self.exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.principals: set[str] = set()  # whose calls it has seen
        self._on_end = on_end
        self._on_event = on_event
        self._calls: dict[int, PluginCall] = {}
        self._cancel_timers: dict[int, asyncio.TimerHandle] = {}  # by call; each kills an overdue process
        self._last_id = 0
        self._request_size = 0  # bytes
        self._data_requests = asyncio.Semaphore(MAX_DATA_REQUESTS)
        self._loaded: asyncio.Future[Sequence[messages.PartData] | messages.LoadFailure] = (
            asyncio.get_running_loop().create_future()
        )
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._cleanup: asyncio.Task[None] | None = None
        self._spawned = spawned
        self._socket = spawned.channel
        self._reaper_socket = spawned.line  # for the reaper: only its end means something
        threading.Thread(target=self._wait, args=(asyncio.get_running_loop(),), daemon=True).start()

    @property
    def pid(self) -> int:
        return self._spawned.pid

    @property
    def is_alive(self) -> bool:
        return self.kill_reason is None and not self.exited.done() and self._cleanup is None

    async def load(self) -> Sequence[messages.PartData]:
        """Wait until the plugin is loaded and return its parts. Raises PluginNotLoadedError."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket, limit=CHUNK)
        self._reading = asyncio.create_task(self._read(reader, self._writer))
        either: list[asyncio.Future[Any]] = [self._loaded, self.exited]
        try:
            await asyncio.wait(either, timeout=LOAD_WITHIN, return_when="FIRST_COMPLETED")
            if self.exited.done():
                raise PluginNotLoadedError(f"its process ended as it was loaded: {self.kill_reason or self.status}")
            if not self._loaded.done():
                raise PluginNotLoadedError(f"not loaded within {LOAD_WITHIN:g} s")
            parts = self._loaded.result()
            if isinstance(parts, messages.LoadFailure):
                raise PluginNotLoadedError(parts.fault, by_plugin=parts.by_plugin)
        except BaseException:
            self.kill("it could not be loaded")
            raise
        self.is_loaded = True
        return parts

    async def begin(self, verb: str, kind: str, key: str, given: Any, context: Context) -> PluginCall:
        """Begin a call; `release` ends it. Raises ConnectionError and OverflowError."""
        assert self._writer is not None
        await self._writer.drain()  # a process that does not read gets no more
        self._last_id += 1
        call = PluginCall(self._last_id, context)
        data = frames.encode_frame(
            messages.BeginCall(call.id, verb, kind, key, frames.encode_raw(given), api_server.context_data(context))
        )
        if not self.is_alive:
            raise ConnectionResetError
        self._calls[call.id] = call
        self.principals.add(context.principal)
        self._writer.write(data)
        context.when_changed(lambda: self._send_update(call))
        return call

    def _send_update(self, call: PluginCall) -> None:
        if call.id in self._calls:
            context = call.context
            self._send(messages.ContextUpdate(call.id, context.hold is not None, context.wants_progress))

    def cancel(self, call: PluginCall) -> None:
        """Cancel the call, and kill a process that does not confirm in time."""
        if self.is_alive and not call.result.done() and call.id not in self._cancel_timers:
            self._send(messages.CancelCall(call.id))
            why = "a call in it did not react to being cancelled"
            self._cancel_timers[call.id] = asyncio.get_running_loop().call_later(CANCEL_TIME, self.kill, why)

    def release(self, call: PluginCall) -> None:
        """Forget the call: its requests get no answers."""
        self._calls.pop(call.id, None)
        for task in call.requests.values():
            task.cancel()

    def kill(self, why: str) -> None:
        if self.kill_reason is None and not self.exited.done():
            self.kill_reason = why
        self._end_process()

    def _end_process(self) -> None:
        """Let the reaper end the process and its children."""
        if self._reaper_socket.fileno() >= 0:
            self._reaper_socket.close()
            self._send_signal(signal.SIGTERM)  # ends a reaper that has not started yet; later it ignores the signal
            self._send_signal(signal.SIGCONT)
            asyncio.get_running_loop().call_later(LATE, self._kill_tree)

    def _kill_tree(self) -> None:
        """Do the work of a stopped reaper."""
        if self._cleanup is None:
            process_tree.kill(lambda: process_tree.top_processes(self._spawned.pid))
            self._send_signal(signal.SIGCONT)

    def _send_signal(self, number: signal.Signals) -> None:
        """Signal the process. Its id stays valid until `_clean_up` has waited for it."""
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._spawned.pid, number)

    # -- its end

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the loop, from a thread, that the process has ended; `_clean_up` waits for it."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._spawned.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS: the id might be reused before it is used
            self._spawned.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._handle_exit)

    def _handle_exit(self) -> None:
        self._reaper_socket.close()
        self._cleanup = asyncio.get_running_loop().create_task(self._clean_up())

    async def _clean_up(self) -> None:
        if self._reading is not None:  # messages it sent before it died count
            await asyncio.wait([self._reading], timeout=GONE_WITHIN)
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()
        code = self._spawned.wait()
        self.status = f"exit status {code}" if code >= 0 else f"signal {_signal_name(-code)}"
        self.exited.set_result(None)
        for timer in self._cancel_timers.values():
            timer.cancel()
        for call in list(self._calls.values()):
            self._end(call, None)
        self._on_end(self)

    # -- its messages

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count = 0
        try:
            while True:
                await self._take(await frames.read_frame(reader, messages.FROM_WORKER))
                await writer.drain()  # a process must read its answers, or its messages wait
                count += 1
                if count % TURN == 0:
                    await asyncio.sleep(0)
        except (EOFError, ConnectionError):
            self._end_process()  # its socket is closed: the process must end
        except frames.MalformedFrameError as fault:
            log.error("plugin %s: its process sent %s", self.file, fault)
            self.kill(f"its process sent {fault}")
        except Exception:
            log.exception("plugin %s: a message of its process could not be handled", self.file)
            self.kill("a message of its process could not be handled")

    async def _take(self, message: Any) -> None:
        match message:
            case messages.PluginReady(parts) if not self._loaded.done():
                self._loaded.set_result(parts)
            case messages.LoadFailure() if not self._loaded.done():
                self._loaded.set_result(message)
            case messages.CallResult(id):
                self._stop_cancel_timer(id)
                if id in self._calls:
                    self.answered_calls += 1
                    self._end(self._calls[id], message)
            case messages.ApiNote(id, name, given) if id in self._calls:
                await api_server.take_note(self._calls[id], name, given)
            case messages.EventNote() if message.principal in self.principals:
                self._on_event(message)
            case messages.ApiRequest():
                self._request(message)
            case messages.RequestWithdrawn(id, number) if id in self._calls and number in self._calls[id].requests:
                self._calls[id].requests[number].cancel()
            case messages.CancelReceived(id):
                self._stop_cancel_timer(id)
            case _:
                log.debug("plugin %s: ignored a message of its process about no running call", self.file)

    def _stop_cancel_timer(self, id: int) -> None:
        overdue = self._cancel_timers.pop(id, None)
        if overdue is not None:
            overdue.cancel()

    def _end(self, call: PluginCall, ended: messages.CallResult | None) -> None:
        if not call.result.done():
            call.result.set_result(ended)
            call.news.set()

    def _request(self, request: messages.ApiRequest) -> None:
        call = self._calls.get(request.id)
        if call is None or call.result.done():
            self._send(messages.ApiAnswer(request.number, error=errors.ErrorData("ToolError", "the call is over")))
            return
        if request.number in call.requests:
            raise frames.MalformedFrameError("a request with a number in use")
        size = len(bytes(request.arguments))
        self._request_size += size
        count = sum(len(each.requests) for each in self._calls.values())
        if count >= MAX_REQUESTS or self._request_size > MAX_REQUESTED:
            raise frames.MalformedFrameError("too many requests at once")
        task = asyncio.get_running_loop().create_task(self._answer(call, request))
        call.requests[request.number] = task
        task.add_done_callback(lambda task: self._finish_request(task, call, request.number, size))

    def _finish_request(self, task: "asyncio.Task[None]", call: PluginCall, number: int, size: int) -> None:
        self._request_size -= size
        del call.requests[number]
        if not task.cancelled() and task.exception() is not None:  # the process ended meanwhile
            log.debug("plugin %s: an answer was not delivered", self.file, exc_info=task.exception())

    async def _answer(self, call: PluginCall, request: messages.ApiRequest) -> None:
        if api.CONTEXT_METHODS.returns_data(request.name):
            async with self._data_requests:
                self._send(await api_server.answer_request(call, request))
                if self._writer is not None:
                    await self._writer.drain()
        else:
            self._send(await api_server.answer_request(call, request))

    def _send(self, message: msgspec.Struct) -> None:
        if self._writer is None or not self.is_alive:
            return
        if self._writer.transport.get_write_buffer_size() > MAX_UNREAD:
            self.kill("its process does not read what it is sent")
            return
        self._writer.write(frames.encode_frame(message))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
