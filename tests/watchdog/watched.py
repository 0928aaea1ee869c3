"""The real command, whose event loop records the CPU time of its callbacks, and which records its routes.

Run as a script: `watched.py FOLDER WORDS…`. FOLDER/time holds the longest callback's time, as a double, and its name;
FOLDER/routes the paths, as JSON."""

import asyncio
import json
import mmap
import struct
import sys
import time
from asyncio import events
from pathlib import Path
from typing import Any

import uvloop

SIZE = 4_096
SECONDS = struct.Struct("d")


def watch_callbacks(path: Path) -> None:
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), SIZE)
    run = events.Handle._run  # type: ignore[attr-defined]

    def timed(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        took = time.thread_time() - began
        if took > SECONDS.unpack_from(memory)[0]:
            SECONDS.pack_into(memory, 0, took)
            text = repr(handle).encode()[: SIZE - SECONDS.size]
            memory[SECONDS.size :] = text.ljust(SIZE - SECONDS.size, b"\0")

    events.Handle._run = timed  # type: ignore[attr-defined]


def watch_routes(path: Path) -> None:
    from starlette.routing import Router

    begin = Router.__init__

    def noted(router: Router, *given: Any, **options: Any) -> None:
        begin(router, *given, **options)
        path.write_text(json.dumps([route.path for route in router.routes]))  # type: ignore[attr-defined]

    Router.__init__ = noted  # type: ignore[method-assign]


def main() -> int:
    folder, *words = sys.argv[1:]
    uvloop.new_event_loop = asyncio.SelectorEventLoop  # type: ignore[assignment]  # uvloop's handles can't be looked at
    watch_callbacks(Path(folder) / "time")
    watch_routes(Path(folder) / "routes")
    from toolgate.server import __main__

    sys.argv = ["toolgate", *words]
    return __main__.main()


if __name__ == "__main__":
    sys.exit(main())
