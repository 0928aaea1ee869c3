"""Start the servers that are compared. All have echo(text) and list the same tools."""

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
    """The sides, which run in the scratch folder `folder`. `commands`: name → argument list."""

    folder: Path
    cores: Cores
    commands: Mapping[str, Sequence[str]]
    tools: Sequence[str]  # the names all of them list

    def start(self, name: str) -> Peer:
        return Peer(self.commands[name], environment(self.folder), self.folder, self.cores)


def prepared(folder: Path, cores: Cores) -> Sides:
    """Return all sides, which list what Toolgate lists now. Raises RuntimeError if one is missing."""
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
    """Write Toolgate's tools/list result to a file, for the others to serve."""
    with Peer(ours, environment(folder), folder, cores) as peer:
        peer.handshake()
        result = peer.request("tools/list", {})
    path = folder / "tools.json"
    path.write_bytes(msgspec.json.encode({"tools": result["tools"]}))
    return path, [tool["name"] for tool in result["tools"]]
