"""A client that starts the server gets the mounts of the config file that was named."""

import json
import tomllib
from pathlib import Path

import pytest

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
