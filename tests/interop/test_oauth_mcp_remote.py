"""mcp-remote, which connects stdio-only clients to a server behind sign-in, between the official Python client and the
real server."""

import asyncio
import os
import re
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.clients.raw_client import PATIENCE, eventually
from tests.interop.node import node, package
from tests.interop.official_clients import THIRTEEN, crossed
from tests.interop.sign_in_server import WAYS_IN, SignInServer, sign_in_server, visit
from tests.interop.test_oauth_python_sdk import text
from tests.servers.reserved_port import kept_port

QUESTION = re.compile(r"http://\S+code_challenge=\S+")


@pytest.mark.brief("http-dynamic")
@pytest.mark.parametrize(("carrier", "known"), crossed(["http", "sse"], WAYS_IN))
def test_a_client_of_stdio_signs_in_through_mcp_remote(tmp_path: Path, carrier: str, known: str) -> None:
    async def main(gate: SignInServer) -> None:
        for _ in range(2):  # the second time it has stored tokens
            async with asyncio.timeout(3 * PATIENCE), asyncio.TaskGroup() as group:
                log = tmp_path / "remote.log"
                log.write_bytes(b"")
                going = group.create_task(asyncio.to_thread(_go, gate, log)) if not gate.person.asked else None
                with log.open("a") as errors:
                    async with Client(stdio_client(_remote(tmp_path, gate, carrier, known), errlog=errors)) as client:
                        assert [tool.name for tool in (await client.list_tools()).tools] == THIRTEEN
                        assert text(await client.call_tool("Bash", {"command": "echo in"})) == "in\n"
                if going is not None:
                    await going
        assert len(gate.person.asked) == 1
        assert len(gate.fetched) == (known == "document")

    with sign_in_server(tmp_path / "gate", redirect_uris=["http://localhost/oauth/callback"]) as gate:
        asyncio.run(main(gate))


def _remote(folder: Path, gate: SignInServer, carrier: str, known: str) -> StdioServerParameters:
    port = kept_port()
    more = ["--client-metadata-url", gate.document] if known == "document" else []
    only = f"{carrier}-only"
    return StdioServerParameters(
        command=node(),
        args=[
            str(package("mcp-remote") / "dist" / "proxy.js"),
            gate.url(carrier),
            str(port),
            "--transport",
            only,
            *more,
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "MCP_REMOTE_CONFIG_DIR": str(folder / "remote"),
            "BROWSER": "true",  # the browser that it would open: the person follows the log instead
        },
        cwd=folder,
    )


def _go(gate: SignInServer, log: Path) -> None:
    """Follow mcp-remote's sign-in URL."""
    assert eventually(lambda: QUESTION.search(log.read_text()) is not None), log.read_text()
    question = QUESTION.search(log.read_text())
    assert question
    assert visit(gate.person.decide(question[0])) == 200
