"""Follow a run that has not ended: its process tree, its output and its timeout."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from toolgate.tools.workspace.output.run_output import RunOutput
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.processes.process import CommandStartError, Launch, Process
from toolgate.tools.workspace.processes.start_queue import StartWait
from toolgate.tools.workspace.processes.zygote import CommandRunner
from toolgate.tools.workspace.workspace import GRACE

LINGER = 0.1  # seconds for children of a read-only command, such as `> >(cat)`, to end by themselves

T = TypeVar("T")


class RunningCommand:
    """A running command. `on_end` is called once, when no process of its tree is left or contact is lost."""

    def __init__(self, run: Run, output: RunOutput, on_end: Callable[["RunningCommand"], None]) -> None:
        self.run = run
        self.output = output
        self.on_end = on_end
        loop = asyncio.get_running_loop()
        self.start_done: asyncio.Future[None] = loop.create_future()
        self.is_ending = False  # its end is our doing
        self._ended: asyncio.Future[None] = loop.create_future()  # the command itself; `run` is updated by then
        self._gone: asyncio.Future[None] = loop.create_future()  # all of it, and `run` says so
        self._start_wait = StartWait()
        self._process: Process | None = None
        self._timer: asyncio.TimerHandle | None = None  # of the command itself
        self._age: asyncio.TimerHandle | None = None  # of all that it started
        self._new_output: asyncio.Event | None = None  # set while a caller waits for output

    async def begin(
        self, processes: CommandRunner, launch: Launch, timeout: float | None, stdin: int | None = None
    ) -> None:
        """Start the command. `stdin` is the descriptor of its input; None: empty. Raises CommandStartError; then, and
        if cancelled, `on_end` is not called."""
        try:
            process = await processes.start(launch, self._write, stdin, self._start_wait)
            if self.is_ending:  # while it started
                process.abandon()
                raise CommandStartError("it was stopped")
        except BaseException as error:
            self.output.close()
            self._ended.set_result(None)
            self._gone.set_result(None)
            if self.is_ending and isinstance(error, CommandStartError):
                raise CommandStartError(self.run.reason or "it was stopped while it started") from None
            raise
        finally:
            self.start_done.set_result(None)
        self._process = process
        self.run.moved = process.moved
        if timeout is not None and not process.ended.done():
            self._timer = asyncio.get_running_loop().call_later(timeout, self._expire, timeout)
        self._call_when_done(process.ended, self._on_shell)
        self._call_when_done(process.gone, self._on_gone)

    def _call_when_done(self, future: "asyncio.Future[T]", call: "Callable[[asyncio.Future[T]], None]") -> None:
        if future.done() and not self.run.background:  # of a task, the result that it has begun comes first
            call(future)
        else:
            future.add_done_callback(call)

    def terminate(self, reason: str | None = None, grace: float = GRACE) -> None:
        """End the whole tree: SIGTERM, and SIGKILL after `grace` seconds. A second call may shorten that."""
        if not self.is_ending:
            self.is_ending = True
            self.run.reason = reason
            self.withdraw()
        if self._process is not None:
            self._process.terminate(grace)

    def withdraw(self) -> None:
        """End the command if it waits for its sandbox to start."""
        self._start_wait.leave()

    def abandon(self) -> None:
        """SIGKILL the tree now, without waiting for its end."""
        self.is_ending = True
        self.withdraw()
        if self._process is not None:
            self._process.abandon()

    def end_at(self, when: float, reason: str) -> None:
        """End the rest of the tree at `when`, in seconds since the epoch."""
        if self._age is not None:
            self._age.cancel()
        delay = max(0.0, when - time.time())
        self._age = asyncio.get_running_loop().call_later(delay, self.terminate, reason)

    async def wait_shell(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the command itself to end. Return whether it has."""
        return await _wait_done(self._ended, timeout)

    async def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the end of its whole tree. Return whether it has ended."""
        return await _wait_done(self._gone, timeout)

    async def wait_output(self, beyond: int, timeout: float, *, whole: bool = False) -> None:
        """Wait for more than `beyond` bytes of output, or the end of the command; with `whole`, of its whole tree."""
        end = self._gone if whole else self._ended
        if end.done() or self.output.size > beyond:
            return
        self._new_output = self._new_output or asyncio.Event()
        news = asyncio.ensure_future(self._new_output.wait())
        try:
            either: list[asyncio.Future[Any]] = [news, end]
            await asyncio.wait(either, timeout=timeout, return_when="FIRST_COMPLETED")
        finally:
            news.cancel()

    def _write(self, data: bytes) -> bool:
        """Store output. Return whether all of it is kept."""
        self.output.write(data)
        self.run.kept, self.run.in_memory = self.output.kept_bytes, self.output.failure is not None
        if self._new_output is not None:
            self._new_output.set()
            self._new_output = None
        return self.output.kept_bytes is None

    def _expire(self, timeout: float) -> None:
        if not self.is_ending:
            self.run.timed_out = True
            self.terminate(f"timed out after {round(timeout * 1000)} ms")

    def _on_shell(self, ended: "asyncio.Future[int | None]") -> None:
        """Cancel the timeout: it is the command's, and processes it left running may go on."""
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None:
            self.run.left = self._process.left
            if self.run.read_only and self.run.left:  # it may have had a private /tmp, and no task of it goes on
                asyncio.get_running_loop().call_later(LINGER, self._process.terminate, LINGER)
        self.run.exit_code = ended.result()
        self._ended.set_result(None)

    def _on_gone(self, gone: "asyncio.Future[bool]") -> None:
        if self._age is not None:
            self._age.cancel()
        self.run.status = "killed" if self.is_ending else "exited" if gone.result() else "lost"
        if self.run.status == "lost" and self._process is not None and self._process.loss_reason:
            self.run.reason = f"its sandbox ended with all commands in it, {self._process.loss_reason}"
        self.run.ended = time.time()
        self.output.append_end(final=True)
        self.run.size = self.output.size
        self.output.close()
        self.on_end(self)
        self._gone.set_result(None)


async def _wait_done(future: "asyncio.Future[Any]", timeout: float) -> bool:
    if not future.done():
        await asyncio.wait([future], timeout=timeout)
    return future.done()
