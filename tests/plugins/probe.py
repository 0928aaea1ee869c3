"""Tools for the tests of the core, one behaviour each."""

import asyncio
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from toolgate.tools import (
    Audio,
    Contents,
    Context,
    EmbeddedResource,
    Image,
    Output,
    ResourceLink,
    Text,
    ToolError,
    tool,
)

COUNTS = {"once": 0, "runs": 0}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@dataclass
class Point:
    x: int
    y: int


@tool(read_only=True)
async def echo(text: str) -> str:
    """Return the text."""
    return text


@tool(read_only=True)
async def wait(seconds: float, ctx: Context) -> str:
    """Report progress, then wait."""
    await ctx.progress(0, 1, "waiting")
    await asyncio.sleep(seconds)
    return "waited"


@tool(read_only=True)
def plain(word: str) -> str:
    """A plain function."""
    return word.upper()


@tool(title="All types", read_only=True)
async def typed(
    count: Annotated[int, "how many"],
    ratio: float = 0.5,
    kind: Literal["a", "b"] = "a",
    tags: list[str] | None = None,
    point: Point | None = None,
) -> str:
    """Take one parameter of each kind."""
    return repr((count, ratio, kind, tags, point))


@tool(read_only=True)
async def where() -> Point:
    """A structured answer by return type."""
    return Point(1, 2)


@tool(read_only=True, output={"type": "array", "items": {"type": "integer"}})
async def numbers() -> list[int]:
    """A structured answer that is no object."""
    return [1, 2, 3]


@tool(
    read_only=True,
    input={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"word": {"type": "string", "pattern": "^[a-z]+$"}},
        "properties": {"word": {"$ref": "#/$defs/word"}},
        "required": ["word"],
        "x-anything": {"kept": True},
    },
)
async def raw(word: str) -> str:
    """A raw schema."""
    return word


@tool(read_only=True)
async def everything() -> Output:
    """Every kind of content."""
    return Output(
        [
            Text("words", {"audience": ["user"], "priority": 0.5}),
            Image(b"\x89PNG", "image/png"),
            Audio(b"RIFF", "audio/wav"),
            EmbeddedResource(Contents("test://a", "text/plain", "inside")),
            EmbeddedResource(Contents("test://b", "application/octet-stream", blob=b"\0\1")),
            ResourceLink("https://example.com/x", "x", description="a link"),
        ]
    )


@tool(read_only=True)
async def refuse() -> str:
    """Say no."""
    raise ToolError("no: try something else")


@tool(read_only=True)
async def crash() -> str:
    """Have a bug."""
    raise RuntimeError("the secret is 12345")


@tool(read_only=True)
async def imports_nothing() -> str:
    """Import a name that the server lacks."""
    from toolgate.tools import Gone  # type: ignore[attr-defined]

    return str(Gone)


@tool(read_only=True)
async def leave() -> str:
    """Call exit."""
    sys.exit(7)


@tool(read_only=True)
async def shout() -> str:
    """Write to standard output in every way there is."""
    import os

    print("stray print")
    sys.stdout.flush()
    os.write(1, b"stray write\n")
    os.system("echo stray child")
    return sys.stdin.read() if not sys.stdin.isatty() else ""


@tool(read_only=True)
async def talk(ctx: Context) -> str:
    """Log at three levels."""
    await ctx.log("debug", "low", "probe")
    await ctx.log("notice", {"middle": 1})
    await ctx.log("error", ["high"])
    return "talked"


@tool(read_only=True)
async def climb(ctx: Context) -> str:
    """Report progress that does not always grow."""
    for step in (0, 50, 50, 20, 100):
        await ctx.progress(step, 100, f"at {step}")
    return "up"


@tool
async def ask(ctx: Context) -> str:
    """Ask two things, and do something once between."""

    async def first() -> int:
        COUNTS["once"] += 1
        return COUNTS["once"]

    COUNTS["runs"] += 1
    one = await ctx.elicit("first?", NAME)
    made = await ctx.once("made", first)
    two = await ctx.elicit("second?", NAME, key="second")
    return f"{one.action} {dict(one.content)} {two.action} {dict(two.content)} {made}"


@tool(read_only=True)
async def ask_name(ctx: Context, why: str = "") -> str:
    """Ask for a name."""
    return str((await ctx.elicit("who?", NAME)).content["name"])


@tool(read_only=True)
async def ask_link(ctx: Context) -> str:
    """Have a link opened."""
    params = {"mode": "url", "url": "https://there.example/", "message": "Open it"}
    answers = await ctx.ask({"link": {"method": "elicitation/create", "params": params}})
    ctx.complete_link("link")
    return str(answers["link"]["action"])


@tool(read_only=True)
async def ask_together(ctx: Context) -> str:
    """Ask three things at once."""
    answers = await ctx.ask(
        {
            "who": {"method": "elicitation/create", "params": {"message": "who?", "requestedSchema": NAME}},
            "where": {"method": "roots/list", "params": {}},
            "what": {
                "method": "sampling/createMessage",
                "params": {
                    "messages": [{"role": "user", "content": {"type": "text", "text": "what?"}}],
                    "maxTokens": 10,
                },
            },
        }
    )
    return f"{answers['who']['content']['name']} {answers['where']['roots']} {answers['what']['content']['text']}"


@tool(read_only=True)
async def ask_in_group(ctx: Context) -> str:
    """Ask from inside a task group."""
    async with asyncio.TaskGroup() as group:
        one = group.create_task(ctx.elicit("one?", NAME, key="one"))
    return one.result().action


@tool(read_only=True)
async def ask_soon(ctx: Context) -> str:
    """Ask, and give up after a moment."""
    answer = await ctx.elicit("quick?", NAME, timeout=0.2)
    return answer.action


@tool(read_only=True)
async def stubborn() -> str:
    """Swallow the first cancellation."""
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        return "answered all the same"
    return "slept"


@tool(read_only=True)
async def large(size: int) -> str:
    """That many characters."""
    return "x" * size


@tool(read_only=True)
async def odd() -> str:
    """Text that UTF-8 can't hold, and characters that lines could break at."""
    return "a\ud800b\n\u2028\r\0é"


@tool
async def change() -> str:
    """A tool that changes things."""
    return "changed"


@tool(read_only=True)
async def drops_its_own_task() -> str:
    """Await a task it has cancelled."""
    task = asyncio.create_task(asyncio.sleep(30))
    task.cancel()
    await task
    return ""


class Odd(BaseException):
    """No Exception."""


@tool(read_only=True)
async def raises_odd() -> str:
    """Raise what is no Exception."""
    raise Odd


@tool(read_only=True)
async def interrupts() -> str:
    """Raise what a Ctrl-C raises."""
    raise KeyboardInterrupt


@tool(read_only=True)
async def exits_in_group() -> str:
    """Call exit from inside a task group."""

    async def leave() -> None:
        sys.exit(9)

    async with asyncio.TaskGroup() as group:
        group.create_task(leave())
    return ""


@tool(read_only=True)
def runs_dry() -> str:
    """Let a StopIteration escape from a plain function."""
    return next(iter(()))


@tool(read_only=True)
def blocks(seconds: float) -> str:
    """Block a thread."""
    import time

    time.sleep(seconds)
    return "awake"


@tool(read_only=True)
async def unencodable() -> Output:
    """Answer with what JSON can't hold."""
    return Output([Text(object())])  # type: ignore[arg-type]


@tool(read_only=True)
async def refuse_in_group() -> str:
    """Say no from inside a task group."""

    async def no() -> None:
        raise ToolError("no, from a group")

    async with asyncio.TaskGroup() as group:
        group.create_task(no())
    return ""


@tool(read_only=True, scope="tools:workflow")
async def idle() -> str:
    """Read-only, with a scope of the workflow tools."""
    return ""


@tool(scope="tools:workflow")
async def sneaky() -> str:
    """Changes things, and says it is a workflow tool."""
    return "changed"


@tool(read_only=True)
async def wait_large(size: int, ctx: Context) -> str:
    """Report progress, then return that many characters."""
    await ctx.progress(0, 1, "soon")
    return "x" * size


@tool(
    read_only=True,
    input={
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "limit": {"type": "integer", "x-mcp-header": "Limit"},
            "dry": {"type": "boolean", "x-mcp-header": "Dry"},
            "place": {"type": "object", "properties": {"town": {"type": "string", "x-mcp-header": "Town"}}},
        },
    },
)
async def mirror(region: str = "", limit: int = 0, dry: bool = False, place: dict[str, str] | None = None) -> str:
    """Arguments that are mirrored into headers."""
    return f"{region} {limit} {dry} {place}"


@tool(read_only=True)
async def flood(ctx: Context) -> str:
    """Report large progress for as long as the client listens."""
    for step in range(1_000_000):
        await ctx.progress(step, None, "x" * 50_000)
        await asyncio.sleep(0)
    return "done"
