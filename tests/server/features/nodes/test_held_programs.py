"""Programs at a node whose streams a gateway holds: breaks of the connection, and the ends of node and gateway."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.features.nodes.nodes import NodeProcess, fake_principal, gateway, remote_workspace, running_node
from tests.server.features.nodes.test_contract import node_at
from tests.tools.shell_commands import BOUND, living, until
from tests.tools.workspace.commands.test_program_streams import program, read_all, read_line
from toolgate.server.base.rpc import frames
from toolgate.server.features.nodes.gateway import link as links
from toolgate.server.features.nodes.gateway.remote_methods import NodeRequests
from toolgate.server.features.nodes.messages import Cancel, NodeRequest
from toolgate.server.features.nodes.node.gateway_session import GatewaySession
from toolgate.server.features.nodes.node.moves import WorkspaceMoves
from toolgate.server.features.nodes.node.node import Node
from toolgate.tools import ToolError
from toolgate.tools.workspace.workspace import ProgramAccess, ProgramEnd, WorkspaceUnreachableError

SIZE = 10 * 2**20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node"), "--sandbox", "none") as node:
        yield node


def test_a_short_break_of_the_connection_loses_nothing(node: NodeProcess) -> None:
    async def body() -> None:
        async with gateway(node) as remote, program(remote.get_or_open(fake_principal()), "exec cat") as stream:
            (link,) = remote.links
            data, breaks = os.urandom(SIZE), 0

            async def write() -> None:
                await stream.write(data)
                await stream.close_input()

            async with asyncio.timeout(BOUND):
                writing, got = asyncio.ensure_future(write()), bytearray()
                while piece := await stream.read():
                    got += piece
                    if len(got) > (breaks + 1) * SIZE // 5:
                        breaks += 1
                        link._reconnect()
                await writing
                assert bytes(got) == data and breaks == 4
                assert await stream.wait() == ProgramEnd(0)

    asyncio.run(body())


def test_a_cancelled_read_loses_nothing(node: NodeProcess) -> None:
    async def body() -> None:
        async with remote_workspace(node) as mine, program(mine, "seq 20000") as stream, asyncio.timeout(BOUND):
            got, turns = bytearray(), 0
            while not got.endswith(b"\n20000\n"):
                reading = asyncio.ensure_future(stream.read())
                turns += 1
                for _ in range(turns % 5):
                    await asyncio.sleep(0)
                if turns % 2:
                    reading.cancel()
                    await asyncio.wait([reading])
                if not reading.cancelled():
                    got += await reading
            assert got.decode().split() == [*map(str, range(1, 20001))]

    asyncio.run(body())


def test_a_lost_connection_ends_the_program_within_seconds(node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"611.{os.getpid()}"

    async def body() -> None:
        async with gateway(node) as remote:
            mine = remote.get_or_open(fake_principal())
            stream = await mine.open_program(["bash", "-c", f"trap '' TERM; echo up; sleep {mark}; cat"], env={})
            assert await read_line(stream) == "up\n"
            await until(lambda: bool(living(mark)))
            (link,) = remote.links
            reading = asyncio.ensure_future(stream.read())
            await until(lambda: link.waiting_count == 1)

            async def connect(_link: object) -> None:
                raise links.NodeUnreachableError("the wire is cut")

            with monkeypatch.context() as cut:
                cut.setattr(links.NodeLink, "_connect", connect)
                link._reconnect()
                with pytest.raises(WorkspaceUnreachableError, match="can't be reached"):
                    await reading
                await until(lambda: not living(mark))
            await until(lambda: link.is_connected)
            with pytest.raises(WorkspaceUnreachableError, match="the program has ended: the connection to the node"):
                await stream.read()
            await stream.close()
            assert await stream.read() == b""
            async with program(mine, "echo well") as other:
                assert await read_line(other) == "well\n"

    asyncio.run(body())


def test_the_death_of_a_node_is_an_error_that_says_so(tmp_path: Path) -> None:
    mark = f"612.{os.getpid()}"

    async def body(node: NodeProcess) -> None:
        async with gateway(node) as remote:
            mine = remote.get_or_open(fake_principal())
            stream = await mine.open_program(["bash", "-c", f"trap '' TERM; sleep {mark} & echo up; cat"], env={})
            assert await read_line(stream) == "up\n"
            reading, waiting = asyncio.ensure_future(stream.read()), asyncio.ensure_future(stream.wait())
            await until(lambda: remote.links[0].waiting_count == 2)
            node.kill()
            for each in (reading, waiting):
                with pytest.raises(WorkspaceUnreachableError, match=r"the node at .* can't be reached"):
                    await each
            await until(lambda: not living(mark))
            await asyncio.to_thread(node.start)
            await until(lambda: remote.links[0].is_connected)
            async with program(mine, "exec cat") as other:
                await other.write(b"hi")
                with pytest.raises(WorkspaceUnreachableError, match="the program has ended"):
                    await stream.read()
                assert await other.read() == b"hi"
            await stream.close()
            assert (await stream.wait()).exit_code is None

    with running_node(tmp_path, "--sandbox", "none") as node:
        asyncio.run(body(node))


def test_a_cancellation_that_crosses_the_answer_ends_the_program(node: NodeProcess) -> None:
    mark = f"613.{os.getpid()}"

    async def body() -> None:
        async with gateway(node) as remote:
            mine = remote.get_or_open(fake_principal())
            calls: list[asyncio.Future[object]] = []
            (link,) = remote.links
            take = link._take

            def take_and_cancel(message: object) -> None:
                take(message)
                for call in calls:
                    call.cancel()

            link._take = take_and_cancel  # type: ignore[method-assign]
            assert await mine.list() == []
            call = asyncio.ensure_future(mine.open_program(["sleep", mark], env={}))
            calls.append(call)
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: not living(mark))

    asyncio.run(body())


class OpeningWorkspace:
    """The workspace of everybody: a program that opens when the test says so, and notes its end."""

    def __init__(self) -> None:
        self.opened = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()

    def get_or_open(self, _principal: str) -> "OpeningWorkspace":
        return self

    async def open_program(self, *_words: object, **_how: object) -> "OpeningWorkspace":
        await self.opened
        return self

    async def close(self, _grace: float) -> None:
        self.closed.set()

    async def wait(self) -> ProgramEnd:
        return ProgramEnd(0)


def test_a_program_that_opens_in_the_moment_of_its_cancellation_ends(tmp_path: Path) -> None:
    arguments = frames.encode_raw({"argv": ["sleep", "600"], "env": {}, "cwd": None, "shows": []})

    async def body() -> None:
        node, workspace = Node(), OpeningWorkspace()
        node.workspaces = workspace  # type: ignore[assignment]  # what is used of it
        node.moves = WorkspaceMoves(tmp_path, None, is_shared=False)  # type: ignore[arg-type]  # nobody moves
        session = GatewaySession(node, lambda: None)
        session.take(NodeRequest(1, "local", "node.start_program", arguments))
        await asyncio.sleep(0.05)
        workspace.opened.set_result(None)
        session.take(Cancel(1))
        await asyncio.wait_for(workspace.closed.wait(), BOUND)

    asyncio.run(body())


def test_the_end_of_a_gateway_ends_its_programs(node: NodeProcess) -> None:
    mark = f"614.{os.getpid()}"

    async def body() -> None:
        async with gateway(node) as remote:
            mine = remote.get_or_open(fake_principal())
            stream = await mine.open_program(["bash", "-c", f"trap '' TERM; echo up; sleep {mark}; cat"], env={})
            assert await read_line(stream) == "up\n"
            await until(lambda: bool(living(mark)))
        await until(lambda: not living(mark))

    asyncio.run(body())


def test_a_move_of_the_workspace_ends_its_programs(node: NodeProcess) -> None:
    async def body() -> None:
        async with gateway(node) as remote:
            principal = fake_principal()
            mine, mover = remote.get_or_open(principal), NodeRequests.create(remote.links[0], principal)
            async with program(mine, "trap '' TERM; echo up; cat; sleep 600") as stream, asyncio.timeout(BOUND):
                assert await read_line(stream) == "up\n"
                reading, waiting = asyncio.ensure_future(stream.read()), asyncio.ensure_future(stream.wait())
                await until(lambda: remote.links[0].waiting_count == 2)
                await mover.begin_move()
                assert await reading == b""
                assert (await waiting).reason == "the workspace moves to another node"
                await mover.cancel_move()

    asyncio.run(body())


def test_an_older_node_is_told_apart(node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolgate.server.features.nodes.gateway.remote_workspace.PROGRAMS_SINCE", 999)

    async def body() -> None:
        async with remote_workspace(node) as mine:
            with pytest.raises(ToolError, match="is of an older release, which holds no programs: upgrade it"):
                await mine.open_program(["true"], env={})

    asyncio.run(body())


@pytest.mark.programs("bwrap")
@pytest.mark.parametrize("level", ["bwrap", "uid", "none"])
def test_a_node_says_whether_it_keeps_programs_apart(level: str) -> None:
    async def body(node: NodeProcess) -> None:
        async with remote_workspace(node) as mine:
            assert mine.isolates_environment == (level != "none")
            async with program(mine, 'echo "$KEY"; pwd', {"KEY": "k"}) as stream:
                assert (await read_all(stream)).decode() == f"k\n{mine.root}\n"

    if level != "none" and os.geteuid() != 0:
        pytest.skip("only root can be several users")
    with node_at(level) as node:
        asyncio.run(body(node))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
@pytest.mark.programs("bwrap")
def test_a_node_holds_a_program_to_its_places() -> None:
    connect = "printf 'CONNECT out.test:443 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' >&3; cat <&3"
    ask = f"exec 3<>/dev/tcp/127.0.0.1/3128; {connect}"

    async def body(node: NodeProcess) -> None:
        async with remote_workspace(node) as mine:
            state = Path(mine._welcome.state)
            shown = state.parent / "shown"
            shown.write_text("shown\n")
            places = ProgramAccess("[mounts.far]", ("in.test",), (shown,))
            async with program(mine, f"cat {shown}; {ask}", access=places) as stream:
                said = (await read_all(stream)).decode()
                assert said.startswith("shown\n") and said.endswith('add "out.test" to network of [mounts.far]\n')
                assert 'add "out.test" to network of [mounts.far]\n' in await stream.stderr_tail()
            for path in (state, state / "keys"):
                with pytest.raises(ToolError, match="of the server's own"):
                    await mine.open_program(["true"], env={}, access=ProgramAccess("[mounts.far]", None, (path,)))

    with node_at("bwrap", "--sandbox-network", "none") as node:
        asyncio.run(body(node))
