"""The five tools that run commands: Bash, BackgroundBash, ReadBgOutput, ListBgTasks, KillBgTask.

Knows nothing of processes: `Workspace` runs them. What is here is what a model is told.
"""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from toolgate.tools.content import Output, Text
from toolgate.tools.context import Context
from toolgate.tools.errors import ToolError
from toolgate.tools.excerpts import decoded, ending, excerpt, shortened, with_notes
from toolgate.tools.spool import Run, Status
from toolgate.tools.tool import tool
from toolgate.tools.workspace import Workspace

MAX_TEXT = 30_000  # characters of output in a result: what a model's context is spent on
MAX_READ = 30_000  # bytes a ReadBgOutput takes; more waits for the next one
LINGER = 0.1  # seconds for what a command leaves behind to end by itself, such as `> >(tee log)`
THROTTLE = 0.25  # seconds between progress messages
HEARTBEAT = 8.0  # seconds: clients are promised progress every 10
MAX_PROGRESS = 4_000  # characters of new output in a progress message; the newest
LISTED = 120  # characters of a command in a list
SETTLE = 5.0  # seconds for a tree that is being killed to be gone: SIGTERM, 2 s, SIGKILL, and room


class Ran(msgspec.Struct, frozen=True):
    stdout_and_stderr: str
    exit_code: int | None
    timed_out: bool
    duration_ms: int
    truncated: bool
    output_file: str | None
    cwd: str
    sandbox: str
    task_id: int | None


class Started(msgspec.Struct, frozen=True):
    task_id: int
    sandbox: str


class Read(msgspec.Struct, frozen=True):
    task_id: int
    output: str
    status: Status
    exit_code: int | None
    truncated: bool


class Listed(msgspec.Struct, frozen=True):
    task_id: int
    command: str
    status: Status
    runtime_ms: int
    exit_code: int | None


class Tasks(msgspec.Struct, frozen=True):
    tasks: list[Listed]


class Ended(msgspec.Struct, frozen=True):
    task_id: int
    status: Status
    exit_code: int | None


TaskId = Annotated[int, "as told when the task began"]


@tool(name="Bash", title="Run a command", open_world=True, output=Ran, scope="tools:shell")
async def bash(
    command: str, ctx: Context, timeout: Annotated[int, "milliseconds", Meta(ge=1, le=600_000)] = 30_000
) -> Output:
    """Run a bash command and return stdout and stderr together, and the exit code when it isn't 0.

    `cd` persists between calls; variables and functions don't. stdin is empty. Past its timeout the command is
    killed with all it started. What runs longer than a call may last, or is left running (`server &`), goes on as a
    background task. Of output over 30,000 characters the middle is dropped; the result names the file with all of it.
    """
    workspace = ctx.workspace
    asked = ctx.place.cwd
    began = time.monotonic()
    run_id = await workspace.start(command, cwd=asked, timeout=timeout / 1000)
    try:
        await _watch(ctx, run_id, began)
        return await _result(ctx, run_id, asked, timeout, began)
    except BaseException:  # above all a cancellation
        await asyncio.shield(_end(workspace, run_id))
        raise


@tool(
    name="BackgroundBash",
    title="Start a background command",
    open_world=True,
    output=Started,
    scope="tools:shell",
)
async def background_bash(command: str, ctx: Context) -> Output:
    """Start a bash command that goes on by itself (a server, a build), and return its task id at once.

    It has no timeout and ends with the server at the latest; you are told when it ends. Use ReadBgOutput, KillBgTask.
    """
    run_id = await ctx.workspace.start(command, cwd=ctx.place.cwd, background=True)
    run = await ctx.workspace.run(run_id)
    text = f"background task {run_id} started"
    if run.moved:
        text = with_notes(text, _gone(ctx))
    return Output([Text(text)], Started(run_id, ctx.workspace.sandbox))


@tool(
    name="ReadBgOutput",
    title="Read a background task",
    read_only=True,
    idempotent=False,  # what it returns, it does not return again
    open_world=False,
    output=Read,
    scope="tools:read",
)
async def read_bg_output(task_id: TaskId, ctx: Context) -> Output:
    """Return what a background task wrote since the last read, and its status. At most 30,000 bytes a call:
    `truncated` means that more waits, so read again.
    """
    workspace = ctx.workspace
    run = await _task(workspace, task_id)
    text, more = await workspace.take(task_id, MAX_READ)
    notes = [f"[task {task_id} {ending(run)}]"]
    if more:
        notes.append(f"[more waits: read again, or see {workspace.output_path(task_id)}]")
    if run.status != "running":
        workspace.told(task_id)
    read = Read(task_id, text, run.status, _code(run), more)
    return Output([Text(with_notes(text, *notes))], read)


@tool(
    name="ListBgTasks",
    title="List background tasks",
    read_only=True,
    idempotent=True,
    open_world=False,
    output=Tasks,
    scope="tools:read",
)
async def list_bg_tasks(ctx: Context) -> Output:
    """List the background tasks: run_id, command, status, how long each has run, exit code. The newest ended ones stay
    readable for a day.
    """
    runs = await ctx.workspace.list()
    for run in runs:
        if run.status != "running":
            ctx.workspace.told(run.id)
    lines = [f"{run.id}  {shortened(run.command, LISTED)}  {ending(run)}" for run in runs]
    listed = [Listed(run.id, run.command, run.status, run.runtime_ms, _code(run)) for run in runs]
    return Output([Text("\n".join(lines) or "no background tasks")], Tasks(listed))


@tool(
    name="KillBgTask",
    title="Kill a background task",
    destructive=True,
    idempotent=True,
    open_world=False,
    output=Ended,
    scope="tools:shell",
)
async def kill_bg_task(task_id: TaskId, ctx: Context) -> Output:
    """End a background task and every process it started: SIGTERM, then SIGKILL 2 s later. Says how it ended;
    one that ended before stays as it was. Its output can still be read.
    """
    workspace = ctx.workspace
    before = (await _task(workspace, task_id)).status
    run = await workspace.kill(task_id)
    ended = Ended(task_id, run.status, _code(run))
    if run.status == "running":
        raise ToolError(f"background task {task_id} can't be killed: some of it runs as another user", ended)
    workspace.told(task_id)
    code = f" (exit code {run.exit_code})" if run.status == "killed" and run.exit_code is not None else ""
    already = "" if before == "running" else "; it had ended before"
    return Output([Text(f"background task {task_id} {ending(run)}{code}{already}")], ended)


TOOLS = [bash, background_bash, read_bg_output, list_bg_tasks, kill_bg_task]


async def _task(workspace: Workspace, run_id: int) -> Run:
    try:
        run = await workspace.run(run_id)
    except KeyError:
        run = None
    if run is None or not run.background:
        raise ToolError(f"there is no background task {run_id}: ListBgTasks lists those there are")
    return run


def _code(run: Run) -> int | None:
    """The exit code that is final: a shell may end before what it started."""
    return None if run.status == "running" else run.exit_code


async def _watch(ctx: Context, run_id: int, began: float) -> None:
    """Wait for the command to end, as long as a call is held; with progress, where that is wanted."""
    workspace = ctx.workspace
    until = began + ctx.settings.hold
    offset = 0
    while ctx.wants_progress and (left := until - time.monotonic()) > 0:
        if await workspace.wait_shell(run_id, min(THROTTLE, left)):
            return
        size = await workspace.grown(run_id, offset, min(HEARTBEAT, left))
        text, offset = await _fresh(workspace, run_id, offset, size)
        elapsed = time.monotonic() - began
        await ctx.progress(elapsed, None, text or f"running for {elapsed:.0f} s")
    await workspace.wait_shell(run_id, max(0.0, until - time.monotonic()))


async def _fresh(workspace: Workspace, run_id: int, offset: int, size: int) -> tuple[str, int]:
    """Output from `offset` on, the newest of it if there is much, and the offset to go on from."""
    start = max(offset, size - MAX_PROGRESS)
    text, used = decoded(await workspace.read(run_id, start, size - start), final=False)
    return text if start == offset else f"…{text}", start + used


async def _result(ctx: Context, run_id: int, asked: Path | None, timeout: int, began: float) -> Output:
    """What to say of a command that ended, timed out, left something running or goes on."""
    workspace = ctx.workspace
    run = await workspace.run(run_id)
    ended = await workspace.wait_shell(run_id, SETTLE if run.timed_out else 0.0)
    duration = round((time.monotonic() - began) * 1000)
    gone = ended and await workspace.wait(run_id, SETTLE if run.timed_out else LINGER)
    if not gone:
        await workspace.keep(run_id)
    where, notes = await _place(ctx, run, asked)
    path = str(workspace.output_path(run_id))
    shown = await excerpt(partial(workspace.read, run_id), await workspace.size(run_id), MAX_TEXT, path, final=gone)
    if not gone:
        await workspace.taken(run_id, shown.used)
    elif not shown.dropped:
        await workspace.forget(run_id)
    ran = Ran(
        stdout_and_stderr=shown.text,
        exit_code=None if run.timed_out or not ended else run.exit_code,
        timed_out=run.timed_out,
        duration_ms=duration,
        truncated=shown.dropped > 0,
        output_file=path if shown.dropped else None,
        cwd=str(where),
        sandbox=workspace.sandbox,
        task_id=None if gone else run_id,
    )
    failed = run.timed_out or run.status in ("killed", "lost")
    notes += _fate(run, ended, gone, timeout, ctx.settings.hold)
    return Output([Text(with_notes(shown.text, *notes))], ran, is_error=failed)


def _fate(run: Run, ended: bool, gone: bool, timeout: int, hold: float) -> list[str]:
    """What became of a command, where that is worth saying."""
    notes: list[str] = []
    if run.timed_out:
        notes.append(f"timed out after {timeout} ms")
    elif run.status in ("killed", "lost"):
        notes.append(f"the command {ending(run)}")
    elif ended and run.exit_code:
        notes.append(f"exit code: {run.exit_code}")
    use = f"background task {run.id}: ReadBgOutput reads on, KillBgTask ends it"
    if not ended:
        notes.append(f"still running after {hold:g} s; goes on, with its timeout of {timeout} ms, as {use}")
    elif not gone:
        notes.append(f"left running: {run.left} process{'es' if run.left != 1 else ''}, now {use}")
    return notes


async def _place(ctx: Context, run: Run, asked: Path | None) -> tuple[Path, list[str]]:
    """Where the command stands now, and what to say about that; the caller stands there too, if it moved.

    Only a command that moved moves the caller: of two at once, the one that stayed must not undo the other's `cd`.
    """
    began = asked or ctx.workspace.root
    notes: list[str] = []
    if run.moved:
        notes.append(_gone(ctx))
        began = ctx.workspace.root
    landed = await ctx.workspace.landed(run.id) or began
    if landed != began:
        ctx.place.cwd = landed
    return landed, notes


def _gone(ctx: Context) -> str:
    """Say that the working directory is gone, and stand in the root from now on."""
    place, root = ctx.place, ctx.workspace.root
    gone, place.cwd = place.cwd, None
    return f"the working directory {gone} is gone: ran in {root}"


async def _end(workspace: Workspace, run_id: int) -> None:
    await workspace.kill(run_id)
    await workspace.forget(run_id)
