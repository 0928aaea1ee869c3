"""prompts/get. Knows the registry; knows nothing of what a prompt says."""

from collections.abc import Awaitable, Callable
from typing import Any

from toolgate.server import shape
from toolgate.server.errors import InternalError, InvalidParams
from toolgate.server.hold import Hold
from toolgate.server.methods.attending import TookTooLong, attend
from toolgate.server.server import Server
from toolgate.server.session import Call
from toolgate.tools.context import Context
from toolgate.tools.errors import ToolError, WrongArguments


def get_prompt(server: Server) -> Callable[[Call], Awaitable[dict[str, Any]]]:
    hold = Hold(server.hold)

    async def answer(call: Call) -> dict[str, Any]:
        name, arguments = call.params.get("name"), call.params.get("arguments")
        prompt = server.registry.prompts.get(name) if isinstance(name, str) else None
        if prompt is None:
            raise InvalidParams(f"unknown prompt: {name!r}"[:200])
        if not isinstance(arguments, (dict, type(None))):
            raise InvalidParams("'arguments' must be an object")

        async def work(context: Context) -> dict[str, Any]:
            messages = await prompt.get(arguments or {}, context)
            spelled = [shape.message(message, call.revision) for message in messages]
            return {"description": prompt.description, "messages": spelled}

        try:
            return await attend(server, hold, call, work)
        except WrongArguments as error:
            raise InvalidParams(error.text) from None
        except ToolError as error:
            raise InternalError(error.text) from None
        except TookTooLong:
            raise InternalError(f"prompt {prompt.name!r} took too long and was stopped") from None

    return answer
