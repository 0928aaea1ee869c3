"""Editing one table of a TOML file as text."""

import tomllib

import pytest

from toolgate.server.config.files.jsonc import ConfigSyntaxError
from toolgate.server.config.files.toml_table import remove_table, set_table

PATH = ("mcp_servers", "toolgate")
ENTRY = {"command": "/a b/toolgate", "args": ["--name", 'ä "x"\u2028[mcp_servers.no]'], "required": True}
COMMENTS = {"required": "# It silently leaves out others.\n"}
TEXTS = [
    "",
    'model = "x" # why\n',
    'model = "x"',
    '[mcp_servers.other]\ncommand = "y"\n\n[mcp_servers.other.env]\nA = "b"\n\n\n# tail\n',
    'a = """\n[mcp_servers.toolgate]\n"""\r\n[b]\r\nc = [\r\n  "[mcp_servers.toolgate]",\r\n]\r\n',
    '[mcp_servers.other]\ncommand = "y"\n\n[[list]]\nx = 1\n\n[mcp_servers.last]\nb = 1\na = 2\n',
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
    changed = set_table(text, PATH, ENTRY, ["url"], COMMENTS)
    assert tomllib.loads(changed)["mcp_servers"]["toolgate"] == {**ENTRY, "startup_timeout_sec": 20, "env": {"A": "b"}}
    assert (
        "startup_timeout_sec = 20 # slow\n" in changed
        and "# mine\n" in changed
        and "\n\n# next\n[z]\n" in changed
        and "silently" in changed
    )
    back = set_table(changed, PATH, {"url": "x"}, ["command", "args", "required"], COMMENTS)
    assert tomllib.loads(back) == tomllib.loads(text) and "silently" not in back
    assert remove_table(changed, PATH).strip() == "# next\n[z]"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('command = "old" # mine\n', 'command = "/new" # mine\n'),
        ('  command =   "#" \t# "mine" # too\r\n', 'command = "/new" \t# "mine" # too\r\n'),
        ('command = [ # first\n  "#", # "second"\n] # mine\n', 'command = "/new" # mine\n'),
        ('command = """\n# no comment"""#mine\n', 'command = "/new"#mine\n'),
        ('command = "# no comment"\n', 'command = "/new"\n'),
    ],
)
def test_the_comment_behind_a_changed_value_stays(old: str, new: str) -> None:
    newline = "\r\n" if "\r\n" in old else "\n"
    text = f"[mcp_servers.toolgate]{newline}%s# next{newline}[z]{newline}"
    assert set_table(text % old, PATH, {"command": "/new"}) == text % new


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_table_is_changed_at_the_end_of_a_text_without_a_last_newline(newline: str) -> None:
    text = f"# first{newline}[mcp_servers.toolgate]{newline}startup_timeout_sec = 20 # slow"
    assert set_table(text, PATH, {"command": "x"}) == f'{text}{newline}command = "x"{newline}'
    assert set_table(text, PATH, {"startup_timeout_sec": 20}) == text
    assert remove_table(text, PATH) == f"# first{newline}"


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


TABLES = [
    '[mounts.toolgate]\ncommand = "x"\nenv = { A = "b" } # mine\nargs = []\n',
    '[mounts.toolgate]\nenv.A = "b"\ncommand = "x"\nenv.C = "d"\n\n# next\n[z]\n',
    '[mounts.toolgate]\ncommand = "x"\n\n[mounts.toolgate.env]\nA = "b" # mine\n\n# next\n[z]\n',
    '[mounts.toolgate]\ncommand = "x"',
]


@pytest.mark.parametrize("text", TABLES)
def test_a_table_in_the_table_is_written_anew_on_one_line(text: str) -> None:
    path, before = ("mounts", "toolgate"), tomllib.loads(text)
    env = {"A": 'e "f"\x7f', "x.y z": "", "n": {"o": [{"p": 1.5}]}}
    changed = set_table(text, path, {"env": env})
    table = {**before["mounts"]["toolgate"], "env": env}
    assert tomllib.loads(changed) == {**before, "mounts": {"toolgate": table}}
    assert changed.count("env") == 1 and ("# next" in text) == ("# next" in changed)
    assert set_table(changed, path, {"env": env}) == changed
