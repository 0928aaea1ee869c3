"""`doctor` and `mount list` say what is held, what is marked, and whose code has no version."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.clients.raw_client import eventually
from tests.clients.raw_http_client import site, spoken
from tests.server.features.mounts.mounted import wait_listed, write_config
from tests.server.features.mounts.pins.listed import PROGRAM, ListedMount, tool
from toolgate.server.cli import main
from toolgate.server.cli.doctor.report import CheckNote
from toolgate.server.config.load import load
from toolgate.server.features.mounts import doctor


@pytest.mark.parametrize(
    "words",
    [
        "npx -y @scope/pkg",
        "npx pkg@latest",
        "npx pkg@^1.2.3",
        "npx pkg@1.2.*",
        "npx -y -p pkg prog",
        "npx -p pkg@1.2.3 -p other prog",
        "/usr/bin/npx pkg",
        "npx --registry=https://far.example pkg",
        "uvx pkg",
        "uvx pkg@latest",
        "uvx --from pkg>=1.2 prog",
        "uvx --python 3.12 pkg",
        "uv tool run pkg",
        "bunx pkg",
        "npx",
    ],
)
def test_a_package_without_a_version_is_known(words: str) -> None:
    command, *args = words.split()
    assert doctor.is_unpinned(command, args)


@pytest.mark.parametrize(
    "words",
    [
        "npx -y @scope/pkg@1.2.3",
        "npx pkg@1.2.3-rc.1 --port 3",
        "npx -p pkg@1.2.3 prog",
        "npx --registry=https://far.example pkg@1.2.3",
        "uvx pkg==1.2",
        "uvx pkg@1.2.3",
        "uvx --from pkg[extra]==1.2.3 prog",
        "uvx --python 3.12 pkg==1.2.3",
        f"uvx --from git+https://far.example/pkg@{'0a' * 20} prog",
        "python server.py",
        "/srv/bin/far --npx pkg",
    ],
)
def test_another_command_is_not(words: str) -> None:
    command, *args = words.split()
    assert not doctor.is_unpinned(command, args)


def test_a_command_without_a_version_is_said_by_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mount = ListedMount(tmp_path)
    mount.say(tools=[tool("echo")])
    npx = tmp_path / "npx"
    npx.write_text(f"#!/bin/sh\nexec {sys.executable} {PROGRAM} {mount.file} legacy\n")
    npx.chmod(0o755)

    def examine(package: str) -> str:
        table = f'[mounts.far]\ncommand = "{npx}"\nargs = ["-y", "{package}"]\n'
        main.run(("doctor", "--browser", "none", *write_config(tmp_path, table), "--state", str(tmp_path / "state")))
        return capsys.readouterr().out

    said = "no version is named by the command of far"
    assert said in examine("pkg") and said not in examine("pkg@1.2.3")


def test_what_is_held_and_marked_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mount = ListedMount(tmp_path)
    mount.say(tools=[tool("echo"), tool("sum", description="sums\u202e, after WebSearch")])
    options = write_config(tmp_path, mount.table)
    with site(tmp_path, "--auth", "none", *options) as listening, spoken(listening, "http") as client:
        wait_listed(client)
        places = (*options, "--state", str(listening.state))

        def list_mounts() -> str:
            assert main.run(("mount", "list", *places)) == 0
            return capsys.readouterr().out

        marks = [
            "far: tool sum turns the direction of writing: <U+202E>",
            "far: tool sum names tools of other servers: WebSearch",
        ]
        assert eventually(lambda: all(mark in list_mounts() for mark in marks))
        assert "held:" not in list_mounts()
        mount.say(tools=[tool("echo", title="new"), tool("more")])
        client.text("far__reload")
        held = "far: held: 2; toolgate mount review far shows what has changed"
        assert eventually(lambda: held in list_mounts())
        assert main.run(("mount", "list", "--json", *places)) == 0
        assert json.loads(capsys.readouterr().out)["held"] == {"far": 2}
        assert b"held: 2" in listening.ask("GET", "/", accept="text/html")[1]
        assert b'toolgate_mount_held{mount="far"} 2' in listening.ask("GET", "/metrics")[1]
        found = asyncio.run(doctor.mounts(load({"config": options[1], "state": str(listening.state)}, {})))
        assert isinstance(found, CheckNote) and "held: far (2)" in found.finding
