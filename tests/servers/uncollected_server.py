"""The real command without the garbage collector, and a socket on which it says what holds large texts.

Run as a script: `uncollected_server.py SOCKET WORDS…`. Each connection to SOCKET gets a line of JSON: what holds each
large text or byte string, by the chain of types that lead to it."""

import contextlib
import gc
import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

LARGE = 2**18  # bytes of a text: the program's own are smaller
DEPTH = 12  # objects of a chain
SHOWN = 30  # characters or bytes of a text


def ask_holders(path: Path) -> list[str]:
    """Return what holds large texts in the server that listens at `path`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        with connection.makefile() as lines:
            found: list[str] = json.loads(lines.readline())
    return found


def main() -> int:
    path, *words = sys.argv[1:]
    gc.disable()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=_answer, args=(listener,), daemon=True).start()
    from toolgate.server import __main__

    gc.enable = gc.disable
    sys.argv = ["toolgate", *words]
    return __main__.main()


def _answer(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(list(_find_holders())).encode() + b"\n")


def _find_holders() -> Iterator[str]:
    """Yield the end of each large text, and the chain of references that holds it."""
    for thing in gc.get_objects():
        if _is_own(thing):
            continue
        for each in gc.get_referents(thing):
            if _measure(each) >= LARGE:
                end = each[-SHOWN:] if isinstance(each, str) else bytes(memoryview(each)[-SHOWN:])
                yield f"{end!r}: {' < '.join(_follow(thing))}"


def _measure(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if type(value) in (bytes, bytearray) or type(value).__name__ == "Raw":
        with contextlib.suppress(BufferError, ValueError):
            return memoryview(value).nbytes
    return 0


def _follow(thing: Any) -> list[str]:
    """Return the names of the object, what refers to it, what refers to that, and so on."""
    names: list[str] = []
    seen = {id(names)}
    while thing is not None and len(names) < DEPTH:
        names.append(_describe(thing))
        seen.add(id(thing))
        others = (each for each in gc.get_referrers(thing) if id(each) not in seen and not _is_own(each))
        thing = next(others, None)
    return names


def _is_own(thing: Any) -> bool:
    """Return whether this search refers to the object, or is it."""
    return isinstance(thing, FrameType) and thing.f_code.co_filename == __file__


def _describe(thing: Any) -> str:
    if isinstance(thing, FrameType):
        return f"frame {thing.f_code.co_qualname} line {thing.f_lineno}"
    name = getattr(thing, "__qualname__", "")
    return f"{type(thing).__name__} {name}".strip()


if __name__ == "__main__":
    sys.exit(main())
