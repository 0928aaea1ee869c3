"""Answer prompts/get, and completion/complete: values for a prompt's argument or a template's variable."""

from typing import Any

from toolgate.server.base.asyncio_tasks import DeadlineTimer
from toolgate.server.calls.client import NoClient
from toolgate.server.methods.execution import execute_or_refuse
from toolgate.server.methods.server import Server
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import InternalError, InvalidParams, format_name
from toolgate.server.protocol.session import Call
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import CannotAskError
from toolgate.tools.api.prompt import Prompt
from toolgate.tools.api.resource import Resource

COMPLETION_TIME = 5.0  # seconds: the person is typing
MAX_VALUE = 8_192  # characters typed so far


async def get_prompt(server: Server, call: Call) -> dict[str, Any]:
    name, arguments = call.params.get("name"), call.params.get("arguments")
    prompt = server.registry_for(call.session).prompts.get(name) if isinstance(name, str) else None
    if prompt is None:
        raise _refuse_unknown(server, call, "prompt", "prompts", name)
    if not isinstance(arguments, (dict, type(None))):
        raise InvalidParams("'arguments' must be an object")
    await server.policy.require_rate(call, prompt.scope)

    async def work(context: Context) -> dict[str, Any]:
        if prompt.relay is not None:
            return {**await prompt.relay.ask(arguments or {}, context)}
        messages = await prompt.get(arguments or {}, context)
        formatted = [serialization.format_message(message, call.revision) for message in messages]
        return {"description": prompt.description, "messages": formatted}

    return await execute_or_refuse(server, call, work, f"prompt {prompt.name!r}")


async def complete(server: Server, timer: DeadlineTimer, call: Call) -> dict[str, Any]:
    part = _find_part(server, call, call.params.get("ref"))
    name, value = _read_argument(call.params.get("argument"))
    others = _read_other_arguments(call.params.get("context"))
    await server.policy.require_rate(call)

    async def work(caller: Context) -> dict[str, Any]:
        if part.relay is not None:
            return {**await part.relay.complete(call.params, caller)}
        # only calls, prompts and resources may ask (2026-07-28 basic/patterns/mrtr)
        context = Context(server.services.of_session(call.session), NoClient())
        try:
            return {"completion": await part.completions.complete(name, value, others, context)}
        except CannotAskError:
            raise InternalError("a completion can't ask the person") from None

    return await execute_or_refuse(server, call, work, "the completion", timer=timer)


def _find_part(server: Server, call: Call, ref: Any) -> Prompt | Resource:
    """Return what the reference names: a prompt, a template, or what a template's URI belongs to."""
    registry = server.registry_for(call.session)
    match ref:
        case {"type": "ref/prompt", "name": str(name)}:
            if name in registry.prompts:
                return registry.prompts[name]
            raise _refuse_unknown(server, call, "prompt", "prompts", name)
        case {"type": "ref/resource", "uri": str(uri)}:
            if uri in registry.templates:
                return registry.templates[uri]
            found = registry.resource(uri)
            if found is not None:
                return found[0]
            raise _refuse_unknown(server, call, "resource template", "resources", uri)
        case _:
            raise InvalidParams("'ref' must be a ref/prompt with a name or a ref/resource with a uri")


def _refuse_unknown(server: Server, call: Call, noun: str, kind: str, key: Any) -> InvalidParams:
    """Return the error for a part that is not served: why another server's is not, if it lists that."""
    withheld = server.find_withheld(call.session, kind, key)
    return InvalidParams(f"unknown {noun}: {format_name(key)}" if withheld is None else withheld.error.text)


def _read_argument(argument: Any) -> tuple[str, str]:
    match argument:
        case {"name": str(name), "value": str(value)} if len(value) <= MAX_VALUE:
            return name, value
        case _:
            raise InvalidParams(f"'argument' must have a name and a value, strings of at most {MAX_VALUE} characters")


def _read_other_arguments(context: Any) -> dict[str, str]:
    arguments = context.get("arguments", {}) if isinstance(context, dict) else {}
    if not isinstance(arguments, dict) or not all(isinstance(value, str) for value in arguments.values()):
        raise InvalidParams("'context.arguments' must be an object of strings")
    return arguments
