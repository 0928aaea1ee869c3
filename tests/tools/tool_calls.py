"""Calls one tool as a client would: through its schema, with a context that lends it only what the test gives."""

import asyncio
from typing import Any

import msgspec

from toolgate.tools.api.content import Output
from toolgate.tools.api.context import CallerState, Context, Services, Settings
from toolgate.tools.api.schema import compile_check
from toolgate.tools.api.tool import Tool

BOUND = 20.0  # seconds for any call


async def call(
    tool: Tool,
    arguments: dict[str, Any],
    *,
    workspace: Any = None,
    web: Any = None,
    search: Any = None,
    settings: Settings | None = None,
    principal: str = "me",
) -> Output:
    """The tool's answer; its structured content, which must fit its schema, comes back as plain data."""
    nothing: Any = None
    given = settings or Settings()
    belongings = Services(
        principal, CallerState(), workspace, nothing, nothing, nothing, nothing, web, given, search=search
    )
    output = await asyncio.wait_for(tool.run(arguments, Context(belongings, nothing)), BOUND)
    structured = msgspec.to_builtins(output.structured)
    if structured is not None:
        assert tool.output is not None
        assert compile_check(tool.output)(structured) is None
    return Output(output.content, structured, output.is_error)


def text(output: Output) -> str:
    """All text blocks of an answer."""
    return "\n".join(block.text for block in output.content if hasattr(block, "text"))
