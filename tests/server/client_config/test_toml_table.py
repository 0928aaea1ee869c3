"""Editing one table of a TOML file as text."""

import tomllib

import pytest

from toolgate.server.client_config.jsonc import ConfigSyntaxError
from toolgate.server.client_config.toml_table import remove_table, set_table

PATH = ("mcp_servers", "toolgate")
ENTRY = {"command": "/a b/toolgate", "args": ["--name", 'ä "x"\u2028[mcp_servers.no]'], "required": True}
TEXTS = [
    "",
    'model = "x" # why\n',
    'model = "x"',
    '[mcp_servers.other]\ncommand = "y"\n\n[mcp_servers.other.env]\nA = "b"\n\n\n# tail\n',
    'a = """\n[mcp_servers.toolgate]\n"""\r\n[b]\r\nc = [\r\n  "[mcp_servers.toolgate]",\r\n]\r\n',
    "# comment\u2028[mcp_servers.toolgate]\n[[list]]\nx = 1\n[[list]]\nx = 2\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_table_is_added_and_all_else_stays(text: str) -> None:
    changed = set_table(text, PATH, ENTRY)
    assert changed.startswith(text)
    before = tomllib.loads(text)
    assert tomllib.loads(changed) == {
        **before,
        "mcp_servers": {**before.get("mcp_servers", {}), "toolgate": ENTRY},
    }
    assert set_table(changed, PATH, ENTRY) == changed
    assert remove_table(changed, PATH).rstrip("\r\n") == text.rstrip("\r\n")


def test_what_a_person_added_to_the_table_stays() -> None:
    text = '[mcp_servers."toolgate"] # mine\nurl = "x"\nstartup_timeout_sec = 20 # slow\n\n'
    text += '[mcp_servers.toolgate.env]\nA = "b"\n\n# next\n[z]\n'
    changed = set_table(text, PATH, ENTRY, removed=["url"])
    assert tomllib.loads(changed)["mcp_servers"]["toolgate"] == {**ENTRY, "startup_timeout_sec": 20, "env": {"A": "b"}}
    assert "startup_timeout_sec = 20 # slow\n" in changed and "# mine\n" in changed and "\n\n# next\n[z]\n" in changed
    back = set_table(changed, PATH, {"url": "x"}, removed=["command", "args", "required"])
    assert tomllib.loads(back) == tomllib.loads(text) and "silently" not in back
    assert remove_table(changed, PATH).strip() == "# next\n[z]"


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = {toolgate = {command = "x"}}\n',
        'mcp_servers = {other = {command = "x"}}\n',
        '[mcp_servers]\ntoolgate.command = "x"\n',
        "mcp_servers = 1\n",
        "[mcp_servers]\ntoolgate = 1\n",
        "[[mcp_servers.toolgate]]\nx = 1\n",
        "[mcp_servers.toolgate.env]\nA = 'b'\n",
    ],
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigSyntaxError):
        set_table(text, PATH, ENTRY)


def test_a_broken_text_is_refused_with_the_place() -> None:
    with pytest.raises(ConfigSyntaxError, match="line 2, column 5"):
        set_table("a = 1\nb = ]\n", PATH, ENTRY)
