"""Keep a command's output up to a cap, and its end: in memory while it is small, then in a file, unless the disk is
full.

Over the cap the newest output waits in memory, and is appended when the command has ended or a reader wants it. So what
was read at an offset stays there.
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress

MAX_OUTPUT = 64 * 2**20  # bytes of output kept for a run: 64 runs still fit on a disk
MAX_SMALL = 16 * 2**10  # bytes of output in memory until it is stored: nearly all commands print less
MAX_END = 64 * 2**10  # bytes of the end of a longer output: what a build says last
MAX_EARLY_ENDS = 64  # times that a reader of a running command gets the end so far: with 4 MiB in all
MAX_HELD = 256 * 2**10  # bytes of output in memory while the disk is full: 64 runs hold 16 MiB
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, the user's quota, the process's file size limit
CAPPED = b"\n[output from here on is not kept: %d MiB is the most]\n" % (MAX_OUTPUT >> 20)
NO_ROOM = b"\n[output from here on is not kept: %s]\n"


def format_gap(size: int) -> bytes:
    """Return the line that stands in the place of `size` bytes."""
    return f"[{size:,} bytes are left out here]\n".encode()


class OutputEnd:
    """The newest bytes of an output that is not kept as a whole, and how many before them are `dropped`."""

    def __init__(self) -> None:
        self.dropped = 0
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > 2 * MAX_END:
            self._trim()

    def take(self) -> bytes:
        """Return the end, with a line for what is missing before it, and begin the next."""
        self._trim()
        gap = format_gap(self.dropped) if self.dropped else b""
        data = gap + bytes(self._data)
        self.dropped, self._data = 0, bytearray()
        return data

    def _trim(self) -> None:
        excess = max(0, len(self._data) - MAX_END)
        self.dropped += excess
        del self._data[:excess]


class RunOutput:
    """A command's output: appended up to a cap, read by offset. `kept_bytes` is the size up to the cap, if that is not
    all.

    `create_file` creates its file, which outlives the server, and raises OSError. After such a `failure` the output
    stays in memory, and little of it is kept.
    """

    def __init__(self, create_file: Callable[[], "FileOutput"]) -> None:
        self.failure: OSError | None = None
        self._create_file = create_file
        self._file: FileOutput | None = None
        self._memory = MemoryOutput()
        self._early_ends = 0

    @property
    def is_stored(self) -> bool:
        return self._file is not None

    @property
    def size(self) -> int:
        return (self._file or self._memory).size

    @property
    def kept_bytes(self) -> int | None:
        return (self._file or self._memory).kept_bytes

    def store(self) -> None:
        """Move the output to its file, unless it is there or was refused one."""
        if self._file is not None or self.failure is not None:
            return
        try:
            self._file = self._create_file()
        except OSError as error:  # the disk is full or broken: the command goes on
            self.failure = error.with_traceback(None)  # which holds the start of the command
        else:
            self._write_first(self._memory.read(0, MAX_HELD))

    def write(self, data: bytes) -> None:
        """Append what fits, and note once in the output that the rest was dropped."""
        if self._file is None and self._memory.size + len(data) > MAX_SMALL:
            self.store()
        if self._file is None:
            self._memory.write(data)
        elif self._file.size:
            self._file.write(data)
        else:
            self._write_first(data)

    def read(self, offset: int, limit: int) -> bytes:
        return (self._file or self._memory).read(offset, limit)

    def append_end(self, *, final: bool) -> None:
        """Append the end of an output over the cap. Unless `final`, the command goes on, and the end so far is appended
        only some times."""
        if self.kept_bytes is None or (not final and self._early_ends >= MAX_EARLY_ENDS):
            return
        self._early_ends += not final
        (self._file or self._memory).append_end()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write_first(self, data: bytes) -> None:
        """Write to the empty file, or go on in memory if the disk has no room for all of it."""
        assert self._file is not None
        if data:
            self._file.write(data)
        if self._file.kept_bytes is not None and self._file.kept_bytes < MAX_OUTPUT:
            self._file.close()
            self._file, self.failure = None, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if not self._memory.size:
                self._memory.write(data)
        else:
            self._memory = MemoryOutput()


class MemoryOutput:
    """Output in memory, up to MAX_HELD."""

    def __init__(self) -> None:
        self.size = 0
        self.kept_bytes: int | None = None
        self._data = bytearray()
        self._end = OutputEnd()

    def write(self, data: bytes) -> None:
        if self.kept_bytes is not None:
            self._end.add(data)
            return
        room = MAX_HELD - self.size
        self._data += data[:room]
        if len(data) > room:
            self.kept_bytes = MAX_HELD
            self._data += NO_ROOM % os.strerror(errno.ENOSPC).encode()
            self._end.add(data[room:])
        self.size = len(self._data)

    def append_end(self) -> None:
        self._data += self._end.take()
        self.size = len(self._data)

    def read(self, offset: int, limit: int) -> bytes:
        return bytes(self._data[offset : offset + limit])


class FileOutput:
    """Output in a file, which outlives the server."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self.size = 0
        self.kept_bytes: int | None = None
        self._end = OutputEnd()

    def write(self, data: bytes) -> None:
        """Append what fits, and note once in the file that output was dropped."""
        if self.kept_bytes is not None:
            self._end.add(data)
            return
        before, room = self.size, MAX_OUTPUT - self.size
        try:
            self._append(data[:room])
            if len(data) > room:
                self.kept_bytes = self.size
                self._end.add(data[room:])
                self._append(CAPPED)
        except OSError as error:  # the disk is full: the command goes on
            if self.kept_bytes is None:
                self.kept_bytes = self.size
                self._end.add(data[self.size - before :])
            with suppress(OSError):
                self._append(NO_ROOM % os.strerror(error.errno or 0).encode())

    def append_end(self) -> None:
        """Append the end so far, if the disk has room for it."""
        with suppress(OSError):
            self._append(self._end.take())

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
