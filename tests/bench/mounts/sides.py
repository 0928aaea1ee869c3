"""Start the gateways that are compared, each before the same server, which has echo(text)."""

import json
import shlex
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.bench.driver import Cores, Peer
from tests.bench.http.driver import Site
from tests.bench.mounts import context_forge
from tests.bench.sides import BIN, TESTS, environment
from tests.interop.node import node

HERE = Path(__file__).parent
PEERS = HERE.parent / "peers"
PYTHONS = TESTS.parent / ".venv" / "peers"
ECHO = [sys.executable, str(HERE / "echo_server.py")]

ALONE, OWN, OURS = "the server alone", "Toolgate's own tool", "Toolgate"
FASTMCP, MCP_PROXY, NPM_PROXY = "FastMCP's proxy", "mcp-proxy (PyPI)", "mcp-proxy (npm)"
SUPERGATEWAY, FORGE = "supergateway", "ContextForge"
START = 120.0  # seconds: ContextForge makes its database first
STDIO, HTTP = "stdio", "HTTP"
COMMAND, URL = "a command", "a URL"


@dataclass(frozen=True)
class Route:
    """What is mounted, a command or a URL, and how the client reaches it. `sides`: those that can do that."""

    server: str
    client: str
    sides: Sequence[str]

    def __str__(self) -> str:
        return f"{self.server}, over {self.client}"


ROUTES = (
    Route(COMMAND, STDIO, (ALONE, OWN, OURS, FASTMCP)),
    Route(COMMAND, HTTP, (ALONE, OWN, OURS, FASTMCP, MCP_PROXY, NPM_PROXY, SUPERGATEWAY)),
    Route(URL, STDIO, (ALONE, OWN, OURS, FASTMCP, MCP_PROXY, SUPERGATEWAY)),
    Route(URL, HTTP, (ALONE, OWN, OURS, FASTMCP, FORGE)),
)
Servers = Mapping[str, str]  # name → URL, or "" for the command


@dataclass(frozen=True)
class MountSides:
    """Starts sides in the scratch folder `folder`. `url`: where the echo server answers over HTTP."""

    folder: Path
    cores: Cores
    url: str

    def name_servers(self, route: Route, count: int = 1) -> Servers:
        """Return `count` servers to mount."""
        return {f"far{number}": f"{self.url}/{number}" if route.server == URL else "" for number in range(count)}

    def start(self, side: str, route: Route, servers: Servers) -> Peer | Site:
        """Start the process of a side. Raises RuntimeError if it is missing, or does not start."""
        port = 0 if route.client == STDIO else find_port()
        command = COMMANDS[side](self.folder, servers, port)
        env = environment(self.folder)
        if side == FORGE:
            env |= context_forge.write_environment(self.folder / f"forge-{port}")
        if port == 0:
            return Peer(command, env, self.folder, self.cores)
        return Site(command, env, self.folder, self.cores, port, START)


def find_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def toolgate(folder: Path, servers: Servers, port: int) -> list[str]:
    words = msgspec.json.encode(ECHO[1:]).decode()
    command = f'command = "{ECHO[0]}"\nargs = {words}\n'
    tables = [f"[mounts.{name}]\n" + (f'url = "{url}"\n' if url else command) for name, url in servers.items()]
    name = f"{len(servers)}-{port}-{bool(next(iter(servers.values())))}"
    config = folder / f"mounts-{name}.toml"
    config.write_text("\n".join(tables))
    options = ["-p", str(HERE.parent / "plugins"), "--config", str(config), "--state", str(folder / f"state-{name}")]
    options += ["--workspace", str(folder), "--sandbox=none", "--limit", "calls=0"]  # as tests/bench/http
    return [str(BIN / "toolgate"), *options, *(["-t", "--auth", "none", "--port", str(port)] if port else [])]


def fastmcp(folder: Path, servers: Servers, port: int) -> list[str]:
    told = {name: {"url": url} if url else {"command": ECHO[0], "args": ECHO[1:]} for name, url in servers.items()}
    return [_find_program("fastmcp", "python"), str(PEERS / "fastmcp_proxy.py"), json.dumps(told), str(port)]


def mcp_proxy(folder: Path, servers: Servers, port: int) -> list[str]:
    (url,) = servers.values()
    program = _find_program("mcp-proxy", "mcp-proxy")
    quiet = ["--log-level", "ERROR"]
    return (
        [program, *quiet, "--transport", "streamablehttp", url]
        if url
        else [program, *quiet, "--port", str(port), "--", *ECHO]
    )


def npm_proxy(folder: Path, servers: Servers, port: int) -> list[str]:
    return [node(), _find_package("mcp-proxy", "dist/bin/mcp-proxy.mjs"), "--port", str(port), "--", *ECHO]


def supergateway(folder: Path, servers: Servers, port: int) -> list[str]:
    (url,) = servers.values()
    program = [node(), _find_package("supergateway", "dist/index.js"), "--logLevel", "none"]
    if url:
        return [*program, "--streamableHttp", url]
    served = ["--outputTransport", "streamableHttp", "--stateful", "--port", str(port)]
    return [*program, "--stdio", shlex.join(ECHO), *served]


def forge(folder: Path, servers: Servers, port: int) -> list[str]:
    return [_find_program("contextforge", "mcpgateway"), "--port", str(port), "--log-level", "error"]


def _find_program(venv: str, name: str) -> str:
    found = PYTHONS / venv / "bin" / name
    if not found.exists():
        raise RuntimeError(f"{venv} is missing; install it with: make peers")
    return str(found)


def _find_package(name: str, program: str) -> str:
    found = PEERS / "node_modules" / name / program
    if not found.exists():
        raise RuntimeError(f"{name} is missing; install it with: make peers")
    return str(found)


COMMANDS: dict[str, Callable[[Path, Servers, int], list[str]]] = {
    OURS: toolgate,
    FASTMCP: fastmcp,
    MCP_PROXY: mcp_proxy,
    NPM_PROXY: npm_proxy,
    SUPERGATEWAY: supergateway,
    FORGE: forge,
}
