"""Prompts for the conformance suite: plain, with arguments, with a resource, with a picture, with a question."""

import base64
from typing import Any

from toolgate.tools import Contents, Context, EmbeddedResource, Image, Text, prompt

PIXEL = base64.b64decode(  # a red PNG of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"
)
CONTEXT = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}


@prompt()
async def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@prompt()
async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@test_prompt_with_arguments.completion("arg1")
def suggestions(value: str) -> list[str]:
    return [word for word in ("test", "testing", "tested") if word.startswith(value)]


@prompt()
async def test_prompt_with_embedded_resource(resourceUri: str) -> list[Any]:
    """A prompt with a resource in it."""
    text = "Embedded resource content for testing."
    return [
        EmbeddedResource(Contents(resourceUri, "text/plain", text)),
        Text("Please process the embedded resource above."),
    ]


@prompt()
async def test_prompt_with_image() -> list[Any]:
    """A prompt with a picture in it."""
    return [Image(PIXEL, "image/png"), Text("Please analyze the image above.")]


@prompt()
async def test_input_required_result_prompt(ctx: Context) -> str:
    """A prompt that asks before it is written."""
    answer = await ctx.elicit("What is the context?", CONTEXT, key="user_context")
    return f"The context is: {answer.content.get('context', 'unknown')}"
