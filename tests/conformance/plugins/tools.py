"""Tools for the conformance suite with plain results: every kind of content, an error, notifications, schemas."""

import asyncio
import base64
import io
import json
import wave
from typing import Any

from toolgate.tools import Audio, Contents, Context, EmbeddedResource, Image, Text, ToolError, tool

PIXEL = base64.b64decode(  # a red PNG of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"
)
PAUSE = 0.05  # seconds between notices: the suite wants them apart


def _silence() -> bytes:
    """A tenth of a second of it, as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8_000)
        sound.writeframes(bytes(2 * 800))
    return file.getvalue()


@tool(read_only=True)
async def test_simple_text() -> str:
    """Answer with a text."""
    return "This is a simple text response for testing."


@tool(read_only=True)
async def test_image_content() -> Image:
    """Answer with a picture."""
    return Image(PIXEL, "image/png")


@tool(read_only=True)
async def test_audio_content() -> Audio:
    """Answer with a sound."""
    return Audio(_silence(), "audio/wav")


@tool(read_only=True)
async def test_embedded_resource() -> EmbeddedResource:
    """Answer with a resource."""
    text = "This is an embedded resource content."
    return EmbeddedResource(Contents("test://embedded-resource", "text/plain", text))


@tool(read_only=True)
async def test_multiple_content_types() -> list[Any]:
    """Answer with a text, a picture and a resource."""
    data = json.dumps({"test": "data", "value": 123})
    return [
        Text("Multiple content types test:"),
        Image(PIXEL, "image/png"),
        EmbeddedResource(Contents("test://mixed-content-resource", "application/json", data)),
    ]


@tool(read_only=True)
async def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool(read_only=True)
async def test_tool_with_logging(ctx: Context) -> str:
    """Log three lines."""
    await ctx.log("info", "Tool execution started")
    await asyncio.sleep(PAUSE)
    await ctx.log("info", "Tool processing data")
    await asyncio.sleep(PAUSE)
    await ctx.log("info", "Tool execution completed")
    return "Three lines were logged."


@tool(read_only=True)
async def test_logging_tool(ctx: Context) -> str:
    """Log a line, which only those who asked for logs may see."""
    await ctx.log("info", "This line is for those who set a level.")
    return "A line was logged."


@tool(read_only=True)
async def test_tool_with_progress(ctx: Context) -> str:
    """Report progress in three steps."""
    await ctx.progress(0, 100)
    await asyncio.sleep(PAUSE)
    await ctx.progress(50, 100)
    await asyncio.sleep(PAUSE)
    await ctx.progress(100, 100)
    return "Progress was reported."


@tool(read_only=True)
async def test_reconnection(ctx: Context) -> str:
    """Send the reader of the stream away; it is to fetch the answer when it comes back."""
    await asyncio.sleep(PAUSE)
    ctx.close_stream()
    await asyncio.sleep(4 * PAUSE)
    return "The reader came back."


@tool(
    read_only=True,
    input={"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
)
async def test_x_mcp_header(region: str = "") -> str:
    """Take an argument that clients mirror into a header."""
    return f"region: {region}"


@tool(
    read_only=True,
    input={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
async def json_schema_2020_12_tool(**person: Any) -> str:
    """Take what a schema of many keywords allows; each must reach the client."""
    return json.dumps(person)
