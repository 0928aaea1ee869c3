"""Hold the programs whose streams a gateway uses: each ends with the gateway, or when that is out of reach too long."""

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any

from toolgate.tools.workspace.workspace import GRACE, ProgramEnd, ProgramStream


class HeldProgram:
    """A program and its last piece of output, which stays until the next is asked for: an answer may be lost."""

    def __init__(self, stream: ProgramStream) -> None:
        self.stream = stream
        self._piece = b""
        self._offset = 0  # of the piece
        self._turn = asyncio.Lock()

    async def read(self, offset: int) -> bytes:
        """Return the piece of output that begins there, b"" at the end. Raises ValueError for another offset than that
        of the last piece and of the next."""
        async with self._turn:
            end = self._offset + len(self._piece)
            if offset == end:
                self._piece, self._offset = await self.stream.read(), end
            elif offset != self._offset:
                raise ValueError(f"output from {offset} is not kept")
            return self._piece


class HeldPrograms:
    """The programs of one gateway, by principal and by a name that no other life of the node gives."""

    def __init__(self) -> None:
        self._programs: dict[tuple[str, str], HeldProgram] = {}
        self._closing: set[asyncio.Task[ProgramEnd]] = set()

    def add(self, principal: str, stream: ProgramStream) -> str:
        """Hold a program, and return its name."""
        name = secrets.token_hex(8)
        self._programs[principal, name] = HeldProgram(stream)
        return name

    def find(self, principal: str, name: str) -> HeldProgram:
        """Return a program. Raises KeyError."""
        return self._programs[principal, name]

    async def close(self, principal: str, name: str, grace: float) -> tuple[ProgramEnd, str]:
        """End a program, and return how it ended and the end of its standard error. Raises KeyError."""
        stream = self._programs.pop((principal, name)).stream
        return await _close(stream, grace), await stream.stderr_tail()

    def end(self, principal: str, name: str) -> None:
        """End a program that nobody waits for."""
        held = self._programs.pop((principal, name), None)
        if held is not None:
            self._spawn(_close(held.stream, GRACE))

    def end_all(self) -> None:
        """End all: the gateway is gone."""
        for principal, name in list(self._programs):
            self.end(principal, name)

    def _spawn(self, work: Coroutine[Any, Any, ProgramEnd]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(stream: ProgramStream, grace: float) -> ProgramEnd:
    await stream.close(grace)
    return await stream.wait()
