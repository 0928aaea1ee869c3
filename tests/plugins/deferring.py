"""Tools that become tasks, one behaviour each. They wait for a file that a test creates."""

import asyncio
import sys
from pathlib import Path

from toolgate.tools import Context, ToolError, tool

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


async def _there(file: str) -> None:
    while not Path(file).exists():
        await asyncio.sleep(0.01)


def _mark(file: str) -> None:
    """Create a file beside `file`, to show that the work has begun."""
    with Path(f"{file}.runs").open("a") as runs:
        runs.write("run\n")


@tool(read_only=True)
async def job(file: str, ctx: Context) -> str:
    """Be a task until the file is there."""
    is_task = await ctx.as_task()
    _mark(file)
    await _there(file)
    return f"task: {is_task}"


@tool
async def harmful_job(file: str, ctx: Context) -> str:
    """Be a task that must not run twice."""
    await ctx.as_task()
    _mark(file)
    await _there(file)
    return "done"


@tool(read_only=True)
async def only_a_job(ctx: Context) -> str:
    """Be a task or nothing."""
    await ctx.as_task(required=True)
    return "done"


@tool(read_only=True, as_task=True)
async def slow(file: str) -> str:
    """Wait for the file; a task when that takes long."""
    await _there(file)
    return "there"


@tool(read_only=True, as_task=True)
async def tells_slowly(file: str, ctx: Context) -> str:
    """Say how it goes until the file is there."""
    count = 0
    while not Path(file).exists():
        count += 1
        await ctx.progress(count, None, "at it")
        await asyncio.sleep(0.01)
    return "told"


@tool(read_only=True, as_task=True)
async def holds_slowly(ctx: Context) -> str:
    """Wait until the call can be a task no more."""
    before = ctx.hold
    while ctx.hold is None:
        await asyncio.sleep(0.01)
    return f"{before} {ctx.hold}"


@tool(read_only=True)
async def refuses_later(ctx: Context) -> str:
    """Say no as a task."""
    await ctx.as_task()
    raise ToolError("no, later")


@tool(read_only=True)
async def crashes_later(ctx: Context) -> str:
    """Have a bug as a task."""
    await ctx.as_task()
    raise RuntimeError("the secret is 12345")


@tool(read_only=True)
async def leaves_later(ctx: Context) -> str:
    """Call exit as a task."""
    await ctx.as_task()
    sys.exit(7)


@tool(read_only=True)
async def asks_later(ctx: Context) -> str:
    """Ask twice as a task, under one key."""
    await ctx.as_task(required=True)
    one = await ctx.elicit("first?", NAME, key="who")
    two = await ctx.elicit("second?", NAME, key="who")
    return f"{one.content['name']} {two.content['name']}"


@tool(read_only=True)
async def asks_both_later(ctx: Context) -> str:
    """Ask two things at once as a task."""
    await ctx.as_task(required=True)
    answers = await ctx.ask(
        {
            "who": {"method": "elicitation/create", "params": {"message": "who?", "requestedSchema": NAME}},
            "where": {"method": "roots/list", "params": {}},
        }
    )
    return f"{answers['who']['content']['name']} {answers['where']['roots']}"


@tool(read_only=True)
async def asks_soon_later(ctx: Context) -> str:
    """Ask as a task, and give up after a moment."""
    await ctx.as_task()
    return (await ctx.elicit("quick?", NAME, timeout=0.1)).action


@tool(read_only=True)
async def asks_first(ctx: Context, file: str = "") -> str:
    """Ask, and become a task then, until the file is there."""
    answer = await ctx.elicit("who?", NAME)
    await ctx.as_task(required=True)
    if file:
        await _there(file)
    return f"hello {answer.content['name']}"


@tool(read_only=True)
async def tells_later(file: str, ctx: Context) -> str:
    """Say how it goes as a task."""
    await ctx.progress(0, 2, "before")
    await ctx.as_task()
    await ctx.progress(1, 2, "half way")
    await ctx.log("error", "not heard")
    await _there(file)
    return "told"


@tool(read_only=True)
async def large_later(size: int, ctx: Context) -> str:
    """Return that many characters as a task."""
    await ctx.as_task()
    return "x" * size


@tool(read_only=True)
async def is_held(ctx: Context) -> str:
    """Say how long a call may take, before and as a task."""
    before = ctx.hold
    await ctx.as_task()
    return f"{before} {ctx.hold}"
