"""Write the files of the audit log: STATE/audit/audit.jsonl, the full ones before it, and `head`.

Several processes append to the same files: each locks `head`, reads what others wrote since, and goes on from there.
A line is written at the next turn of the event loop. While several calls end in one turn, and more in the next, their
lines are gathered for two milliseconds, so a killed process loses only what it answered in that instant. The file is
synced to disk when it is full and at the end; a power cut loses what the system had not written. If the disk is full or
the lock is held, entries wait here and are tried again. Those beyond the limit are counted, and the count is written.
"""

import asyncio
import fcntl
import hashlib
import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from toolgate.server.base.text import format_time
from toolgate.server.state.audit.entry import (
    FIRST_PREV,
    HEAD_LENGTH,
    AuditEntry,
    AuditNote,
    ChainKey,
    DamagedLineError,
    format_head,
    format_line,
    parse_head,
    parse_line,
)
from toolgate.server.state.keys import file as key_file
from toolgate.tools.api.regular_file import open_regular

log = logging.getLogger("toolgate.audit")

CURRENT, HEAD_FILE = "audit.jsonl", "head"
FILE_SIZE, FILES = 16 * 2**20, 10  # bytes a file, files kept: some 300,000 calls
MAX_LINE = 32 * 1024  # bytes; the longest we write has 4 KiB of arguments, which JSON may spell with six for one
MAX_WAITING = 2_000  # entries: what comes in the second between two tries
GATHER = 0.002  # seconds: a write costs 26 us, half a small call, however many lines it has
RETRY = 1.0  # seconds until a write that failed is tried again
LOCK_RETRY = 0.005  # the same for a held lock: another process holds it for microseconds
LAST_TRIES = 100  # of LOCK_RETRY seconds each, at the end


def rotated_files(folder: Path) -> list[str]:
    """Return the names of the full files, the oldest first."""
    return sorted(path.name for path in folder.glob("audit-*.jsonl"))


class AuditLog:
    """At most `max_files` of `max_size` bytes each. Raises OSError if the log can't be written at all."""

    def __init__(
        self,
        folder: Path,
        key_path: Path,
        max_size: int = FILE_SIZE,
        max_files: int = FILES,
        *,
        gather: float = GATHER,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._path, self._head_path = str(folder / CURRENT), str(folder / HEAD_FILE)
        self._max_size = max_size
        self._max_files = max_files
        self._gather = gather
        self._waiting: deque[AuditEntry | AuditNote] = deque()
        self._lost = 0  # entries that could not even wait
        self._failing = False
        self._due: asyncio.Handle | None = None
        self._since = 0.0  # monotonic time of the first entry that waits
        self._counted = 1  # entries that waited at the last turn
        self._head: int | None = None  # descriptors
        self._head_inode = 0
        self._file: int | None = None
        self._seen = (0, 0)  # the inode and size of the file, when all in it was known
        self._newest = (0, FIRST_PREV)
        self._key = self._open_key(key_path)

    def add(self, entry: AuditEntry) -> None:
        """Write the entry at the next turn of the event loop, or within `gather` seconds if many come."""
        if len(self._waiting) >= MAX_WAITING and (self._failing or self.write() is not None):
            self._lost += 1
            return
        entry.time = format_time(time.time())
        self._waiting.append(entry)
        if self._due is None:
            self._since = monotonic()
            self._due = asyncio.get_running_loop().call_soon(self._flush)

    def now(self) -> float:
        return time.time()

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Write what waits, and sync it to disk."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        for _ in range(LAST_TRIES):
            if self.write() != LOCK_RETRY:
                break
            time.sleep(LOCK_RETRY)
        if self._waiting or self._lost:
            log.error("%d calls could not be recorded in the audit log", len(self._waiting) + self._lost)
        for descriptor in (self._file, self._head):
            if descriptor is not None:
                _sync_and_close(descriptor)
        self._file = self._head = None

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        if len(self._waiting) > self._counted and monotonic() - self._since < self._gather:
            self._counted = len(self._waiting)
            self._due = loop.call_soon(self._flush)
            return
        self._counted = 1
        again = self.write()
        self._due = loop.call_later(again, self._flush) if again is not None else None

    def write(self) -> float | None:
        """Write what waits. If that fails, return the seconds until the next try."""
        if not self._waiting and not self._lost:
            return None
        try:
            head = self._lock()
            try:
                self._open_current()
                self._append()
            finally:
                fcntl.flock(head, fcntl.LOCK_UN)
        except BlockingIOError:
            return LOCK_RETRY
        except OSError as error:
            self._seen = (0, 0)  # read the end of the file again
            self._complain(error)
            return RETRY
        self._failing = False
        return None

    def _complain(self, error: OSError) -> None:
        """Log a failure once, until writing works again."""
        if not self._failing:
            log.error("the audit log can't be written; calls go on: %s", error)
        self._failing = True

    def _open_key(self, key_path: Path) -> ChainKey:
        """Return the key, and make it if the log is new. From then on the head says that there is no line yet, and an
        empty head means tampering. Raises OSError."""
        self._open_head()
        assert self._head is not None
        if key_path.exists():
            return ChainKey(key_file.load_or_create_key(key_path))
        fcntl.flock(self._head, fcntl.LOCK_EX)  # of several that start at once, one makes the head
        try:
            is_new = not key_path.exists()
            key = ChainKey(key_file.load_or_create_key(key_path))
            if is_new and not os.fstat(self._head).st_size:
                os.pwrite(self._head, format_head(0, FIRST_PREV, key), 0)
            return key
        finally:
            fcntl.flock(self._head, fcntl.LOCK_UN)

    # -- the lock, which is on the head

    def _open_head(self) -> None:
        self._head = _open(self._head_path, os.O_RDWR)
        self._head_inode = os.fstat(self._head).st_ino

    def _lock(self) -> int:
        """Take the lock. Return its descriptor. Raises BlockingIOError if another process holds it."""
        while True:
            if self._head is None:
                self._open_head()
            assert self._head is not None
            fcntl.flock(self._head, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _inode(self._head_path) == self._head_inode:
                return self._head
            os.close(self._head)  # it was removed, and others lock the new one
            self._head = None

    # -- under the lock

    def _open_current(self) -> None:
        """Open the current file at its end; begin another if it is full or missing."""
        try:
            status = os.stat(self._path, follow_symlinks=False)
            is_known = self._file is not None and (status.st_ino, status.st_size) == self._seen
        except FileNotFoundError:
            is_known = False
        if not is_known:
            self._read_end()
        if self._seen[1] >= self._max_size:
            self._rotate()

    def _read_end(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._file = _open(self._path, os.O_RDWR | os.O_APPEND)
        status = os.fstat(self._file)
        self._seen = (status.st_ino, status.st_size)
        tail = os.pread(self._file, MAX_LINE, max(0, status.st_size - MAX_LINE))
        begun = [] if tail else [self._note("begins", kept=rotated_files(self._folder))]
        notes = [*begun, *self._repair_notes(tail)]
        if notes:
            self._write_lines(notes, b"\n" if tail and not tail.endswith(b"\n") else b"")

    def _repair_notes(self, tail: bytes) -> list[AuditNote]:
        """Return notes about how the file ends. If head and file differ, the newer one counts: the head is written
        after the line, so a head that is ahead shows that lines are missing."""
        *lines, torn = tail.split(b"\n")
        last = _newest(lines, self._key)
        notes: list[AuditNote] = []
        try:
            assert self._head is not None
            head = parse_head(os.pread(self._head, HEAD_LENGTH + 1, 0), self._key)
        except DamagedLineError:
            head = (0, FIRST_PREV)
            notes.append(self._note("headless"))
        self._newest = max(last, head, self._newest)  # a file that was put back is older than what was written here
        if torn:
            notes.append(self._note("torn", bytes=len(torn), digest=hashlib.sha256(torn).hexdigest()))
        if not tail:
            self._write_head()  # before the first line: lines without a head are suspect
        return notes

    def _rotate(self) -> None:
        self._write_head()  # a writer that was killed may not have: an empty file has no line to go on from
        os.rename(self._path, self._folder / f"audit-{self._newest[0]:016d}.jsonl")
        full, self._file = self._file, None
        if full is not None:
            with suppress(RuntimeError):  # no loop: at the end
                asyncio.get_running_loop().run_in_executor(None, _sync_and_close, full)
        for name in rotated_files(self._folder)[: -self._max_files + 1 or None]:
            os.unlink(self._folder / name)
        self._read_end()

    def _append(self) -> None:
        entries: list[AuditEntry | AuditNote] = list(self._waiting)
        if self._lost:
            entries.append(self._note("gap", calls=self._lost))
        self._write_lines(entries)
        self._waiting.clear()
        self._lost = 0

    def _write_lines(self, entries: Sequence[AuditEntry | AuditNote], before: bytes = b"") -> None:
        """Write all entries, or raise OSError and write none."""
        assert self._file is not None
        seq, hash = self._newest
        lines = [before]
        for entry in entries:
            seq += 1
            entry.seq, entry.prev = seq, hash
            line, hash = format_line(entry, self._key)
            lines.append(line)
        data = b"".join(lines)
        written = os.write(self._file, data)
        if written < len(data):
            os.ftruncate(self._file, self._seen[1])
            raise OSError("no space left on the disk")
        self._seen = (self._seen[0], self._seen[1] + written)
        self._newest = (seq, hash)
        self._write_head()

    def _write_head(self) -> None:
        assert self._head is not None
        try:
            os.pwrite(self._head, format_head(*self._newest, self._key), 0)
        except OSError as error:  # the lines are written, and a head that lags is still valid
            self._complain(error)

    @staticmethod
    def _note(event: str, **about: Any) -> AuditNote:
        return AuditNote(0, format_time(time.time()), event, about)


def _newest(lines: list[bytes], key: ChainKey) -> tuple[int, str]:
    """Return the seq and hash of the last valid line."""
    for line in reversed(lines):
        with suppress(DamagedLineError):
            link = parse_line(line, key)
            return link.seq, link.hash
    return 0, FIRST_PREV


def _open(path: str, how: int) -> int:
    return open_regular(path, how | os.O_CREAT)


def _inode(path: str) -> int | None:
    try:
        return os.stat(path, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return None


def _sync_and_close(descriptor: int) -> None:
    """Sync the file to disk, and close it."""
    with suppress(OSError):
        os.fsync(descriptor)
    os.close(descriptor)
