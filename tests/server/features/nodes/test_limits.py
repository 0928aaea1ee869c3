"""Limits of commands are the node's: they count once for a person, however many gateways ask, and each names itself."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.server.features.nodes.nodes import NodeProcess, fake_principal, gateway, running_node
from tests.servers.open_folder import open_folder
from tests.servers.reserved_users import kept_users
from tests.tools.shell_commands import BOUND
from tests.tools.workspace.test_limits import LIMITS
from toolgate.tools.api.errors import ToolError

THREADS = (
    "exec python3 -c 'import threading, time; threading.stack_size(1 << 16)\n"
    "for _ in range(30): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    "print(30, flush=True); time.sleep({})'"
)
MEMORY = "exec python3 -c 'import time; x = bytearray(80 << 20); print(80, flush=True); time.sleep({})'"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has all levels"),
    pytest.mark.programs("bwrap"),
]


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    words = [word for name, value in LIMITS.items() if name != "age" for word in ("--limit", f"{name}={value}")]
    users = kept_users(10)
    uids = ("--sandbox-uids", f"{users[0]}-{users[-1]}")
    with open_folder() as folder, running_node(folder, *words, "--sandbox", "bwrap", *uids) as node:
        yield node


@asynccontextmanager
async def one_person_at_two_gateways(node: NodeProcess) -> AsyncIterator[tuple[Any, Any]]:
    principal = fake_principal()
    async with gateway(node) as first, gateway(node) as second:
        yield first.get_or_open(principal), second.get_or_open(principal)
        await first.forget(principal)


async def run(mine: Any, command: str) -> tuple[str, list[str]]:
    """Return what the command printed, and the limits that it reached."""
    _, end = await mine.execute(command, wait=BOUND, limit=10_000)
    return end.excerpt.text, end.run.hits


def test_processes_count_once_for_two_gateways(node: NodeProcess) -> None:
    async def body() -> None:
        async with one_person_at_two_gateways(node) as (first, second):
            task = await first.start(THREADS.format(600), background=True)
            await first.wait_output(task, 0, BOUND)
            _, hits = await run(second, THREADS.format(0))
            assert any("--limit processes" in hit for hit in hits)
            await second.kill(task)
            assert await run(second, THREADS.format(0)) == ("30\n", [])

    asyncio.run(body())


def test_memory_counts_once_for_two_gateways(node: NodeProcess) -> None:
    async def body() -> None:
        async with one_person_at_two_gateways(node) as (first, second):
            task = await first.start(MEMORY.format(600), background=True)
            await first.wait_output(task, 0, BOUND)
            _, hits = await run(second, MEMORY.format(0))
            hits += (await first.run(task)).hits  # the kernel kills one of the two
            assert any("--limit memory" in hit for hit in hits)
            await second.kill(task)
            assert await run(second, MEMORY.format(0)) == ("80\n", [])

    asyncio.run(body())


def test_room_on_disk_counts_once_for_two_gateways(node: NodeProcess) -> None:
    async def body() -> None:
        async with one_person_at_two_gateways(node) as (first, second):
            await run(first, "for i in {1..4}; do head -c 3M /dev/zero > big$i; done; exec sleep 60")
            text, hits = await run(second, "echo more > more")
            assert "more: " in text and any("--limit workspace" in hit for hit in hits)
            assert (await run(second, "rm big*"))[0] == ""
            assert await run(first, "echo more > more") == ("", [])

    asyncio.run(body())


def test_commands_count_once_for_two_gateways(node: NodeProcess) -> None:
    async def body() -> None:
        async with one_person_at_two_gateways(node) as (first, second):
            tasks = [await mine.start("exec sleep 600", background=True) for mine in (first, second)]
            with pytest.raises(ToolError, match="--limit background"):
                await first.start("exec sleep 600", background=True)
            more = [await mine.start("exec sleep 600") for mine in (first, second)]
            with pytest.raises(ToolError, match="--limit commands"):
                await second.execute("true", wait=1.0, limit=100)
            for mine, task in zip((second, first, first, second), (*tasks, *more), strict=True):
                await mine.kill(task)

    asyncio.run(body())
