"""The servers measured side by side: how each is started. All have echo(text) and list the same tools."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.bench.driver import Cores, Peer
from tests.interop.node import node, package

TESTS = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
OURS, PYTHON, TYPESCRIPT, FLOOR = "toolgate", "Python SDK", "TypeScript SDK", "floor"


@dataclass(frozen=True)
class Sides:
    """What runs in `folder`, a scratch directory. `commands`: name → argument list."""

    folder: Path
    cores: Cores
    commands: Mapping[str, Sequence[str]]
    tools: Sequence[str]  # the names all of them list

    def start(self, name: str) -> Peer:
        return Peer(self.commands[name], environment(self.folder), self.folder, self.cores)


def prepared(folder: Path, cores: Cores) -> Sides:
    """All sides, listing what our own server lists now. Raises RuntimeError where one is missing."""
    javascript = [node(), str(TESTS / "interop" / "server.mjs")]
    package("@modelcontextprotocol/server")
    ours = [str(BIN / "toolgate"), "-p", str(TESTS / "bench" / "plugins"), "--state", str(folder / "state")]
    listed, names = _listed(ours, folder, cores)
    commands = {
        OURS: ours,
        PYTHON: [sys.executable, str(TESTS / "bench" / "peers" / "lowlevel.py"), str(listed)],
        TYPESCRIPT: [*javascript, str(listed)],
        FLOOR: [sys.executable, str(TESTS / "bench" / "floor.py"), str(listed)],
    }
    return Sides(folder, cores, commands, names)


def environment(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"}


def _listed(ours: Sequence[str], folder: Path, cores: Cores) -> tuple[Path, list[str]]:
    """Our tools/list result in a file, for the others to serve."""
    with Peer(ours, environment(folder), folder, cores) as peer:
        peer.handshake()
        result = peer.request("tools/list", {})
    path = folder / "tools.json"
    path.write_bytes(msgspec.json.encode({"tools": result["tools"]}))
    return path, [tool["name"] for tool in result["tools"]]
