"""The files of the audit log read again: all of them for `verify`, the lines of calls for whoever shows them. Changes
nothing, and may read while servers write."""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from toolgate.server.telemetry.audit.entry import FIRST, HEAD, Damaged, Key, Link, keyed, read, read_head
from toolgate.server.telemetry.audit.log import CURRENT, HEAD_FILE, MAX_LINE, rotated

TOLD = 1_000  # lines between two words of how far it is
LOCK_TRIES, LOCK_PAUSE = 500, 0.01  # a server holds it for microseconds


@dataclass(frozen=True, slots=True)
class Finding:
    """`where` is a file and the number of a line in it. `harmless`: it is told, but nothing was tampered with."""

    where: str
    text: str
    harmless: bool = False


@dataclass(slots=True)
class Verdict:
    """What is there: `first` and `newest` are the seq and hash of lines; None where there is none."""

    lines: int = 0
    files: int = 0
    first: Link | None = None
    newest: Link | None = None
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def whole(self) -> bool:
        return all(finding.harmless for finding in self.findings)


class Snapshot:
    """All files as they were in one moment between two writes, the oldest first; and the head."""

    def __init__(self, folder: Path) -> None:
        self.head = b""
        self._files: list[tuple[str, BinaryIO, int]] = []
        with _locked(folder / HEAD_FILE) as head:
            if head is not None:
                self.head = os.pread(head, HEAD + 1, 0)
            for name in (*rotated(folder), CURRENT):
                descriptor = _there(folder / name)
                if descriptor is not None:
                    self._files.append((name, open(descriptor, "rb"), os.fstat(descriptor).st_size))  # noqa: SIM115

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self._files]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, _, size in self._files)

    def lines(self, of: str) -> Iterator[bytes]:
        """The lines of one file without their breaks. What is longer than any of ours comes in pieces."""
        _, file, left = next(held for held in self._files if held[0] == of)
        file.seek(0)
        while left > 0 and (line := file.readline(min(left, 2 * MAX_LINE))):
            left -= len(line)
            yield line.removesuffix(b"\n")

    @property
    def files(self) -> list[tuple[str, BinaryIO, int]]:
        """Name, file, and how many bytes of it there were."""
        return list(self._files)

    def backwards(self, within: int) -> Iterator[bytes]:
        """The last `within` bytes of all files, line by line, the newest first."""
        for _, file, size in reversed(self._files):
            begin = max(0, size - within)
            file.seek(begin)
            found = file.read(size - begin).split(b"\n")
            yield from reversed(found[1:] if begin else found)  # the first may be half a one
            within -= size - begin

    def close(self) -> None:
        for _, file, _ in self._files:
            file.close()


class Tail:
    """What is added to the newest file, from the moment this is made, and to those that take its place."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CURRENT
        self._rest = b""
        self._file = self._opened()
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def lines(self) -> Iterator[bytes]:
        """Those that came since this was last asked."""
        while True:
            if self._file is not None:
                yield from self._read(self._file)
            following = self._opened()
            if following is None or (self._file is not None and _same(self._file, following)):
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

    def _opened(self) -> BinaryIO | None:
        descriptor = _there(self._path)
        return open(descriptor, "rb") if descriptor is not None else None


def verify(
    folder: Path, key: bytes, *, newest: bool = False, told: Callable[[int, int], None] = lambda _done, _of: None
) -> Verdict:
    """Hold every line against the one before, and the last against the head. `newest`: those of the newest file alone.
    `told` hears of how many bytes have been read, of how many."""
    with closing(Snapshot(folder)) as snapshot:
        found = _Verifying(snapshot, keyed(key), told)
        for name in snapshot.names[-1:] if newest else snapshot.names:
            found.file(name)
        found.end()
        return found.verdict


class _Verifying:
    def __init__(self, snapshot: Snapshot, key: Key, told: Callable[[int, int], None]) -> None:
        self.verdict = Verdict()
        self._snapshot = snapshot
        self._key = key
        self._told = told
        self._read = 0  # bytes
        self._kept: list[str] = []  # the files before the newest one, as that says
        self._damaged: tuple[str, bytes] | None = None  # the line before: where, what

    def file(self, name: str) -> None:
        self.verdict.files += 1
        for number, line in enumerate(self._snapshot.lines(name), 1):
            where = f"{name}:{number}"
            self._read += len(line) + 1
            if number % TOLD == 0:
                self._told(self._read, self._snapshot.size)
            try:
                link = read(line, self._key)
            except Damaged:
                self._settle()
                self._damaged = (where, line)
                continue
            self.verdict.lines += 1
            if number == 1 and link.event != "begins":
                self._broken(where, f"the beginning of the file is missing: it starts with line {link.seq}")
            self._note(where, link)
            self._follow(where, link)
        self._settle()

    def _note(self, where: str, link: Link) -> None:
        match link.event:
            case "begins":
                self._kept = list(link.about["kept"])
            case "headless":
                self._broken(where, f"at {link.time} the head was missing or damaged: lines before may be missing")
            case "gap":
                self._tell(where, f"up to {link.time} {link.about['calls']} calls could not be written down")
            case "torn":
                self._torn(link)
            case _:
                pass

    def _torn(self, link: Link) -> None:
        if self._damaged is not None:
            where, line = self._damaged
            if hashlib.sha256(line).hexdigest() == link.about["digest"]:
                self._tell(where, f"torn: its writer died; mended at {link.time}")
                self._damaged = None

    def _follow(self, where: str, link: Link) -> None:
        before, was_damaged = self.verdict.newest, self._damaged is not None
        self._settle()
        if before is None:
            self.verdict.first = link
            if not self._kept and link.seq != 1:
                self._broken(where, f"lines 1 to {link.seq - 1} are missing")
        elif link.seq <= before.seq:
            self._broken(where, f"line {link.seq} is out of order: it comes after line {before.seq}")
            return
        elif link.seq > before.seq + 1 + was_damaged:
            self._broken(where, f"{_span(before.seq + 1, link.seq - 1)} missing before it")
        elif link.seq == before.seq + 1 and link.prev != before.hash:
            self._broken(where, f"line {link.seq} does not follow the line {before.seq} that is before it")
        self.verdict.newest = link

    def end(self) -> None:
        for name in self._kept:
            if name not in self._snapshot.names:
                self._broken(name, "the file is missing")
        newest = self.verdict.newest or Link(0, FIRST, "")
        try:
            seq, hash = read_head(self._snapshot.head, self._key)
        except Damaged:
            self._broken(HEAD_FILE, "it is missing or damaged: whether lines are cut off at the end is not known")
            return
        if seq > newest.seq:
            self._broken(CURRENT, f"{_span(newest.seq + 1, seq)} missing at the end: cut off, or lost with the power")
        elif seq == newest.seq and hash != newest.hash:
            self._broken(HEAD_FILE, f"it is of another line {seq}")

    def _settle(self) -> None:
        """A damaged line that nothing explained."""
        if self._damaged is not None:
            self._broken(self._damaged[0], "the line was changed or put in, or written under another key")
            self._damaged = None

    def _broken(self, where: str, text: str) -> None:
        self.verdict.findings.append(Finding(where, text))

    def _tell(self, where: str, text: str) -> None:
        self.verdict.findings.append(Finding(where, text, harmless=True))


def _span(first: int, last: int) -> str:
    return f"line {first} is" if first == last else f"lines {first} to {last} are"


@contextmanager
def _locked(path: Path) -> Generator[int | None]:
    """Meanwhile no server writes. None where there is no such file. Raises TimeoutError."""
    descriptor = _there(path)
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


def _there(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _same(one: BinaryIO, other: BinaryIO) -> bool:
    mine, theirs = os.fstat(one.fileno()), os.fstat(other.fileno())
    return (mine.st_dev, mine.st_ino) == (theirs.st_dev, theirs.st_ino)
