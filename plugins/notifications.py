"""Two tools that report while they work: progress if the call asked for it, and lines for the client's log.

Authors of clients can test with them what arrives. The server drops unwanted reports, so a tool need not check.
"""

import asyncio

from toolgate.tools import Context, tool

STEPS = 10
PAUSE = 0.05  # seconds between two steps: enough to see each arrive
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")  # RFC 5424, mildest first


@tool(title="Progress test", read_only=True, open_world=False)
async def progress_test(ctx: Context) -> str:
    """Report progress in ten steps. The call must carry a progress token (`_meta.progressToken`)."""
    for step in range(1, STEPS + 1):
        await asyncio.sleep(PAUSE)
        await ctx.progress(step, STEPS, f"step {step} of {STEPS}")
    if not ctx.wants_progress:
        return f"{STEPS} steps are done, but none was reported: the call had no progressToken"
    return f"{STEPS} steps are done"


@tool(title="Logging test", read_only=True, open_world=False)
async def logging_test(ctx: Context) -> str:
    """Send a log message at each of the eight levels. The client sees those at or above its level."""
    for level in LEVELS:
        await ctx.log(level, f"a message at level {level}", "logging_test")
    return f"{len(LEVELS)} messages were logged"
