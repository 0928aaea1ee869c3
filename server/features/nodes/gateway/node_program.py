"""Use the streams of a program that runs at a node."""

import asyncio
from typing import Any

from toolgate.server.features.nodes.gateway import remote_methods
from toolgate.server.features.nodes.gateway.link import NodeLink
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.output.ansi import clean_output
from toolgate.tools.workspace.workspace import (
    GRACE,
    ProgramEnd,
    ProgramInputError,
    WorkspaceMovedError,
    WorkspaceUnreachableError,
)

MAX_READ = 2**16  # bytes of a piece that a node sends
MAX_TAIL = 2**16  # characters of its standard error
MAX_WRITE = 2**18  # bytes of a piece for the node: its requests go before those that follow


class NodeProgram:
    """A ProgramStream at the node of `link`, which knows it by `name`."""

    def __init__(self, link: NodeLink, principal: str, name: str) -> None:
        self._link = link
        self._principal = principal
        self._name = name
        self._offset = 0  # bytes that were read
        self._is_reading = False
        self._writing = asyncio.Lock()
        self._closing: asyncio.Event | None = None
        self._end: ProgramEnd | None = None
        self._tail: str | None = None  # of its standard error, once closed

    async def read(self) -> bytes:
        if self._is_reading:
            raise RuntimeError("another read waits for the same program")
        if self._closing is not None:
            return b""
        self._is_reading = True
        try:
            piece: bytes = await self._request("read_program", self._offset)
        except WorkspaceUnreachableError:
            if self._closing is not None:
                return b""
            raise
        finally:
            self._is_reading = False
        if len(piece) > MAX_READ:
            raise ToolError(f"the node sent {len(piece):,} bytes where {MAX_READ:,} were asked for")
        self._offset += len(piece)
        return piece

    async def write(self, data: bytes) -> None:
        async with self._writing:
            for begin in range(0, len(data), MAX_WRITE):
                try:
                    await self._request("write_program", data[begin : begin + MAX_WRITE])
                except WorkspaceUnreachableError:
                    if self._closing is None:
                        raise
                    raise ProgramInputError("the program was ended: it takes no more input") from None

    async def close_input(self) -> None:
        if self._closing is None:
            await self._request("end_input")

    async def stderr_tail(self) -> str:
        return self._tail if self._tail is not None else _clean_tail(await self._request("read_stderr"))

    async def wait(self) -> ProgramEnd:
        if self._closing is not None:
            await self._closing.wait()
        if self._end is not None:
            return self._end
        end: ProgramEnd = await self._request("wait_program")
        return end

    async def close(self, grace: float = GRACE) -> None:
        if self._closing is not None:
            await self._closing.wait()
            return
        self._closing = asyncio.Event()
        try:
            self._end, tail = await self._request("close_program", grace)
            self._tail = _clean_tail(tail)
        except (WorkspaceUnreachableError, WorkspaceMovedError) as error:  # it has ended, or does so by itself
            self._end, self._tail = ProgramEnd(None, reason=error.text), ""
        finally:
            self._end = self._end or ProgramEnd(None, reason="the program was ended")
            self._tail = self._tail or ""
            self._closing.set()

    async def _request(self, method: str, *words: Any) -> Any:
        """Perform a method for the program. Raises WorkspaceUnreachableError where the node has it no longer."""
        name = f"node.{method}"
        try:
            return await remote_methods.perform(
                self._link, self._principal, name, (self._name, *words), {}, is_call=False
            )
        except KeyError:
            text = f"the program has ended: the connection to the node {self._link.name} was lost for too long"
            raise WorkspaceUnreachableError(text) from None


def _clean_tail(text: str) -> str:
    return clean_output(text[-MAX_TAIL:].encode(errors="replace"), final=True)[0]
