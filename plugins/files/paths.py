"""Open files by the paths that a model gave: regular files only, within the permitted folders if there are any.

This and the modules beside it that say so run in a process of the caller's sandbox: standard library only, little of
it. A link is followed once, to its real path; from there on no link is followed.
"""

import os
import stat

PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # folders may be unreadable
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC  # never wait for a pipe
MAX_DIGEST = 16 * 2**20  # bytes: of a larger file size and times say whether it changed
MAX_PATH = 4_096  # characters: the system's limit is as many bytes (limits.h)
CHUNK = 2**20
KINDS = {
    stat.S_IFDIR: "a folder: Glob lists its files",
    stat.S_IFCHR: "a device, not a file",
    stat.S_IFBLK: "a device, not a file",
    stat.S_IFIFO: "a pipe, not a file",
    stat.S_IFSOCK: "a socket, not a file",
}


class FileError(Exception):
    """The request can't be met; the text tells the model why, and what to do."""


class Places:
    """Where paths lead: relative ones begin at `cwd`. With `roots`, real paths must be in one of those folders. A
    path in `private` must be in a root that is in `private` too."""

    def __init__(self, cwd: str, roots: list[str] | None, private: str | None) -> None:
        self.cwd = os.path.realpath(cwd)
        self.roots = None if roots is None else [os.path.realpath(root) for root in roots]
        self._private = None if private is None else os.path.realpath(private)

    def resolve(self, path: str) -> str:
        """Return the real path of `path`, existing or not. Raises FileError."""
        if not path or "\0" in path:
            raise FileError("the path is empty" if not path else "the path holds a NUL character")
        if len(path) > MAX_PATH:
            raise FileError(f"the path is longer than {MAX_PATH:,} characters")
        real = os.path.realpath(os.path.join(self.cwd, os.path.expanduser(path)))
        self._root_of(real)
        return real

    def show(self, real: str) -> str:
        """Return the shortest path that leads there: relative to the working directory if below it."""
        inside = real.startswith(f"{self.cwd.rstrip('/')}/")
        return show_name(real[len(self.cwd.rstrip("/")) + 1 :] if inside else real)

    def open_parent(self, real: str, *, make: bool = False) -> tuple[int, str]:
        """Return a descriptor of the folder of the real path, and the last name. `make` creates missing folders."""
        root = self._root_of(real)
        *folders, name = [part for part in real[len(root) :].split("/") if part] or [""]
        here = os.open(root, PASS)
        try:
            for folder in folders:
                there = _enter(here, folder, make=make)
                os.close(here)
                here = there
        except BaseException:
            os.close(here)
            raise
        return here, name or "."

    def open_regular(self, real: str) -> int:
        """Return a descriptor of the regular file at the real path. Nothing else is opened: it could have effects."""
        parent, name = self.open_parent(real)
        try:
            return open_at(parent, name)
        finally:
            os.close(parent)

    def find_private(self, folder: str) -> str | None:
        """Return the private folder if it is below `folder`, where no search may enter it."""
        return self._private if self._private is not None and is_below(self._private, folder) else None

    def _root_of(self, real: str) -> str:
        if self.roots is None:
            return "/"
        is_private = self._private is not None and is_below(real, self._private)
        for root in self.roots:
            if is_below(real, root) and (not is_private or is_below(root, str(self._private))):
                return root
        if is_private:
            raise FileError("it is in the server's own folder")
        raise FileError(f"{show_name(real)} is outside the workspace {show_name(self.roots[0])}: use Bash")


def is_below(real: str, folder: str) -> bool:
    """Return whether the path is the folder's or one below it."""
    return f"{real}/".startswith(f"{folder.rstrip('/')}/")


def _enter(here: int, folder: str, *, make: bool) -> int:
    try:
        return os.open(folder, PASS, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
    try:  # noqa: SIM105  # contextlib takes 5 ms
        os.mkdir(folder, dir_fd=here)
    except FileExistsError:
        pass  # another process was faster
    return os.open(folder, PASS, dir_fd=here)


def open_at(parent: int, name: str) -> int:
    """Return a descriptor of the regular file `name` in the folder."""
    must_be_regular(os.stat(name, dir_fd=parent, follow_symlinks=False))
    file = os.open(name, READ, dir_fd=parent)
    try:
        must_be_regular(os.fstat(file))  # it may be another one by now
    except BaseException:
        os.close(file)
        raise
    return file


def must_be_regular(found: os.stat_result) -> None:
    """Raise FileError for anything but a regular file."""
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise FileError(f"it is {KINDS.get(kind, 'a link that leads in a circle, or has changed')}")


def read_all(file: int, limit: int) -> bytes:
    """Return the rest of the file, at most `limit` bytes and one: some files of /proc say that they are empty."""
    pieces, size = [], 0
    while size <= limit and (piece := os.read(file, min(CHUNK, limit + 1 - size))):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def make_key(real: str) -> str:
    """Return the name under which the server remembers a file."""
    return _digest(os.fsencode(real))


def make_stamp(file: int, data: bytes | None) -> str:
    """Return what tells one content of a file from another: a digest, or size and times without `data`."""
    found = os.fstat(file)
    if data is not None:
        return _digest(data)
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def read_stamp(file: int) -> str:
    """Return the stamp of an open file, at whatever position it is."""
    if os.fstat(file).st_size > MAX_DIGEST:
        return make_stamp(file, None)
    os.lseek(file, 0, os.SEEK_SET)
    return make_stamp(file, read_all(file, MAX_DIGEST))


def show_name(name: str) -> str:
    """Return a file name as text: bytes that are not UTF-8 are replaced, and control characters."""
    return show_text(os.fsencode(name).decode("utf-8", "replace")).replace("\n", "␊").replace("\t", "␉")


PICTURES = {number: 0x2400 + number for number in range(32) if number not in (9, 10)} | {127: 0x2421}


def show_text(text: str) -> str:
    """Return the text with pictures in place of control characters: they could drive a terminal."""
    return text.translate(PICTURES)


def _digest(data: bytes) -> str:
    from _blake2 import blake2b  # hashlib's, without the imports of the others

    return blake2b(data, digest_size=16).hexdigest()
