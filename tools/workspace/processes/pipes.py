"""Read and write the pipes of a process without threads, and without a buffer: a pipe holds 64 KiB, and then its writer
waits."""

import asyncio
import os

CHUNK = 2**16  # bytes: a pipe's default capacity


class PipeReader:
    """The end of a pipe from which one caller at a time reads. It owns the descriptor.

    The loop goes on watching the pipe between two reads: to begin and end that takes as long as the rest of a read.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._has_ended = False  # no process can write any more
        self._is_reading = False
        self._is_watched = False
        self._has_waited = True  # the last read found the pipe empty
        self._ready: asyncio.Future[None] | None = None  # a caller waits

    async def read(self) -> bytes:
        """Return what is there, at most CHUNK bytes, as soon as there is any; b"" at the end. A cancelled read takes
        nothing. Raises RuntimeError while another read waits."""
        if self._is_reading:
            raise RuntimeError("another read waits for the same pipe")
        self._is_reading = True
        try:
            if not self._has_waited:
                await asyncio.sleep(0)  # a fast writer must not keep other tasks from running
            return await self._read()
        finally:
            self._is_reading = False

    async def _read(self) -> bytes:
        self._has_waited = False
        while self._descriptor is not None:
            try:
                data = os.read(self._descriptor, CHUNK)
            except BlockingIOError:
                if self._has_ended:
                    break
                self._has_waited = True
                await self._wait(self._descriptor)
                continue
            if data:
                return data
            break
        self.close()
        return b""

    async def _wait(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        if not self._is_watched:
            loop.add_reader(descriptor, self._on_readable)
            self._is_watched = True
        try:
            await self._ready
        finally:
            self._ready = None

    def _on_readable(self) -> None:
        """Wake the caller that waits. Without one, leave what is there in the pipe."""
        if self._ready is None:
            self._unwatch()
        else:
            _set_done(self._ready)

    def _unwatch(self) -> None:
        if self._is_watched and self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
        self._is_watched = False

    def finish(self) -> None:
        """Note that no process can write any more: what is in the pipe is the rest, whoever still holds its end."""
        self._has_ended = True
        _set_done(self._ready)

    def close(self) -> None:
        """Close the pipe. A read that waits returns the end."""
        if self._descriptor is not None:
            self._unwatch()
            _set_done(self._ready)
            os.close(self._descriptor)
            self._descriptor = None


class PipeWriter:
    """The end of a pipe to which callers write, one after another. It owns the descriptor."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._turn = asyncio.Lock()
        self._ready: asyncio.Future[None] | None = None

    async def write(self, data: bytes) -> None:
        """Write all of the data, as fast as it is read. A cancelled write may have written a part. Raises
        BrokenPipeError where nobody reads any more."""
        async with self._turn:
            left = memoryview(data)
            while left:
                if self._descriptor is None:
                    raise BrokenPipeError
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:
                    await self._wait(self._descriptor)

    async def _wait(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        ready = self._ready = loop.create_future()
        loop.add_writer(descriptor, _set_done, ready)
        try:
            await ready
        finally:
            self._ready = None
            if self._descriptor is not None:
                loop.remove_writer(descriptor)

    def close(self) -> None:
        """Close the pipe: its reader sees the end. A write that waits fails."""
        if self._descriptor is not None:
            if self._ready is not None:
                asyncio.get_running_loop().remove_writer(self._descriptor)
                _set_done(self._ready)
            os.close(self._descriptor)
            self._descriptor = None


def _set_done(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)
