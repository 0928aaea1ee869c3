"""The five tools that run commands: Bash, BackgroundBash, ReadBgOutput, ListBgTasks, KillBgTask."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from toolgate.tools.api.arguments import ForeignArgument
from toolgate.tools.api.content import Continuation, Output, ResourceLink, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.context.notices import Notices
from toolgate.tools.api.errors import NotFound, ToolError
from toolgate.tools.api.resource import resource
from toolgate.tools.api.tool import tool
from toolgate.tools.builtin.shell_result import DISK_FULL, MAX_TIMEOUT, BashCall, BashResult, note_missing_cwd
from toolgate.tools.workspace.commands import end_notice
from toolgate.tools.workspace.output.ansi import clean_in_turns
from toolgate.tools.workspace.output.run_record import Run, Status
from toolgate.tools.workspace.output.text import describe_end, shorten_command, with_notes
from toolgate.tools.workspace.workspace import Workspace, WorkspaceUnreachableError, output_path

MAX_READ = 30_000  # bytes a ReadBgOutput takes; more waits for the next one
MAX_COMMAND = 120  # characters of a command in a list
MAX_TAIL = 256 * 2**10  # bytes of output in a resource: a reader of a build wants its end, and reads often
MAX_LINE = 4 * 2**10  # bytes of it skipped to begin at a line
MAX_OUTPUT_WAIT = 3600.0  # seconds: longest wait for output
MAX_END = 4 * 2**10  # bytes of output that come with a task's end, which no one asked for: ReadBgOutput has the rest
REPEATED = "[this begins where the last answer began: its server has ended, and it may not have arrived]"
LOST_PAUSE = 5.0  # seconds until a node that can't be reached is asked again


class StartedTask(msgspec.Struct, frozen=True, omit_defaults=True):
    task_id: int
    sandbox: str
    note: str | None = None


class TaskOutput(msgspec.Struct, frozen=True):
    task_id: int
    output: str
    status: Status
    exit_code: int | None
    truncated: bool
    note: str


class BackgroundTask(msgspec.Struct, frozen=True, omit_defaults=True):
    task_id: int
    command: str
    status: Status
    runtime_ms: int
    exit_code: int | None
    note: str | None = None


class BackgroundTasks(msgspec.Struct, frozen=True):
    tasks: list[BackgroundTask]


class KilledTask(msgspec.Struct, frozen=True, omit_defaults=True):
    task_id: int
    status: Status
    exit_code: int | None
    note: str | None = None


SANDBOX = "leave it out, as the operator of this server sets the sandbox"
TO_BACKGROUND = ForeignArgument((False, None), "to start a command in the background, call BackgroundBash with it")
TO_FOREGROUND = ForeignArgument((True, None), "to wait for the command, call Bash with it")
NOTES = dict.fromkeys(("description", "explanation"), ForeignArgument())  # what the command is for, in words
FOREIGN = {**NOTES, "dangerouslyDisableSandbox": ForeignArgument((False, None), SANDBOX)}
WHERE_NAMES = ("run_in_background", "is_background", "isBackground")  # Claude Code; Gemini CLI and Cursor; VS Code

TaskId = Annotated[int, "the id that BackgroundBash or Bash returned"]


@tool(
    name="Bash",
    title="Run a command",
    output=BashResult,
    scope="tools:shell",
    as_task=True,
    lean=True,
    in_plan="read-only",
)
async def bash(
    command: str,
    ctx: Context,
    timeout: Annotated[int, "milliseconds, default 30000, at most 600000", Meta(ge=1, le=MAX_TIMEOUT)] = 30_000,
) -> Output:
    """Run a bash command and return stdout and stderr together, and the exit code when it isn't 0.

    `cd` persists (unless the command ends in `exec` or traps EXIT); variables don't. stdin is empty. Past its timeout
    it is killed with all it started. What outlasts a call, or is left running (`server &`), goes on as a background
    task. Output over 30,000 characters is cut in the middle; the result names a file with all of it (up to 64 MiB).
    Read-only while a plan is active.
    """
    return await BashCall(ctx, timeout).run(command)


bash.foreign = {**FOREIGN, **dict.fromkeys(WHERE_NAMES, TO_BACKGROUND)}


@tool(name="BackgroundBash", title="Start a background command", output=StartedTask, scope="tools:shell")
async def background_bash(command: str, ctx: Context) -> Output:
    """Start a bash command that goes on by itself (a server, a build), and return its task id at once.

    It has no timeout and ends with the server at the latest; you are told when it ends. Use ReadBgOutput, KillBgTask.
    """
    asked, previous = ctx.caller_state.cwd, ctx.caller_state.previous
    run_id = await ctx.service(Workspace).start(command, cwd=asked, background=True, previous=previous)
    ctx.list_changed()
    run = await ctx.service(Workspace).run(run_id)
    notes = [note_missing_cwd(ctx, asked)] if run.moved else []
    if run.in_memory:
        notes.append(DISK_FULL)
    text = with_notes(f"background task {run_id} started (sandbox: {ctx.workspace.sandbox})", *notes)
    use = with_notes(f"background task {run_id}: ReadBgOutput reads its output, KillBgTask ends it", *notes)
    started = StartedTask(run_id, ctx.workspace.sandbox, "\n".join(notes) or None)
    return Output([Text(text)], started, continuation=Continuation(end_notice.key_of(run_id), use, str(run_id)))


background_bash.foreign = {**FOREIGN, **dict.fromkeys(WHERE_NAMES, TO_FOREGROUND)}


@background_bash.following
async def follow_task(state: str, ctx: Context) -> Output:
    """Wait until a background task has ended, and return its end as ReadBgOutput would, whose position stays."""
    workspace = ctx.service(Workspace)
    run, output = await _read_end(workspace, int(state))
    text = with_notes(output, f"[task {run.id} {describe_end(run)}]", *_reasons(run))
    return Output([Text(text)], StartedTask(run.id, workspace.sandbox, text))


@background_bash.stopping
async def stop_task(state: str, ctx: Context) -> None:
    with suppress(KeyError):  # forgotten meanwhile
        await ctx.service(Workspace).kill(int(state))


async def _read_end(workspace: Workspace, run_id: int) -> tuple[Run, str]:
    """Return a background task once it has ended, and the end of its output. A node that can't be reached is asked
    again. Raises ToolError."""
    while True:
        try:
            has_ended = await workspace.wait(run_id, MAX_OUTPUT_WAIT)
            run = await workspace.run(run_id)
            if run.status != "running":
                return run, await _tail(workspace, run, MAX_END)
        except WorkspaceUnreachableError:
            has_ended = True
        except KeyError:
            raise ToolError(f"background task {run_id} is gone, and how it ended is not known") from None
        if has_ended:
            await asyncio.sleep(LOST_PAUSE)


@tool(
    name="ReadBgOutput",
    title="Read a background task",
    read_only=True,
    idempotent=False,  # a second read does not return the same output
    open_world=False,
    output=TaskOutput,
    scope="tools:read",
    lean=True,
)
async def read_bg_output(task_id: TaskId, ctx: Context) -> Output:
    """Return what a background task wrote since the last read, and its status.

    At most 30,000 bytes a call; the last line says when more waits: read again. It does not wait for output.
    """
    workspace = ctx.service(Workspace)
    await _background_run(workspace, task_id)
    new = await workspace.take(task_id, MAX_READ)
    run = new.run
    notes = [REPEATED] if new.is_repeated else []
    notes.append(f"[task {task_id} {describe_end(run)}]")
    if new.has_more:
        path = output_path(workspace, run)
        notes.append(f"[more waits: read again{f', or see {path}' if path else ''}]")
    if run.status != "running":
        end_notice.drop(ctx.service(Notices), task_id)
    read = TaskOutput(task_id, new.text, run.status, _final_exit_code(run), new.has_more, "\n".join(notes))
    return Output([Text(with_notes(new.text, *notes))], read)


@tool(
    name="ListBgTasks",
    title="List background tasks",
    read_only=True,
    open_world=False,
    output=BackgroundTasks,
    scope="tools:read",
)
async def list_bg_tasks(ctx: Context) -> Output:
    """List the background tasks: id, command, status, how long each has run, exit code.

    Of those that ended the newest 50 stay readable, for a day and within 512 MiB of output.
    """
    runs = await ctx.service(Workspace).list()
    for run in runs:
        if run.status != "running":
            end_notice.drop(ctx.service(Notices), run.id)
    lines = [f"{run.id}  {shorten_command(run.command, MAX_COMMAND)}  {describe_end(run)}" for run in runs]
    return Output([Text("\n".join(lines) or "no background tasks")], BackgroundTasks(list(map(_to_row, runs))))


@tool(
    name="KillBgTask",
    title="Kill a background task",
    idempotent=True,
    open_world=False,
    output=KilledTask,
    scope="tools:shell",
)
async def kill_bg_task(task_id: TaskId, ctx: Context) -> Output:
    """End a background task and every process it started, and return how it ended.

    SIGTERM, then SIGKILL 2 s later. One that ended before stays as it was. Its output can still be read.
    """
    workspace = ctx.service(Workspace)
    before = (await _background_run(workspace, task_id)).status
    run = await workspace.kill(task_id)
    if run.status == "running":
        raise ToolError(f"background task {task_id} can't be killed: some of it runs as another user")
    end_notice.drop(ctx.service(Notices), task_id)
    code = f" (exit code {run.exit_code})" if run.status == "killed" and run.exit_code else ""  # 0: it left processes
    already = [] if before == "running" else ["it had ended before"]
    text = "; ".join([f"background task {task_id} {describe_end(run)}{code}", *already])
    note = "; ".join([*_reasons(run), *already])
    return Output([Text(text)], KilledTask(task_id, run.status, _final_exit_code(run), note or None))


@resource(
    "bg://{id}/output",
    name="output",
    title="Output",
    mime_type="text/plain",
    scope="tools:shell",
    owns_scheme=True,
    tool="ReadBgOutput",
)
async def bg_output(id: str, ctx: Context) -> str:
    """The last 256 KiB of a background task's output, and its status. ReadBgOutput's position stays where it was."""
    run = await _find_run(ctx.service(Workspace), id)
    if run is None:
        raise NotFound(f"there is no background task {id!r}")
    try:
        text = await _tail(ctx.service(Workspace), run, MAX_TAIL)
    except KeyError:
        raise NotFound(f"background task {id} has just been forgotten") from None
    return with_notes(text, f"[task {run.id} {describe_end(run)}]")


@bg_output.listing
async def outputs(ctx: Context) -> list[ResourceLink]:
    return [
        ResourceLink(f"bg://{run.id}/output", f"task {run.id}", description=shorten_command(run.command, MAX_COMMAND))
        for run in await ctx.service(Workspace).list()
    ]


@bg_output.watching
async def output_changes(id: str, ctx: Context) -> AsyncIterator[None]:
    """Yield at once, as output arrives, and when the task has ended. The first yield covers output since the last
    read."""
    while (run := await _find_run(ctx.service(Workspace), id)) is None:
        await ctx.service(Workspace).arrival()
    size = await ctx.service(Workspace).size(run.id)
    yield  # also for a task that began while the client subscribed
    while run.status == "running":
        before, size = size, await ctx.service(Workspace).wait_output(run.id, size, MAX_OUTPUT_WAIT, whole=True)
        if size != before:
            yield
        run = await ctx.service(Workspace).run(run.id)
    yield


@bg_output.completion("id")
async def run_ids(value: str, ctx: Context) -> list[str]:
    return [str(run.id) for run in reversed(await ctx.service(Workspace).list()) if str(run.id).startswith(value)]


async def _background_run(workspace: Workspace, run_id: int) -> Run:
    try:
        run = await workspace.run(run_id)
    except KeyError:
        run = None
    if run is None or not run.background:
        raise ToolError(f"there is no background task {run_id}: call ListBgTasks for the ids")
    return run


async def _tail(workspace: Workspace, run: Run, limit: int) -> str:
    """Return the last `limit` bytes of the output, from the beginning of a line if one is near."""
    is_final = run.status != "running"
    begin = max(0, await workspace.size(run.id) - limit)
    data = await workspace.read(run.id, begin, limit)
    cut = data.find(b"\n", 0, min(MAX_LINE, limit // 2)) + 1 if begin else 0
    text, _ = await clean_in_turns(data[cut:], final=is_final)
    if not begin:
        return text
    path = output_path(workspace, run)
    return f"[{begin + cut:,} bytes before this are left out{f'; {path} has them' if path else ''}]\n{text}"


async def _find_run(workspace: Workspace, id: str) -> Run | None:
    """Return the background task of a URI, or None."""
    return next((run for run in await workspace.list() if str(run.id) == id), None)


def _to_row(run: Run) -> BackgroundTask:
    note = "; ".join(_reasons(run)) or None
    return BackgroundTask(run.id, run.command, run.status, run.runtime_ms, _final_exit_code(run), note)


def _reasons(run: Run) -> list[str]:
    """Return why the task was killed, or which limits it reached."""
    return [run.reason] if run.status == "killed" and run.reason else run.hits if run.status == "exited" else []


def _final_exit_code(run: Run) -> int | None:
    """Return the exit code once it is final: a shell may end before its children."""
    return None if run.status == "running" else run.exit_code
