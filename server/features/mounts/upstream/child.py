"""Run a mounted server's command as a child of this process: over stdio, for the one person who started both."""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from toolgate.server.features.mounts.upstream.errors import MountError

PIECE = 65_536
MAX_LINES = 20  # of its standard error that are kept
MAX_LINE = 500  # characters


class ChildProgram:
    """One child and its pipes. It is the leader of a group, which ends with it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._errors: deque[str] = deque(maxlen=MAX_LINES)
        self._collecting = asyncio.get_running_loop().create_task(self._collect_errors())

    async def read(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(PIECE)

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def wait(self) -> int:
        return await self._process.wait()

    async def close(self, grace: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        for sign in (0, signal.SIGTERM, signal.SIGKILL):
            if sign:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, sign)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._process.wait()
                    break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it started and left
        self._collecting.cancel()

    def read_errors(self) -> str:
        return "\n".join(self._errors)

    async def _collect_errors(self) -> None:
        assert self._process.stderr is not None
        rest = b""
        while data := await self._process.stderr.read(PIECE):
            *lines, rest = (rest + data).split(b"\n")
            self._errors += [line[:MAX_LINE].decode(errors="replace") for line in lines]
            rest = rest[:PIECE]
        if rest:
            self._errors.append(rest[:MAX_LINE].decode(errors="replace"))


async def start_child(
    command: str, args: tuple[str, ...], cwd: Path | None, environment: Mapping[str, str]
) -> ChildProgram:
    """Start the command. Raises MountError."""
    try:
        process = await asyncio.create_subprocess_exec(
            command,
            *args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        what = f"{command!r} can't be started" if error.filename != str(cwd) else f"its folder {cwd} can't be used"
        raise MountError("COMMAND_NOT_FOUND", f"{what}: {(error.strerror or str(error)).lower()}") from None
    return ChildProgram(process)
