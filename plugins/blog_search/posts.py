"""Read the markdown files below a folder, and split them into chunks.

Each file is opened relative to its open folder, and no link is followed. Files outside can't be read, even if a
program moves files at the same time.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILES = 2_000  # more is no blog
MAX_FILE = 2**20  # bytes; a larger one is no post and is left out
MAX_TOTAL = 8 * 2**20  # bytes; what comes after is left out: indexing this much takes some ten seconds
MAX_DEPTH = 16  # folders within folders
MAX_CHUNK = 1_200  # characters: some two hundred words, what a model reads of a hit at once
MIN_CHUNK = 200  # characters: a shorter section is joined by the next one
HEADING = re.compile(r"#{1,6}\s")
FENCE = ("```", "~~~")


@dataclass(frozen=True)
class Chunk:
    """`source` is the file's path below the folder, with forward slashes; `index` counts from 0 in each file."""

    source: str
    index: int
    text: str


@dataclass(frozen=True)
class Post:
    stamp: tuple[int, int, int]  # a file with the same one is not read again
    chunks: list[Chunk]


class Posts:
    """`chunks` are those of the last refresh, in order of their sources."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chunks: list[Chunk] = []
        self._posts: dict[str, Post] = {}

    def refresh(self) -> bool:
        """Read what is new or has changed. Tells whether anything is other than before."""
        posts: dict[str, Post] = {}
        total = 0
        for source, folder, name in self._files():
            post = _read(source, folder, name, self._posts.get(source))
            if post is None:
                continue
            total += post.stamp[1]
            if len(posts) == MAX_FILES or total > MAX_TOTAL:
                break
            posts[source] = post
        is_other = posts != self._posts
        self._posts = posts
        self.chunks = [chunk for post in posts.values() for chunk in post.chunks]
        return is_other

    def _files(self) -> Iterator[tuple[str, int, str]]:
        """The source, the open folder and the name of each markdown file; hidden ones are left out."""
        for path, folders, names, folder in os.fwalk(self.folder):
            below = Path(path).relative_to(self.folder)
            is_deep = len(below.parts) >= MAX_DEPTH
            folders[:] = [] if is_deep else sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                source = (below / name).as_posix()
                if name.endswith(".md") and not name.startswith(".") and source.isprintable():
                    yield source, folder, name


def _read(source: str, folder: int, name: str, known: Post | None) -> Post | None:
    """The post, as `known` if it is still the same; None for what is no file, too large or can't be read."""
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    with open(opened, "rb") as file:
        kind = os.fstat(opened)
        if not stat.S_ISREG(kind.st_mode) or kind.st_size > MAX_FILE:
            return None
        stamp = (kind.st_mtime_ns, kind.st_size, kind.st_ino)
        if known is not None and known.stamp == stamp:
            return known
        try:
            text = file.read(MAX_FILE).decode("utf-8-sig", errors="replace")
        except OSError:
            return None
    return Post(stamp, [Chunk(source, index, part) for index, part in enumerate(cut(text))])


def cut(text: str) -> list[str]:
    """The text in chunks of at most MAX_CHUNK characters: whole sections where they fit, else whole paragraphs."""
    chunks: list[str] = []
    held = ""
    for part in _paragraphs(text):
        is_new_section = HEADING.match(part) is not None and len(held) >= MIN_CHUNK
        if held and (is_new_section or len(held) + 2 + len(part) > MAX_CHUNK):
            chunks.append(held)
            held = ""
        held = f"{held}\n\n{part}" if held else part
        while len(held) > MAX_CHUNK:  # one long paragraph
            at = _gap(held)
            chunks.append(held[:at].rstrip())
            held = held[at:].lstrip()
    return [chunk for chunk in [*chunks, held] if chunk]


def _gap(text: str) -> int:
    """Where a long text is best cut: at a line's end, else between two words, else where it must be."""
    half = MAX_CHUNK // 2
    return next((at for end in ("\n", " ") if (at := text.rfind(end, half, MAX_CHUNK)) > 0), MAX_CHUNK)


def _paragraphs(text: str) -> Iterator[str]:
    """What blank lines and headings divide; code between fences is one piece."""
    held: list[str] = []
    in_code = False
    for line in text.splitlines():
        if line.lstrip().startswith(FENCE):
            in_code = not in_code
        is_heading = not in_code and HEADING.match(line) is not None
        if is_heading or not (in_code or line.strip()):
            yield from _joined(held)
            held = []
        held.append(line.rstrip())
        if is_heading:
            yield from _joined(held)
            held = []
    yield from _joined(held)


def _joined(lines: list[str]) -> Iterator[str]:
    text = "\n".join(lines).strip()
    if text:
        yield text
