"""Export the plugin API: everything that a plugin file imports.

from toolgate.tools import Context, ToolError, event, prompt, resource, tool

@tool(read_only=True)
async def echo(text: str) -> str:
    \"\"\"Return the text.\"\"\"
    return text

@prompt()
def review(code: str) -> str:
    \"\"\"Ask for a review.\"\"\"
    return f"Review this:\\n{code}"

@resource("notes://{name}")
def note(name: str) -> str:
    \"\"\"A note.\"\"\"
    return NOTES[name]

@event(payload=Note)
def written(name: str | None = None) -> None:
    \"\"\"A note was written: written.emit(ctx.principal, Note(…)).\"\"\"
"""

from toolgate.tools.api.completion import Completion
from toolgate.tools.api.content import Audio, Contents, EmbeddedResource, Image, Message, Output, ResourceLink, Text
from toolgate.tools.api.context.context import Context, Elicited
from toolgate.tools.api.context.services import PYTHON, ProgramResult
from toolgate.tools.api.errors import NotFound, ToolError
from toolgate.tools.api.event import EventType, event
from toolgate.tools.api.prompt import Prompt, prompt
from toolgate.tools.api.resource import Resource, resource
from toolgate.tools.api.tool import Tool, tool

__all__ = [
    "PYTHON",
    "Audio",
    "Completion",
    "Contents",
    "Context",
    "Elicited",
    "EmbeddedResource",
    "EventType",
    "Image",
    "Message",
    "NotFound",
    "Output",
    "ProgramResult",
    "Prompt",
    "Resource",
    "ResourceLink",
    "Text",
    "Tool",
    "ToolError",
    "event",
    "prompt",
    "resource",
    "tool",
]
