"""Read the audit log: all of it for `verify`, or the lines of calls to show. Servers may write meanwhile."""

import asyncio
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

from toolgate.server.features.telemetry.audit.chain_checker import AuditVerdict, ChainChecker, format_span
from toolgate.server.features.telemetry.audit.log import CURRENT, HEAD_FILE, MAX_LINE, rotated_files
from toolgate.server.state.audit.entry import (
    FIRST_PREV,
    HEAD_LENGTH,
    AuditLink,
    ChainKey,
    DamagedLineError,
    EntryData,
    parse_entry,
    parse_head,
)
from toolgate.server.state.keys import file as key_file
from toolgate.tools.api.regular_file import open_regular

PROGRESS_EVERY = 1_000  # lines between two reports of progress
LOCK_TRIES, LOCK_PAUSE = 500, 0.01  # a server holds it for microseconds
BLOCK = 256 * 1024  # bytes that are read at a time from the end
EARLIER = 1_000  # lines before a time: a clock is rarely set back for longer
TIME = re.compile(rb'"time":"([^"\\]{1,40})"')
SEARCH_SIZE = 4 * 2**20  # bytes searched, some 8,000 calls of all principals: a page must not search all files


class AuditSnapshot:
    """All files as they were between two writes, the oldest first, and the head."""

    def __init__(self, folder: Path) -> None:
        self.head = b""
        self.files: list[tuple[str, BinaryIO, int]] = []  # the name, the file, and its size at that moment
        with _locked_head(folder / HEAD_FILE) as head:
            if head is not None:
                self.head = os.pread(head, HEAD_LENGTH + 1, 0)
            for name in (*rotated_files(folder), CURRENT):
                descriptor = _open_existing(folder / name)
                if descriptor is not None:
                    self.files.append((name, open(descriptor, "rb"), os.fstat(descriptor).st_size))  # noqa: SIM115

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.files]

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(size for _, _, size in self.files)

    def lines(self, of: str, begin: int = 0) -> Iterator[bytes]:
        """Yield the lines of one file without their breaks, from the byte `begin` on.

        A line longer than any of ours comes in pieces.
        """
        _, file, size = next(each for each in self.files if each[0] == of)
        left = size - begin
        file.seek(begin)
        while left > 0 and (line := file.readline(min(left, 2 * MAX_LINE))):
            left -= len(line)
            yield line.removesuffix(b"\n")

    def lines_since(self, time: str) -> Iterator[bytes]:
        """Yield the lines from `time` on, the oldest first, with some before them. It reads no earlier part."""
        name, begin = self._find_begin(time)
        begins = {name: begin}
        for each in self.names[self.names.index(name) if name else 0 :]:
            yield from self.lines(each, begins.get(each, 0))

    def lines_backwards(self, within: int | None = None, since: str = "") -> Iterator[bytes]:
        """Yield the lines in the last `within` bytes of all files, the newest first, and none long before `since`."""
        for _, _, line in self._read_backwards(within, since):
            yield line

    def _find_begin(self, time: str) -> tuple[str, int]:
        """Return the file and the place of the first line to read from `time` on; ("", 0) where all are to be read."""
        found = ("", 0)
        for name, begin, _ in self._read_backwards(None, time):
            found = name, begin
        return found

    def _read_backwards(self, within: int | None, since: str) -> Iterator[tuple[str, int, bytes]]:
        """Yield file, place and text of each line, the newest first.

        A clock that was set back leaves earlier times behind later ones, so `EARLIER` lines before `since` end it.
        """
        left, earlier = self.size if within is None else within, 0
        for name, file, size in reversed(self.files):
            for begin, line in _split_backwards(file, size, max(0, size - left)):
                yield name, begin, line
                earlier = earlier + 1 if (at := _find_time(line)) is not None and at < since else 0
                if earlier == EARLIER:
                    return
            left = max(0, left - size)

    def close(self) -> None:
        for _, file, _ in self.files:
            file.close()


def _split_backwards(file: BinaryIO, size: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield place and text of the lines that begin after `stop`, or at the begin of the file, the last one first."""
    end, rest = size, b""
    while end > stop:
        begin = max(stop, end - BLOCK)
        file.seek(begin)
        first, *lines = (file.read(end - begin) + rest).split(b"\n")
        place = begin + len(first) + 1 + sum(len(line) + 1 for line in lines)
        for line in reversed(lines):
            place -= len(line) + 1
            if place < size:  # the last break ends a line
                yield place, line
        end, rest = begin, first
    if stop == 0 and size > 0:
        yield 0, rest


def _find_time(line: bytes) -> str | None:
    """Return the time that a line names, which nothing has verified."""
    found = TIME.search(line)
    return found[1].decode() if found is not None else None


class AuditTail:
    """The lines added from now on, to the newest file and to those that replace it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CURRENT
        self._rest = b""
        self._file = self._open()
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines added since the last call."""
        while True:
            if self._file is not None:
                yield from self._read(self._file)
            following = self._open()
            is_same = self._file and following and os.path.sameopenfile(self._file.fileno(), following.fileno())
            if following is None or is_same:
                if following is not None:
                    following.close()
                return
            self.close()
            self._file, self._rest = following, b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self, file: BinaryIO) -> Iterator[bytes]:
        *whole, self._rest = (self._rest + file.read()).split(b"\n")
        yield from whole

    def _open(self) -> BinaryIO | None:
        descriptor = _open_existing(self._path)
        return open(descriptor, "rb") if descriptor is not None else None


def verify(
    folder: Path, key: bytes, *, newest: bool = False, on_progress: Callable[[int, int], None] = lambda _done, _of: None
) -> AuditVerdict:
    """Check each line against the one before, and the last against the head. `newest`: only those of the newest file.
    `on_progress` gets the bytes read so far, and the bytes of all."""
    with closing(AuditSnapshot(folder)) as snapshot:
        found = FileVerifier(snapshot, ChainKey(key), on_progress)
        for name in snapshot.names[-1:] if newest else snapshot.names:
            found.file(name)
        found.end()
        return found.verdict


class FileVerifier:
    """Checks the files of a snapshot, the oldest first, and collects what it finds in `verdict`."""

    def __init__(self, snapshot: AuditSnapshot, key: ChainKey, on_progress: Callable[[int, int], None]) -> None:
        self.verdict = AuditVerdict()
        self._checker = ChainChecker(self.verdict, key)
        self._snapshot = snapshot
        self._key = key
        self._on_progress = on_progress
        self._read = 0  # bytes
        self._older_files: list[str] = []  # the files before the newest one, as its first line names them

    def file(self, name: str) -> None:
        self.verdict.files += 1
        for number, line in enumerate(self._snapshot.lines(name), 1):
            where = f"{name}:{number}"
            self._read += len(line) + 1
            if number % PROGRESS_EVERY == 0:
                self._on_progress(self._read, self._snapshot.size)
            link = self._checker.check_line(where, line)
            if link is None:
                continue
            is_first = self.verdict.first is None
            self.verdict.first = self.verdict.first or link
            self.verdict.newest = self._checker.newest
            if number == 1 and link.event != "begins":
                self.verdict.add_fault(where, f"the beginning of the file is missing: it starts with line {link.seq}")
            if link.event == "begins":
                self._older_files = list(link.about["kept"])
            if is_first and not self._older_files and link.seq != 1:
                self.verdict.add_fault(where, f"lines 1 to {link.seq - 1} are missing")
        self._checker.report_damaged()

    def end(self) -> None:
        for name in self._older_files:
            if name not in self._snapshot.names:
                self.verdict.add_fault(name, "the file is missing")
        newest = self._checker.newest or AuditLink(0, FIRST_PREV, "")
        try:
            seq, hash = parse_head(self._snapshot.head, self._key)
        except DamagedLineError:
            text = "it is missing or damaged: whether lines are cut off at the end is not known"
            self.verdict.add_fault(HEAD_FILE, text)
            return
        if seq > newest.seq:
            missing = format_span(newest.seq + 1, seq)
            self.verdict.add_fault(CURRENT, f"{missing} missing at the end: cut off, or lost with the power")
        elif seq == newest.seq and hash != newest.hash:
            self.verdict.add_fault(HEAD_FILE, f"it is of another line {seq}")


@contextmanager
def _locked_head(path: Path) -> Generator[int | None]:
    """Hold the lock, so that no server writes; None if there is no such file. Raises TimeoutError."""
    descriptor = _open_existing(path)
    if descriptor is None:
        yield None
        return
    try:
        _lock(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE)
        else:
            return
    raise TimeoutError("the audit log is locked by another process")


def _open_existing(path: Path) -> int | None:
    try:
        return open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return None


class OwnEntries:
    """Read the audit log in the folder `state` for one principal."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "audit"
        self._key = state / "keys" / "audit"

    async def read(self, principal: str, most: int) -> list[EntryData]:
        """Return at most `most` valid entries, newest first. Raises OSError."""
        return await asyncio.to_thread(self.newest, principal, most)

    def newest(self, principal: str, most: int) -> list[EntryData]:
        """Return at most `most` valid entries, newest first. Blocks for milliseconds. Raises OSError."""
        if not self._folder.is_dir():
            return []
        key = ChainKey(key_file.read_key(self._key))
        mark = json.dumps(principal).encode()
        found: list[EntryData] = []
        with closing(AuditSnapshot(self._folder)) as snapshot:
            for raw in snapshot.lines_backwards(SEARCH_SIZE):
                if mark in raw and (line := parse_entry(raw, key)) is not None and line.get("principal") == principal:
                    found.append(line)
                    if len(found) == most:
                        break
        return found
