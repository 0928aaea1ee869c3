"""Declare the limits of a sandboxed principal and its commands.

`--limit NAME=VALUE` sets one. Sizes are bytes, or have K, M, G (powers of 1024); times are seconds, or have m, h, d; 0
is no limit. `calls` and `calls:SCOPE` count calls a minute.
"""

import re
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from toolgate.tools.api.text.cleaning import closest

SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
TIMES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
MOST = 2**53  # the largest integer that every JSON reader can hold
CALLS = "calls"


def parse_size(word: str) -> int:
    """Return the bytes of a text such as 512M."""
    bare = word.upper().removesuffix("IB").removesuffix("B")
    return _parse_scaled(bare, SIZES, f"{word!r} is not a size such as 512M")


def parse_duration(word: str) -> int:
    """Return the seconds of a text such as 30m."""
    return _parse_scaled(word, TIMES, f"{word!r} is not a time such as 90, 30m or 12h")


def parse_count(word: str) -> int:
    return _parse_scaled(word, {"": 1}, f"{word!r} is not a number such as 100")


class Limits(msgspec.Struct, frozen=True):
    """The limits; 0 is none. One about a process applies to each, one about a principal to all its commands."""

    cpu: int = 3600  # seconds of CPU time of a process
    memory: int = 2 * 2**30  # of a principal's commands; of each process without cgroups
    processes: int = 512  # processes and threads of a principal
    files: int = 4096  # open files of a process
    file_size: int = 2 * 2**30  # of one file that is written
    workspace: int = 4 * 2**30  # of all that is in a principal's workspace
    entries: int = 500_000  # files and folders in a principal's workspace
    tmp: int = 512 * 2**20  # of the private /tmp of a principal's sandbox, which is memory
    commands: int = 32  # commands of a principal at once, background tasks included
    background: int = 16  # background tasks of a principal at once
    age: int = 86_400  # seconds that a background task runs
    idle: int = 600  # seconds without a command until a sandbox ends, and as many more until its workspace closes
    calls: Mapping[str, int] = msgspec.field(  # of a principal in a minute: "": of all tools, or of those of a scope
        default_factory=lambda: {"": 600, "tools:shell": 240, "tools:web": 120}
    )


ROWS: Mapping[str, Callable[[str], int]] = {  # names, and how their values are read
    "cpu": parse_duration,
    "memory": parse_size,
    "processes": parse_count,
    "files": parse_count,
    "file-size": parse_size,
    "workspace": parse_size,
    "entries": parse_count,
    "tmp": parse_size,
    "commands": parse_count,
    "background": parse_count,
    "age": parse_duration,
    "idle": parse_duration,
    CALLS: parse_count,
}
UNLIMITED = Limits(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, calls={})


def limit_word(word: str) -> str:
    """Return the word if it is a valid NAME=VALUE. Raises ValueError."""
    _read(word)
    return word


def parse(words: Iterable[str], base: Limits | None = None) -> Limits:
    """Return `base`, or the defaults, changed by the words."""
    limits = base or Limits()
    for name, value in map(_read, words):
        known, _, scope = name.partition(":")
        if known == CALLS:
            limits = replace(limits, calls={**limits.calls, scope: value})
        else:
            limits = replace(limits, **{known.replace("-", "_"): value})
    return limits


def _read(word: str) -> tuple[str, int]:
    name, equals, value = (part.strip() for part in word.partition("="))
    known, _, scope = name.partition(":")
    parse_value = ROWS.get(known)
    if parse_value is None or (scope and known != CALLS):
        similar = closest(known, ROWS)
        hint = f" (did you mean {similar}?)" if similar else ""
        raise ValueError(f"there is no limit {name!r}{hint}; limits are {', '.join(ROWS)}, calls:SCOPE")
    if not equals:
        raise ValueError(f"{word!r} is not NAME=VALUE, such as memory=512M")
    if scope and not re.fullmatch(r"[a-z][a-z0-9:._-]{0,63}", scope):
        raise ValueError(f"{scope!r} is not the name of a scope, such as tools:shell")
    try:
        return name, parse_value(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _parse_scaled(word: str, units: Mapping[str, int], refusal: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15})([A-Za-z]?)", word)
    if match is None or match[2] not in units or (value := int(match[1]) * units[match[2]]) > MOST:
        raise ValueError(refusal)
    return value


def is_of_calls(word: str) -> bool:
    """Return whether a `NAME=VALUE` word limits calls: those are the server's, and the others are of commands."""
    return word.partition("=")[0].partition(":")[0] == CALLS
