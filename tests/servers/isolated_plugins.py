"""Servers whose plugins run in their own processes, and checks of those processes."""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import Server, processes_with
from tests.needed_features import list_deleted

IS_SERVED = "mounts" not in list_deleted()  # the feature that runs plugins in processes of their own
needs_isolation = pytest.mark.skipif(not IS_SERVED, reason="needs the feature mounts")
ISOLATED = pytest.param(("--isolate-plugins",), marks=needs_isolation, id="isolated")
EACH_WAY = (pytest.param((), id="inline"), ISOLATED)  # the options with which a plugin runs in the server, and apart
HOST = "toolgate.server.features.mounts.plugins.worker"
Start = Callable[..., Server]

CRASHING = """
    @tool
    async def crash() -> str:
        "Crash."
        os._exit(7)

    @tool
    async def shot() -> str:
        "Crash by a signal."
        os.kill(os.getpid(), signal.SIGSEGV)
        await asyncio.sleep(60)

    @tool
    async def sleep(ctx: Context) -> str:
        "Wait."
        await ctx.progress(1)
        try:
            await asyncio.sleep(60)
        finally:
            await ctx.log("error", "cleaned up")
        return "slept"

    @tool
    async def block(ctx: Context) -> str:
        "Block."
        await ctx.progress(1)
        time.sleep(600)
        return ""

    @tool
    async def pid() -> int:
        "The process."
        return os.getpid()
"""


def plugin_folder(folder: Path, body: str, name: str = "it") -> Path:
    """Return a folder with a plugin in it."""
    home = folder / "plugins"
    home.mkdir(exist_ok=True)
    begin = "import asyncio, os, signal, sys, time\nfrom toolgate.tools import *\n"
    (home / f"{name}.py").write_text(begin + textwrap.dedent(body))
    return home


def isolated(start: Start, folder: Path, body: str, *options: str, **how: Any) -> Server:
    return start("-p", str(plugin_folder(folder, body)), "--isolate-plugins", *options, **how)


def hosts(server: Server) -> set[int]:
    """Return the guards of plugins' processes: each lives until all processes of its plugin are gone."""
    return {pid for pid in processes_with(HOST) if f"\nPPid:\t{server.process.pid}\n" in status(pid)}


def status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"


def resident(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    return int(re.findall(r"VmHWM:\s+(\d+)", status(pid))[0]) * 1024
