"""`toolgate mount logs`: what has happened to a mount, and what its programs say."""

import json
import shutil
import sys
import tempfile
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


def test_a_path_that_a_command_lacks_is_named_with_the_line_that_adds_it(
    start: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(tempfile.mkdtemp(dir=Path.home()))
    try:
        (folder / "data").write_text("")
        says = [
            f"FileNotFoundError: [Errno 2] No such file or directory: '{folder}/data'",
            f"EROFS: read-only file system, open '{folder}'.",
            f"EACCES: {folder}/refused",
            f"ENOENT {folder}/none {folder}/../data /etc/shadow /proc/1/environ / /root\x1b[2J",
            f"ENOENT {tmp_path} {tmp_path}/server/state/keys/{'x' * 300}",
        ]
        script = folder / "says"
        script.write_text("\n".join(says))
        args = f'args = ["-c", "cat {script} >&2; exec {sys.executable} {PROGRAM} legacy"]'
        server = start(*write_config(tmp_path, "\n".join(("[mounts.far]", 'command = "sh"', args, ""))))
        script.write_text(script.read_text() + f"\nENOENT {server.state}/keys ENOENT {server.state.parent}")
        wait_listed(server)
        options = ("--config", str(tmp_path / "mounts.toml"), "--state", str(server.state))
        assert eventually(lambda: main.run(("mount", "logs", "far", *options)) == 0)
        hints = [line for line in capsys.readouterr().out.splitlines() if line.startswith("hint: ")]
        assert hints == [
            f'hint: add "{path}" to files of [mounts.far], if it is to use that'
            for path in (f"{folder}/data", f"{folder}:rw")
        ]
    finally:
        shutil.rmtree(folder)
