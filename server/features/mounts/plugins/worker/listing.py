"""List the parts of a plugin as MCP does; the `_meta` of each has what its lists do not say."""

from typing import Any

from toolgate.server.features.mounts.plugins.data import PART, EventData, PartData, PromptData, ResourceData, ToolData
from toolgate.server.protocol import serialization
from toolgate.server.protocol.revisions import STATELESS
from toolgate.tools.api.event import EventType
from toolgate.tools.api.prompt import Prompt
from toolgate.tools.api.registry import Part
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.tool import Tool

REVISION = next(iter(STATELESS.values()))


def format_part(part: Part) -> dict[str, Any]:
    """Return an item of a list."""
    match part:
        case Tool():
            item = serialization.format_tool(part, REVISION, full=True)
        case Prompt():
            item = serialization.format_prompt(part, REVISION)
        case Resource() if part.is_template:
            item = serialization.format_template(part, REVISION)
        case Resource():
            item = serialization.format_resource(part, REVISION)
        case EventType():
            item = serialization.format_event_type(part, REVISION)
    return {**item, "_meta": {**item.get("_meta", {}), PART: describe_part(part)}}


def describe_part(part: Part) -> PartData:
    """Return what the list does not say of a part."""
    owned = (part.scope, part.source)
    match part:
        case Tool():
            return ToolData(
                *owned,
                as_task=part.as_task,
                lean=part.lean,
                in_plan=part.in_plan,
                has_context=part.function.context is not None,
                parameters=part.parameters,
            )
        case Prompt():
            return PromptData(*owned, part.role)
        case Resource():
            return ResourceData(*owned, part.lists is not None, part.watches is not None)
        case EventType():
            return EventData(*owned, part.title)
