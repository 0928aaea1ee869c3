"""Tools that proceed on command, to show that a step's output was not held back; and one that reports a
cancellation."""

import asyncio
from collections import defaultdict

from toolgate.tools import Context, tool

GATES: defaultdict[str, "asyncio.Queue[None]"] = defaultdict(asyncio.Queue)
CALLED_OFF: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@tool(read_only=True)
async def steps(name: str, count: int, ctx: Context) -> str:
    """Report a step, wait for `go`, and repeat."""
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
    """Let `steps` do one more step."""
    GATES[name].put_nowait(None)
    return "gone"


@tool(read_only=True)
async def called_off(name: str) -> str:
    """Wait until `steps` is cancelled."""
    await CALLED_OFF[name].wait()
    return "called off"
