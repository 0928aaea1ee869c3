"""A reader of large files or much output costs itself only: room and time are shared with the others."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.features.nodes.nodes import NodeProcess, fake_principal, gateway, remote_workspace, running_node
from tests.server.features.nodes.test_faults import frame
from tests.tools.shell_commands import BOUND, until
from toolgate.server.base.rpc import frames
from toolgate.server.features.nodes import messages
from toolgate.server.features.nodes.node import gateway_session
from toolgate.server.features.nodes.node.server import MAX_ARRIVING
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.files.open_file import PIECE

FILE = 2**23  # bytes
REQUESTS = 200  # of a piece each
PINGS = 200_000
UNFINISHED = 40  # messages
PART = 2**23  # bytes of each
SPARE = 16  # MiB that a node may need for a gateway that reads nothing


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node"), "--sandbox", "none") as node:
        yield node


def resident(node: NodeProcess) -> int:
    """Return the MiB that the node has in memory."""
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


class RawGateway:
    """A gateway that asks for pieces of a file and acknowledges nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def ask(self, number: int, principal: str, name: str, arguments: dict[str, Any]) -> None:
        self.writer.write(frame(["request", number, principal, name, arguments]))

    async def ask_for_pieces(self, mine: Any) -> None:
        """Ask for many pieces of a large file in the workspace, all at once."""
        path = str(await mine.write_file("big.bin", os.urandom(FILE), suffix=".bin"))
        size, identity = await mine._call("node.measure_file", path, FILE, anywhere=False)
        assert size == FILE
        piece = {"path": path, "largest": FILE, "offset": 0, "limit": FILE, "identity": identity, "anywhere": False}
        for number in range(REQUESTS):
            self.ask(number, mine.root.name, "node.read_piece", piece)

    async def next_answer(self) -> messages.NodeAnswer:
        while True:
            message = await frames.read_frame(self.reader, messages.FROM_NODE)
            if isinstance(message, messages.NodeAnswer):
                return message


@asynccontextmanager
async def raw_gateway(node: NodeProcess, name: str) -> AsyncIterator[RawGateway]:
    reader, writer = await asyncio.open_unix_connection(str(node.socket))
    writer.write(frame(["hello", messages.VERSION, "0", name]))
    try:
        yield RawGateway(reader, writer)
    finally:
        writer.transport.abort()


def test_a_gateway_that_reads_nothing_costs_only_itself(node: NodeProcess) -> None:
    async def body() -> None:
        before = resident(node)
        async with remote_workspace(node) as mine, raw_gateway(node, "reads-nothing") as stuck:
            await stuck.ask_for_pieces(mine)
            path = str(mine.root / "big.bin")
            for _ in range(10):
                assert (await mine.execute("echo well", wait=BOUND, limit=100))[1].excerpt.text == "well\n"
                assert len(await mine.read_file(path, FILE, anywhere=False)) == FILE
            assert resident(node) < before + SPARE

    asyncio.run(body())


def test_a_gateway_that_reads_no_answer_is_not_read_from_either(node: NodeProcess) -> None:
    async def body() -> None:
        before = resident(node)
        async with raw_gateway(node, "only-pings") as stuck:
            stuck.writer.transport.set_write_buffer_limits(0)
            stuck.writer.write(frame(["ping"]) * PINGS)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await stuck.writer.drain()
            assert resident(node) < before + 20
            assert node.answers()

    asyncio.run(body())


def test_one_persons_reads_leave_room_for_anothers_in_the_same_gateway(node: NodeProcess) -> None:
    async def body() -> None:
        async with remote_workspace(node) as mine, raw_gateway(node, "acknowledges-nothing") as raw:
            await raw.ask_for_pieces(mine)
            raw.ask(
                REQUESTS, fake_principal(), "node.execute", {"command": "echo well", "wait": BOUND, "limit": 30_000}
            )
            async with asyncio.timeout(BOUND):
                pieces = 0
                while (answer := await raw.next_answer()).number < REQUESTS:
                    assert answer.error is None
                    pieces += 1
            assert b"well" in bytes(answer.result)
            assert pieces * PIECE <= gateway_session.MAX_PIECES / 2

    asyncio.run(body())


def test_a_program_that_runs_holds_no_room_for_answers(node: NodeProcess) -> None:
    async def body() -> None:
        async with gateway(node) as remote:
            ada, bob = (remote.get_or_open(fake_principal()) for _ in range(2))

            async def run(mine: Any, script: str) -> bytes:
                done = await mine.run_program(["sh", "-c", script], limit=16_000_000, timeout=BOUND)
                return bytes(done.output)

            path = str(await ada.write_file("big.bin", bytes(FILE), suffix=".bin"))
            for name in "12":
                os.mkfifo(ada.root / name)
            slow = [asyncio.ensure_future(run(ada, f"read -r word < {name}; echo $word")) for name in "12"]
            begun = [await asyncio.to_thread((ada.root / name).open, "w") for name in "12"]  # both run
            third = asyncio.ensure_future(run(ada, "echo third"))
            async with asyncio.timeout(BOUND):
                assert await ada.read_file(path, FILE, anywhere=False) == bytes(FILE)
                assert len(await run(bob, f"head -c {FILE} /dev/zero")) == FILE
                assert not third.done()  # a person's programs have a bound too
                for pipe in begun:
                    pipe.write("well\n")
                    pipe.close()
                assert await asyncio.gather(*slow, third) == [b"well\n", b"well\n", b"third\n"]

    asyncio.run(body())


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(node: NodeProcess) -> None:
    async def body() -> None:
        async with remote_workspace(node) as mine:
            path = str(await mine.write_file("big.bin", bytes(2 * PIECE), suffix=".bin"))
            with await mine.open_file(path, FILE, anywhere=False) as file:
                pieces = file.pieces()
                assert len(await anext(pieces)) == PIECE
                await mine.write_file("big.bin", bytes(2 * PIECE), suffix=".bin")
                with pytest.raises(ToolError, match="was replaced while it was read: call again"):
                    await anext(pieces)

    asyncio.run(body())


def test_one_person_can_not_take_all_requests_of_a_link(node: NodeProcess) -> None:
    async def body() -> None:
        async with gateway(node) as remote:
            ada, bob = (remote.get_or_open(fake_principal()) for _ in range(2))
            run = await ada.start("exec sleep 500", background=True)
            waits = [asyncio.ensure_future(ada.wait(run, BOUND)) for _ in range(2_600)]
            await asyncio.sleep(0)
            with pytest.raises(ToolError, match="too much is under way to the node"):
                await ada.wait(run, BOUND)
            assert (await bob.execute("echo well", wait=BOUND, limit=100))[1] is not None
            await remote.kill(ada.root.name)
            done = await asyncio.gather(*waits, return_exceptions=True)
            assert sum(each is True for each in done) == 2_500

    asyncio.run(body())


def test_many_large_messages_that_do_not_end_take_bounded_memory(node: NodeProcess) -> None:
    async def body() -> None:
        before = resident(node)
        async with AsyncExitStack() as stack:
            for number in range(UNFINISHED):
                stuck = await stack.enter_async_context(raw_gateway(node, f"stops-{number}"))
                stuck.writer.write(frames.LENGTH.pack(frames.MAX_FRAME) + bytes(PART))
            await until(lambda: resident(node) - before > PART // 2**20)
            async with remote_workspace(node) as mine:
                for _ in range(10):
                    assert await mine.list() == []
            assert resident(node) - before < 2 * (MAX_ARRIVING * PART // 2**20) + SPARE

    asyncio.run(body())
