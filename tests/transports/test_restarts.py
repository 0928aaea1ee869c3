"""A server ended repeatedly, by `kill -9` and SIGTERM in turn, under clients of each era: no session is lost, no answer
doubled, and each working directory stays."""

import asyncio
import contextlib
import random
import signal
import socket
import time
from pathlib import Path

import pytest
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client

from tests.clients.raw_client import PATIENCE, STATELESS, eventually
from tests.clients.raw_http_client import Site
from tests.clients.surviving_client import SurvivingClient
from tests.conftest import PROBE
from tests.server.cli.commands.test_user_and_client import PASSWORD, command, granted, registered
from tests.servers.reserved_port import kept_port
from tests.transports.http.test_activation import FakeServiceManager, running

REVISIONS = ("2025-06-18", "2025-11-25", STATELESS)


@pytest.mark.parametrize(
    ("auth", "restarts"),
    [
        pytest.param("none", 5, marks=pytest.mark.soak),
        ("oauth", 3),
        pytest.param("none", 100, marks=pytest.mark.soak),
        pytest.param("oauth", 100, marks=pytest.mark.soak),
    ],
)
def test_clients_of_each_era_live_through_restarts(tmp_path: Path, auth: str, restarts: int) -> None:
    port, chance = kept_port(), random.Random(7)
    options = (*PROBE, "--port", str(port), "--auth", auth, "--grace", "0.3")
    now = Site(tmp_path, *options)
    clients = list[SurvivingClient]()
    try:
        token = signed_in(tmp_path, now) if auth == "oauth" else None
        clients += [SurvivingClient(port, revision, f"c{place}", token) for place, revision in enumerate(REVISIONS)]
        for client in clients:
            client.start()
        for turn in range(restarts):
            time.sleep(chance.uniform(0.2, 1.0))  # so that it meets calls at any point
            now.process.send_signal(signal.SIGKILL if turn % 2 else signal.SIGTERM)
            now.process.wait(PATIENCE)
            assert "Traceback" not in now.log(), now.log()
            now = Site(tmp_path, *options)
        time.sleep(1.0)
        for client in clients:
            client.end()
        for client in clients:
            print(client.revision, "answered", client.answered, "lost", client.lost, "resumed", client.resumed)
            assert client.answered > restarts / 2
            assert client.lost <= 2 * restarts  # the call in flight, and one that arrived as the process died
        assert now.stop() == 0
    finally:
        now.kill()
        for client in clients:
            with contextlib.suppress(BaseException):
                client.end()


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.soak)])
@pytest.mark.parametrize("restarts", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_the_official_client_loses_no_call_where_a_service_manager_holds_the_socket(
    tmp_path: Path, mode: str, restarts: int
) -> None:
    asyncio.run(call_through_restarts(tmp_path, mode, restarts))


async def call_through_restarts(folder: Path, mode: str, restarts: int) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as held, contextlib.ExitStack() as stack:
        manager = FakeServiceManager(folder, held)

        def restart() -> None:
            """Restart all of them, each once the one before serves."""
            for turn in range(restarts + 1):
                now = stack.enter_context(running(manager.start("--port", "0")))
                assert eventually(lambda turn=turn: manager.log.read_text().count("serving http") > turn)
                if turn < restarts:
                    time.sleep(0.5)  # there are some calls to each
                    now.send_signal(signal.SIGTERM)
                    assert now.wait(PATIENCE) == 0

        restarting = asyncio.create_task(asyncio.to_thread(restart))
        url = f"http://127.0.0.1:{manager.port}/mcp"
        async with asyncio.timeout(PATIENCE + 10 * restarts), Client(streamable_http_client(url), mode=mode) as client:
            await client.call_tool("Bash", {"command": "mkdir -p deep && cd deep"})
            while not restarting.done():
                answer = await client.call_tool("Bash", {"command": "sleep 0.1; pwd"})
                (block,) = answer.content
                assert isinstance(block, types.TextContent) and block.text.strip().endswith("/deep"), answer
        await restarting
        assert manager.log.read_text().count("serving http") == restarts + 1


def signed_in(folder: Path, listening: Site) -> str:
    assert command(folder, "user", "add", "ada", stdin=PASSWORD).returncode == 0
    return str(granted(listening, registered(listening))["access_token"])
