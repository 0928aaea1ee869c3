"""What the configuration takes, and what it gives to commands."""

import os
from pathlib import Path

import pytest

from toolgate.server.base.errors import UsageError
from toolgate.server.config import load


@pytest.mark.parametrize("flags", [{}, {"http": "true"}])
def test_commands_are_told_to_write_plain_text(flags: dict[str, str]) -> None:
    """Programs colour their output and redraw it for other terminals, which a model reads as noise."""
    config = load.load(flags, {"PATH": os.environ["PATH"], "HOME": "/nowhere", "TERM": "xterm-256color"})
    assert config.command_environment["TERM"] == "dumb"


def test_patterns_of_tools_have_commas_or_are_a_list(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('tools = ["Read*", "!ReadDocs"]\n')
    assert load.load({"config": str(file)}, {}).tools == ("Read*", "!ReadDocs")
    assert load.load({}, {"TOOLGATE_TOOLS": "Read*,!ReadDocs"}).tools == ("Read*,!ReadDocs",)
    assert load.load({"tools": ["Bash"]}, {}).to_flags() == ["--tools", "Bash"]
    assert load.load({"tools": ["Bash"]}, {}).to_flags(without=("tools",)) == []


def test_a_home_that_can_not_be_looked_at_keeps_no_state_elsewhere_from_being_used(tmp_path: Path) -> None:
    given = {"config": os.devnull, "state": str(tmp_path)}
    assert load.load(given, {"HOME": f"/tmp/{'x' * 300}"}).state == tmp_path


@pytest.mark.parametrize("host", ["::1", "127.0.0.1", "localhost"])
def test_an_address_to_listen_on_may_have_the_brackets_of_a_url(host: str) -> None:
    assert load.load({"host": host}, {}).host == host
    if ":" in host:
        assert load.load({"host": f"[{host}]"}, {}).host == host
    for odd in (f"[{host}", f"{host}]", f"[[{host}]]"):
        with pytest.raises(UsageError, match="--host: must be an address"):
            load.load({"host": odd}, {})


def test_stdio_undoes_what_a_file_or_a_variable_says_and_no_flag(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('http = true\nport = 1\nname = "mine"\n')
    named = {"config": str(file)}
    assert load.load(named, {}).is_remote and load.load({}, {"TOOLGATE_SSE": "1"}).is_remote
    local = load.load({**named, "stdio": "true"}, {"TOOLGATE_SSE": "1"})
    assert (local.port, local.name) == (8080, "mine")
    assert not local.is_remote and local.grace == load.load({}, {}).grace
    assert not load.load(named, {"TOOLGATE_STDIO": "1"}).is_remote
    assert load.load({"http": "true"}, {"TOOLGATE_STDIO": "1"}).is_remote
    with pytest.raises(UsageError, match="--stdio and --sse exclude each other"):
        load.load({"sse": "true", "stdio": "true"}, {})
