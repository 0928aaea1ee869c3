"""Tools for the conformance suite that become tasks: they outlive their call, fail, are cancelled, or ask."""

import asyncio
from typing import Any

from toolgate.tools import Context, ToolError, tool

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
YES = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}


def _question(message: str, form: dict[str, Any]) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": form}}


@tool(read_only=True)
async def greet(name: str) -> str:
    """Greet a person; never a task."""
    return f"Hello, {name}!"


@tool(read_only=True)
async def slow_compute(seconds: float, label: str, ctx: Context) -> str:
    """Take that many seconds, as a task where the client knows tasks."""
    await ctx.as_task()
    await asyncio.sleep(seconds)
    return f"{label}: done after {seconds:g} s"


@tool(read_only=True)
async def failing_job(ctx: Context) -> str:
    """A task whose own work fails."""
    await ctx.as_task(required=True)
    raise ToolError("this job always fails")


@tool(read_only=True)
async def protocol_error_job(ctx: Context) -> str:
    """A task with a bug."""
    await ctx.as_task(required=True)
    raise RuntimeError("this job has a bug, on purpose")


@tool(read_only=True)
async def confirm_delete(filename: str, ctx: Context) -> str:
    """A task that asks before it goes on; nothing is deleted."""
    await ctx.as_task(required=True)
    answer = await ctx.elicit(f"Delete {filename}?", YES, key="confirm")
    return f"{filename}: {'deleted' if answer.content.get('confirm') else 'kept'}"


@tool(read_only=True)
async def multi_input(ctx: Context) -> str:
    """A task that asks two things at once."""
    await ctx.as_task(required=True)
    answers = await ctx.ask({"name": _question("Your name?", NAME), "confirm": _question("Sure?", YES)})
    return f"{len(answers)} answers"


@tool(read_only=True)
async def test_tool_with_task(ctx: Context) -> str:
    """Ask first, and become a task then."""
    answer = await ctx.elicit("What is your name?", NAME, key="user_name")
    await ctx.as_task(required=True)
    return f"Hello, {answer.content.get('name', 'nobody')}!"
