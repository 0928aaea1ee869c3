"""Serve one plugin in its own process.

A program: `python -m toolgate.server.features.mounts.plugins.worker LINE FILE VERBOSE STYLE`, with MCP on its standard
input and output. It ends at once when the server closes them. Its reaper ends what it started; LINE is the reaper's
descriptor to the server.
"""

import asyncio
import socket
import sys
import threading
from functools import partial
from pathlib import Path

from toolgate.server.base import logging as logs
from toolgate.server.base import run_loop
from toolgate.server.features.mounts.plugins.worker import reaper
from toolgate.server.features.mounts.plugins.worker.server import PluginServer
from toolgate.server.protocol.session import Session
from toolgate.transports import stdio


async def serve(file: Path, source: int, sink: int) -> None:
    """Serve the plugin until the input ends or a signal comes. Its calls end with it."""
    session = Session("plugin", transport="stdio")
    dispatcher = PluginServer(file, session).create_dispatcher()
    await stdio.serve(dispatcher, session, source, sink, 0.0, reaper.kill_group, reads_always=True)


def main() -> None:
    line, file, verbose, style = sys.argv[1:]
    reaper.fork_under_reaper(socket.socket(fileno=int(line)))
    source, sink = run_loop.take_descriptors()
    threading.Thread(target=reaper.watch_server, args=(source,), daemon=True).start()
    reaper.die_with_server()
    logs.start(bool(verbose), None, style)
    try:
        run_loop.run_server(partial(serve, Path(file), source, sink), asyncio.new_event_loop)
    finally:
        reaper.kill_group()


if __name__ == "__main__":
    main()
