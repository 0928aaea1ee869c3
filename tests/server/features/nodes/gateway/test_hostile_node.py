"""A node that this test plays, whose answers break the rules: what a gateway takes of it, and what it says."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.server.features.nodes.nodes import OneNode, fake_principal, list_nobody
from tests.server.features.nodes.several_nodes import database, place_at
from tests.tools.shell_commands import BOUND, until
from toolgate.server.base.rpc import frames
from toolgate.server.base.watch import FileChanges
from toolgate.server.features.nodes import messages
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.gateway.link import NodeLink, NodeUnreachableError
from toolgate.server.features.nodes.gateway.placement import Placement
from toolgate.server.features.nodes.gateway.remote_workspace import NodeWorkspace, RemoteFile
from toolgate.server.features.nodes.gateway.remote_workspaces import RemoteWorkspaces
from toolgate.server.features.nodes.messages import Welcome
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store
from toolgate.tools.api.errors import ToolError


def read_all(piece: bytes, size: int) -> list[bytes]:
    """Return the pieces of a file for which the node always sends this one."""

    async def body() -> list[bytes]:
        async def read_piece(**_: Any) -> bytes:
            await asyncio.sleep(0)
            return piece

        async with asyncio.timeout(BOUND):
            return [each async for each in RemoteFile("a.txt", size, read_piece).pieces()]

    return asyncio.run(body())


def test_a_file_arrives_in_as_many_pieces_as_were_asked_for() -> None:
    assert read_all(b"abc", 3) == [b"abc"]
    assert read_all(b"a", 2) == [b"a", b"a"]


def test_an_empty_piece_does_not_make_a_gateway_ask_for_ever() -> None:
    with pytest.raises(ToolError, match=r"^the node sent 0 bytes where 1 to 3 were asked for$"):
        read_all(b"", 3)


def test_a_piece_larger_than_was_asked_for_is_refused() -> None:
    with pytest.raises(ToolError, match=r"^the node sent 4 bytes where 1 to 3 were asked for$"):
        read_all(b"abcd", 3)


class WorkspaceOfAnswer(NodeWorkspace):
    """Its node gives each request this answer."""

    answer: object

    async def _call(self, name: str, /, *words: Any, **keywords: Any) -> Any:
        return self.answer


def fake_workspace(answer: object) -> NodeWorkspace:
    mine = WorkspaceOfAnswer.create(OneNode(SqliteStore(Path("/nowhere")), []), "local")
    mine.answer = answer
    return mine


def test_a_file_larger_than_was_asked_for_is_refused() -> None:
    asyncio.run(fake_workspace((9, "an-identity")).open_file("a.txt", 9, anywhere=False))
    with pytest.raises(ToolError, match=r"^the node says that a.txt has 10 bytes, where 0 to 9 were asked for$"):
        asyncio.run(fake_workspace((10, "an-identity")).open_file("a.txt", 9, anywhere=False))


def test_more_output_than_was_asked_for_is_refused() -> None:
    assert asyncio.run(fake_workspace(b"abc").read(1, 0, 3)) == b"abc"
    with pytest.raises(ToolError, match=r"^the node sent 4 bytes where 0 to 3 were asked for$"):
        asyncio.run(fake_workspace(b"abcd").read(1, 0, 3))


def test_a_node_that_comes_back_with_a_weaker_sandbox_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    welcome = Welcome(1, "0", "an-epoch", "bwrap", "", "/", None, "a-node")
    links = [NodeLink(NodeAddress(Path("/node.sock")), welcome)]
    placement = OneNode(SqliteStore(Path("/nowhere")), links)
    remote = RemoteWorkspaces(placement, FileChanges(), lambda _, run: None, list_nobody)
    remote.check_welcome(links[0], welcome)
    assert caplog.messages == []
    remote.check_welcome(links[0], msgspec.structs.replace(welcome, epoch="another", level="uid"))
    assert caplog.messages == ["the node at unix:/node.sock isolates commands less than before: uid, not bwrap"]


def fake_welcome(name: str) -> Welcome:
    return Welcome(1, "0", "an-epoch", "none", "", "/", None, name)


@contextlib.asynccontextmanager
async def fake_node(address: NodeAddress, name: str) -> AsyncGenerator[list[Any]]:
    """A node that says this name. Yield what it is sent after its welcome."""
    received = list[Any]()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, OSError), contextlib.closing(writer):
            await frames.read_frame(reader, messages.FROM_GATEWAY)
            writer.write(frames.encode_frame(fake_welcome(name)))
            while True:
                received.append(await frames.read_frame(reader, messages.FROM_GATEWAY))

    async with await asyncio.start_unix_server(greet, str(address.path)):
        yield received


def test_a_node_that_says_the_name_of_an_absent_one_gets_none_of_its_people(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        absent, hostile = NodeAddress(tmp_path / "absent"), NodeAddress(tmp_path / "hostile")
        await Placement(store, [NodeLink(absent, None)]).bind_name(NodeLink(absent, None), "attic")
        person = fake_principal()
        await place_at(store, person, "attic")
        # the gateway has greeted it at the start, when nothing was checked
        links = [NodeLink(absent, None), NodeLink(hostile, fake_welcome("attic"))]
        remote = RemoteWorkspaces(Placement(store, links), FileChanges(), lambda _, run: None, list_nobody)
        async with fake_node(hostile, "attic") as received, asyncio.timeout(BOUND):
            job = asyncio.ensure_future(links[1].run())
            try:
                await until(lambda: not links[1].name)
                with pytest.raises(ToolError, match="on the node attic, which does not answer: nothing was done"):
                    await remote.get_or_open(person).list()
                with pytest.raises(ToolError, match="no node answers that could take your workspace"):
                    await remote.get_or_open(fake_principal()).list()
                assert [link.is_connected for link in links] == [False, False]
                assert received == []
            finally:
                job.cancel()
                await remote.close()

    with database(tmp_path) as store:
        asyncio.run(body(store))


async def bind(store: Store, address: str, name: str, **others: str) -> None:
    """Bind the name to the address at a gateway that has other addresses too, with what was said there."""
    links = {each: NodeLink(NodeAddress(Path("/", each)), None) for each in (address, *others)}
    for each, claimed_name in {address: name, **others}.items():
        links[each].claimed_name = claimed_name
    await Placement(store, list(links.values())).bind_name(links[address], name)


def test_a_name_belongs_to_the_address_that_has_had_it_for_the_longest(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        await bind(store, "a", "attic")
        with pytest.raises(
            NodeUnreachableError,
            match=r"^the node at unix:/b is refused: it says that it is attic, which is at unix:/a; if attic has "
            r"moved, remove --node unix:/a$",
        ):
            await bind(store, "b", "attic", a="")
        await bind(store, "other", "attic", b="")  # a gateway that reaches the same node by another address
        await bind(store, "b", "attic", hall="")  # and one whose operator has replaced the address
        with pytest.raises(NodeUnreachableError, match="is refused"):  # which gives it nothing at the first
            await bind(store, "b", "attic", a="")
        await bind(store, "a", "attic", b="attic")
        await bind(store, "b", "attic", a="cellar")  # what answers there is another node by now

    with database(tmp_path) as store:
        asyncio.run(body(store))


def test_an_address_has_the_name_that_was_said_there_last(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        await bind(store, "a", "attic")
        await bind(store, "a", "cellar")
        await bind(store, "b", "attic", a="")

    with database(tmp_path) as store:
        asyncio.run(body(store))
