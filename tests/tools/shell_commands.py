"""Shared by the tests of commands: a workspace, a caller of the shell tools, and lists of processes."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tests.tools.tool_calls import lend
from toolgate.tools.api.content import Output, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.context.notices import Notices
from toolgate.tools.api.context.services import CallerState, Settings
from toolgate.tools.api.schema.schema import compile_check
from toolgate.tools.builtin.shell import background_bash, bash, kill_bg_task, list_bg_tasks, read_bg_output
from toolgate.tools.workspace.commands import end_notice
from toolgate.tools.workspace.commands.environment import UnsandboxedEnvironment
from toolgate.tools.workspace.limits import UNLIMITED
from toolgate.tools.workspace.local_workspace import LINGER, LocalWorkspace
from toolgate.tools.workspace.output.run_record import TaskEnd
from toolgate.tools.workspace.processes.zygote import CommandRunner

TOOLS = (bash, background_bash, read_bg_output, list_bg_tasks, kill_bg_task)

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8"}
BOUND = 30.0  # seconds for any expected event: test machines are slow at times


def add_notice(notices: Notices, end: TaskEnd) -> None:
    """Note the end of a task, and confirm it, as a server without readers of events does."""
    end_notice.add(notices, end.run)
    end.confirm()


@contextlib.asynccontextmanager
async def workspace(folder: Path, notices: Notices | None = None) -> AsyncIterator[LocalWorkspace]:
    root = folder / "root"
    root.mkdir(exist_ok=True)
    processes = CommandRunner()
    mine = LocalWorkspace(
        root,
        folder / "spool",
        ENVIRONMENT,
        partial(add_notice, Notices() if notices is None else notices),
        command_environment=UnsandboxedEnvironment(processes, UNLIMITED),
    )
    try:
        yield mine
    finally:
        await mine.close(0.2)
        await processes.close()


def on_workspace(body: Callable[[LocalWorkspace], Coroutine[Any, Any, None]], folder: Path) -> None:
    async def run() -> None:
        async with workspace(folder) as mine:
            await body(mine)

    asyncio.run(run())


async def ran(mine: LocalWorkspace, command: str, **how: Any) -> bytes:
    """Run a command until its whole tree has ended; return its output."""
    task = await mine.start(command, **how)
    assert await mine.wait(task, BOUND)
    return await mine.read(task, 0, 2**20)


class Caller:
    """A client's end of a call that records progress messages, with a session's services."""

    def __init__(self, workspace: LocalWorkspace, notices: Notices) -> None:
        self.workspace = workspace
        self.notices = notices
        self.place = CallerState("session")
        self.settings = Settings()
        self.wants_progress = False
        self.is_held = True
        self.heard: list[tuple[float, str | None, float]] = []
        self.on_progress: Callable[[], None] = lambda: None

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.append((progress, message, time.monotonic()))
        self.on_progress()

    async def call(self, name: str, **arguments: Any) -> Output:
        """Call a tool; return its structured content, checked against its schema, as plain data."""
        lent = lend(workspace=self.workspace, caller_state=self.place, settings=self.settings, notices=self.notices)
        peer: Any = self
        tool = next(tool for tool in TOOLS if tool.name == name)
        output = await asyncio.wait_for(tool.run(arguments, Context(lent, peer)), 30)
        structured = msgspec.to_builtins(output.structured)
        if structured is not None:
            assert tool.output is not None
            assert compile_check(tool.output)(structured) is None
        return Output(output.content, structured, output.is_error)

    async def bash(self, command: str, **arguments: Any) -> Output:
        return await self.call("Bash", command=command, **arguments)


def text_of(output: Output) -> str:
    (block,) = output.content
    assert isinstance(block, Text)
    return block.text


def told(output: Output) -> str:
    return str(output.structured["stdout_and_stderr"])


@contextlib.asynccontextmanager
async def caller(folder: Path, environment: Mapping[str, str], linger: float = LINGER) -> AsyncIterator[Caller]:
    root = folder / "root"
    root.mkdir(exist_ok=True)
    processes, notices = CommandRunner(), Notices()
    workspace = LocalWorkspace(
        root,
        folder / "spool",
        environment,
        partial(add_notice, notices),
        command_environment=UnsandboxedEnvironment(processes, UNLIMITED),
        linger=linger,
    )
    try:
        yield Caller(workspace, notices)
    finally:
        await workspace.close(0.2)
        await processes.close()


def on_caller(
    body: Callable[[Caller], Coroutine[Any, Any, None]],
    folder: Path,
    environment: Mapping[str, str] = ENVIRONMENT,
    linger: float = LINGER,
) -> None:
    async def run() -> None:
        async with caller(folder, environment, linger) as me:
            await body(me)

    asyncio.run(run())


def processes() -> Iterator[tuple[int, int, str, bytes]]:
    """Yield every living process: id, parent, state, command line."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                yield int(path.name), int(parent), state, (path / "cmdline").read_bytes()


def living(word: str) -> set[int]:
    return {pid for pid, _, _, line in processes() if word.encode() in line.split(b"\0")}


def children_of(parent: int) -> set[int]:
    """Return descendants, by parentage."""
    parents = {pid: up for pid, up, _, _ in processes()}
    found = {parent}
    while more := {pid for pid, up in parents.items() if up in found} - found:
        found |= more
    return found - {parent}


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def until(condition: Callable[[], bool]) -> None:
    """Poll for a condition that no event announces, such as another process's end."""
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.01)


def wait_for(condition: Callable[[], bool]) -> None:
    asyncio.run(until(condition))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def hosted(script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"},
    )
