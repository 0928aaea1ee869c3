"""Tools for the conformance suite that change the lists. A call adds a plugin file beside this one, the next removes
it, and the server notices. So serve a copy of this folder."""

from pathlib import Path

from toolgate.tools import tool

FOLDER = Path(__file__).parent

TOOL = '''\
"""A tool that comes and goes."""

from toolgate.tools import tool


@tool(read_only=True)
async def passing_tool() -> str:
    """Be there for a while."""
    return "here"
'''

PROMPT = '''\
"""A prompt that comes and goes."""

from toolgate.tools import prompt


@prompt()
async def passing_prompt() -> str:
    """Be there for a while."""
    return "here"
'''


def _toggle(name: str, source: str) -> str:
    file = FOLDER / f"{name}.py"
    if file.exists():
        file.unlink()
        return f"{name} is taken away"
    draft = FOLDER / f".{name}"
    draft.write_text(source)
    draft.rename(file)  # whole or not at all
    return f"{name} is added"


@tool
async def test_trigger_tool_change() -> str:
    """Change the list of tools."""
    return _toggle("passing_tool", TOOL)


@tool
async def test_trigger_prompt_change() -> str:
    """Change the list of prompts."""
    return _toggle("passing_prompt", PROMPT)
