"""A link to a node that this test plays: what is sent again after a broken connection, and what never is."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tools.shell_commands import BOUND, until
from toolgate.server.base.rpc import frames
from toolgate.server.base.rpc.errors import ErrorData
from toolgate.server.features.nodes import messages
from toolgate.server.features.nodes.address import name_socket
from toolgate.server.features.nodes.gateway import link as link_module
from toolgate.server.features.nodes.gateway.link import NodeLink
from toolgate.server.features.nodes.gateway.remote_methods import request
from toolgate.server.features.nodes.messages import (
    Acknowledgement,
    Cancel,
    Hello,
    Leave,
    NodeAnswer,
    NodeRequest,
    Ping,
    Pong,
    TaskEnded,
    Welcome,
)
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.workspace import WorkspaceUnreachableError

WELCOME = Welcome(messages.VERSION, "0", "an-epoch", "none", "none", "/state", None, "a-node")
KNOWN = msgspec.structs.replace(WELCOME, knows_gateway=True)
RUN = Run(1, "true", "a-server", 0.0)


class Connection:
    """The node's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self) -> Any:
        return await frames.read_frame(self.reader, messages.FROM_GATEWAY)

    def send(self, message: msgspec.Struct) -> None:
        self.writer.write(frames.encode_frame(message))

    async def greet(self, welcome: Welcome) -> None:
        assert isinstance(await self.read(), Hello)
        self.send(welcome)


class FakeNode:
    """What listens at `path`; the test takes its connections one by one. `ends` are those that the link used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections: asyncio.Queue[Connection] = asyncio.Queue()
        self.ends: list[int] = []
        self.opened: list[asyncio.StreamWriter] = []

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened.append(writer)
        self.connections.put_nowait(Connection(reader, writer))

    async def accept(self, welcome: Welcome) -> Connection:
        connection = await self.connections.get()
        await connection.greet(welcome)
        return connection

    def use_end(self, end: TaskEnded, confirm: Callable[[bool], None]) -> None:
        self.ends.append(end.sequence)
        confirm(True)


@contextlib.asynccontextmanager
async def linked(folder: Path) -> AsyncIterator[tuple[FakeNode, NodeLink]]:
    node = FakeNode(folder / "node.sock")
    async with asyncio.timeout(BOUND), await asyncio.start_unix_server(node.take, str(node.path)):
        link = NodeLink(name_socket(node.path), WELCOME)
        link.on_end = node.use_end
        try:
            yield node, link
        finally:
            await link.close()
            for writer in node.opened:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for writer in node.opened), return_exceptions=True)


def ask(link: NodeLink) -> "asyncio.Task[NodeAnswer]":
    return asyncio.get_running_loop().create_task(link.request("local", "workspace.run", {"run_id": 1}))


def test_a_request_is_sent_again_to_a_node_that_has_kept_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with linked(tmp_path) as (node, link):
            asked = ask(link)
            first = await node.accept(WELCOME)
            sent = await first.read()
            first.writer.close()
            second = await node.accept(KNOWN)
            assert await second.read() == sent
            second.send(NodeAnswer(1, msgspec.Raw(b"7")))
            assert bytes((await asked).result) == b"7"
            assert await second.read() == Acknowledgement([1])

    asyncio.run(body())


def test_what_the_node_has_not_confirmed_is_said_again_over_the_next_connection(tmp_path: Path) -> None:
    async def body() -> None:
        async with linked(tmp_path) as (node, link):
            asked = ask(link)
            connection = await node.accept(WELCOME)
            await connection.read()
            connection.send(NodeAnswer(1, msgspec.Raw(b"7")))
            await asked
            said = [await connection.read(), await connection.read()]
            assert said == [Acknowledgement([1]), Ping()]
            connection.writer.close()  # it may have read neither
            connection = await node.accept(KNOWN)
            said = [await connection.read(), await connection.read()]
            assert said == [Acknowledgement([1]), Ping()]
            connection.send(Pong())
            after = ask(link)
            assert (await connection.read()).number == 2
            connection.writer.close()
            connection = await node.accept(KNOWN)
            assert (await connection.read()).number == 2
            connection.send(NodeAnswer(2, msgspec.Raw(b"7")))
            await after

    asyncio.run(body())


def test_a_request_is_not_sent_again_to_a_node_that_has_forgotten_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with linked(tmp_path) as (node, link):
            asked = ask(link)
            first = await node.accept(WELCOME)
            assert isinstance(await first.read(), NodeRequest)
            first.writer.close()
            second = await node.accept(WELCOME)
            with pytest.raises(WorkspaceUnreachableError, match="not known how far this came"):
                await asked
            after = ask(link)
            assert await second.read() == Cancel(1, goes_on=True, principal="local", run_id=1)
            assert (await second.read()).number == 2
            second.send(NodeAnswer(2, msgspec.Raw(b"1")))
            await after

    asyncio.run(body())


def test_a_request_is_not_sent_to_another_node_at_the_same_address(tmp_path: Path) -> None:
    async def body() -> None:
        async with linked(tmp_path) as (node, link):
            asked = ask(link)
            first = await node.accept(WELCOME)
            await first.read()
            first.send(NodeAnswer(1))
            await asked
            first.writer.close()
            await until(lambda: not link.is_connected)
            before = ask(link)
            second = await node.accept(msgspec.structs.replace(WELCOME, epoch="another", name="another"))
            with pytest.raises(WorkspaceUnreachableError, match="nothing was done"):
                await before
            after = ask(link)
            assert (await second.read()).number == 3
            second.send(NodeAnswer(3))
            await after

    asyncio.run(body())


def test_what_has_arrived_is_acknowledged_over_the_next_connection(tmp_path: Path) -> None:
    async def body() -> None:
        async with linked(tmp_path) as (node, link):
            asked = ask(link)
            first = await node.accept(WELCOME)
            await first.read()
            first.send(TaskEnded(5, "local", RUN))
            first.send(NodeAnswer(1, msgspec.Raw(b"7")))
            first.writer.close()
            await asked
            second = await node.accept(KNOWN)
            assert await second.read() == Acknowledgement([1], [5])
            second.send(TaskEnded(5, "local", RUN))  # as where the acknowledgement was lost
            assert await second.read() == Acknowledgement([], [5])
            assert node.ends == [5]

    asyncio.run(body())


@pytest.mark.parametrize("is_answer", [True, False])
def test_a_large_message_on_a_slow_line_is_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_answer: bool
) -> None:
    for name, seconds in (("PATIENCE", 0.4), ("QUIET", 0.1), ("BEAT", 0.05)):
        monkeypatch.setattr(link_module, name, seconds)

    async def body() -> None:
        async with linked(tmp_path) as (node, link):
            data = "x" * 2**22
            asked = asyncio.create_task(link.request("local", "workspace.run", {} if is_answer else {"data": data}))
            connection = await node.accept(WELCOME)
            if is_answer:
                await connection.read()
                frame = frames.encode_frame(NodeAnswer(1, frames.encode_raw(data)))
                for at in range(0, len(frame), 2**19):
                    await asyncio.sleep(0.1)
                    connection.writer.write(frame[at : at + 2**19])
            else:
                for _ in range(8):
                    await asyncio.sleep(0.1)
                    await connection.reader.readexactly(2**19)
                connection.send(NodeAnswer(1))
            await asked

    asyncio.run(body())


def test_a_node_is_not_silent_because_the_gateway_was_suspended(tmp_path: Path) -> None:
    async def body() -> None:
        async with linked(tmp_path) as (node, link):
            asked = ask(link)
            connection = await node.accept(WELCOME)
            await connection.read()
            assert isinstance(await connection.read(), Ping)
            time.sleep(link_module.PATIENCE + 0.2)  # the whole process: neither end does anything
            assert isinstance(await connection.read(), Ping)
            connection.send(Pong())
            connection.send(NodeAnswer(1, msgspec.Raw(b"7")))
            assert (await asked).result == msgspec.Raw(b"7")

    asyncio.run(body())


def test_a_cancellation_stays_one_over_the_next_connection(tmp_path: Path) -> None:
    async def body() -> None:
        async with linked(tmp_path) as (node, link):
            asked = ask(link)
            first = await node.accept(WELCOME)
            await first.read()
            asked.cancel()
            assert await first.read() == Cancel(1)
            first.writer.close()
            while not asked.done():  # it waits a while for the node, in vain
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        (await node.connections.get()).writer.close()
            assert asked.cancelled()
            said = None
            while said is None:
                with contextlib.suppress(EOFError):  # a connection that was given up
                    said = await (await node.accept(KNOWN)).read()
            assert said == Cancel(1)

    asyncio.run(body())


def test_a_link_that_leaves_fails_its_requests_takes_no_end_and_says_so(tmp_path: Path) -> None:
    async def body() -> None:
        async with linked(tmp_path) as (node, link):
            asked = ask(link)
            connection = await node.accept(WELCOME)
            await connection.read()
            assert link.leave()
            with pytest.raises(WorkspaceUnreachableError, match=r"shutting down .* goes on as a background task"):
                await asked
            with pytest.raises(WorkspaceUnreachableError, match="shutting down"):
                await ask(link)
            assert await connection.read() == Cancel(1, goes_on=True, principal="local", run_id=1)
            assert await connection.read() == Leave()
            connection.send(TaskEnded(1, "local", RUN))
            await link.close()
            assert node.ends == []

    asyncio.run(body())


@pytest.mark.parametrize(
    "answer",
    [
        {"result": msgspec.Raw(b'"seven"')},
        {"error": ErrorData("OpenTheGatesError", "well")},
        {"error": ErrorData("CannotAskError", "well", required={"sampling": {}})},
    ],
    ids=["type", "error", "question"],
)
def test_an_answer_that_no_node_gives_is_an_error_in_words(tmp_path: Path, answer: dict[str, Any]) -> None:
    async def body() -> None:
        async with linked(tmp_path) as (node, link):
            asked = asyncio.create_task(request(link, "local", "workspace.size", 1))
            connection = await node.accept(WELCOME)
            await connection.read()
            connection.send(NodeAnswer(1, **answer))
            with pytest.raises(ToolError) as caught:
                await asked
            assert type(caught.value) is ToolError
            assert caught.value.text == (
                f"the node at unix:{node.path} sent an invalid answer: it is not known how far this came"
            )

    asyncio.run(body())
