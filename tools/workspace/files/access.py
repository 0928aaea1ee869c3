"""Open files for tools, safe from links, devices and large sizes. Functions block, and raise ToolError."""

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from toolgate.tools.api.errors import NotFound, ToolError
from toolgate.tools.workspace.files.alike_names import describe_alike_path, find_alike_path
from toolgate.tools.workspace.files.open_file import LocalFile
from toolgate.tools.workspace.files.safe_walk import FOLDER, open_folder

CHUNK = 2**20
SCANNED = 10_000  # entries of a folder that are read: a longer list helps no reader
READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY  # never wait for a fifo, never get a controlling terminal
LOOK_FLAGS = getattr(os, "O_PATH", getattr(os, "O_EVTONLY", os.O_RDONLY)) | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
DESCRIPTORS = "/proc/self/fd"  # Linux's links to open files


class FileEntry(msgspec.Struct, frozen=True):
    """The target of a path, or of a name in a folder. Links are followed."""

    name: str
    is_folder: bool
    size: int
    modified: float = 0.0  # seconds since the epoch; 0: unknown


def read(path: str, limit: int, root: Path | None, private: Path | None = None, owner: int | None = None) -> bytes:
    """Return a regular file's bytes, at most `limit`. With `root`, its real path must be inside it and outside
    `private`. With `owner`, this user must be allowed to read it."""
    with _explain_errors(path, root, private), _open_regular(path, limit, root, private, owner) as file:
        return _read_all(file.fileno(), path, limit)


def open_regular(
    path: str, limit: int, root: Path | None, private: Path | None = None, owner: int | None = None
) -> LocalFile:
    """Open the same kind of file, at its beginning."""
    with _explain_errors(path, root, private):
        file = _open_regular(path, limit, root, private, owner)
        return LocalFile(file, path, os.fstat(file.fileno()).st_size)


def _open_regular(path: str, limit: int, root: Path | None, private: Path | None, owner: int | None) -> BinaryIO:
    if not os.path.isabs(path):
        raise ToolError(f"{path!r} is not an absolute path: give one that begins with /")
    if "\0" in path:
        raise ToolError("the path holds a NUL character, which no file name can")
    real = None if root is None else resolve_inside(path, root, private)
    file = open(_open_regular_at(path, real, root, private), "rb", buffering=0)  # noqa: SIM115  # the caller closes it
    try:
        found = os.fstat(file.fileno())
        if owner not in (None, found.st_uid) and not found.st_mode & stat.S_IROTH:  # a hard link, by root's eyes
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if found.st_size > limit:
            raise create_size_error(path, found.st_size, limit)
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def _explain_errors(path: str, root: Path | None, private: Path | None) -> Generator[None, None, None]:
    """Raise the system's errors about `path` as errors for the model."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist{_suggest_path(path, root, private)}") from None
    except NotADirectoryError as error:
        raise NotFound(f"{path} can't be read: {_reason(error)}") from None
    except (OSError, ValueError) as error:
        raise ToolError(f"{path} can't be read: {_reason(error)}") from None


def _suggest_path(path: str, root: Path | None, private: Path | None) -> str:
    """Return a question that names the path that `path` may mean, or "" if there is none that the caller may read."""
    reach = root or Path("/")

    def list_names(folder: str) -> list[str]:
        with _hold_beneath(resolve_inside(folder, reach, private), reach) as place, open_folder(".", place) as opened:
            _must_be_inside(_opened_path(opened), folder, reach, private)
            return os.listdir(opened)[:SCANNED]

    try:
        actual = find_alike_path(path if root is None else os.path.realpath(path), list_names)
        return "" if actual is None else describe_alike_path(path, resolve_inside(actual, reach, private))
    except (OSError, ValueError, ToolError):
        return ""


def read_below(folder: Path, path: str, limit: int) -> bytes:
    """Return at most `limit` bytes of the regular file `path` below `folder`. Only `folder` itself may be a link."""
    *folders, name = path.split("/")
    try:
        with _open_folder(folder, folders, make=False) as inner, _hold_place(name, inner) as place:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                raise NotFound(f"{path} is not a file")
            with open(_reopen(place, name, READ_FLAGS, inner), "rb", buffering=0) as file:
                _must_be_regular(os.fstat(file.fileno()), path)
                return _read_all(file.fileno(), path, limit)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise ToolError(f"{path} can't be read: {_reason(error)}") from None


def resolve_inside(path: str, root: Path, private: Path | None = None) -> str:
    """Return the real path of the absolute `path`. Raises NotFound if that is outside `root`, or in `private`."""
    try:
        real = os.path.realpath(path)
    except ValueError:  # a NUL
        raise NotFound(f"{path!r} is no path") from None
    except OSError as error:  # the link changed meanwhile
        raise NotFound(f"{path} can't be followed: {_reason(error)}") from None
    _must_be_inside(real, path, root, private)
    return real


def stat_path(path: str, root: Path, private: Path | None = None) -> FileEntry:
    """Return the entry at the absolute `path`, inside `root` and outside `private`."""
    try:
        with _hold_beneath(resolve_inside(path, root, private), root) as place:
            _must_be_inside(_opened_path(place), path, root, private)
            found = os.fstat(place)
    except (OSError, ValueError):
        raise NotFound(f"{path} does not exist") from None
    return FileEntry(os.path.basename(path), stat.S_ISDIR(found.st_mode), found.st_size, found.st_mtime)


def entries(path: str, root: Path, limit: int, private: Path | None = None) -> tuple[list[FileEntry], bool]:
    """Return the files and folders in `path`, at most `limit` by name, and whether there are more. Other kinds of
    entries are left out, also `private`, and links that lead nowhere, outside or there."""
    try:
        with _hold_beneath(resolve_inside(path, root, private), root) as place, open_folder(".", place) as folder:
            real = _opened_path(folder)
            _must_be_inside(real, path, root, private)  # the folder may have been moved meanwhile
            return _list_entries(folder, real, root, limit, private)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{path} is not a folder") from None
    except OSError as error:
        raise ToolError(f"{path} can't be read: {_reason(error)}") from None


def write(path: str, data: bytes, root: Path, suffix: str, owner: int | None = None) -> Path:
    """Write a file below `root` atomically, making its folders. Links are neither followed nor replaced.

    `path` is relative to `root`, or absolute and inside it; its name ends in `suffix`. New folders and the file belong
    to `owner`.
    """
    *folders, name = split_path(path, root, suffix)
    try:
        with _open_folder(root, folders, make=True, owner=owner) as folder:
            _replace(folder, name, data, owner)
    except NotADirectoryError:
        raise ToolError(f"{path}: a folder on the way is a file or a link, and links are not followed") from None
    except (OSError, ValueError) as error:
        raise ToolError(f"{path} can't be written: {_reason(error)}") from None
    return root.joinpath(*folders, name)


def split_path(path: str, root: Path, suffix: str) -> list[str]:
    """Return the parts of `path` under `root`, for `write`. Reads no file."""
    try:
        relative = Path(path).relative_to(root) if os.path.isabs(path) else Path(path)
    except ValueError:
        raise _outside(path, root) from None
    if ".." in relative.parts:
        raise ToolError(f"{path!r} goes up with ..: give a path below {root}")
    if not relative.parts:
        raise ToolError(f"{path!r} names no file")
    if "\0" in path:
        raise ToolError(f"{path!r} can't be written: it holds a NUL character")
    if not relative.name.endswith(suffix):
        raise ToolError(f"{path!r} does not end in {suffix}: give a name that does")
    if relative.name == suffix:
        raise ToolError(f"{path!r} has no name before {suffix}: give one")
    return list(relative.parts)


def _open_regular_at(path: str, real: str | None, root: Path | None, private: Path | None) -> int:
    """Return a descriptor of the regular file at `path` (`real`: its real path) for reading. Nothing else is opened:
    opening a device can have effects."""
    with ExitStack() as held:
        if root is None or real is None:
            place = held.enter_context(_hold_place(path, links=True))
        else:
            place = held.enter_context(_hold_beneath(real, root))
            _must_be_inside(_opened_path(place), path, root, private)  # the folder may have been moved meanwhile
        _must_be_regular(os.fstat(place), path)
        file = _reopen(place, real or path, READ_FLAGS)
    try:
        _must_be_regular(os.fstat(file), path)  # opened by name, it may be another file by now
        return file
    except BaseException:
        os.close(file)
        raise


@contextmanager
def _hold_beneath(real: str, root: Path) -> Generator[int, None, None]:
    """Yield a path-only descriptor of `real`, which is `root` or inside it. No link is followed: `real` had none."""
    place = _open_place(str(root))
    try:
        for part in Path(real).relative_to(root).parts:
            deeper = _open_place(part, place)
            os.close(place)  # now: a path may have two thousand parts
            place = deeper
        yield place
    finally:
        os.close(place)


@contextmanager
def _hold_place(name: str, folder: int | None = None, *, links: bool = False) -> Generator[int, None, None]:
    place = _open_place(name, folder, links=links)
    try:
        yield place
    finally:
        os.close(place)


def _open_place(name: str, folder: int | None = None, *, links: bool = False) -> int:
    """Return a path-only descriptor (O_PATH), which opens nothing."""
    place = os.open(name, LOOK_FLAGS if links else LOOK_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    try:
        if stat.S_ISLNK(os.fstat(place).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except BaseException:
        os.close(place)
        raise
    return place


def _reopen(place: int, name: str, flags: int, folder: int | None = None) -> int:
    """Open the held file itself, whatever has its name now; on other systems than Linux, by name."""
    if sys.platform == "linux":
        return os.open(f"{DESCRIPTORS}/{place}", flags)
    return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)


def _list_entries(folder: int, path: str, root: Path, limit: int, private: Path | None) -> tuple[list[FileEntry], bool]:
    with os.scandir(folder) as found:
        every = [entry for _, entry in zip(range(SCANNED), found, strict=False)]
    shown: list[FileEntry] = []
    for entry in sorted(every, key=lambda entry: entry.name):
        held = _entry(entry, path, root, private)
        if held is not None and len(shown) == limit:
            return shown, True
        shown += [] if held is None else [held]
    return shown, len(every) == SCANNED


def _entry(entry: os.DirEntry[str], folder: str, root: Path, private: Path | None) -> FileEntry | None:
    path = os.path.join(folder, entry.name)
    try:
        found = entry.stat()
        _must_be_inside(resolve_inside(path, root) if entry.is_symlink() else path, path, root, private)
    except (OSError, NotFound):
        return None
    is_folder = stat.S_ISDIR(found.st_mode)
    is_shown = is_folder or stat.S_ISREG(found.st_mode)
    return FileEntry(entry.name, is_folder, found.st_size, found.st_mtime) if is_shown else None


@contextmanager
def _open_folder(root: Path, parts: list[str], *, make: bool, owner: int | None = None) -> Generator[int, None, None]:
    """Yield a descriptor of the folder `parts` below `root`; `make` creates missing folders."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if make and _opened_path(folder) != str(root):  # the owner of the folder above may have put a link there
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        for part in parts:
            made = make and _make(folder, part)
            deeper = os.open(part, FOLDER, dir_fd=folder)
            if made and owner is not None:
                _give(deeper, owner)
            os.close(folder)
            folder = deeper
        yield folder
    finally:
        os.close(folder)


def _make(folder: int, name: str) -> bool:
    """Make the folder. Return False if it existed."""
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return False
    return True


def _give(folder: int, owner: int) -> None:
    """Give the open folder to `owner` if it is still the server's: by name another user could swap it."""
    if os.fstat(folder).st_uid == os.geteuid():
        os.fchown(folder, owner, owner)


def make_empty(path: Path, owner: int | None) -> None:
    """Make an empty file in a folder of the server's; `owner` None means the server's user. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if owner is not None:
            os.fchown(descriptor, owner, -1)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove the file, if it exists and is no folder."""
    with suppress(OSError):
        path.unlink()


def _replace(folder: int, name: str, data: bytes, owner: int | None) -> None:
    """Replace a file, keeping its mode, or create it."""
    before = None
    with suppress(FileNotFoundError):
        before = os.lstat(name, dir_fd=folder).st_mode
    if before is not None and not stat.S_ISREG(before):
        raise ToolError(f"{name} exists and is not a regular file: choose another name")
    fresh = f".{name[:200]}.{os.urandom(4).hex()}"
    mode = 0o644 if before is None else 0o600
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if before is not None:
                os.fchmod(descriptor, before & 0o777)
            if owner is not None:
                os.fchown(descriptor, owner, owner)
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(fresh, dir_fd=folder)
        raise


def _must_be_regular(found: os.stat_result, path: str) -> None:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe"}
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise ToolError(f"{path} is {kinds.get(kind, 'a socket')}, not a file")


def _read_all(descriptor: int, path: str, limit: int) -> bytes:
    """Read to the end, whatever the file's size says: files of /proc say 0."""
    pieces: list[bytes] = []
    size = 0
    while piece := os.read(descriptor, min(CHUNK, limit + 1 - size)):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise create_size_error(path, size, limit)
    return b"".join(pieces)


def _opened_path(descriptor: int) -> str:
    """Return the real path of the open file."""
    if sys.platform == "darwin":
        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"{DESCRIPTORS}/{descriptor}")


def _must_be_inside(real: str, path: str, root: Path, private: Path | None) -> None:
    """Raise NotFound if `real`, the real path of `path`, is outside `root` or in `private`."""
    if not Path(real).is_relative_to(root):
        raise _outside(path, root)
    if private is not None and Path(real).is_relative_to(private):
        raise NotFound(f"{path} belongs to the server")


def _outside(path: str, root: Path) -> NotFound:
    return NotFound(f"{path} is outside the workspace: only files in {root} can be used")


def create_size_error(path: str, size: int, limit: int) -> ToolError:
    return ToolError(f"{path} is at least {size:,} bytes, over the limit of {limit:,}")


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
