"""Prompts and resources for the tests of the core, one behaviour each."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal

from toolgate.tools import (
    Audio,
    Completion,
    Contents,
    Context,
    EmbeddedResource,
    Image,
    Message,
    NotFound,
    ResourceLink,
    ToolError,
    prompt,
    resource,
    tool,
)

ICON = {"src": "https://example.com/icon.png", "mimeType": "image/png", "sizes": ["48x48"]}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
NOTES = {"one": "the first", "two": "the second"}
CHANGED = {name: asyncio.Event() for name in NOTES}


# -- prompts


@prompt(title="A greeting", icons=[ICON], meta={"example.com/kept": 1})
def greeting(
    name: Annotated[str, "who is greeted"], tone: Literal["warm", "wry", "cold"] = "warm", times: int = 1
) -> str:
    """Greet somebody."""
    return f"{tone}: hello {name}" * times


@greeting.completion("name")
def names(value: str, arguments: Mapping[str, str], ctx: Context) -> list[str]:
    return [f"{value}-{arguments.get('tone', 'none')}-{number}" for number in range(150)]


@prompt()
def asking(topic: str) -> str:
    """Its completion wants to ask the person."""
    return topic


@asking.completion("topic")
async def topics(value: str, ctx: Context) -> list[str]:
    return [str((await ctx.elicit("which?", NAME)).content["name"])]


@prompt()
async def conversation() -> list[Any]:
    """Every kind of message."""
    return [
        "words",
        Message("assistant", "an answer"),
        Image(b"\x89PNG", "image/png"),
        Message("user", Audio(b"RIFF", "audio/wav")),
        EmbeddedResource(Contents("test://inside", "text/plain", "text", meta={"example.com/a": 1})),
        ResourceLink("https://example.com/x", "x", icons=[ICON]),
    ]


@prompt()
async def personal(ctx: Context) -> str:
    """Ask the person first."""
    answer = await ctx.elicit("who are you?", NAME, key="who")
    return f"hello {answer.content.get('name')}"


@prompt()
def reluctant() -> str:
    """Say no."""
    raise ToolError("not today")


@prompt()
def broken_prompt() -> Any:
    """Have a bug."""
    return {"the secret": 12345}


# -- resources


@resource(
    "test://text",
    title="Some text",
    mime_type="text/plain",
    annotations={"audience": ["user"], "priority": 0.5},
    icons=[ICON],
    meta={"example.com/kept": 2},
)
def words() -> str:
    """Text that never changes."""
    return "words"


@resource("test://bytes", mime_type="image/png")
async def data() -> bytes:
    """Bytes."""
    return b"\x89PNG"


@resource("test://several")
def several() -> list[Contents]:
    """More than one content."""
    return [Contents("test://several/a", "text/plain", "a"), Contents("test://several/b", blob=b"\0\1")]


@resource("test://json")
def table() -> dict[str, int]:
    """A JSON value."""
    return {"answer": 42}


@resource("test://crash")
def crashing() -> str:
    """Have a bug."""
    raise RuntimeError("the secret is 12345")


@resource("test://refused")
def refused() -> str:
    """Say no."""
    raise ToolError("closed for the day")


@resource("test://asked")
async def asked(ctx: Context) -> str:
    """Ask the person first."""
    return str((await ctx.elicit("who are you?", NAME, key="who")).content["name"])


@resource("note://{name}", mime_type="text/plain")
async def note(name: str) -> str:
    """A note."""
    if name not in NOTES:
        raise NotFound(f"there is no note {name}")
    return NOTES[name]


@note.listing
def notes() -> list[ResourceLink]:
    return [ResourceLink(f"note://{name}", name, description="a note", size=len(NOTES[name])) for name in NOTES]


@note.watching
async def changes(name: str) -> AsyncIterator[None]:
    while True:
        await CHANGED[name].wait()
        CHANGED[name].clear()
        yield


@note.completion("name")
async def known(value: str) -> Completion:
    return Completion([name for name in NOTES if name.startswith(value)], 7, True)


@tool()
async def write_note(name: str, text: str, told: bool = True) -> str:
    """Change a note; the watch on it finds out, unless it is not told."""
    NOTES[name] = text
    if told:
        CHANGED[name].set()
    return "written"


@tool()
async def touch(uri: str, ctx: Context, times: int = 1) -> str:
    """Say that a resource has changed."""
    for _ in range(times):
        ctx.updated(uri)
    return "touched"


@resource("many://{number}")
def one_of_many(number: str) -> str:
    """One of many."""
    return number


@one_of_many.listing
def many() -> list[ResourceLink]:
    return [ResourceLink(f"many://{number:03}", f"number {number}") for number in range(600)]


@resource("failing://{name}")
def unlisted(name: str) -> str:
    """Its listing fails."""
    return name


@unlisted.listing
def failing() -> list[ResourceLink]:
    raise RuntimeError("no list today")


@tool(read_only=True)
async def pause(ctx: Context) -> str:
    """Let the client hang up and come back."""
    await ctx.progress(1, 2, "before")
    ctx.close_stream()
    await asyncio.sleep(0.2)
    return "after"
