"""Trace a call through the program and count what a reader has to find: `make walk`.

Starts real servers, calls `PlanMode status` on them, and takes the shortest of several paths, less the files that are
not in each: their timers were due. Writes the paths into CONTRIBUTING.md, and prints them with the counts.
"""

import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.architecture import names, rooms
from tests.clients.raw_client import served
from tests.clients.raw_http_client import POSTED
from tests.server.auth.minted_tokens import request, session, signed_site

TRACED = Path(__file__).with_name("traced_server.py")
CALL = {"name": "PlanMode", "arguments": {"action": "status"}}
PAGE = rooms.ROOT / "CONTRIBUTING.md"
PART = re.compile(r"(<!-- path: (\w+) -->\n).*?(<!-- end -->)", re.S)
CALLS = 6


class Step(NamedTuple):
    """A call of one of the program's functions."""

    at: int  # ns, on the system's monotonic clock
    path: Path  # from the root
    function: str


def trace_stdio(folder: Path) -> list[Step]:
    """Return the functions that one call runs over stdio, in order."""
    out = folder / "trace"
    with served(folder, command=_traced(out)) as client:
        spans = _times(lambda: client.request("tools/call", CALL))
    return _shortest(out, spans, "StdoutChannel._take_lines")


def trace_http(folder: Path) -> list[Step]:
    """Return the functions that one call runs over Streamable HTTP with a token, in order.

    The calls come on one connection, as those of a session do: what opens it is no part of a call.
    """
    out = folder / "trace"
    with signed_site(folder, command=_traced(out)) as signed:
        token = signed.token()
        headers = {**POSTED, "Authorization": f"Bearer {token}", "Mcp-Session-Id": session(signed, token)}
        with contextlib.closing(signed.site.connect()) as connection:

            def call() -> None:
                connection.request("POST", "/mcp", json.dumps(request("tools/call", CALL)), headers)
                response = connection.getresponse()
                assert response.status == 200 and response.read()

            spans = _times(call)
    return _shortest(out, spans, "Listener.send")


def _traced(out: Path) -> tuple[str, ...]:
    return sys.executable, str(TRACED), str(out), str(rooms.ROOT)


def _times(call: Callable[[], Any]) -> list[tuple[int, int]]:
    """Return the start and end of each of several calls."""
    spans = []
    for _ in range(CALLS):
        begin = time.monotonic_ns()
        call()
        spans.append((begin, time.monotonic_ns()))
        time.sleep(0.3)  # what the answer leaves for later is done: the audit's line, the metrics
    return spans[2:]  # the first two import and compile


def _shortest(out: Path, spans: list[tuple[int, int]], last: str) -> list[Step]:
    """Return the shortest path. It ends with the function `last`, which writes the answer: what the server does then
    is no part of it, and runs beside the client."""
    steps = [line.split(" ", 2) for line in out.read_text().splitlines()]
    calls = [Step(int(at), Path(path), function) for at, path, function in steps]
    paths = [_until(last, [step for step in calls if begin <= step.at <= end]) for begin, end in spans]
    always = set[Path].intersection(*({step.path for step in path} for path in paths))
    return [step for step in min(paths, key=len) if step.path in always]  # the other files' timers were due


def _until(last: str, steps: list[Step]) -> list[Step]:
    ends = [number for number, step in enumerate(steps, 1) if step.function == last]
    return steps[: ends[-1]]


def files(steps: list[Step]) -> dict[Path, list[str]]:
    """Return the files of a path in order, with the functions that run there."""
    found: dict[Path, list[str]] = {}
    for step in steps:
        if step.function not in (functions := found.setdefault(step.path, [])):
            functions.append(step.function)
    return found


def folders(steps: list[Step]) -> list[str]:
    """Return the rooms of a path in order."""
    return list(dict.fromkeys(rooms.room(step.path) for step in steps))


def count_changes(steps: list[Step]) -> int:
    """Return how often a path goes from one file to another."""
    return sum(one.path != other.path for one, other in pairwise(steps))


def summarize(steps: list[Step]) -> str:
    """Return one line of figures."""
    counts = f"{len(folders(steps))} rooms, {len(files(steps))} files, {len(steps)} calls"
    return f"{counts}, {count_changes(steps)} changes of file"


def format_table(steps: list[Step]) -> str:
    """Return a path as a Markdown table: a row for each file, with the first function called there."""
    rows = [f"| `{path}` | `{functions[0].split('.<locals>')[0]}` |" for path, functions in files(steps).items()]
    return "\n".join([f"{summarize(steps)}.", "", "| file | enters at |", "| --- | --- |", *rows])


def write_paths(paths: dict[str, list[Step]]) -> None:
    """Write the traced paths into CONTRIBUTING.md."""
    text = PART.sub(lambda part: f"{part[1]}\n{format_table(paths[part[2]])}\n\n{part[3]}", PAGE.read_text())
    PAGE.write_text(text)


def read_path(name: str) -> list[Path]:
    """Return the files of a path in CONTRIBUTING.md."""
    (part,) = (part for part in PART.finditer(PAGE.read_text()) if part[2] == name)
    return [Path(path) for path in re.findall(r"^\| `([^`]+)` \| `", part[0], re.M)]


def count() -> dict[str, int]:
    """Return figures on what a reader has to find."""
    sources = rooms.sources()
    return {
        "lines": sum(len((rooms.ROOT / path).read_text().splitlines()) for path in sources),
        "files": len(sources),
        "loose files in server/": sum(len(path.parts) == 2 for path in sources if path.parts[0] == "server"),
        "loose files in tools/ and transports/": sum(
            len(path.parts) == 2 for path in sources if path.parts[0] != "server"
        ),
        "folders": len(rooms.folders()),
        "imports between rooms": len(rooms.arrows()),
        "circles of files": len(rooms.file_circles()),
        "class names in more than one file": sum(len(found) > 1 for found in names.public_classes().values()),
        "bare names": sum(names.is_bare(name.name) for name in names.names()),
        "uses of the thirteen participles": names.count_participles(),
        "files over 400 lines": sum(len((rooms.ROOT / path).read_text().splitlines()) > 400 for path in sources),
    }


PATHS = {"stdio": trace_stdio, "http": trace_http}


def trace(path: Callable[[Path], list[Step]]) -> list[Step]:
    with tempfile.TemporaryDirectory(prefix="toolgate-walk-") as folder:
        return path(Path(folder))


def main() -> None:
    paths = {name: trace(path) for name, path in PATHS.items()}
    write_paths(paths)
    for name, steps in paths.items():
        print(f"\n{name}: {summarize(steps)}\n")
        for path, functions in files(steps).items():
            print(f"  {path}: {', '.join(functions)}")
    print()
    for what, figure in count().items():
        print(f"{figure:7,} {what}")


if __name__ == "__main__":
    main()
