"""A server with the official Python SDK, which speaks both eras, to be mounted."""

from mcp.server import MCPServer
from pydantic import BaseModel

server = MCPServer("sdk")


class Weather(BaseModel):
    city: str
    degrees: float


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def weather(city: str) -> Weather:
    """Say how warm it is."""
    return Weather(city=city, degrees=21.0)


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("on purpose")


@server.resource("note://{name}")
def note(name: str) -> str:
    """A note."""
    return f"the note {name}"


@server.prompt()
def greet(who: str) -> str:
    """Greet somebody."""
    return f"Good morning, {who}"


if __name__ == "__main__":
    server.run()
