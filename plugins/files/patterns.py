"""Match paths with globs, and with the rules of .gitignore files. Runs in the caller's sandbox."""

import os
import re

from .paths import READ, FileError, read_all

MAX_GLOB = 500  # characters
MAX_IGNORE_FILE = 256 * 2**10
ALWAYS = frozenset((".git", ".hg", ".svn"))  # folders of version control, never searched


def compile_glob(glob: str, *, at_any_depth: bool = False) -> "re.Pattern[str]":
    """Return the expression for relative paths. `at_any_depth`: a glob without a slash matches names at any depth."""
    if len(glob) > MAX_GLOB:
        raise FileError(f"the glob is longer than {MAX_GLOB} characters")
    glob = glob.removeprefix("./").lstrip("/")
    prefix = "(?:.*/)?" if at_any_depth and "/" not in glob else ""
    try:
        return re.compile(prefix + _translate(glob), re.DOTALL)
    except re.error:
        raise FileError(f"{glob!r} is no glob") from None


def _translate(glob: str) -> str:
    found, at, depth = "", 0, 0
    while at < len(glob):
        character = glob[at]
        at += 1
        if character == "*" and glob.startswith("*", at):
            at += 1
            if glob.startswith("/", at):
                at += 1
                found += "(?:.*/)?"
            else:
                found += ".*"
        elif character == "[" and (end := glob.find("]", at + 1)) > 0:
            inner = glob[at:end].replace("\\", "\\\\").replace("[", "\\[")
            found += f"[^{inner[1:]}]" if inner[0] in "!^" else f"[{inner}]"
            at = end + 1
        elif character == "\\" and at < len(glob):
            found += re.escape(glob[at])
            at += 1
        elif character == "{" and "}" in glob[at:]:
            found += "(?:"
            depth += 1
        elif character == "}" and depth:
            found += ")"
            depth -= 1
        elif character == "," and depth:
            found += "|"
        else:
            found += {"*": "[^/]*", "?": "[^/]"}.get(character, re.escape(character))
    return found + ")" * depth


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
            negates = line.startswith("!")
            pattern = line[negates:]
            body = pattern.rstrip("/")
            if not body or len(body) > MAX_GLOB:
                continue
            try:
                expression = compile_glob(body, at_any_depth="/" not in body)
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
