"""The official clients against a gateway whose node is in another network, by TLS."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from tests.clients.raw_client import PATIENCE
from tests.clients.raw_http_client import site
from tests.interop.official_clients import OVER_HTTP, THIRTEEN, Negotiation
from tests.interop.test_python_sdk import text
from tests.interop.test_typescript_sdk import check_typescript_client
from tests.server.features.nodes.networks import NODE, in_thread, wire
from tests.server.features.nodes.nodes import running_node

COMMAND = (sys.executable, "-m", "toolgate.server")  # started by the thread, so in its network

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes networks"),
    pytest.mark.programs("ip", "unshare"),
    pytest.mark.soak,
]


def test_the_official_clients_work_through_a_node_in_another_network(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    words = ("--workspace", str(place), "--sandbox", "none")

    def body() -> None:
        with wire() as between, running_node(tmp_path / "node", *words, host=NODE, enter=between.enter) as node:
            assert node.certificate is not None
            reached = ("--node", str(node.address), "--node-certificate", str(node.certificate.path))
            with site(tmp_path / "gateway", *reached, workspace=False, command=COMMAND) as gateway:
                for way in OVER_HTTP:
                    url = gateway.url + ("/sse" if way.carrier == "sse" else "/mcp")
                    check_typescript_client(way.mode, place, url, tmp_path)
                    (place / "proceed").unlink(missing_ok=True)
                    asyncio.run(check_python_client(way, url, place))

    in_thread(body)


async def check_python_client(way: Negotiation, url: str, place: Path) -> None:
    transport: Any = sse_client(url) if way.carrier == "sse" else streamable_http_client(url)
    async with asyncio.timeout(PATIENCE), Client(transport, mode=way.mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == THIRTEEN
        said = text(await client.call_tool("Bash", {"command": "pwd; ip -brief address show wire1"}))
        assert said.startswith(f"{place}\nwire1") and NODE in said  # it runs in the node's network
        started = await client.call_tool("BackgroundBash", {"command": "seq 5000; sleep 500"})
        task = int(text(started).partition("task ")[2].split()[0])
        output = ""
        while "5000\n" not in output:
            output += text(await client.call_tool("ReadBgOutput", {"task_id": task}))
        assert f"{task}  seq 5000" in text(await client.call_tool("ListBgTasks", {}))
        assert "killed" in text(await client.call_tool("KillBgTask", {"task_id": task}))
