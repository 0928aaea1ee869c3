"""Answer prompts/get."""

from collections.abc import Awaitable, Callable
from typing import Any

from toolgate.server.methods.execution import execute_or_refuse
from toolgate.server.protocol import serialization
from toolgate.server.protocol.deadlines import DeadlineTimer
from toolgate.server.protocol.errors import InvalidParams, format_name
from toolgate.server.protocol.session import Call
from toolgate.server.server import Server
from toolgate.tools.api.context import Context


def get_prompt(server: Server) -> Callable[[Call], Awaitable[dict[str, Any]]]:
    hold = DeadlineTimer(server.call_timeout)

    async def answer(call: Call) -> dict[str, Any]:
        name, arguments = call.params.get("name"), call.params.get("arguments")
        prompt = server.registry.prompts.get(name) if isinstance(name, str) else None
        if prompt is None:
            raise InvalidParams(f"unknown prompt: {format_name(name)}")
        if not isinstance(arguments, (dict, type(None))):
            raise InvalidParams("'arguments' must be an object")
        server.policy.require_rate(call, prompt.scope)

        async def work(context: Context) -> dict[str, Any]:
            messages = await prompt.get(arguments or {}, context)
            spelled = [serialization.format_message(message, call.revision) for message in messages]
            return {"description": prompt.description, "messages": spelled}

        return await execute_or_refuse(server, hold, call, work, f"prompt {prompt.name!r}")

    return answer
