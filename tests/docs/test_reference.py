"""What docs/ say of options, commands and tools is what the program has."""

import re

import pytest

from tests.docs import reference
from tests.docs.pages import Page, page, pages
from toolgate.server import cli
from toolgate.server.builtin import TOOLS
from toolgate.server.options import OPTIONS

SERVED = [option for option in OPTIONS if not option.later]


@pytest.mark.parametrize("page", pages(), ids=str)
def test_the_generated_parts_of_a_page_are_as_new(page: Page) -> None:
    assert reference.written(page.text) == page.text, "run: make reference"


def test_every_option_is_in_the_table_with_its_variable_and_no_other_is() -> None:
    rows = re.findall(r"^\| (?:`-\w`, )?`(--[a-z-]+)[^`]*` \| `(\w+)` \| ", page("docs/options.md").text, re.M)
    assert sorted(rows) == sorted((option.flag, option.variable) for option in SERVED)


def test_every_command_and_every_flag_of_one_is_told() -> None:
    text = page("docs/options.md").text
    assert re.findall(r"^\| `toolgate (\w+)` \|", text, re.M) == list(cli.COMMANDS)
    for flag in cli.AUDIT:
        assert f"| `--{flag}" in text, flag


def test_every_tool_has_a_part_of_its_own_in_order() -> None:
    tools = page("docs/tools.md")
    named = [tool.name for tool in TOOLS]
    assert sorted(re.findall(r"^<!-- tool: (\w+) -->$", tools.text, re.M)) == sorted(named)
    assert {name.lower() for name in named} <= tools.anchors
    calls = {call for block in tools.of("sh") for call in re.findall(r"^toolgate call (\w+) ", block.text, re.M)}
    assert {*named} - calls == {"AskUserQuestion"}  # its form takes a person, or a client that shows it
