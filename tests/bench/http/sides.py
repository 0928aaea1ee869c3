"""The HTTP servers measured side by side: how each is started and spoken to. All have echo(text)."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.driver import Cores
from tests.bench.http.driver import SESSIONS, STATELESS, Dialect, Site
from tests.bench.sides import BIN, FLOOR, OURS, PYTHON, TESTS, TYPESCRIPT, environment
from tests.interop.node import node, package

OURS_STATELESS = "toolgate, stateless"
DIALECTS = {OURS: SESSIONS, OURS_STATELESS: STATELESS, PYTHON: SESSIONS, TYPESCRIPT: SESSIONS, FLOOR: SESSIONS}


@dataclass(frozen=True)
class WebSides:
    """What runs in `folder`, a scratch directory. `commands`: name → argument list."""

    folder: Path
    cores: Cores
    commands: Mapping[str, Sequence[str]]

    def start(self, name: str) -> Site:
        return Site(self.commands[name], environment(self.folder), self.folder, self.cores)

    def dialect(self, name: str) -> Dialect:
        return DIALECTS[name]


def prepared(folder: Path, cores: Cores) -> WebSides:
    """All sides. Raises RuntimeError where one is missing."""
    package("@modelcontextprotocol/node")
    peers = TESTS / "bench" / "peers"
    options = [
        "-t",
        "--auth",
        "none",
        "--port",
        "0",
        "-p",
        str(TESTS / "bench" / "plugins"),
        "--workspace",
        str(folder),
    ]
    ours = [str(BIN / "toolgate"), *options, "--state", str(folder / "state")]
    commands = {
        OURS: ours,
        OURS_STATELESS: [*ours[:-1], str(folder / "state-stateless")],
        PYTHON: [sys.executable, str(peers / "http_lowlevel.py")],
        TYPESCRIPT: [node(), str(TESTS / "interop" / "http_server.mjs")],
        FLOOR: [sys.executable, str(peers / "http_floor.py")],
    }
    return WebSides(folder, cores, commands)
