from toolgate.tools import tool


@tool(read_only=True)
async def echo(text: str) -> str:
    """Return the text."""
    return text
