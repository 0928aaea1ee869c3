"""The options, commands and tools in docs/ are those of the program."""

import re

import pytest

from tests.docs import reference
from tests.docs.pages import Page, page, pages
from toolgate.server.app.builtin_tools import TOOLS
from toolgate.server.cli.parsing.commands import COMMANDS
from toolgate.server.config.options import OPTIONS
from toolgate.tools.reading.search.engines import ENGINES
from toolgate.tools.workspace import limits

SERVED = [option for option in OPTIONS if not option.is_planned]


@pytest.mark.parametrize("page", pages(), ids=str)
def test_the_generated_parts_of_a_page_are_as_new(page: Page) -> None:
    assert reference.fill_parts(page.text) == page.text, "run: make reference"


def test_every_option_is_in_the_table_with_its_variable_and_no_other_is() -> None:
    rows = re.findall(r"^\| (?:`-\w`, )?`(--[a-z-]+)[^`]*` \| `(\w+)` \| ", page("docs/options.md").text, re.M)
    assert sorted(rows) == sorted((option.flag, option.variable) for option in SERVED)


def test_every_command_and_its_flags_are_in_the_table() -> None:
    text = page("docs/options.md").text
    assert re.findall(r"^\| `toolgate ([a-z ]+[a-z])[^`]*` \|", text, re.M) == list(COMMANDS)
    for command in COMMANDS.values():
        for flag in command.flags:
            assert f"| `{command.name}` | `{flag.flag}" in text, flag


def test_every_tool_has_a_part_of_its_own_in_order() -> None:
    tools = page("docs/tools.md")
    named = [tool.name for tool in TOOLS]
    assert sorted(re.findall(r"^<!-- tool: (\w+) -->$", tools.text, re.M)) == sorted(named)
    assert {name.lower() for name in named} <= tools.anchors
    calls = {call for block in tools.of("sh") for call in re.findall(r"^toolgate call (\w+) ", block.text, re.M)}
    assert {*named} - calls == {"AskUserQuestion"}  # its form needs a person, or a client that shows it


def test_the_limits_of_the_security_page_are_those_there_are_with_their_defaults() -> None:
    text = page("docs/security.md").text
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z:A-Z-]+`)*) \| ([^|]+) \|", text[text.index("## Limits") :], re.M)
    told = {name: value for names, values in rows for name, value in _limits(names, values)}
    default = limits.Limits()
    assert told.pop("calls").startswith(str(default.calls[""]))
    for name, value in told.items():
        assert limits.ROWS[name](value) == getattr(default, name.replace("-", "_")), name
    assert {*told, "calls"} == {*limits.ROWS}
    for scope in ("tools:shell", "tools:web"):
        assert f"{default.calls[scope]} of `{scope}`" in text


def _limits(names: str, values: str) -> list[tuple[str, str]]:
    """`commands`, `background` | 32, 16; a number may have commas of its own."""
    named = re.findall(r"`([a-z-]+)`", names)
    parts = values.strip().split(", ") if len(named) > 1 else [values.strip()]
    return [(name, part.replace(",", "").replace(" ", "")) for name, part in zip(named, parts, strict=False)]


def test_the_engines_of_the_web_page_are_those_there_are() -> None:
    text = page("docs/web.md").text
    table = text[text.index("| engines | used |") :]
    assert set(re.findall(r"`([a-z-]+)`", re.sub(r"\| (?:by|if|with)[^\n]*", "", table[: table.index("\n\n")]))) == {
        engine.name for engine in ENGINES
    } | {"searxng"}
