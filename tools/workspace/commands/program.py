"""Run short programs with the rights of a principal's commands: input in, output back, and no background task."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from toolgate.tools.api.context.services import ProgramResult
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.commands.environment import CommandEnvironment
from toolgate.tools.workspace.commands.limit_checks import LimitChecks
from toolgate.tools.workspace.processes.input_file import open_input
from toolgate.tools.workspace.processes.process import LATE_INSIDE, CommandStartError, Launch, Process

MOST = 4  # of a principal at once; others wait
END_WITHIN = LATE_INSIDE + 2.0  # seconds for a tree to be gone after SIGKILL, or with its sandbox


class Programs:
    """The running programs of a workspace, within its `limits`. They start in `root`, with `variables`, for `owner`."""

    def __init__(
        self,
        environment: CommandEnvironment,
        limits: LimitChecks,
        root: Path,
        variables: Mapping[str, str],
        owner: str,
    ) -> None:
        self._environment = environment
        self._limits = limits
        self._root = root
        self._variables = variables
        self._owner = owner
        self._turns = asyncio.Semaphore(MOST)
        self._running: set[Process] = set()

    async def run(
        self, argv: Sequence[str], given: bytes, limit: int, timeout: float, *, changes_files: bool
    ) -> ProgramResult:
        """Run a program to its end, with all that it starts. Raises ToolError, and TimeoutError after it was killed."""
        async with self._turns:
            await self._limits.remeasure()
            if changes_files and self._limits.is_full:
                raise ToolError(f"{self._limits.excess}: remove files first")
            place = self._environment
            place.refresh()
            launch = Launch(
                argv,
                self._root,
                self._root,
                place.variables(self._variables),
                self._limits.resources,
                self._limits.is_full,
                owner=self._owner,
            )
            output, size = bytearray(), 0

            def take(data: bytes) -> bool:
                nonlocal size
                size += len(data)
                output.extend(data[: limit - len(output)])
                return size <= limit

            try:
                with open_input(given) as file:
                    process = await place.runner.start(launch, take, file)
            except (CommandStartError, OSError) as error:
                raise ToolError(f"{argv[0]} was not started: {error}") from None
            code = await self._follow(process, timeout)
            return ProgramResult(code, bytes(output), truncated=size > limit)

    async def _follow(self, process: Process, timeout: float) -> int | None:
        self._running.add(process)
        self._limits.command_started()
        process.gone.add_done_callback(lambda _: self._forget(process))  # also after a second cancellation
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(process.ended)
        finally:
            process.terminate(0.0)
            with suppress(TimeoutError):
                async with asyncio.timeout(END_WITHIN):
                    await asyncio.shield(process.gone)

    def _forget(self, process: Process) -> None:
        self._running.discard(process)
        self._limits.command_ended()

    @property
    def are_running(self) -> bool:
        """Whether a program runs."""
        return bool(self._running)

    def kill(self) -> None:
        """SIGKILL all programs."""
        for process in self._running:
            process.terminate(0.0)

    def abandon(self) -> None:
        """SIGKILL all programs, without waiting for their end."""
        for process in list(self._running):
            process.abandon()
