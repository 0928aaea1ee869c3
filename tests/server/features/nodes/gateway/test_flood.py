"""A node that floods its gateway, or sends what is too large or not clean: what others notice and the log says."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from tests.server.features.nodes.nodes import OneNode, fake_principal, list_nobody
from tests.tools.shell_commands import BOUND, until
from toolgate.server.base.rpc import frames
from toolgate.server.base.rpc.errors import ErrorData
from toolgate.server.base.watch import FileChanges
from toolgate.server.features.nodes import messages
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.gateway import link, message_bounds, waiting_requests
from toolgate.server.features.nodes.gateway.remote_workspaces import RemoteWorkspaces
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.tools.api.context.notices import Notices
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.commands import end_notice
from toolgate.tools.workspace.output.run_record import Run, TaskEnd

HOSTILE = "a\x1b[31mb\u202ec\x00d"
CLEAN = "a[31mbcd"
Answers = Mapping[str, Callable[[int], messages.NodeAnswer]]


def encode_result(number: int, result: object) -> messages.NodeAnswer:
    return messages.NodeAnswer(number, msgspec.Raw(msgspec.json.encode(result)))


class HostileNode:
    """A node that sends `frames` after its welcome, and answers requests by their names."""

    def __init__(self, address: NodeAddress, answers: Answers) -> None:
        self.address = address
        self.answers = answers
        self.welcome = messages.Welcome(
            *(messages.VERSION, "0", "an-epoch", "bwrap", HOSTILE, "/", None, "hostile"), knows_gateway=True
        )
        self.connections = 0
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writer = writer
        with contextlib.suppress(EOFError, OSError), contextlib.closing(writer):
            while True:
                match await frames.read_frame(reader, messages.FROM_GATEWAY):
                    case messages.Hello():
                        frames.write(writer, frames.encode_frame(self.welcome))
                    case messages.NodeRequest(number, _, name):
                        frames.write(writer, frames.encode_frame(self.answers[name](number)))

    def send(self, data: bytes) -> None:
        assert self.writer is not None
        frames.write(self.writer, data)


@contextlib.asynccontextmanager
async def hostile_node(
    folder: Path,
    on_end: Callable[[str, TaskEnd], None] = lambda _, end: None,
    **answers: Callable[[int], messages.NodeAnswer],
) -> AsyncIterator[tuple[HostileNode, RemoteWorkspaces]]:
    node = HostileNode(
        NodeAddress(folder / "hostile.sock"), {name.replace("__", "."): it for name, it in answers.items()}
    )
    async with await asyncio.start_unix_server(node.serve, str(node.address.path)), asyncio.timeout(BOUND):
        welcome = await asyncio.to_thread(link.greet, node.address, BOUND)
        placement = OneNode(SqliteStore(folder / "state"), [link.NodeLink(node.address, welcome)])
        remote = RemoteWorkspaces(placement, FileChanges(), on_end, list_nobody)
        job = asyncio.ensure_future(remote.links[0].run())
        try:
            await until(lambda: remote.links[0].is_connected)
            yield node, remote
        finally:
            job.cancel()
            await remote.close()


def make_end(sequence: int, principal: str, command: str) -> bytes:
    return frames.encode_frame(messages.TaskEnded(sequence, principal, Run(1, command, "a-server", 0.0)))


FLOODS = {
    "pongs": frames.encode_frame(messages.Pong()),
    "answers to nothing": frames.encode_frame(messages.NodeAnswer(-1)),
    "late answers": frames.encode_frame(messages.NodeAnswer(1)),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_ends_the_connection_with_a_warning(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with hostile_node(tmp_path) as (node, remote):
            node.send(FLOODS[kind] * (message_bounds.UNASKED_BURST * 2))
            await until(lambda: not remote.links[0].is_connected)

    caplog.set_level(logging.WARNING)
    asyncio.run(body())
    (said,) = caplog.messages
    assert said.endswith("is ended: it sent over 200 messages a second that nothing asked for")


def test_a_flood_of_ends_ends_the_connection_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with hostile_node(tmp_path) as (node, remote):
            person = fake_principal()
            node.send(b"".join(make_end(number, person, "true") for number in range(message_bounds.ENDS_BURST * 2)))
            await until(lambda: not remote.links[0].is_connected)

    caplog.set_level(logging.WARNING)
    asyncio.run(body())
    (said,) = caplog.messages
    assert said.endswith("is ended: it sent over 1000 ends of tasks a second that nothing asked for")


def test_other_tasks_run_while_a_node_sends_many_messages(tmp_path: Path) -> None:
    async def body() -> None:
        async with hostile_node(tmp_path) as (node, remote):
            person, taken = fake_principal(), list[int]()
            remote.links[0].on_end = lambda end, _: taken.append(end.sequence)
            turns = [0]
            node.send(b"".join(make_end(number, person, "true") for number in range(1_000)))

            async def count_turns() -> None:
                while len(taken) < 1_000:
                    turns[0] += 1
                    await asyncio.sleep(0)

            await count_turns()
            assert turns[0] > 1_000 / message_bounds.TURN / 2

    asyncio.run(body())


def test_an_end_is_at_most_64_kib(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        ends = list[Run]()
        async with hostile_node(tmp_path, lambda _, end: ends.append(end.run)) as (node, remote):
            node.send(make_end(1, fake_principal(), "A" * 60_000))
            await until(lambda: len(ends) == 1)
            node.send(make_end(2, fake_principal(), "A" * 70_000))
            await until(lambda: not remote.links[0].is_connected)
            assert len(ends) == 1

    asyncio.run(body())
    assert any("over the 65,536 of its kind" in said for said in caplog.messages)


@pytest.mark.parametrize("size", [8_000_000, 9_000_000])
def test_an_answer_without_output_is_at_most_8_mib(tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture) -> None:
    """Of a request that asks for no output, file or page."""

    def answer(number: int) -> messages.NodeAnswer:
        return messages.NodeAnswer(number, error=ErrorData("ToolError", "x" * size))  # cut when it is read

    async def body() -> None:
        async with hostile_node(tmp_path, node__has_files=answer) as (_, remote):
            text = "can't be reached" if size > message_bounds.PLAIN_ANSWER else "^x+$"
            with pytest.raises(ToolError, match=text):
                await remote.get_or_open(fake_principal()).has_files()

    asyncio.run(body())
    assert any("broke the rules" in said for said in caplog.messages) is (size > message_bounds.PLAIN_ANSWER)


def test_an_answer_is_as_large_as_its_request_allows() -> None:
    find = message_bounds.find_largest_answer
    assert find("workspace.read", {"run_id": 1, "offset": 0, "limit": 2**20}) > 2**20 * 4 // 3
    assert find("workspace.run_program", {"limit": 2**40}) == frames.MAX_FRAME
    assert find("workspace.read", {"limit": -(10**9)}) == find("node.measure_load", {}) == message_bounds.PLAIN_ANSWER
    assert find("pages.fetch_page", {}) > messages.MAX_DATA * 4 // 3


def test_a_late_answer_is_as_large_as_before_but_once() -> None:
    async def body() -> None:
        waiting = waiting_requests.WaitingRequests()
        one = waiting.create("p", "workspace.read", {"run_id": 1, "offset": 0, "limit": 2**20}, is_call=True)
        waiting.add(one)
        heads = [b'["answer",%d,"' % one.number, b' [ "answer" , %d , "' % one.number]
        assert [waiting.find_largest(head) for head in heads] == [one.largest] * 2
        waiting.remove(one)
        assert [waiting.find_largest(head) for head in heads] == [one.largest, message_bounds.SMALL]
        assert waiting.find_largest(b'["ended",1,') == message_bounds.SMALL

    asyncio.run(body())


def test_a_nodes_texts_are_clean(tmp_path: Path) -> None:
    run = Run(7, HOSTILE, "a-server", 0.0, background=True, reason=HOSTILE)

    async def body() -> None:
        notices, person = Notices(), fake_principal()
        answers = {
            "node__list_tasks": lambda number: encode_result(number, [1, [run]]),
            "workspace__run": lambda number: encode_result(number, run),
            "workspace__size": lambda number: messages.NodeAnswer(number, error=ErrorData("ToolError", HOSTILE)),
            "pages__read_page": lambda number: encode_result(
                number,
                dict.fromkeys(("url", "title", "text"), HOSTILE)
                | {"status": 200, "format": "markdown", "rendered": False, "truncated": False, "note": HOSTILE},
            ),
        }
        async with hostile_node(tmp_path, lambda _, end: end_notice.add(notices, end.run), **answers) as (node, remote):
            mine = remote.get_or_open(person)
            (listed,) = await mine.list()
            assert (listed.command, listed.reason) == (CLEAN, CLEAN)
            assert (await mine.run(7)).command == CLEAN
            with pytest.raises(ToolError) as failure:
                await mine.size(7)
            assert failure.value.text == CLEAN
            page = await remote.get_pages(person).read_page("http://example.com", "markdown", 0.0, 0, 1.0, 1.0)
            assert {page.url, page.title, page.text, page.note} == {CLEAN}
            node.send(frames.encode_frame(messages.TaskEnded(1, person, run)))
            await until(lambda: bool(notices.by_key))
            assert HOSTILE not in str(vars(notices)) and CLEAN in str(vars(notices))
            assert "\x1b" not in remote.describe()

    asyncio.run(body())


def test_a_request_that_is_refused_for_its_size_is_not_encoded() -> None:
    """Not even begun: no JSON holds an object()."""

    async def body() -> None:
        waiting = waiting_requests.WaitingRequests()
        data = {"name": ["y" * (20 * 2**20)]}
        waiting.add(waiting.create("p", "workspace.run_program", {"argv": ["write", data], "limit": 1}, is_call=True))
        for given in (b"y" * (33 * 2**20), ["y" * (42 * 2**20)], {"a": [{"b": "y" * (42 * 2**20)}]}):
            with pytest.raises(waiting_requests.NoRoomError):
                waiting.create("p", "workspace.run_program", {"given": given, "x": object()}, is_call=True)

    asyncio.run(body())
