"""Search with ripgrep, if the sandbox has it. Runs in the caller's sandbox."""

import os

from .paths import FileError
from .results import Results

TYPE_CHECKING = False  # type checkers take it as true; a call need not import typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

SAFE = [  # what a search does is ours to say: a configuration could run programs
    "--crlf",  # $ matches before the line ends of Windows, too
    *("--no-config", "--no-messages", "--hidden", "--sort", "path", "--glob", "!.git", "--glob", "!.hg"),
    *("--glob", "!.svn", "--no-require-git", "--no-ignore-dot", "--no-ignore-global", "--no-ignore-exclude"),
]
MAX_OUTPUT = 2**22  # bytes of file names
MAX_EVENT = 2**22  # bytes of ripgrep's JSON about a line of a file, which may have gigabytes
LEFT_OUT = f"matches in lines of more than about {MAX_EVENT:,} bytes are left out: use Bash"
MAX_REPORT = 300  # characters of ripgrep's own error


def find_ripgrep() -> str | None:
    """Return the path of ripgrep, or None."""
    for folder in os.environ.get("PATH", "").split(":"):
        path = os.path.join(folder, "rg")
        if folder.startswith("/") and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def search_with_ripgrep(
    program: str, real: str, pattern: str, glob: str, mode: str, context: int, any_case: bool, results: Results
) -> None:
    """Search below `real`. Raises FileError with ripgrep's own words about the pattern."""
    import subprocess  # only here: it takes 10 ms

    words = [
        program,
        *SAFE,
        *(["--ignore-case"] if any_case else []),
        *(["--glob", _to_own_glob(glob)] if glob else []),
    ]
    words += {"lines": ["--json", f"--context={context}"], "files": ["-l", "--null"]}.get(mode, ["-cH", "--null"])
    words += ["-e", pattern, "--", real]
    folder = real if os.path.isdir(real) else "/"  # globs with a slash are relative to it
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        if mode == "lines":
            for line in _read_lines(running.stdout, results):
                _take(line, real, results)
                if results.is_full:
                    break
        else:
            output = running.stdout.read(MAX_OUTPUT)
            results.is_full = len(output) == MAX_OUTPUT
            _take_files(output, mode, real, results)
        if results.is_full:
            running.kill()  # it may wait for a reader
        report = running.stderr.read(4096).decode("utf-8", "replace")
    if running.returncode == 2 and not results.is_full and report:
        raise FileError(f"the pattern or the glob is wrong: {report[:MAX_REPORT].strip()}")


def _to_own_glob(glob: str) -> str:
    """Return ripgrep's spelling of a glob, in which a ! at the beginning is a character."""
    glob = glob.removeprefix("./")
    return f"\\{glob}" if glob.startswith("!") else glob


def _read_lines(output: "IO[bytes]", results: Results) -> "Iterator[bytes]":
    is_rest = False
    while line := output.readline(MAX_EVENT):
        is_whole = line.endswith(b"\n")
        if is_whole and not is_rest:
            yield line
        elif not is_rest and LEFT_OUT not in results.notes:
            results.notes.append(LEFT_OUT)
        is_rest = not is_whole


def _take(line: bytes, real: str, results: Results) -> None:
    import json

    event = json.loads(line)
    if event["type"] not in ("match", "context"):
        return
    data = event["data"]
    below = _below(_decode(data["path"]), real)
    for number, text in enumerate(_decode(data["lines"]).removesuffix("\n").split("\n"), data["line_number"]):
        results.add(below, number, text, is_match=event["type"] == "match")


def _take_files(output: bytes, mode: str, real: str, results: Results) -> None:
    if mode == "files":
        for name in output.split(b"\0")[:-1]:
            results.add_file(_below(os.fsdecode(name), real), 1)
        return
    for line in output.split(b"\n")[:-1]:
        name, _, count = line.removesuffix(b"\r").rpartition(b"\0")  # as --crlf ends its lines
        if count.isdigit():
            results.add_file(_below(os.fsdecode(name), real), int(count))


def _decode(value: "dict[str, str]") -> str:
    if "text" in value:
        return value["text"]
    from base64 import b64decode

    return b64decode(value["bytes"]).decode("utf-8", "replace")


def _below(path: str, real: str) -> str:
    return "" if path == real else path[len(real.rstrip("/")) + 1 :]
