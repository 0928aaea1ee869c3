"""A client that starts the server gets the mounts of the config file that was named."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import Server
from tests.server.features.mounts.mounted import command_mount, wait_listed, write_config
from toolgate.server.cli import main
from toolgate.server.features.clients.clients import CLIENTS


def test_the_entry_of_a_client_names_a_config_file_with_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    file, state = tmp_path / "named.toml", str(tmp_path / "state")
    file.write_text('name = "mine"\n')
    words = ("config", "codex", "--config", "named.toml", "--state", state)
    for table, more in (("", []), ("[mounts.a]\nurl = 'https://a'\n", ["--config", str(file)])):
        file.write_text(file.read_text() + table)
        assert main.run(words) == 0
        entry = tomllib.loads(capsys.readouterr().out)[CLIENTS["codex"].container]["toolgate"]
        assert entry["args"] == ["--name", "mine", "--state", state, *more], json.dumps(entry)


@pytest.mark.brief("file")
@pytest.mark.parametrize("selected", ["file", "variable"])
def test_a_client_has_the_mounts_of_a_server_over_http_too(
    start: Callable[..., Server],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    selected: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    of_transport = {"TOOLGATE_SSE": "1"} if selected == "variable" else {}
    for name, value in of_transport.items():
        monkeypatch.setenv(name, value)
    lines = 'http = true\nauth = "none"\nport = 1\n' if selected == "file" else ""
    named = write_config(tmp_path, lines + command_mount("legacy"))
    assert main.run(("config", "opencode", *named)) == 0
    command = json.loads(capsys.readouterr().out)["mcp"]["toolgate"]["command"]
    assert command[1:] == [*named, "--stdio"]
    assert "far__echo" in wait_listed(start(*command[1:], env=of_transport))
