"""Match paths with globs, and with the rules of .gitignore files. Runs in the caller's sandbox."""

import os
import re
from itertools import pairwise
from typing import TypeVar

from .paths import READ, FileError, read_all

MAX_GLOB = 500  # characters
MAX_CHOICES = 100  # globs that one with braces stands for
MAX_IGNORE_FILE = 64 * 2**10
MAX_RULES = 1_000  # of a .gitignore: each costs time for every file
STAR = "*"
ANY_FOLDERS = [STAR, STAR]  # the name `**`
T = TypeVar("T")
ALWAYS = frozenset((".git", ".hg", ".svn"))  # folders of version control, never searched


def compile_glob(glob: str, *, at_any_depth: bool = False, braces: bool = True) -> "re.Pattern[str]":
    """Return the expression for relative paths. `at_any_depth`: a glob without a slash matches names at any depth.
    `braces`: `{a,b}` is a or b."""
    if len(glob) > MAX_GLOB:
        raise FileError(f"the glob is longer than {MAX_GLOB} characters")
    glob = glob.removeprefix("./").lstrip("/")
    above = [ANY_FOLDERS] if at_any_depth and "/" not in glob else []
    try:
        either = [_translate([*above, *_parse(each)]) for each in (_expand_braces(glob) if braces else [glob])]
        return re.compile("|".join(either), re.DOTALL)
    except re.error:
        raise FileError(f"{glob!r} is no glob") from None


def _expand_braces(glob: str) -> list[str]:
    """Return the globs that a glob with braces stands for."""
    waiting, found = [glob], list[str]()
    while waiting:
        pieces = _split_braces(waiting.pop())
        if len(pieces) == 1:
            found += pieces
        else:
            before, *choices, after = pieces
            waiting += [before + choice + after for choice in choices]
        if len(waiting) + len(found) > MAX_CHOICES:
            raise FileError(f"the glob's braces stand for more than {MAX_CHOICES} globs")
    return found


def _split_braces(glob: str) -> list[str]:
    """Return what is before the first braces, each of their choices, and what is after them; else the glob alone."""
    cuts: list[int] = []
    depth, at = 0, -1
    while (at := at + 1) < len(glob):
        match glob[at]:
            case "\\":
                at += 1
            case "[" if (end := glob.find("]", at + 2)) > 0:
                at = end
            case "{":
                depth += 1
                cuts += [at] if depth == 1 else []
            case "," if depth == 1:
                cuts.append(at)
            case "}" if depth:
                depth -= 1
                if depth == 0:
                    cuts.append(at)
                    break
            case _:
                pass
    if depth or not cuts:  # braces that do not end are characters
        return [glob]
    return [glob[before + 1 : cut] for before, cut in pairwise([-1, *cuts, len(glob)])]


def _parse(glob: str) -> list[list[str]]:
    """Return each name of the glob as expressions, one for each character, or STAR."""
    names, at = [list[str]()], 0
    while at < len(glob):
        character = glob[at]
        at += 1
        if character == "/":
            names.append([])
        elif character == "*":
            names[-1].append(STAR)
        elif character == "?":
            names[-1].append("[^/]")
        elif character == "[" and (end := glob.find("]", at + 1)) > 0:
            inner = re.sub(r"([\\\[&~|])", r"\\\1", glob[at:end])
            names[-1].append(f"(?!/)[^{inner[1:]}]" if inner[0] in "!^" else f"(?!/)[{inner}]")
            at = end + 1
        elif character == "\\" and at < len(glob):
            names[-1].append(re.escape(glob[at]))
            at += 1
        else:
            names[-1].append(re.escape(character))
    return names


def _translate(names: list[list[str]]) -> str:
    """Return the expression of a path. It never backtracks from a name that matched: between two `**` the first place
    that fits is as good as any later one."""
    first, *parts = _split(names, ANY_FOLDERS)
    found = "/".join(map(_translate_name, first))
    if not parts:
        return found
    found += "/" if first else ""
    *middle, last = parts
    for part in filter(None, middle):
        found += f"(?>(?:[^/]++/)*?{'/'.join(map(_translate_name, part))}/)"
    return found + (f"(?:[^/]++/)*?{'/'.join(map(_translate_name, last))}" if last else ".+")


def _translate_name(name: list[str]) -> str:
    """Return the expression of one name. Between two stars, too, the first place that fits will do."""
    first, *parts = ("".join(part) for part in _split(name, STAR))
    if not parts:
        return f"(?>{first}(?=/|\\Z))"
    *middle, last = parts
    return f"(?>{first}{''.join(f'(?>[^/]*?{part})' for part in middle if part)}[^/]*{last}(?=/|\\Z))"


def _split(items: list[T], separator: T) -> list[list[T]]:
    found = [list[T]()]
    for item in items:
        if item == separator:
            found.append([])
        else:
            found[-1].append(item)
    return found


class IgnoreRules:
    """The rules of one .gitignore in a folder `base` ("" or "a/b/", relative to the searched one), and those above."""

    def __init__(self, base: str, text: str, above: "IgnoreRules | None") -> None:
        self._base = base
        self._above = above
        self._rules: list[tuple[bool, bool, re.Pattern[str]]] = []  # whether to ignore, folders only, expression
        for line in text.splitlines():
            line = line.rstrip()
            if not line or line.startswith("#"):
                continue
            if len(self._rules) == MAX_RULES:
                break
            negates = line.startswith("!")
            pattern = line[negates:]
            body = pattern.rstrip("/")
            if not body or len(body) > MAX_GLOB:
                continue
            try:
                expression = compile_glob(body, at_any_depth="/" not in body, braces=False)
            except FileError:
                continue
            self._rules.append((not negates, pattern.endswith("/"), expression))

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Return whether the entry at `path`, relative to the searched folder, is to be left out."""
        rules: IgnoreRules | None = self
        while rules is not None:
            inside = path[len(rules._base) :] if not rules._base.startswith("../") else rules._base[3:] + path
            for ignore, folders_only, expression in reversed(rules._rules):
                if (is_folder or not folders_only) and expression.fullmatch(inside):
                    return ignore
            rules = rules._above
        return False


def read_ignore_file(folder: str, base: str, above: IgnoreRules | None) -> IgnoreRules | None:
    """Return the rules of a folder: of its .gitignore, if it has one, and `above`."""
    try:
        file = os.open(os.path.join(folder, ".gitignore"), READ)
    except OSError:
        return above
    try:
        text = read_all(file, MAX_IGNORE_FILE).decode("utf-8", "replace")
    except OSError:
        return above
    finally:
        os.close(file)
    return IgnoreRules(base, text, above)


def read_rules_above(folder: str) -> IgnoreRules | None:
    """Return the rules of the folders above, up to the top of the repository, if it is in one."""
    way = [folder]
    while not os.path.lexists(os.path.join(way[-1], ".git")):
        above = os.path.dirname(way[-1])
        if above == way[-1]:
            break
        way.append(above)
    rules = None
    for each in reversed(way[1:]):
        rules = read_ignore_file(each, f"../{os.path.relpath(folder, each)}/", rules)
    return rules
