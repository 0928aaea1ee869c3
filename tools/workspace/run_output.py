"""Keep a command's output up to a cap: in a file, or in memory while the disk is full."""

import errno
import os
from contextlib import suppress
from typing import Protocol

MAX_OUTPUT = 64 * 2**20  # bytes of output kept for a run: 64 runs still fit on a disk
MAX_HELD = 256 * 2**10  # bytes of output in memory while the disk is full: 64 runs hold 16 MiB
CAPPED = b"\n[output from here on is not kept: %d MiB is the most]\n" % (MAX_OUTPUT >> 20)
NO_ROOM = b"\n[output from here on is not kept: %s]\n"


class RunOutput(Protocol):
    """A command's output: appended up to a cap, read by offset. `kept_bytes` is the kept size, if not all."""

    size: int
    kept_bytes: int | None

    def write(self, data: bytes) -> None: ...
    def read(self, offset: int, limit: int) -> bytes: ...
    def close(self) -> None: ...


class MemoryOutput:
    """Output in memory, for a full disk. It outlives the command, and keeps little."""

    def __init__(self) -> None:
        self.size = 0
        self.kept_bytes: int | None = None
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        if self.kept_bytes is None:
            self._data += data[: MAX_HELD - self.size]
            if self.size + len(data) > MAX_HELD:
                self.kept_bytes = MAX_HELD
                self._data += NO_ROOM % os.strerror(errno.ENOSPC).encode()
            self.size = len(self._data)

    def read(self, offset: int, limit: int) -> bytes:
        return bytes(self._data[offset : offset + limit])

    def close(self) -> None: ...


class FileOutput:
    """Output in a file, which outlives the server."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self.size = 0
        self.kept_bytes: int | None = None

    def write(self, data: bytes) -> None:
        """Append what fits, and note once in the file that output was dropped."""
        if self.kept_bytes is not None:
            return
        room = MAX_OUTPUT - self.size
        try:
            self._append(data[:room])
            if len(data) > room:
                self.kept_bytes = self.size
                self._append(CAPPED)
        except OSError as error:  # the disk is full: the command goes on
            self.kept_bytes = self.size if self.kept_bytes is None else self.kept_bytes
            with suppress(OSError):
                self._append(NO_ROOM % os.strerror(error.errno or 0).encode())

    def read(self, offset: int, limit: int) -> bytes:
        return os.pread(self._descriptor, limit, offset)

    def close(self) -> None:
        os.close(self._descriptor)

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._descriptor, view)
            self.size += written
            view = view[written:]
