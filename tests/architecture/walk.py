"""Trace a call through the program and count what a reader has to find: `make walk`.

Starts real servers, calls `PlanMode status` three times and takes the third. Writes the paths into CONTRIBUTING.md,
and prints them with the counts.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.architecture import names, rooms
from tests.clients.raw_client import served
from tests.server.auth.minted_tokens import request, session, signed_site

TRACED = Path(__file__).with_name("traced_server.py")
CALL = {"name": "PlanMode", "arguments": {"action": "status"}}


class Step(NamedTuple):
    """A call of one of the program's functions."""

    at: int  # ns, on the system's monotonic clock
    path: Path  # from the root
    function: str


def trace_stdio(folder: Path) -> list[Step]:
    """The functions that one call runs on stdio, in their order."""
    out = folder / "trace"
    with served(folder, command=_traced(out)) as client:
        span = _third(lambda: client.request("tools/call", CALL))
    return _read(out, span)


def trace_http(folder: Path) -> list[Step]:
    """The functions that one call runs over Streamable HTTP with a token, in their order."""
    out = folder / "trace"
    with signed_site(folder, command=_traced(out)) as signed:
        token = signed.token()
        headers = {"authorization": f"Bearer {token}", "mcp_session_id": session(signed, token)}

        def call() -> None:
            response, _, _ = signed.site.ask("POST", "/mcp", request("tools/call", CALL), **headers)
            assert response.status == 200

        span = _third(call)
    return _read(out, span)


def _traced(out: Path) -> tuple[str, ...]:
    return sys.executable, str(TRACED), str(out), str(rooms.ROOT)


def _third(call: Callable[[], Any]) -> tuple[int, int]:
    """When the third of three calls began and ended."""
    call()
    call()
    time.sleep(1.2)  # what the first two left for later is done: traces, the audit's line, looks at revoked tokens
    begin = time.monotonic_ns()
    call()
    return begin, time.monotonic_ns()


def _read(out: Path, span: tuple[int, int]) -> list[Step]:
    steps = [line.split(" ", 2) for line in out.read_text().splitlines()]
    return [Step(int(at), Path(path), function) for at, path, function in steps if span[0] <= int(at) <= span[1]]


def files(steps: list[Step]) -> dict[Path, list[str]]:
    """The files of a path in its order, with the functions that run there."""
    found: dict[Path, list[str]] = {}
    for step in steps:
        if step.function not in (functions := found.setdefault(step.path, [])):
            functions.append(step.function)
    return found


def folders(steps: list[Step]) -> list[str]:
    """The rooms of a path in its order."""
    return list(dict.fromkeys(rooms.room(step.path) for step in steps))


def summarize(steps: list[Step]) -> str:
    """One line of figures."""
    changes = sum(one.path != other.path for one, other in pairwise(steps))
    return f"{len(folders(steps))} rooms, {len(files(steps))} files, {len(steps)} calls, {changes} changes of file"


def table(steps: list[Step]) -> str:
    """A path as a Markdown table: a row a file."""
    rows = [
        f"| `{path}` | {', '.join(f'`{function}`' for function in functions if '<' not in function)} |"
        for path, functions in files(steps).items()
    ]
    return "\n".join(["| file | what runs there |", "| --- | --- |", *rows])


def count() -> dict[str, int]:
    """What a reader has to find, in figures."""
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


def trace(path: Callable[[Path], list[Step]]) -> list[Step]:
    with tempfile.TemporaryDirectory(prefix="toolgate-walk-") as folder:
        return path(Path(folder))


def main() -> None:
    paths = {"stdio": trace(trace_stdio), "HTTP with a token": trace(trace_http)}
    for name, steps in paths.items():
        print(f"\n{name}: {summarize(steps)}\n")
        for path, functions in files(steps).items():
            print(f"  {path}: {', '.join(functions)}")
    print()
    for what, figure in count().items():
        print(f"{figure:7,} {what}")


if __name__ == "__main__":
    main()
