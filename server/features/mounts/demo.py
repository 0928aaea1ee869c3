"""Show a mounted server in the tour: a second Toolgate, whose shell is called through the first."""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path

from toolgate.server.cli.commands.demo import DemoError, Tour
from toolgate.server.cli.mcp_client.client import SERVER_COMMAND, spawn_server

NAME = "inner"
PATIENCE = 20.0  # seconds for the mounted server to be listed
STEP = 0.1


async def show_mounts(visit: Tour, folder: Path, environment: Mapping[str, str]) -> None:
    """Mount a server, and call a tool of it. Raises DemoError, McpClientError."""
    command, *args = [*SERVER_COMMAND, "--state", str(folder / "inner"), "--workspace", str(visit.work)]
    file = folder / "mounts.toml"
    file.write_text(f"[mounts.{NAME}]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\n")
    options = ["--config", str(file), "--state", str(folder / "outer")]
    begun = time.perf_counter()
    with visit.screen.chapter("another MCP server, mounted behind this one"):
        async with spawn_server(options, environment) as (client, hello):
            visit.greet(client, hello, begun)
            await _wait_listed(visit)
            await visit.call_tool(f"{NAME}__Bash", "hello from the inner one", command="echo hello from the inner one")


async def _wait_listed(visit: Tour) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        listed = await visit.client.request("tools/list")
        if any(tool["name"].startswith(f"{NAME}__") for tool in listed["tools"]):
            return
        await asyncio.sleep(STEP)
    raise DemoError(f"the tools of the mounted server were not listed within {PATIENCE:g} s")
