"""Find plugin files, read their sources, and list the folders to watch for changes. No plugin runs here."""

import errno
import hashlib
import io
import os
import stat
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

MAX_FILES = 1_000  # of one folder or package: with more it is no plugin
MAX_SOURCE = 16 * 2**20  # bytes of one plugin: more is data, not a program
MAX_INLINE_SOURCE = 2**20  # bytes of a plugin in the server's process, which waits while it is compiled
MAX_FOLDERS = 1_000  # watched: each costs a watch of the system, which allows a user 8,192 or fewer

ISOLATE = "__isolate__ = True"  # in a plugin's file: it needs its own process
SPACE = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


class PluginContent(msgspec.Struct, frozen=True):
    """The content of a plugin at one moment: a digest, the files with content and the empty ones."""

    digest: bytes
    full: frozenset[Path] = frozenset()
    empty: frozenset[Path] = frozenset()


def find_plugins(folders: Iterable[Path], complain: Callable[[str], object]) -> Iterator[Path]:
    """Yield the plugin files: every `.py` and every package below, in order, each once; a file is a plugin itself.

    Names that begin with `.` or `_` are left out. Links are followed, but nowhere twice.
    """
    seen: set[tuple[int, int]] = set()
    for folder in folders:
        if os.path.isfile(folder):
            yield from _find_file(folder, seen, complain)
            continue
        if not os.path.isdir(folder):
            complain(f"there is no plugin folder {folder}")
            continue
        for count, file in enumerate(_walk_plugins(folder, seen, complain)):
            if count == MAX_FILES:
                complain(f"more than {MAX_FILES} files in plugin folder {folder}: the rest is left out")
                break
            yield file


def _find_file(file: Path, seen: set[tuple[int, int]], complain: Callable[[str], object]) -> Iterator[Path]:
    try:
        kind = file.stat()
    except OSError as error:
        complain(f"plugin {file} can't be read: {error}")
        return
    if file.suffix != ".py":
        complain(f"plugin {file} is not a Python file: its name must end in .py")
    elif (kind.st_dev, kind.st_ino) not in seen:
        seen.add((kind.st_dev, kind.st_ino))
        yield file


def _walk_plugins(folder: Path, seen: set[tuple[int, int]], complain: Callable[[str], object]) -> Iterator[Path]:
    levels = [_list_folder(folder, complain)]  # not recursion: folders may be nested deeper than calls
    while levels:
        entry = next(levels[-1], None)
        if entry is None:
            levels.pop()
            continue
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
            if os.path.isfile(package):
                yield package
            else:
                levels.append(_list_folder(entry, complain))
        elif stat.S_ISREG(kind.st_mode) and entry.suffix == ".py":
            yield entry


def _list_folder(folder: Path, complain: Callable[[str], object]) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except OSError as error:
        complain(f"plugin folder {folder} can't be read: {error}")


def read_sources(file: Path) -> dict[Path, bytes]:
    """Return the source of a plugin by path: its file, or every `.py` of its package. Raises OSError."""
    if file.name != "__init__.py":
        return {file: _read_file(file, MAX_SOURCE)}
    found: dict[Path, bytes] = {}
    left = MAX_SOURCE
    for path in _python_files(file.parent):
        if len(found) == MAX_FILES:
            raise OSError(errno.EFBIG, f"more than {MAX_FILES} files", str(file.parent))
        try:
            found[path] = _read_file(path, left)
        except FileNotFoundError:  # removed meanwhile
            continue
        left -= len(found[path])
    if file not in found:
        raise FileNotFoundError(file)
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    seen: set[tuple[int, int]] = set()
    levels = [_scan_folder(folder)]
    while levels:
        entry = next(levels[-1], None)
        if entry is None:
            levels.pop()
            continue
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
            levels.append(_scan_folder(Path(entry)))


def _scan_folder(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return iter(sorted(entries, key=lambda entry: entry.name))


def _read_file(file: Path, limit: int) -> bytes:
    with file.open("rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"more than {MAX_SOURCE} bytes of source", str(file))
    return data


def hash_sources(found: Mapping[Path, bytes]) -> PluginContent:
    """Return a digest that differs between versions of a plugin."""
    digest = hashlib.sha256()
    for path, data in found.items():
        digest.update(f"{path}\0{len(data)}\0".encode("utf-8", "surrogateescape"))
        digest.update(data)
    full = frozenset(path for path, data in found.items() if data)
    return PluginContent(digest.digest(), full, frozenset(found) - full)


def wants_isolation(file: Path) -> bool:
    """Return whether the file has the statement `__isolate__ = True`, outside all blocks. Raises OSError.

    It reads tokens: compiling would block the server, and `ast.parse` is not safe in threads (CPython 3.11).
    """
    data = _read_file(file, MAX_SOURCE)
    if len(data) > MAX_INLINE_SOURCE:  # too large to run inside in any case
        data = data[: data.rfind(b"\n", 0, MAX_INLINE_SOURCE) + 1]
    if b"__isolate__" not in data:
        return False
    lines = io.BytesIO(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))  # the line ends that Python accepts
    try:
        return any(map(_is_isolate_statement, _split_statements(tokenize.tokenize(lines.readline))))
    except (tokenize.TokenError, SyntaxError, ValueError):  # it won't load, or at least not inside
        return True


def _split_statements(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[list[str]]:
    """Yield the tokens of each statement outside all blocks."""
    level, statement = 0, list[str]()
    for token in tokens:
        level += (token.type == tokenize.INDENT) - (token.type == tokenize.DEDENT)
        if token.type == tokenize.NEWLINE or token.string == ";":
            yield statement
            statement = []
        elif not level and token.type not in SPACE:
            statement.append(token.string)


def _is_isolate_statement(statement: Sequence[str]) -> bool:
    """Return whether it is `__isolate__ = True`, with or without a type."""
    words = [word for word in statement if word not in "()"]
    return words[:1] == ["__isolate__"] and words[1:2] in (["="], [":"]) and words[-2:] == ["=", "True"]


def find_watched_folders(folders: Iterable[Path], complain: Callable[[str], object]) -> list[Path]:
    """Return the folders to watch for plugins and their files, or the nearest parents of missing ones."""
    found: set[Path] = set()
    for folder in folders:
        for path in (folder, Path(os.path.realpath(folder))):  # it may be a link
            found.add(next(parent for parent in path.parents if os.path.isdir(parent)))
        found.update(_walk_folders(folder))
        if len(found) > MAX_FOLDERS:
            complain(f"more than {MAX_FOLDERS} folders in plugin folder {folder}: not all are watched")
    return sorted(found)[:MAX_FOLDERS]


def _walk_folders(folder: Path) -> set[Path]:
    """Return the folders at and below `folder`, and those of files linked into them; at most a few more than
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
        waiting += [Path(entry) for entry in listed if os.path.isdir(entry)]
        linked = (entry for entry in listed if entry.is_symlink() and os.path.isfile(entry))  # false for a broken link
        found.update(Path(os.path.realpath(entry)).parent for entry in linked)
    return found
