"""The plugin API: all that a tool's file needs, on one page.

from toolgate.tools import tool, Context, ToolError

@tool(read_only=True)
async def echo(text: str) -> str:
    \"\"\"Return the text.\"\"\"
    return text
"""

from toolgate.tools.content import Audio, Contents, EmbeddedResource, Image, Output, ResourceLink, Text
from toolgate.tools.context import Context, Elicited
from toolgate.tools.errors import ToolError
from toolgate.tools.tool import Tool, tool

__all__ = [
    "Audio",
    "Contents",
    "Context",
    "Elicited",
    "EmbeddedResource",
    "Image",
    "Output",
    "ResourceLink",
    "Text",
    "Tool",
    "ToolError",
    "tool",
]
