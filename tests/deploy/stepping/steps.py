"""Tools that go on when they are told to: what came of one before it went on was not held back."""

import asyncio
from collections import defaultdict

from toolgate.tools import Context, tool

GATES: defaultdict[str, "asyncio.Queue[None]"] = defaultdict(asyncio.Queue)


@tool(read_only=True)
async def steps(name: str, count: int, ctx: Context) -> str:
    """Report a step, wait for `go`, and so on."""
    for number in range(count):
        await ctx.progress(number, count, f"step {number}")
        await GATES[name].get()
    return "all of them"


@tool
async def go(name: str) -> str:
    """Let `steps` go on by one."""
    GATES[name].put_nowait(None)
    return "gone"
