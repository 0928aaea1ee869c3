"""What a server loads and starts: without --node nothing of nodes, with it nothing that runs commands here."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import ROOT
from tests.server.features.nodes.nodes import running_node
from tests.tools.shell_commands import BOUND

SERVE = """
import asyncio, json, os, signal, sys
from toolgate.server.app.app import App
from toolgate.server.config import load

async def main():
    app = App(load.load(json.loads(sys.argv[1])))
    loop = asyncio.get_running_loop()
    if app.config.is_remote:
        loop.call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)
        await app.serve_http()
    else:
        source, other = os.pipe()
        os.close(other)
        await app.serve_stdio(source, os.open(os.devnull, os.O_WRONLY))

asyncio.run(main())
print(json.dumps(sorted(name for name in sys.modules if name.startswith("toolgate."))))
"""
OF_NODES = "toolgate.server.features.nodes."
OF_REPLICAS = "toolgate.server.base.bus"
OF_COMMANDS = (
    "toolgate.tools.workspace.sandbox.levels.",
    "toolgate.tools.workspace.sandbox.cgroups",
    "toolgate.tools.workspace.sandbox.egress",
    "toolgate.server.features.nodes.node.node.",
)


def served(folder: Path, *options: tuple[str, Any]) -> list[str]:
    """Return the modules of ours that a server has loaded when it ends."""
    given = {"state": str(folder / "state"), "port": "0", **dict(options)}
    done = subprocess.run(
        [sys.executable, "-c", SERVE, json.dumps(given)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=BOUND,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stderr
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


HTTP = (("http", "true"), ("auth", "none"))


@pytest.mark.parametrize("options", [(("sandbox", "none"),), (*HTTP, ("sandbox", "none"))], ids=["stdio", "http"])
def test_a_server_without_nodes_loads_nothing_of_them(tmp_path: Path, options: Sequence[tuple[str, Any]]) -> None:
    assert [name for name in served(tmp_path, *options) if name.startswith(OF_NODES)] == [OF_NODES + "options"]


def test_over_stdio_nothing_of_replicas_is_loaded_and_without_redis_nothing_of_it(tmp_path: Path) -> None:
    assert [name for name in served(tmp_path, ("sandbox", "none")) if name.startswith(OF_REPLICAS)] == []
    of_redis = ("toolgate.server.features.replicas.redis.", "toolgate.server.features.replicas.sessions")
    assert [name for name in served(tmp_path / "http", *HTTP, ("sandbox", "none")) if name.startswith(of_redis)] == []


def test_a_server_with_a_node_loads_nothing_that_confines_commands(tmp_path: Path) -> None:
    with running_node(tmp_path, "--sandbox", "none") as node:
        names = served(tmp_path / "gateway", *HTTP, ("node", [str(node.address)]))
    assert OF_NODES + "gateway.link" in names
    assert [name for name in names if f"{name}.".startswith(OF_COMMANDS)] == []
