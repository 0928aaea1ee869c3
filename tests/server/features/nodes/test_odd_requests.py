"""Requests that only a hostile gateway sends: each is answered, and the node logs no traceback."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.server.features.nodes.nodes import fake_principal, gateway, running_node
from tests.tools.shell_commands import BOUND
from toolgate.tools.api.errors import ToolError

OPTIONS = ("--sandbox", "none", "--browser", "none")


def test_a_read_only_command_runs_at_a_node_that_was_never_asked_whether_it_can(tmp_path: Path) -> None:
    """It restarted since it was asked."""

    async def body() -> None:
        async with gateway(node) as remote, asyncio.timeout(BOUND):
            mine = remote.get_or_open(fake_principal())
            obstacle = await remote.get_or_open(fake_principal()).find_read_only_obstacle()
            try:
                _, conclusion = await mine.execute("echo hi; touch it", wait=BOUND, limit=200, read_only=True)
            except ToolError as error:
                assert obstacle is not None and obstacle in error.text
            else:
                assert obstacle is None and conclusion is not None and "hi" in conclusion.excerpt.text
            assert not (Path(mine.root) / "it").exists()

    with running_node(tmp_path, *OPTIONS) as node:
        asyncio.run(body())
        assert "Traceback" not in node.log.read_text()


def test_output_before_its_beginning_is_refused_without_a_traceback(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway(node) as remote, asyncio.timeout(BOUND):
            mine: Any = remote.get_or_open(fake_principal())
            for command in ("echo hi", "seq 100000"):  # in memory, and in a file
                begun = await mine.start(command, background=True)
                await mine.wait(begun, BOUND)
                for words in ((begun, -5, 10), (begun, -(2**70), 10)):
                    with pytest.raises((ValueError, OverflowError)):
                        await mine.read(*words)
                await mine.mark_read(begun, -5)
                assert (await mine.take(begun, 100)).text

    with running_node(tmp_path, *OPTIONS) as node:
        asyncio.run(body())
        assert "Traceback" not in node.log.read_text()


def test_the_end_of_a_watch_ends_what_waits_for_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway(node) as remote, asyncio.timeout(BOUND):
            mine: Any = remote.get_or_open(fake_principal())
            assert await mine.list() == []
            path = Path(mine.root) / "watched"
            waiting = asyncio.ensure_future(mine._call("node.next_change", 1, path, is_first=True))
            while not node_waits(remote):
                await asyncio.sleep(0.01)
            with pytest.raises(ValueError, match="another request waits for this watch"):
                await mine._call("node.next_change", 1, path, is_first=False)
            await mine._call("node.end_watch", 1)
            assert await waiting is False
            await mine._call("node.end_watch", 1)  # there is none any more

    def node_waits(remote: Any) -> bool:
        return bool(remote.links[0].waiting_count)

    with running_node(tmp_path, *OPTIONS) as node:
        asyncio.run(body())
        assert "Traceback" not in node.log.read_text()
