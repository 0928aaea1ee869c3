"""Servers behind nginx, which asks them in turn, with the official client of the sessions era."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client

from tests.clients.raw_client import PATIENCE
from tests.servers.postgres import Postgres
from tests.servers.replicas import Replicas, replicas_behind_nginx


async def answer_ada(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


@contextlib.asynccontextmanager
async def connected(port: int, seconds: float = PATIENCE) -> AsyncGenerator[Client]:
    transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp")
    async with asyncio.timeout(seconds), Client(transport, mode="legacy", elicitation_callback=answer_ada) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    return "".join(block.text for block in answer.content if isinstance(block, types.TextContent))


def test_the_official_client_needs_no_stickiness(tmp_path: Path, postgres: Postgres) -> None:
    async def use(port: int) -> None:
        async with connected(port) as client:
            assert [await call(client, "echo", text=str(turn)) for turn in range(20)] == [str(n) for n in range(20)]
            assert [await call(client, "ask_name") for _ in range(4)] == ["Ada"] * 4
            await call(client, "Bash", command="mkdir -p deep && cd deep")
            assert [(await call(client, "Bash", command="basename $PWD")).strip() for _ in range(4)] == ["deep"] * 4

    with replicas_behind_nginx(tmp_path, postgres, count=3) as (_, front):
        asyncio.run(use(front))


@pytest.mark.parametrize("restarts", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_a_rolling_restart_costs_the_official_client_no_call(tmp_path: Path, postgres: Postgres, restarts: int) -> None:
    async def use(replicas: Replicas, port: int) -> None:
        def restart() -> None:
            for turn in range(restarts):
                assert replicas.sites[turn % 2].stop() == 0
                replicas.restart(turn % 2)

        restarting = asyncio.create_task(asyncio.to_thread(restart))
        async with connected(port, PATIENCE + 15 * restarts) as client:
            count = 0
            while not restarting.done():
                assert await call(client, "echo", text=str(count)) == str(count)
                count += 1
            assert count > 3 * restarts  # a busy machine answers few
        await restarting

    with replicas_behind_nginx(tmp_path, postgres, "--drain", "10") as (replicas, front):
        asyncio.run(use(replicas, front))


@pytest.mark.soak  # test_replicas.py has it without the proxy
@pytest.mark.parametrize("kills", [2, 20])
def test_kill_9_costs_the_official_client_at_most_a_call_and_never_its_session(
    tmp_path: Path, postgres: Postgres, kills: int
) -> None:
    async def use(replicas: Replicas, port: int) -> None:
        def kill() -> None:
            for turn in range(kills):
                replicas.restart(turn % 2)

        failures = list[str]()
        async with connected(port, PATIENCE + 15 * kills) as client:
            killing = asyncio.create_task(asyncio.to_thread(kill))
            while not killing.done():
                try:
                    assert await call(client, "wait", seconds=0.05) == "waited"
                except Exception as error:  # counted
                    failures.append(repr(error))
            assert await call(client, "echo", text="still here") == "still here"
            await killing
        assert len(failures) <= kills, failures
        assert not [failure for failure in failures if "no such session" in failure], failures

    with replicas_behind_nginx(tmp_path, postgres) as (replicas, front):
        asyncio.run(use(replicas, front))
