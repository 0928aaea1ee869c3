"""A node that lies about people: the gateway decides who is where, whatever the node says."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.server.features.nodes.nodes import NodeProcess, fake_principal, list_nobody, running_node
from tests.server.features.nodes.several_nodes import database, greet_nodes
from tests.server.features.nodes.test_moves import command
from tests.tools.shell_commands import BOUND
from toolgate.server.base.rpc import frames
from toolgate.server.base.rpc.errors import ErrorData
from toolgate.server.base.watch import FileChanges
from toolgate.server.features.nodes import messages
from toolgate.server.features.nodes import rows as node_rows
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.gateway.link import NodeLink
from toolgate.server.features.nodes.gateway.placement import Placement
from toolgate.server.features.nodes.gateway.remote_workspaces import RemoteWorkspaces
from toolgate.server.state.store import Store
from toolgate.tools.api.errors import ToolError


class LyingNode:
    """A node that says it has the files of everybody. `name` and `max_people` are what it says of itself."""

    def __init__(self, folder: Path, name: str, max_people: int) -> None:
        self.address = NodeAddress(folder / f"{name}.sock")
        self.name = name
        self.max_people = max_people
        self.epoch = secrets.token_hex(16)
        self._writers: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._serve, str(self.address.path))
        try:
            yield
        finally:
            server.close()
            self.disconnect()

    def disconnect(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(EOFError, OSError):
            while True:
                for message in self._answer(await frames.read_frame(reader, messages.FROM_GATEWAY)):
                    frames.write(writer, frames.encode_frame(message))

    def _answer(self, message: Any) -> list[msgspec.Struct]:
        match message:
            case messages.Hello():
                words = messages.VERSION, "0", self.epoch, "bwrap", "lies", "/liar", None, self.name, self.max_people
                return [messages.Welcome(*words, knows_gateway=True)]
            case messages.NodeRequest(number, _, "node.has_files"):
                return [messages.NodeAnswer(number, msgspec.Raw(b"true"))]
            case messages.NodeRequest(number):
                return [messages.NodeAnswer(number, error=ErrorData("ToolError", "lies"))]
            case messages.Ping():
                return [messages.Pong()]
        return []


@contextlib.asynccontextmanager
async def lying_gateway(store: Store, liar: LyingNode, *honest: NodeProcess) -> AsyncIterator[RemoteWorkspaces]:
    """A gateway of honest nodes and one that lies."""
    placement = Placement(store, [*(greet_nodes(*honest) if honest else ()), NodeLink(liar.address, None)])
    remote = RemoteWorkspaces(placement, FileChanges(), lambda _, run: None, list_nobody)
    jobs = [asyncio.ensure_future(link.run()) for link in remote.links]
    try:
        async with asyncio.timeout(BOUND):
            while any(not link.is_connected for link in remote.links):
                await asyncio.sleep(0.01)
        yield remote
    finally:
        for job in jobs:
            job.cancel()
        await remote.close()


async def count_at(store: Store, remote: RemoteWorkspaces, new: int, name: str) -> int:
    """Return how many of so many new people are placed at the node."""
    people = [fake_principal() for _ in range(new)]
    for person in people:
        await remote.prepare(person, lambda _, text: None)
    return sum(1 for at in (await store.read(node_rows.list_placements)).values() if at == name)


async def come_back(liar: LyingNode, remote: RemoteWorkspaces) -> None:
    """Have the node end its connection, and wait for the next one."""
    liar.epoch = secrets.token_hex(16)
    liar.disconnect()
    async with asyncio.timeout(BOUND):
        while remote.links[-1].welcome is None or remote.links[-1].welcome.epoch != liar.epoch:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("adopts", [False, True], ids=["unmarked", "marked"])
def test_a_node_that_has_everybodys_files_gets_no_more_than_its_limit(
    nodes: list[NodeProcess], tmp_path: Path, *, adopts: bool
) -> None:
    async def body(store: Store) -> None:
        await store.transact(partial(node_rows.set_adopting, name="evil", address="", adopts=adopts))
        liar = LyingNode(tmp_path, "evil", 1)
        async with liar.serving(), lying_gateway(store, liar, nodes[0]) as remote:
            assert await count_at(store, remote, 8, "evil") == 1

    with database(tmp_path) as store:
        asyncio.run(body(store))


def test_a_node_without_a_limit_gets_its_share_whatever_files_it_has(nodes: list[NodeProcess], tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        liar = LyingNode(tmp_path, "evil", 0)
        async with liar.serving(), lying_gateway(store, liar, nodes[0]) as remote:
            assert await count_at(store, remote, 8, "evil") == 4

    with database(tmp_path) as store:
        asyncio.run(body(store))


@pytest.mark.parametrize(("most", "expected"), [(None, 0), (0, 7)], ids=["unconfirmed", "confirmed"])
def test_any_number_beside_limits_is_the_operators_word(tmp_path: Path, most: int | None, expected: int) -> None:
    async def body(store: Store, full: NodeProcess) -> None:
        liar = LyingNode(tmp_path, "evil", 0)
        if most is not None:
            await store.transact(partial(node_rows.set_limit, name="evil", address="", most=most))
        async with liar.serving(), lying_gateway(store, liar, full) as remote:
            assert await count_at(store, remote, 8, "evil") == expected

    options = ("--sandbox", "none", "--name", "full", "--max-people", "1")
    with database(tmp_path) as store, running_node(tmp_path / "full", *options) as full:
        asyncio.run(body(store, full))


def test_a_draining_node_gets_nobody_whatever_files_it_has(nodes: list[NodeProcess], tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        await store.transact(partial(node_rows.set_adopting, name="evil", address="", adopts=True))
        await store.transact(partial(node_rows.set_draining, name="evil", address="", draining=True))
        liar = LyingNode(tmp_path, "evil", 0)
        async with liar.serving(), lying_gateway(store, liar, nodes[0]) as remote:
            assert await count_at(store, remote, 8, "evil") == 0

    with database(tmp_path) as store:
        asyncio.run(body(store))


@pytest.mark.parametrize(("name", "word"), [("evil", 0), ("evil", 999), ("evil", -1), ("other", 0), ("other", 10**30)])
def test_a_later_word_of_a_node_does_not_raise_its_limit(tmp_path: Path, name: str, word: int) -> None:
    """Nor does another name at the same address."""

    async def body(store: Store, full: NodeProcess) -> None:
        liar = LyingNode(tmp_path, "evil", 1)
        async with liar.serving(), lying_gateway(store, liar, full) as remote:
            assert await count_at(store, remote, 2, "evil") == 1  # both are full now
            liar.name, liar.max_people = name, word
            await come_back(liar, remote)
            assert await count_at(store, remote, 8, name) == (name == "evil")
            with pytest.raises(ToolError, match="take no new people: nothing was done"):
                await remote.get_or_open(fake_principal()).list()
        async with liar.serving(), lying_gateway(store, liar, full) as remote:  # nor after a restart of the gateway
            assert await count_at(store, remote, 8, name) == (name == "evil")

    options = ("--sandbox", "none", "--name", "full", "--max-people", "1")
    with database(tmp_path) as store, running_node(tmp_path / "full", *options) as full:
        asyncio.run(body(store, full))


def test_the_operator_raises_a_limit_and_a_node_lowers_it(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        liar = LyingNode(tmp_path, "evil", 1)
        async with liar.serving(), lying_gateway(store, liar) as remote:
            assert await count_at(store, remote, 3, "evil") == 1
            await store.transact(partial(node_rows.set_limit, name="evil", address="", most=3))
            assert await count_at(store, remote, 3, "evil") == 1  # it says 1 itself
            liar.max_people = 0
            await come_back(liar, remote)
            assert await count_at(store, remote, 5, "evil") == 3
            await store.transact(partial(node_rows.set_limit, name="evil", address="", most=0))
            assert await count_at(store, remote, 2, "evil") == 5

    with database(tmp_path) as store:
        asyncio.run(body(store))


def test_commands_set_the_limit_and_the_adoption_of_a_node(nodes: list[NodeProcess], tmp_path: Path) -> None:
    def said(*words: str) -> tuple[int, str]:
        done = command(tmp_path, *words, "--node", str(nodes[0].address))
        return done.returncode, (done.stdout + done.stderr).strip()

    assert said("limit", "attic", "20") == (
        0,
        "the node attic gets 20 people; a lower number that it says itself (--max-people) counts, too",
    )
    assert said("list")[1].splitlines()[1].split()[5] == "0/20"
    assert said("adopt", "attic") == (
        1,
        "toolgate: the node attic gets 20 people at most: toolgate node limit attic 0 first",
    )
    assert said("limit", "attic", "0")[0] == 0
    assert said("adopt", "attic") == (
        0,
        "people without a node are on attic if it says that it has their files; --undo ends that",
    )
    assert said("adopt", "attic", "--undo")[0] == 0
    for number in ("-1", "many", "1000000", "²"):
        assert said("limit", "attic", number)[0] == 2
    assert said("limit", "cellar", "1")[0] == 2  # no such node


def test_a_node_without_a_limit_beside_others_with_one_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(store: Store) -> None:
        await store.transact(partial(node_rows.set_limit, name="small", address="", most=1))
        liar = LyingNode(tmp_path, "evil", 0)
        async with liar.serving(), lying_gateway(store, liar):
            assert any("toolgate node limit evil N sets its number" in said for said in caplog.messages)
        caplog.clear()
        await store.transact(partial(node_rows.set_limit, name="evil", address="", most=0))
        async with liar.serving(), lying_gateway(store, liar):
            assert not [said for said in caplog.messages if "node limit" in said]

    with database(tmp_path) as store:
        asyncio.run(body(store))
