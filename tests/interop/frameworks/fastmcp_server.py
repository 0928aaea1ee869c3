"""A server with FastMCP, which speaks both eras, to be mounted; run by the Python of `servers.lock`."""

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from pydantic import BaseModel

server = FastMCP("fast", instructions="Ask for the weather.")


class Weather(BaseModel):
    city: str
    degrees: float


@server.tool(title="Add", annotations={"readOnlyHint": True}, tags={"sums"})
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.tool
def weather(city: str) -> Weather:
    """Say how warm it is."""
    return Weather(city=city, degrees=21.0)


@server.tool
def fail() -> str:
    """Fail."""
    raise ToolError("on purpose")


@server.tool
async def log(text: str, ctx: Context) -> str:
    """Write to the log."""
    await ctx.info(text)
    return text


@server.resource("note://first", mime_type="text/markdown")
def first() -> str:
    """The first note."""
    return "# First"


@server.resource("note://{name}/text")
def note(name: str) -> str:
    """A note."""
    return f"the note {name}"


@server.prompt
def greet(who: str) -> str:
    """Greet somebody."""
    return f"Good morning, {who}"


if __name__ == "__main__":
    server.run(show_banner=False)
