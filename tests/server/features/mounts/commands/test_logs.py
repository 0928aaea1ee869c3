"""`toolgate mount logs`: what has happened to a mount, and what its programs say."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import Server, eventually
from tests.server.features.mounts.mounted import PROGRAM, command_mount, wait_listed, write_config
from toolgate.server.cli import main

TALKS = f"""[mounts.talks]
command = "sh"
args = ["-c", 'echo "the key is $KEY" >&2; exec {sys.executable} {PROGRAM} legacy']
env = {{ KEY = "hunter2!" }}
"""


def test_what_happened_to_a_mount_is_shown_and_no_key(
    start: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start(*write_config(tmp_path, command_mount("legacy"), TALKS))
    options = ("--config", str(tmp_path / "mounts.toml"), "--state", str(server.state))
    wait_listed(server)
    server.error("far__exit")
    assert server.text("far__count") == "1"

    def read(*words: str) -> str:
        assert main.run(("mount", "logs", *words, *options)) == 0
        return capsys.readouterr().out

    assert eventually(lambda: main.run(("mount", "logs", "far", *options)) == 0)  # the file is followed a moment later
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in lines[:3]] == [
        "opened",
        "STDIO_EXITED: it exited with code 3; its last words: the last words",
        "opened",
    ]
    assert lines[-1] == "running for local"
    told = json.loads(read("far", "--json"))
    assert [each["principal"] for each in told["running"]] == ["local"]
    assert main.run(("mount", "logs", "fra", *options)) == 2
    assert "did you mean far?" in capsys.readouterr().err
    wait_listed(server, "talks")
    assert eventually(lambda: "the key is …" in read("talks"))
    assert "hunter2" not in read("talks")
    server.close()
    assert main.run(("mount", "logs", "far", *options)) == 1
    assert "no server of this state runs with mounts" in capsys.readouterr().err
