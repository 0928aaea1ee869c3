"""A slow tool that reports progress, and ends at once when the client cancels it."""

import asyncio
from typing import Annotated

import msgspec

from toolgate.tools import Context, tool

LONGEST = 40_000  # ms: the server holds a call for 45 seconds, because clients give up at about 60
STEP = 500  # ms between two reports


@tool(title="Sleep", read_only=True, open_world=False)
async def sleep(
    milliseconds: Annotated[int, msgspec.Meta(ge=0, le=LONGEST), "how long"],
    ctx: Context,
) -> str:
    """Wait for a number of milliseconds."""
    for waited in range(0, milliseconds, STEP):
        await ctx.progress(waited, milliseconds, f"{milliseconds - waited} ms to go")
        await asyncio.sleep(min(STEP, milliseconds - waited) / 1_000)  # cancelling the call is raised here
    return f"Waited for {milliseconds} milliseconds"
