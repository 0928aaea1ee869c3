"""Read the audit log: all of it for `verify`, or the lines of calls to show. Servers may write meanwhile."""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from toolgate.server.state import key_file
from toolgate.server.telemetry.audit.entry import (
    FIRST_PREV,
    HEAD_LENGTH,
    AuditLink,
    ChainKey,
    DamagedLineError,
    parse_head,
    parse_line,
)
from toolgate.server.telemetry.audit.log import CURRENT, HEAD_FILE, MAX_LINE, rotated_files

PROGRESS_EVERY = 1_000  # lines between two reports of progress
LOCK_TRIES, LOCK_PAUSE = 500, 0.01  # a server holds it for microseconds
SEARCH_SIZE = 4 * 2**20  # bytes searched, some 8,000 calls of all principals: a page must not search all files

EntryData = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """`place` is a file and the number of a line. If `is_harmless`, the finding is no sign of tampering."""

    place: str
    text: str
    is_harmless: bool = False


@dataclass(slots=True)
class AuditVerdict:
    """What was found. `first` and `newest` are lines, None if there are none."""

    lines: int = 0
    files: int = 0
    first: AuditLink | None = None
    newest: AuditLink | None = None
    findings: list[AuditFinding] = field(default_factory=list[AuditFinding])

    @property
    def is_intact(self) -> bool:
        return all(finding.is_harmless for finding in self.findings)


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

    def lines(self, of: str) -> Iterator[bytes]:
        """Yield the lines of one file without their breaks. A line longer than any of ours comes in pieces."""
        _, file, left = next(held for held in self.files if held[0] == of)
        file.seek(0)
        while left > 0 and (line := file.readline(min(left, 2 * MAX_LINE))):
            left -= len(line)
            yield line.removesuffix(b"\n")

    def lines_backwards(self, within: int) -> Iterator[bytes]:
        """Yield the lines in the last `within` bytes of all files, the newest first."""
        for _, file, size in reversed(self.files):
            begin = max(0, size - within)
            file.seek(begin)
            found = file.read(size - begin).split(b"\n")
            yield from reversed(found[1:] if begin else found)  # the first may be cut
            within -= size - begin

    def close(self) -> None:
        for _, file, _ in self.files:
            file.close()


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
        found = ChainVerifier(snapshot, ChainKey(key), on_progress)
        for name in snapshot.names[-1:] if newest else snapshot.names:
            found.file(name)
        found.end()
        return found.verdict


class ChainVerifier:
    def __init__(self, snapshot: AuditSnapshot, key: ChainKey, told: Callable[[int, int], None]) -> None:
        self.verdict = AuditVerdict()
        self._snapshot = snapshot
        self._key = key
        self._on_progress = told
        self._read = 0  # bytes
        self._older_files: list[str] = []  # the files before the newest one, as its first line names them
        self._damaged: tuple[str, bytes] | None = None  # the line before: where, what

    def file(self, name: str) -> None:
        self.verdict.files += 1
        for number, line in enumerate(self._snapshot.lines(name), 1):
            where = f"{name}:{number}"
            self._read += len(line) + 1
            if number % PROGRESS_EVERY == 0:
                self._on_progress(self._read, self._snapshot.size)
            try:
                link = parse_line(line, self._key)
            except DamagedLineError:
                self._report_damaged()
                self._damaged = (where, line)
                continue
            self.verdict.lines += 1
            if number == 1 and link.event != "begins":
                self._add_fault(where, f"the beginning of the file is missing: it starts with line {link.seq}")
            self._note(where, link)
            self._follow(where, link)
        self._report_damaged()

    def _note(self, where: str, link: AuditLink) -> None:
        match link.event:
            case "begins":
                self._older_files = list(link.about["kept"])
            case "headless":
                self._add_fault(where, f"at {link.time} the head was missing or damaged: lines before may be missing")
            case "gap":
                self._add_remark(where, f"up to {link.time}, {link.about['calls']} calls could not be recorded")
            case "torn":
                self._explain_torn(link)
            case _:
                pass

    def _explain_torn(self, link: AuditLink) -> None:
        if self._damaged is not None:
            where, line = self._damaged
            if hashlib.sha256(line).hexdigest() == link.about["digest"]:
                self._add_remark(where, f"torn: its writer died; repaired at {link.time}")
                self._damaged = None

    def _follow(self, where: str, link: AuditLink) -> None:
        before, was_damaged = self.verdict.newest, self._damaged is not None
        self._report_damaged()
        if before is None:
            self.verdict.first = link
            if not self._older_files and link.seq != 1:
                self._add_fault(where, f"lines 1 to {link.seq - 1} are missing")
        elif link.seq <= before.seq:
            self._add_fault(where, f"line {link.seq} is out of order: it comes after line {before.seq}")
            return
        elif link.seq > before.seq + 1 + was_damaged:
            self._add_fault(where, f"{_span(before.seq + 1, link.seq - 1)} missing before it")
        elif link.seq == before.seq + 1 and link.prev != before.hash:
            self._add_fault(where, f"line {link.seq} does not follow the line {before.seq} that is before it")
        self.verdict.newest = link

    def end(self) -> None:
        for name in self._older_files:
            if name not in self._snapshot.names:
                self._add_fault(name, "the file is missing")
        newest = self.verdict.newest or AuditLink(0, FIRST_PREV, "")
        try:
            seq, hash = parse_head(self._snapshot.head, self._key)
        except DamagedLineError:
            self._add_fault(HEAD_FILE, "it is missing or damaged: whether lines are cut off at the end is not known")
            return
        if seq > newest.seq:
            missing = _span(newest.seq + 1, seq)
            self._add_fault(CURRENT, f"{missing} missing at the end: cut off, or lost with the power")
        elif seq == newest.seq and hash != newest.hash:
            self._add_fault(HEAD_FILE, f"it is of another line {seq}")

    def _report_damaged(self) -> None:
        """Report a damaged line that no note has explained."""
        if self._damaged is not None:
            self._add_fault(self._damaged[0], "the line was changed or put in, or written under another key")
            self._damaged = None

    def _add_fault(self, where: str, text: str) -> None:
        self.verdict.findings.append(AuditFinding(where, text))

    def _add_remark(self, where: str, text: str) -> None:
        self.verdict.findings.append(AuditFinding(where, text, is_harmless=True))


def _span(first: int, last: int) -> str:
    return f"line {first} is" if first == last else f"lines {first} to {last} are"


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
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


class OwnEntries:
    """Read the audit log in the folder `state` for one principal."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "audit"
        self._key = state / "keys" / "audit"

    def newest(self, principal: str, most: int) -> list[EntryData]:
        """Return at most `most` valid entries, newest first. Blocks for milliseconds. Raises OSError."""
        if not self._folder.is_dir():
            return []
        key = ChainKey(key_file.read_key(self._key))
        mark = json.dumps(principal).encode()
        found: list[EntryData] = []
        with closing(AuditSnapshot(self._folder)) as snapshot:
            for raw in snapshot.lines_backwards(SEARCH_SIZE):
                if mark in raw and (line := _parse_entry(raw, key)) is not None and line.get("principal") == principal:
                    found.append(line)
                    if len(found) == most:
                        break
        return found


def _parse_entry(raw: bytes, key: ChainKey) -> EntryData | None:
    """Return an entry; None for a note and for a damaged line."""
    try:
        link = parse_line(raw, key)
    except DamagedLineError:
        return None
    return json.loads(raw) if link.event is None else None
