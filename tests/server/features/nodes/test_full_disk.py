"""A node whose disk is full says so, and works again when there is room."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT
from tests.server.features.nodes.nodes import NodeProcess, remote_caller, running_node
from tests.tools.shell_commands import BOUND, text_of
from toolgate.tools.api.errors import ToolError

SIZE = "2m"
NOTE = "the disk is full: little output is kept, and `cd` does not persist"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems"),
    pytest.mark.programs("unshare"),
]


def test_a_full_disk_is_said_and_ends_nothing(tmp_path: Path) -> None:
    async def body(node: NodeProcess) -> None:
        async with remote_caller(node) as me:
            await me.bash("head -c 4M /dev/zero > big")
            full = text_of(await me.bash("seq 300000"))
            assert "\n1\n2\n" in full and NOTE in full
            assert "\n300000\n" in full and "they are not in a file" in full  # the end is kept in memory
            assert text_of(await me.bash("echo hello")) == f"hello\n{NOTE}"
            with pytest.raises(ToolError, match="o space left on device"):
                await me.workspace.write_file("more.txt", bytes(100_000), suffix=".txt")
            assert not (await me.bash("rm big")).is_error
            assert text_of(await me.bash("echo hello")) == "hello\n"
            await me.workspace.write_file("more.txt", bytes(100_000), suffix=".txt")
            listed = (await me.call("ListBgTasks")).structured["tasks"]
            assert [task for task in listed if task["status"] == "running"] == []

    state = tmp_path / "state"
    state.mkdir()
    mount = f'mount -t tmpfs -o size={SIZE},mode=700 tmpfs "$0" && exec "$@"'
    enter = ("unshare", "--mount", "sh", "-c", mount, str(state))
    with running_node(tmp_path, "--sandbox", "none", enter=enter) as node:
        asyncio.run(body(node))


def test_a_node_does_not_start_on_a_full_disk(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=64k tmpfs "$0" && head -c 1M /dev/zero > "$0/big" 2> /dev/null; exec "$@"'
    command = (sys.executable, "-m", "toolgate.server", "node", "--state", f"{tmp_path}/state", "--sandbox", "none")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, str(tmp_path), *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=BOUND,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, f"toolgate: --state: {tmp_path}/state: no space left on device\n")
