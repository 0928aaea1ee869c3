"""Follow a program whose streams a caller holds: its pipes, its process tree and its end."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

from toolgate.tools.workspace.output.line_tail import LineTail
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.processes.pipes import PipeReader, PipeWriter
from toolgate.tools.workspace.processes.process import LATE_INSIDE, CommandStartError, Launch, Process
from toolgate.tools.workspace.processes.start_queue import StartWait
from toolgate.tools.workspace.processes.zygote import CommandRunner, open_pipe
from toolgate.tools.workspace.workspace import GRACE, ProgramEnd, ProgramInputError

KILL_WITHIN = LATE_INSIDE + 2.0  # seconds for a tree to be gone after SIGKILL, or with its sandbox


class LocalProgram:
    """A ProgramStream on this machine. `run` records it for the limits. `on_end` is called once, when no process of its
    tree is left or contact is lost; not where `begin` fails. `on_input` is called when it gets input."""

    def __init__(self, run: Run, on_end: Callable[["LocalProgram"], None], on_input: Callable[[], None]) -> None:
        self.run = run
        self.is_ending = False  # its end is our doing
        self._on_end = on_end
        self._on_input = on_input
        self._start_wait = StartWait()
        self._process: Process | None = None
        self._stdin: PipeWriter | None = None
        self._stdout: PipeReader | None = None
        self._stderr = LineTail()
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def begin(self, runner: CommandRunner, launch: Launch, uid: int | None) -> None:
        """Start the program. `uid` is its user, if not the server's. Raises CommandStartError, and OSError where no
        descriptor is free."""
        try:
            with contextlib.ExitStack() as theirs:
                stdin, input_end = open_pipe(uid)
                theirs.callback(os.close, stdin)
                self._stdin = PipeWriter(input_end)
                output_end, stdout = open_pipe(uid)
                theirs.callback(os.close, stdout)
                self._stdout = PipeReader(output_end)
                process = await runner.start(launch, self._stderr.write, stdin, self._start_wait, stdout)
            if self.is_ending:  # while it started
                process.abandon()
                raise CommandStartError(self.run.reason or "it was stopped")
        except BaseException:
            self._close_pipes()
            self._gone.set_result(None)
            raise
        self._process = process
        process.ended.add_done_callback(lambda _: process.terminate(GRACE))  # what it left running
        process.gone.add_done_callback(self._on_gone)

    @property
    def text(self) -> str:
        """The last lines of its standard error."""
        return self._stderr.text

    def add_note(self, text: str) -> None:
        """Add a line of the server's own to the program's standard error."""
        self._stderr.write(f"toolgate: {text}\n".encode())

    async def read(self) -> bytes:
        assert self._stdout is not None
        return await self._stdout.read()

    async def write(self, data: bytes) -> None:
        assert self._stdin is not None
        self._on_input()
        try:
            await self._stdin.write(data)
        except BrokenPipeError:
            raise ProgramInputError(f"{self.run.command} takes no more input") from None

    async def close_input(self) -> None:
        assert self._stdin is not None
        self._stdin.close()

    async def stderr_tail(self) -> str:
        return self.text

    async def wait(self) -> ProgramEnd:
        await asyncio.shield(self._gone)
        return ProgramEnd(self.run.exit_code, [*self.run.hits], self.run.reason)

    async def close(self, grace: float = GRACE) -> None:
        assert self._stdout is not None
        await self.close_input()
        try:
            if not await self.wait_gone(grace):
                self.terminate(None, grace)
                await self.wait_gone(grace + KILL_WITHIN)
        except BaseException:  # above all a cancellation
            self.terminate(None, 0.0)
            raise
        finally:
            self._stdout.close()

    async def wait_gone(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the end of its whole tree. Return whether it has ended."""
        if not self._gone.done():
            await asyncio.wait([self._gone], timeout=timeout)
        return self._gone.done()

    def terminate(self, reason: str | None, grace: float = GRACE) -> None:
        """End the whole tree: SIGTERM, and SIGKILL after `grace` seconds. A second call may shorten that."""
        if not self.is_ending:
            self.is_ending = True
            self.run.reason = reason
            self._start_wait.leave()
        if self._process is not None:
            self._process.terminate(grace)

    def abandon(self) -> None:
        """SIGKILL the tree without waiting for its end, and close the pipes."""
        self.is_ending = True
        self._start_wait.leave()
        if self._process is not None:
            self._process.abandon()
            self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._stdin, self._stdout):
            if pipe is not None:
                pipe.close()

    def _on_gone(self, gone: "asyncio.Future[bool]") -> None:
        assert self._process is not None and self._stdin is not None and self._stdout is not None
        self.run.ended = time.time()
        self.run.exit_code = self._process.ended.result()
        if not gone.result() and self._process.loss_reason and self.run.reason is None:
            self.run.reason = f"its sandbox ended, {self._process.loss_reason}"
        self._stdin.close()
        self._stdout.finish()
        self._on_end(self)
        self._gone.set_result(None)
