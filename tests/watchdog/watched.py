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
from collections.abc import Iterable
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

    from toolgate.transports.http.requests.front import Front

    routes: list[str] = []
    begin_router, begin_front = Router.__init__, Front.__init__

    def note_router(router: Router, *given: Any, **options: Any) -> None:
        begin_router(router, *given, **options)
        note(route.path for route in router.routes)  # type: ignore[attr-defined]

    def note_front(front: Front, endpoints: Any, *given: Any, **options: Any) -> None:
        begin_front(front, endpoints, *given, **options)
        note(endpoints)

    def note(paths: Iterable[str]) -> None:
        routes.extend(paths)
        path.write_text(json.dumps(routes))

    Router.__init__ = note_router  # type: ignore[method-assign]
    Front.__init__ = note_front  # type: ignore[method-assign]


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
