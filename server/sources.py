"""Plugin files: which there are, what each consists of, and which folders to watch for a change of that. Knows nothing
of what a plugin does: it is only read here.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

MAX_FILES = 1_000  # of one folder, or of one package: more are not plugins
MAX_SOURCE = 16 * 2**20  # bytes of one plugin: more is data, not a program
MAX_FOLDERS = 1_000  # watched: each costs the system a watch, of which a user may have 8,192 and less


@dataclass(frozen=True, slots=True)
class Content:
    """What a plugin consisted of when it was looked at: `full` are the files that were not empty."""

    digest: bytes
    full: frozenset[Path] = frozenset()
    empty: frozenset[Path] = frozenset()


def files(folders: Iterable[Path], complain: Callable[[str], object]) -> Iterator[Path]:
    """The plugin files: every `.py` and every package below, in order, each once; names that begin with `.` or `_` are
    not. Links are followed, but nowhere twice."""
    seen: set[tuple[int, int]] = set()
    for folder in folders:
        if not os.path.isdir(folder):
            complain(f"there is no plugin folder {folder}")
            continue
        for count, file in enumerate(_below(folder, seen, complain)):
            if count == MAX_FILES:
                complain(f"more than {MAX_FILES} files in plugin folder {folder}: the rest is left out")
                break
            yield file


def _below(folder: Path, seen: set[tuple[int, int]], complain: Callable[[str], object]) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        complain(f"plugin folder {folder} can't be read: {error}")
        return
    for entry in entries:
        if entry.name.startswith((".", "_")):
            continue
        try:
            kind = entry.stat()
        except OSError:
            continue  # a broken link
        if (kind.st_dev, kind.st_ino) in seen:
            continue
        seen.add((kind.st_dev, kind.st_ino))
        if stat.S_ISDIR(kind.st_mode):
            package = entry / "__init__.py"
            yield from [package] if os.path.isfile(package) else _below(entry, seen, complain)
        elif stat.S_ISREG(kind.st_mode) and entry.suffix == ".py":
            yield entry


def sources(file: Path) -> dict[Path, bytes]:
    """What a plugin consists of: its file, or every `.py` of its package. Raises OSError."""
    if file.name != "__init__.py":
        return {file: _read(file, MAX_SOURCE)}
    found: dict[Path, bytes] = {}
    left = MAX_SOURCE
    for path in _python_files(file.parent, set()):
        if len(found) == MAX_FILES:
            raise OSError(errno.EFBIG, f"more than {MAX_FILES} files", str(file.parent))
        try:
            found[path] = _read(path, left)
        except FileNotFoundError:  # gone since
            continue
        left -= len(found[path])
    if file not in found:
        raise FileNotFoundError(file)
    return found


def _python_files(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        try:
            kind = entry.stat()
        except OSError:  # a broken link
            continue
        if stat.S_ISREG(kind.st_mode) and entry.name.endswith(".py"):
            yield Path(entry)
        elif stat.S_ISDIR(kind.st_mode) and (kind.st_dev, kind.st_ino) not in seen:
            seen.add((kind.st_dev, kind.st_ino))  # links may lead round in a circle
            yield from _python_files(Path(entry), seen)


def _read(file: Path, limit: int) -> bytes:
    with file.open("rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"more than {MAX_SOURCE} bytes of source", str(file))
    return data


def content(found: Mapping[Path, bytes]) -> Content:
    """What tells one version from another."""
    digest = hashlib.sha256()
    for path, data in found.items():
        digest.update(f"{path}\0{len(data)}\0".encode("utf-8", "surrogateescape"))
        digest.update(data)
    full = frozenset(path for path, data in found.items() if data)
    return Content(digest.digest(), full, frozenset(found) - full)


def wants_isolation(file: Path) -> bool:
    """Whether the file says `__isolate__ = True` at its top level. Raises whatever compiling raises, and OSError.

    Seen in the compiled code: `ast.parse` is not safe in threads (CPython 3.11).
    """
    code = compile(sources(file)[file], str(file), "exec", dont_inherit=True)
    if "__isolate__" not in code.co_names:
        return False
    import dis  # start-up: hardly any plugin asks for it

    told = [(step.opname, step.argval) for step in dis.get_instructions(code)]
    return any(pair == (("LOAD_CONST", True), ("STORE_NAME", "__isolate__")) for pair in pairwise(told))


def roots(folders: Iterable[Path], complain: Callable[[str], object]) -> list[Path]:
    """The folders whose entries decide what plugins there are and what is in them, or the nearest there are."""
    found: set[Path] = set()
    for folder in folders:
        for path in (folder, Path(os.path.realpath(folder))):  # it may be a link
            found.add(next(parent for parent in path.parents if os.path.isdir(parent)))
        found.update(_folders(folder))
        if len(found) > MAX_FOLDERS:
            complain(f"more than {MAX_FOLDERS} folders in plugin folder {folder}: not all are watched")
    return sorted(found)[:MAX_FOLDERS]


def _folders(folder: Path) -> set[Path]:
    """The folders at and below `folder`, and those that files in them are linked from; at most a few more than
    MAX_FOLDERS."""
    found: set[Path] = set()
    seen: set[str] = set()
    waiting = [folder]
    while waiting and len(found) <= MAX_FOLDERS:
        place = waiting.pop()
        try:
            with os.scandir(place) as entries:
                listed = [entry for entry in entries if not entry.name.startswith(".") and entry.name != "__pycache__"]
        except OSError:
            continue
        real = os.path.realpath(place)
        if real in seen:
            continue
        seen.add(real)
        found.add(place)
        waiting += [Path(entry) for entry in listed if entry.is_dir()]
        found.update(Path(os.path.realpath(entry)).parent for entry in listed if entry.is_symlink() and entry.is_file())
    return found
