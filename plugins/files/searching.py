"""Find files by name and by content. Runs in the caller's sandbox; the server ends it after its time."""

import heapq
import os
import re
import stat
import time
from collections.abc import Iterator

from .paths import FileError, Places, open_at, show_name
from .patterns import ALWAYS, compile_glob, read_ignore_file, read_rules_above
from .results import Results, fit_paths
from .ripgrep import find_ripgrep, search_with_ripgrep

MAX_GLOBBED = 200  # paths of a result
BLOCK = 16 * 2**20  # bytes of a file that are searched at once
ONLY_IN_LINES = ("\\A", "\\Z", "(?<", "(?!")  # with these a line may match, and the text that has it not
NEWLINE = r"\n|(?<!\\)(?:\\\\)*\\n"  # in a pattern: the character, or what stands for it
CLASS = r"(?<!\\)(?:\\\\)*\[\^?\]?(?:\\.|[^\]\\])*\]"  # there: a set of characters, which may leave line ends out
BEGAN = time.monotonic()
SECONDS = 12.0  # of a search: then what was found so far is the result


class Walk:
    """The files below a folder, without those in `private`, and those that .gitignore files and version control leave
    out. `stopped` says that the time was over."""

    def __init__(self, folder: str, private: str | None, *, ignored_too: bool = False) -> None:
        self.folder = folder
        self._private = private
        self.stopped = False
        self._ignored_too = ignored_too

    def files(self) -> "Iterator[tuple[str, os.DirEntry[str]]]":
        """Yield the path below the folder and the entry of each file or link. Links are not followed."""
        waiting = [("", None if self._ignored_too else read_rules_above(self.folder))]
        while waiting and not self.stopped:
            base, rules = waiting.pop()
            folder = os.path.join(self.folder, base)
            try:
                with os.scandir(folder) as found:
                    entries = sorted(found, key=lambda entry: entry.name)
            except OSError:  # not readable, gone, or too deep
                continue
            if not self._ignored_too:
                rules = read_ignore_file(folder, base, rules)
            folders = []
            for entry in entries:
                self.stopped = self.stopped or is_late()
                if self.stopped:
                    return
                path = base + entry.name
                is_folder = entry.is_dir(follow_symlinks=False)
                if entry.name in ALWAYS or entry.path == self._private:
                    continue
                if rules is not None and rules.ignores(path, is_folder=is_folder):
                    continue
                if is_folder:
                    folders.append((f"{path}/", rules))
                else:
                    yield path, entry
            waiting += reversed(folders)


def is_late() -> bool:
    """Return whether the time of this process, which answers one request, is over."""
    return time.monotonic() > BEGAN + SECONDS


def glob(places: Places, pattern: str, path: str, ignored_too: bool) -> dict[str, str]:
    """Return the paths that match, the newest first."""
    fixed, pattern = _split_fixed(pattern)
    real = places.resolve(os.path.join(path, fixed))
    _must_be_folder(real)
    expression = compile_glob(pattern)
    walk = Walk(real, places.find_private(real), ignored_too=ignored_too)
    count = 0

    def matching() -> Iterator[tuple[float, str]]:
        nonlocal count
        for below, entry in walk.files():
            if expression.fullmatch(below):
                count += 1
                try:
                    yield entry.stat(follow_symlinks=False).st_mtime, below
                except OSError:
                    continue  # it is gone

    newest = heapq.nlargest(MAX_GLOBBED, matching())
    lines = fit_paths([places.show(os.path.join(real, below)) for _, below in newest])
    if not lines:
        left_out = "" if ignored_too else " (files that .gitignore names are left out)"
        lines = [f"[no file in {show_name(real)} matches{left_out}]"]
    elif count > len(lines):
        lines.append(f"[the newest {len(lines)} of {count:,}: narrow the pattern]")
    if walk.stopped:
        lines.append(f"[stopped after {SECONDS:g} s: not all files were seen; narrow the path]")
    return {"text": "\n".join(lines)}


def grep(
    places: Places, pattern: str, path: str, glob: str, mode: str, context: int, any_case: bool, rg: bool
) -> dict[str, str]:
    """Return the files, lines or counts that match."""
    real = places.resolve(path)
    is_folder = _exists(real) == stat.S_IFDIR
    if not is_folder:
        os.close(places.open_regular(real))  # raises for a pipe, a device …
    if re.search(NEWLINE, re.sub(CLASS, "", pattern)):
        raise FileError("the pattern has a line end, but lines are searched one by one: use rg -U in Bash")
    results = Results(mode, lambda below: places.show(os.path.join(real, below) if below else real))
    private = places.find_private(real)
    program = find_ripgrep() if rg and private is None else None
    if program is not None:
        search_with_ripgrep(program, real, pattern, glob, mode, context, any_case, results)
    else:
        _search(real, private, is_folder, pattern, glob, context, any_case, results)
    return {"text": results.format(show_name(real))}


def _search(
    real: str,
    private: str | None,
    is_folder: bool,
    pattern: str,
    glob: str,
    context: int,
    any_case: bool,
    results: Results,
) -> None:
    try:
        expression = re.compile(pattern, re.IGNORECASE if any_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise FileError(f"the pattern is no regular expression: {error}") from None
    wanted = compile_glob(glob, at_any_depth=True) if glob else None
    if not is_folder:
        _search_file(os.path.dirname(real), os.path.basename(real), "", expression, context, results)
        return
    walk = Walk(real, private)
    for below, entry in walk.files():
        if wanted is not None and not wanted.fullmatch(below):
            continue
        if entry.is_file(follow_symlinks=False):
            _search_file(os.path.dirname(os.path.join(real, below)), entry.name, below, expression, context, results)
        if results.is_full:
            return
        if is_late():
            break
    if is_late():
        results.notes.append(f"stopped after {SECONDS:g} s: not all files were searched; narrow path or glob")


def _search_file(
    folder: str, name: str, below: str, expression: "re.Pattern[str]", context: int, results: Results
) -> None:
    try:
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            file = open_at(parent, name)
        finally:
            os.close(parent)
    except (OSError, FileError):
        return  # not readable, or gone
    try:
        number, rest = 1, b""
        while not results.is_full and not is_late() and (block := os.read(file, BLOCK)):
            if b"\0" in block:  # from there on it is no text
                return
            block = rest + block
            cut = block.rfind(b"\n") + 1 or len(block)
            rest = block[cut:]
            number = _search_text(block[:cut], number, below, expression, context, results)
        if rest:
            _search_text(rest, number, below, expression, context, results)
    except OSError:
        return
    finally:
        os.close(file)


def _search_text(
    data: bytes, first: int, below: str, expression: "re.Pattern[str]", context: int, results: Results
) -> int:
    """Search whole lines of a file, from number `first`. Return the number after them."""
    text = data.decode("utf-8", "replace")
    after = first + data.count(b"\n")
    text = text.replace("\r\n", "\n")  # $ matches before the line ends of Windows, too
    anywhere = re.compile(expression.pattern, expression.flags | re.MULTILINE)  # `re` keeps it
    if anywhere.search(text) is None and not any(sign in expression.pattern for sign in ONLY_IN_LINES):
        return after
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    shown = -1
    for index, line in enumerate(lines):
        if expression.search(line) is None:
            continue
        if not results.wants_lines:
            results.add(below, first + index, line, is_match=True)
            if results.is_full or results.needs_one:
                break
            continue
        for near in range(max(index - context, shown + 1), index):
            results.add(below, first + near, lines[near], is_match=False)
        results.add(below, first + index, line, is_match=True)
        shown = index
        if results.is_full:
            break
        # lines after a match are shown once, and matches among them as matches
        for near in range(index + 1, min(index + 1 + context, len(lines))):
            if expression.search(lines[near]) is not None:
                break
            results.add(below, first + near, lines[near], is_match=False)
            shown = near
    return after


def _split_fixed(pattern: str) -> tuple[str, str]:
    """Split a glob after the last folder without special characters."""
    parts = pattern.split("/")
    for index, part in enumerate(parts):
        if index == len(parts) - 1 or re.search(r"[*?\[{\\]", part):
            fixed = "/".join(parts[:index]) or ("/" if pattern.startswith("/") else "")
            rest = "/".join(parts[index:])
            if ".." in parts[index:]:
                raise FileError("a pattern can't go up with .. after its first * or ?")
            return fixed, rest
    return "", pattern


def _exists(real: str) -> int:
    return stat.S_IFMT(os.stat(real).st_mode)


def _must_be_folder(real: str) -> None:
    if _exists(real) != stat.S_IFDIR:
        raise FileError(f"{show_name(real)} is not a folder")
