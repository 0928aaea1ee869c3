"""Attempts of commands to reach their node's socket, lock and state: who speaks to the node acts for anybody."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import ROOT
from tests.escape.ground import NOBODY, SYSTEM_PYTHON
from tests.server.features.nodes.nodes import NodeProcess, fake_principal, gateway, running_node
from tests.tools.shell_commands import BOUND

ATTEMPTS = """
import glob, os, socket, struct
HELLO = b'["hello",1,"0",""]'
def greet(path):
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(5)
        line.connect(path)
        line.sendall(struct.pack(">I", len(HELLO)) + HELLO)
        return "reached" if b"welcome" in line.recv(4096) else "no welcome"
def read(path):
    with open(path, "rb") as file:
        file.read()
    return "reached"
def through_proc():
    said = {greet(f"{root}{SOCKET}") for root in glob.glob("/proc/[0-9]*/root") if os.path.exists(f"{root}{SOCKET}")}
    return " ".join(sorted(said)) or "not there"
def by_link():
    os.symlink(SOCKET, "link")
    return greet("link")
def by_hard_link():
    os.link(SOCKET, "hard")
    return greet("hard")
def abstract():
    names = [line.split()[-1] for line in open("/proc/net/unix") if "@" in line]
    return "reached" if any("node" in name for name in names) else "none"
for name, attempt in {
    "path": lambda: greet(SOCKET),
    "proc": through_proc,
    "link": by_link,
    "hard link": by_hard_link,
    "abstract": abstract,
    "lock": lambda: read(STATE + "/node.lock"),
    "state": lambda: "reached" if "node.lock" in os.listdir(STATE) else "empty",
    "remove": lambda: os.unlink(SOCKET) or "reached",
    "replace": lambda: os.rename(SOCKET, SOCKET + ".old") or "reached",
}.items():
    try:
        print(name + ":", attempt())
    except OSError as error:
        print(name + ":", error.strerror or error)
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has all levels"),
    pytest.mark.programs("bwrap"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="toolgate-node-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def try_all(node: NodeProcess) -> dict[str, str]:
    """Run the attempts as a command of a person, and return what each says."""

    async def body() -> str:
        async with gateway(node) as remote:
            mine = remote.get_or_open(fake_principal())
            script = f"SOCKET, STATE = {str(node.socket)!r}, {str(node.state)!r}\n{ATTEMPTS}"
            command = f"exec {SYSTEM_PYTHON} -I - <<'END'\n{script}\nEND"
            _, conclusion = await mine.execute(command, wait=BOUND, limit=10_000)
            assert conclusion is not None
            return conclusion.excerpt.text

    said = asyncio.run(body())
    return dict(line.split(": ", 1) for line in said.splitlines())


@pytest.mark.parametrize("level", ["bwrap", "uid"])
def test_a_sandboxed_command_does_not_reach_its_node(folder: Path, level: str) -> None:
    shown = folder / "shown"
    words = ["--sandbox-paths", str(shown)] if level == "bwrap" else []
    with running_node(shown, "--sandbox", level, *words, "--state", str(folder / "state")) as node:
        node.state = folder / "state"
        node.socket.chmod(0o777)  # more than the node gives: the user at the other end counts too
        said = try_all(node)
        assert len(said) == 9
        assert not [name for name, answer in said.items() if "reached" in answer], said
        assert node.answers()


def test_an_unsandboxed_command_does(folder: Path) -> None:
    with running_node(folder, "--sandbox", "none") as node:
        said = try_all(node)
        assert {name for name, answer in said.items() if "reached" in answer} >= {
            "path",
            "proc",
            "link",
            "lock",
            "state",
        }


def test_another_user_is_refused_though_the_socket_lets_everybody_in(folder: Path) -> None:
    script = (
        "import socket, sys; line = socket.socket(socket.AF_UNIX); line.settimeout(10); line.connect(sys.argv[1]); "
        "print(line.recv(100))"
    )
    with running_node(folder, "--sandbox", "none") as node:
        assert node.socket.stat().st_mode & 0o777 == 0o600
        node.socket.chmod(0o777)
        command = [SYSTEM_PYTHON, "-I", "-c", script, str(node.socket)]
        user: Any = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        done = subprocess.run(command, capture_output=True, timeout=BOUND, check=False, cwd="/", **user)
        assert (done.returncode, done.stdout) == (0, b"b''\n"), done.stderr
        assert f"a connection of user {NOBODY} is refused" in (folder / "node.log").read_text()


def test_a_socket_inside_the_workspace_is_refused(folder: Path) -> None:
    work = folder / "work"
    work.mkdir()
    os.chown(work, NOBODY, NOBODY)
    words = ["--state", str(folder / "state"), "--workspace", str(work), "--listen", f"unix:{work}/node.sock"]
    done = subprocess.run(
        [sys.executable, "-m", "toolgate.server", "node", *words, "--sandbox", "bwrap"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=BOUND,
    )
    assert (done.returncode, f"{work}/node.sock is inside {work}" in done.stderr) == (2, True), done.stderr
