"""Call the parts of a plugin by MCP's methods, and show what they return as the newest revision has it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from toolgate.server.features.mounts.plugins.data import LINKS
from toolgate.server.features.mounts.plugins.worker.listing import REVISION
from toolgate.server.protocol import serialization
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.prompt import Prompt
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.resource import Resource

PartCall = Callable[[Mapping[str, Any], Context], Awaitable[dict[str, Any]]]  # parameters → the result
RegistryCall = Callable[[Registry, Mapping[str, Any], Context], Awaitable[dict[str, Any]]]


async def call_tool(registry: Registry, params: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Return the whole output: what a client of an older revision does not get, the server leaves out."""
    tool = registry.tools.get(params["name"])
    if tool is None:
        raise _create_absence(params["name"])
    output = await tool.run(params.get("arguments") or {}, context)
    structured = {} if output.structured is None else {"structuredContent": output.structured}
    return {"content": output.content, **structured, "isError": output.is_error}


async def get_prompt(registry: Registry, params: Mapping[str, Any], context: Context) -> dict[str, Any]:
    prompt = _find_prompt(registry, params["name"])
    messages = await prompt.get(params.get("arguments") or {}, context)
    return {"messages": [serialization.format_message(message, REVISION) for message in messages]}


async def read_resource(registry: Registry, params: Mapping[str, Any], context: Context) -> dict[str, Any]:
    found = registry.resource(params["uri"])
    if found is None:
        raise _create_absence(params["uri"])
    resource, variables = found
    return {"contents": await resource.read(params["uri"], variables, context)}


async def list_links(registry: Registry, params: Mapping[str, Any], context: Context) -> dict[str, Any]:
    return {"resources": await find_part(registry, params["uriTemplate"]).list_links(context)}


async def complete(registry: Registry, params: Mapping[str, Any], context: Context) -> dict[str, Any]:
    ref, argument = params["ref"], params["argument"]
    part = _find_prompt(registry, ref["name"]) if "name" in ref else find_part(registry, ref["uri"])
    others = params.get("context", {}).get("arguments", {})
    completion = await part.completions.complete(argument["name"], argument["value"], others, context)
    return {"completion": completion}


CALLS: Mapping[str, RegistryCall] = {
    "tools/call": call_tool,
    "prompts/get": get_prompt,
    "resources/read": read_resource,
    "completion/complete": complete,
    LINKS: list_links,
}


def find_part(registry: Registry, uri: Any) -> Resource:
    """Return the resource or the template that is declared with this URI. Raises ToolError."""
    part = registry.templates.get(uri) or registry.resources.get(uri)
    if part is None:
        raise _create_absence(uri)
    return part


def _find_prompt(registry: Registry, name: str) -> Prompt:
    if name not in registry.prompts:
        raise _create_absence(name)
    return registry.prompts[name]


def _create_absence(key: Any) -> ToolError:
    return ToolError(f"the plugin no longer has {key!r}")
