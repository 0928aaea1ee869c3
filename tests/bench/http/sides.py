"""Start the HTTP servers that are compared. All have echo(text)."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.bench.driver import Cores
from tests.bench.http.driver import SESSIONS, STATELESS, Dialect, Site
from tests.bench.sides import BIN, FLOOR, OURS, PYTHON, TESTS, TYPESCRIPT, environment
from tests.interop.node import node, package
from tests.server.auth.minted_tokens import Signed

OURS_STATELESS = "toolgate, stateless"
OURS_SIGNED = "toolgate, signed in"
DIALECTS = {
    OURS: SESSIONS,
    OURS_SIGNED: SESSIONS,
    OURS_STATELESS: STATELESS,
    PYTHON: SESSIONS,
    TYPESCRIPT: SESSIONS,
    FLOOR: SESSIONS,
}

SIGNED_STATE = "state-signed"


@dataclass(frozen=True)
class WebSides:
    """The sides, which run in the scratch folder `folder`. `commands`: name → argument list."""

    folder: Path
    cores: Cores
    commands: Mapping[str, Sequence[str]]
    tokens: dict[str, str] = field(default_factory=dict)  # of the started sides that need one

    def start(self, name: str) -> Site:
        site = Site(self.commands[name], environment(self.folder), self.folder, self.cores)
        if name == OURS_SIGNED:
            listening: Any = SimpleNamespace(
                shared=None, state=self.folder / SIGNED_STATE, url=f"http://127.0.0.1:{site.port}"
            )
            self.tokens[name] = Signed(listening).token()
        return site

    def dialect(self, name: str) -> Dialect:
        dialect, token = DIALECTS.get(name, SESSIONS), self.tokens.get(name)
        if token is None:
            return dialect
        return replace(dialect, headers={**dialect.headers, "Authorization": f"Bearer {token}"})


def prepared(folder: Path, cores: Cores) -> WebSides:
    """Return all sides. Raises RuntimeError if one is missing."""
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
        "--sandbox=none",  # the folder is root's; isolation has a benchmark of its own
        "--limit",
        "calls=0",  # it makes a minute's calls in a second
    ]
    ours = [str(BIN / "toolgate"), *options, "--state", str(folder / "state")]
    commands = {
        OURS: ours,
        OURS_SIGNED: ["oauth" if each == "none" else each for each in ours[:-1]] + [str(folder / SIGNED_STATE)],
        OURS_STATELESS: [*ours[:-1], str(folder / "state-stateless")],
        PYTHON: [sys.executable, str(peers / "http_lowlevel.py")],
        TYPESCRIPT: [node(), str(TESTS / "interop" / "http_server.mjs")],
        FLOOR: [sys.executable, str(peers / "http_floor.py")],
    }
    return WebSides(folder, cores, commands)
