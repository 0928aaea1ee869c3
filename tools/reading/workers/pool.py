"""Read foreign pages and pictures in worker processes that may be killed (tools/reading/workers/worker.py).

A job that takes too long, needs too much memory or crashes costs only its process. The server starts these processes
directly, not through a workspace: they run its own code, and no command. A caller takes a turn before it holds a large
body, so waiting calls hold none.
"""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from typing import TypeVar

import msgspec

from toolgate.tools.api.concurrency.fair_queue import FairQueue
from toolgate.tools.api.errors import ToolError
from toolgate.tools.reading.workers import messages
from toolgate.tools.reading.workers.messages import JobResult, WorkerJob, WorkerMessage, WorkerReady, WorkerStart
from toolgate.tools.workspace.files.open_file import OpenFile
from toolgate.tools.workspace.sandbox import syscalls

MAX_AT_ONCE = 2  # jobs of one kind at once: each may take a core and MEMORY
MAX_WAITING = 128  # waiting jobs of one principal: a later one would not be done in time
IDLE = 60.0  # seconds a worker waits for its next job: starting one takes a third of a second
END_WITHIN = 2.0  # seconds; SIGKILL takes milliseconds, freeing its memory some more
CHUNK = 2**18
USER = 65531  # the workers' user when the server is root: a number that systems leave free, other than the browser's
PROGRAM = (sys.executable, "-E", "-P", "-X", "utf8", "-m", "toolgate.tools.builtin.worker_main")

NOUNS = {"page": "pages", "text": "texts", "search": "answers", "pdf": "PDFs", "picture": "pictures"}

T = TypeVar("T")
log = logging.getLogger(__name__)


class WorkerLimitError(Exception):
    """The job was ended. The text completes "it …": "took more than 20 s"."""


class WorkerFaultError(Exception):
    """The worker failed; the text is its traceback."""


class Workers:
    """Workers for jobs by name, each started on demand and kept for a while after its last job."""

    def __init__(self) -> None:
        self._turns: dict[str, FairQueue] = {}
        self._idle: dict[str, list[WorkerProcess]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._living: set[WorkerProcess] = set()
        self._none_living = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()
        self._filter: bytes | None = None
        self._missing: tuple[str, ...] = ()  # missing confinement of the workers that the log already names

    @contextlib.asynccontextmanager
    async def turn(self, name: str, principal: str, timeout: float | None = None) -> "AsyncGenerator[WorkerTurn]":
        """Wait at most `timeout` seconds for a free worker for the job `name`, and yield the turn. Raises BusyError if
        none is free in time, or too many of the principal's jobs wait."""
        if name not in self._turns:
            self._turns[name] = FairQueue(MAX_AT_ONCE, NOUNS[name], max_waiting=MAX_WAITING)
        async with self._turns[name].slot(principal, timeout):
            yield WorkerTurn(self, name)

    def depths(self) -> list[tuple[str, tuple[int, int]]]:
        """Return the running and the waiting count by job."""
        return [(name, (turns.running, turns.waiting)) for name, turns in self._turns.items()]

    async def run_job(self, name: str, request: msgspec.Struct, body: bytes | OpenFile, timeout: float) -> JobResult:
        """Return a job's result. The worker is kept unless worn; a cancelled job kills its worker."""
        worker = await self._take_worker(name)
        try:
            done = await self._run_in(worker, request, body, timeout)
        except BaseException:
            self._end(worker)
            raise
        self._give_back(name, worker, done.is_worn)
        return done

    async def _run_in(
        self, worker: "WorkerProcess", request: msgspec.Struct, body: bytes | OpenFile, timeout: float
    ) -> JobResult:
        start = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                self._warn_missing(await worker.ready())
                return await worker.ask(request, body)
        except TimeoutError:
            raise WorkerLimitError(f"took more than {timeout:g} s") from None
        except EOFError:  # its CPU limit, a crash, or the system out of memory
            if time.monotonic() - start > 0.9 * messages.CPU:
                raise WorkerLimitError(f"took more than {messages.CPU} s") from None
            raise WorkerLimitError("broke the program that reads it") from None

    def _warn_missing(self, lacking: tuple[str, ...]) -> None:
        if lacking and lacking != self._missing:
            self._missing = lacking
            log.warning("pictures and pages are read in processes without %s", " and without ".join(lacking))

    async def close(self) -> None:
        """End all workers, and wait until they are gone. A later job starts new ones."""
        for name in list(self._idle):
            self._end_idle(name)
        for worker in self._living:
            worker.kill()  # a running job notices and releases it
        if self._living:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_living.wait(), END_WITHIN)

    async def _take_worker(self, name: str) -> "WorkerProcess":
        worker = None
        idle = self._idle.get(name, [])
        while idle and worker is None:
            worker = idle.pop()
            if not worker.is_alive:
                self._end(worker)
                worker = None
        if worker is None:
            if self._filter is None:
                self._filter = await asyncio.to_thread(_load_filter)
            user = USER if os.geteuid() == 0 else -1
            worker = WorkerProcess(messages.encode_frame(WorkerStart(name, user, self._filter)))
        self._living.add(worker)
        self._none_living.clear()
        return worker

    def _give_back(self, name: str, worker: "WorkerProcess", worn: bool) -> None:
        if worn:
            self._end(worker)
            return
        self._idle.setdefault(name, []).append(worker)
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(IDLE, self._end_idle, name)

    def _end_idle(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        for worker in self._idle.pop(name, []):
            self._end(worker)

    def _end(self, worker: "WorkerProcess") -> None:
        """Kill the worker now, and wait for its end in the background."""
        worker.kill()
        task = asyncio.get_running_loop().create_task(self._reap(worker))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _reap(self, worker: "WorkerProcess") -> None:
        try:
            await worker.wait_closed()
        finally:
            self._living.discard(worker)
            if not self._living:
                self._none_living.set()


class WorkerTurn:
    """The right to run one job."""

    def __init__(self, workers: Workers, name: str) -> None:
        self._workers = workers
        self._name = name

    async def run(
        self, request: msgspec.Struct, kind: type[T], body: bytes | OpenFile = b"", *, timeout: float = messages.CPU
    ) -> T:
        """Do the job on `request` within `timeout` seconds. Its field `body`, bytes or a regular file, is sent as it
        is. Raises WorkerLimitError, ToolError if the job refuses, and WorkerFaultError. Cancelling kills the worker."""
        done = await self._workers.run_job(self._name, request, body, timeout)
        if done.is_out_of_memory:
            raise WorkerLimitError(f"took more than {messages.MEMORY // 2**20} MiB of memory")
        if done.refusal:
            raise ToolError(done.refusal)
        if done.fault:
            raise WorkerFaultError(done.fault)
        return msgspec.msgpack.decode(done.result, type=kind)


class WorkerProcess:
    """One worker process and the socket to it."""

    def __init__(self, start: bytes) -> None:
        self._start = start
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    PROGRAM,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,  # the server's stdout belongs to the protocol
                    cwd="/",
                    env={},
                    start_new_session=True,  # a Ctrl-C in the terminal is for the server
                )
            except OSError as error:
                self._socket.close()
                raise WorkerLimitError(f"can't be read now: no process can be started ({error.strerror})") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def ready(self) -> tuple[str, ...]:
        """Return what the worker's confinement lacks, before the first job. Raises what `ask` does."""
        if not self._start:
            return ()
        start, self._start = self._start, b""
        ready = await self._answer(start, WorkerReady)
        if ready.fault:
            raise WorkerFaultError(ready.fault)
        return ready.missing

    async def ask(self, request: msgspec.Struct, body: bytes | OpenFile) -> JobResult:
        """Return the job's result. Raises EOFError if the process ends; ValueError, msgspec.DecodeError."""
        size = len(body) if isinstance(body, bytes) else body.size
        return await self._answer(
            messages.encode_frame(WorkerJob(msgspec.Raw(msgspec.msgpack.encode(request)), size)), JobResult, body
        )

    async def _answer(self, frame: bytes, kind: type[WorkerMessage], body: bytes | OpenFile = b"") -> WorkerMessage:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._socket, frame)
            if not isinstance(body, bytes):
                async for piece in body.pieces():
                    await loop.sock_sendall(self._socket, piece)
            elif body:
                await loop.sock_sendall(self._socket, body)
            (size,) = messages.LENGTH.unpack(await self._read(messages.LENGTH.size))
            if size > messages.MAX_RESULT:
                raise ValueError(f"an answer of {size} bytes")
            return msgspec.msgpack.decode(await self._read(size), type=kind)
        except ConnectionError:
            raise EOFError from None

    def kill(self) -> None:
        with contextlib.suppress(PermissionError):  # root without CAP_KILL: the CPU limit and the socket end it
            self._process.kill()  # a no-op when it has been waited for

    async def wait_closed(self) -> None:
        """Return when the killed process is gone. Its socket closes last, after its memory is freed."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(END_WITHIN):
                while await loop.sock_recv(self._socket, CHUNK):
                    pass
        self._socket.close()
        try:
            self._process.wait(0.0)
            return
        except subprocess.TimeoutExpired:
            pass  # it ends within microseconds, once a busy machine schedules it
        try:
            await asyncio.to_thread(self._process.wait, END_WITHIN)
        except subprocess.TimeoutExpired:
            log.warning("worker %d does not end", self.pid)

    async def _read(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray()
        while len(data) < size:
            chunk = await loop.sock_recv(self._socket, min(CHUNK, size - len(data)))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)


def _load_filter() -> bytes:
    """Return the workers' seccomp program, or b"" if the system has none. Blocks for a hundredth of a second."""
    try:
        return syscalls.reader_program() if sys.platform == "linux" else b""
    except syscalls.FilterUnavailableError:
        return b""
