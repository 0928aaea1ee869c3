"""completion/complete: suggestions for a prompt's argument or a template's variable. Knows the registry."""

from collections.abc import Awaitable, Callable
from typing import Any

from toolgate.server.calls.client import Nobody
from toolgate.server.methods import pacing
from toolgate.server.methods.execution import attend_or_refuse
from toolgate.server.protocol.deadlines import Hold
from toolgate.server.protocol.errors import InternalError, InvalidParams, shown
from toolgate.server.protocol.session import Call
from toolgate.server.server import Server
from toolgate.tools.api.completion import Completions
from toolgate.tools.api.context import Context
from toolgate.tools.api.errors import CannotAsk

COMPLETION_TIME = 5.0  # seconds: somebody is typing
MAX_VALUE = 8_192  # characters of what was typed so far


def complete(server: Server) -> Callable[[Call], Awaitable[dict[str, Any]]]:
    hold = Hold(min(COMPLETION_TIME, server.hold))

    async def answer(call: Call) -> dict[str, Any]:
        completions = _referred(server, call.params.get("ref"))
        name, value = _argument(call.params.get("argument"))
        others = _others(call.params.get("context"))
        pacing.admit(server, call)

        async def work(_: Context) -> dict[str, Any]:
            # no question may come of it: only calls, prompts and what is read may ask (2026-07-28 basic/patterns/mrtr)
            context = Context(server.belongings(call.session), Nobody())
            try:
                return {"completion": await completions.complete(name, value, others, context)}
            except CannotAsk:
                raise InternalError("a completion can't ask the person") from None

        return await attend_or_refuse(server, hold, call, work, "the completion")

    return answer


def _referred(server: Server, ref: Any) -> Completions:
    """What the reference points at: a prompt by name, a template by its text, or any URI of one."""
    registry = server.registry
    match ref:
        case {"type": "ref/prompt", "name": str(name)}:
            if name in registry.prompts:
                return registry.prompts[name].completions
            raise InvalidParams(f"unknown prompt: {shown(name)}")
        case {"type": "ref/resource", "uri": str(uri)}:
            if uri in registry.templates:
                return registry.templates[uri].completions
            found = registry.resource(uri)
            if found is not None:
                return found[0].completions
            raise InvalidParams(f"unknown resource template: {shown(uri)}")
        case _:
            raise InvalidParams("'ref' must be a ref/prompt with a name or a ref/resource with a uri")


def _argument(argument: Any) -> tuple[str, str]:
    match argument:
        case {"name": str(name), "value": str(value)} if len(value) <= MAX_VALUE:
            return name, value
        case _:
            raise InvalidParams(f"'argument' must have a name and a value, strings of at most {MAX_VALUE} characters")


def _others(context: Any) -> dict[str, str]:
    arguments = context.get("arguments", {}) if isinstance(context, dict) else {}
    if not isinstance(arguments, dict) or not all(isinstance(value, str) for value in arguments.values()):
        raise InvalidParams("'context.arguments' must be an object of strings")
    return arguments
