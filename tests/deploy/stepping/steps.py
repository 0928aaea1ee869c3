"""Tools that go on when they are told to: what came of one before it went on was not held back. And one that tells
whether another was called off."""

import asyncio
from collections import defaultdict

from toolgate.tools import Context, tool

GATES: defaultdict[str, "asyncio.Queue[None]"] = defaultdict(asyncio.Queue)
CALLED_OFF: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@tool(read_only=True)
async def steps(name: str, count: int, ctx: Context) -> str:
    """Report a step, wait for `go`, and so on."""
    try:
        for number in range(count):
            await ctx.progress(number, count, f"step {number}")
            await GATES[name].get()
    except asyncio.CancelledError:
        CALLED_OFF[name].set()
        raise
    return "all of them"


@tool
async def go(name: str) -> str:
    """Let `steps` go on by one."""
    GATES[name].put_nowait(None)
    return "gone"


@tool(read_only=True)
async def called_off(name: str) -> str:
    """Wait until `steps` is called off."""
    await CALLED_OFF[name].wait()
    return "called off"
