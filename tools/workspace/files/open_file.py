"""Read a regular file piece by piece, so that no reader has all of it in memory."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from toolgate.tools.api.errors import ToolError

PIECE = 2**20  # bytes held in memory at once


class OpenFile(Protocol):
    """An open file of `size` bytes; `path` is for error texts."""

    path: str
    size: int

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the file's `size` bytes in pieces. Raises ToolError."""
        ...


class LocalFile:
    """An open file of this machine, read in threads so that the loop waits for no disk.

    `file` is unbuffered and had `size` bytes when opened.
    """

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self._file = file
        self._reading: asyncio.Future[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file after the thread that may still read it: the descriptor's number could be reused by then."""
        if self._reading is None or self._reading.done():
            self._file.close()
        else:
            self._reading.add_done_callback(self._end)

    @property
    def identity(self) -> str:
        """The file, whatever is written to it: another one in its place has another."""
        status = os.fstat(self._file.fileno())
        return f"{status.st_dev}:{status.st_ino}"

    async def read_at(self, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes from `offset`; nothing only of a file whose size is 0. Raises ToolError."""
        return await self._wait(partial(os.pread, self._file.fileno(), limit, offset))

    async def pieces(self) -> AsyncIterator[bytes]:
        rest = self.size
        while rest:
            piece = await self._wait(partial(self._file.read, min(PIECE, rest)))
            rest -= len(piece)
            yield piece

    async def _wait(self, read: Callable[[], bytes]) -> bytes:
        """Return what `read` returns in a thread, which is not nothing before the file's end."""
        self._reading = asyncio.get_running_loop().run_in_executor(None, read)
        try:
            piece = await asyncio.shield(self._reading)
        except OSError as error:
            raise ToolError(f"{self.path} can't be read: {(error.strerror or str(error)).lower()}") from None
        if not piece and self.size:
            raise ToolError(f"{self.path} became shorter while it was read: call again")
        return piece

    def _end(self, reading: "asyncio.Future[bytes]") -> None:
        if not reading.cancelled():
            reading.exception()  # its caller is gone
        self._file.close()
