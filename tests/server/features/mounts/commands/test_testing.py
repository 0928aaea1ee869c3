"""`toolgate mount test`: what a mount has, or why it fails."""

import json
from pathlib import Path

import pytest

from tests.server.features.mounts.mounted import command_mount, write_config
from toolgate.server.cli import main


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_mount_that_works_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str], era: str) -> None:
    options = (*write_config(tmp_path, command_mount(era)), "--state", str(tmp_path / "state"))
    assert main.run(("mount", "test", "far", *options)) == 0
    head, *tools = capsys.readouterr().out.splitlines()
    assert head.startswith("far: ") and " tools, 1 prompt, 2 resources (20" in head
    assert "  echo  The tool echo" in tools
    assert main.run(("mount", "test", "far", "--json", *options)) == 0
    assert "echo" in json.loads(capsys.readouterr().out)["tools"]


def test_a_mount_that_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = (
        '[mounts.gone]\ncommand = "/no/such"\n',
        '[mounts.ends]\ncommand = "sh"\nargs = ["-c", "echo the reason >&2; exit 4"]\n',
        '[mounts.talks]\ncommand = "yes"\n',
        '[mounts.wrong]\nurl = "http://x"\nno_such_key = 1\n',
    )
    options = (*write_config(tmp_path, *tables), "--state", str(tmp_path / "state"))
    for name, told in (
        ("gone", "gone: NOT_STARTED: "),
        ("ends", "ends: STDIO_EXITED_BEFORE_INITIALIZE: it exited with code 4; its last words: the reason"),
        ("talks", "talks: BAD_MESSAGE: it sent something that is no JSON-RPC message"),
        ("wrong", "wrong: CONFIG_UNKNOWN_KEY: "),
    ):
        assert main.run(("mount", "test", name, *options)) == 1
        assert capsys.readouterr().out.startswith(told)
    assert main.run(("mount", "test", "nobody", *options)) == 2
    assert "has no mount 'nobody'" in capsys.readouterr().err
