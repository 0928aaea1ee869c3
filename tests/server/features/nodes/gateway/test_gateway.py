"""A real server with --node, used by the official Python client: what people do works as without a node."""

import asyncio
import base64
import contextlib
import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ResourceUpdated
from PIL import Image

from tests.clients.raw_client import PATIENCE, children, eventually
from tests.clients.raw_http_client import Site, site
from tests.server.features.nodes.nodes import NodeProcess, running_node
from tests.tools.builtin.test_resources import LATE
from toolgate.server.app import build
from toolgate.server.cli import main
from toolgate.server.config import load
from toolgate.server.features.nodes.commands.node import ALLOW_PRIVATE
from toolgate.server.features.nodes.node.databases import find_database_id
from toolgate.tools.api.errors import ToolError

pytestmark = pytest.mark.programs("bwrap", "rg")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node"), "--sandbox", "bwrap") as node:
        yield node


@pytest.fixture(scope="module")
def server(node: NodeProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    plugins = tmp_path_factory.mktemp("plugins")
    (plugins / "late.py").write_text(LATE)
    words = ("--node", f"unix:{node.socket}", "-p", "builtin:files", "-p", str(plugins))
    with site(tmp_path_factory.mktemp("gateway"), *words, workspace=False) as server:
        yield server


@contextlib.asynccontextmanager
async def connected(server: Site, mode: str = "auto", **options: Any) -> AsyncIterator[Client]:
    async with (
        asyncio.timeout(PATIENCE),
        Client(streamable_http_client(f"{server.url}/mcp"), mode=mode, **options) as me,
    ):
        yield me


async def text(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return "\n".join(block.text for block in result.content if block.type == "text")


def test_commands_run_at_the_node_and_a_directory_persists(server: Site, node: NodeProcess) -> None:
    async def body() -> None:
        async with connected(server) as me:
            own = f"{node.state}/workspaces/local"
            assert (await text(me, "Bash", command="pwd -P; mkdir -p src; cd src")).splitlines()[0] == own
            assert await text(me, "Bash", command="pwd -P; cd ..") == f"{own}/src\n"
            failed = await text(me, "Bash", command="echo said; exit 3")
            assert failed == "said\nexit code: 3"
            assert "bwrap" in str((await me.call_tool("BackgroundBash", {"command": "true"})).content)

    asyncio.run(body())


def test_the_node_knows_the_servers_database(server: Site, node: NodeProcess) -> None:
    known = node.state / "uses" / "databases"
    assert eventually(lambda: known.exists() and find_database_id(server.state) in known.read_text().split())


def test_a_background_task_is_started_read_listed_and_killed(server: Site) -> None:
    async def body() -> None:
        async with connected(server) as me:
            begun = await me.call_tool(
                "BackgroundBash", {"command": "echo first; mkfifo go; read -r _ < go; sleep 500"}
            )
            task = begun.structured_content["task_id"]
            read = ""
            while "first\n" not in read:
                read += await text(me, "ReadBgOutput", task_id=task)
            listed = (await me.call_tool("ListBgTasks", {})).structured_content["tasks"]
            assert [row["status"] for row in listed if row["task_id"] == task] == ["running"]
            assert "killed" in await text(me, "KillBgTask", task_id=task)

    asyncio.run(body())


def test_pictures_and_files_of_the_workspace_are_read(server: Site, node: NodeProcess) -> None:
    async def body() -> None:
        async with connected(server) as me:
            await text(me, "Bash", command="echo to be read > notes.txt")
            folder = node.state / "workspaces" / "local"
            data = io.BytesIO()
            Image.new("RGB", (40, 30), "red").save(data, "PNG")
            (folder / "red.png").write_bytes(data.getvalue())
            (picture,) = [
                block
                for block in (await me.call_tool("ReadImage", {"file_path": f"{folder}/red.png"})).content
                if block.type == "image"
            ]
            with Image.open(io.BytesIO(base64.b64decode(picture.data))) as shown:
                assert shown.size == (40, 30)
            uris = {str(each.uri) for each in (await me.list_resources()).resources}
            assert f"file://{folder}/notes.txt" in uris
            (content,) = (await me.read_resource(f"file://{folder}/notes.txt")).contents
            assert content.text == "to be read\n"

    asyncio.run(body())


@pytest.mark.parametrize("scheme", ["file:///", "late://"])  # a plugin whose watch begins late
def test_a_change_of_a_file_at_the_node_reaches_its_subscriber(server: Site, node: NodeProcess, scheme: str) -> None:
    async def body() -> None:
        async with connected(server) as me:
            await text(me, "Bash", command="echo one > watched.txt")
            uri = f"{scheme}{str(node.state)[1:]}/workspaces/local/watched.txt"
            await asyncio.sleep(0.2)  # a change just before counts as one since
            async with me.listen(resource_subscriptions=[uri]) as news:
                await text(me, "Bash", command="echo more >> watched.txt")
                assert await anext(aiter(news)) == ResourceUpdated(uri=uri)

    asyncio.run(body())


def test_the_file_tools_work_on_the_workspace_at_the_node(server: Site) -> None:
    async def body() -> None:
        async with connected(server) as me:
            await text(me, "Write", file_path="poem.txt", content="a line\nanother line\n")
            assert "another line" in await text(me, "Read", file_path="poem.txt")
            assert "poem.txt" in await text(me, "Grep", pattern="another")
            await text(me, "Edit", file_path="poem.txt", old_string="a line", new_string="the line")
            assert (await text(me, "Bash", command="head -1 poem.txt")) == "the line\n"

    asyncio.run(body())


def test_a_plan_makes_commands_at_the_node_read_only(server: Site) -> None:
    async def body() -> None:
        async with connected(server, "legacy") as me:
            await text(me, "PlanMode", action="enter", goal="look around")
            assert "read-only" in await text(me, "Bash", command="touch in-plan || ls in-plan; true")
            await text(me, "PlanMode", action="exit")

    asyncio.run(body())


@pytest.mark.parametrize(
    "words",
    [
        ["--sandbox", "none"],
        ["--workspace", "."],
        ["--sandbox-network", "none"],
        ["--sandbox-paths", "/usr"],
        ["--sandbox-uids", "20000-20009"],
        ["--idle-workspaces", "delete"],
        ["--gone-after", "1d"],
        ["--limit", "memory=1G"],
        ["--limit", "commands=4"],
    ],
)
def test_what_is_the_nodes_is_refused_beside_a_node(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ["--state", str(tmp_path / "state")]
    assert main.run(["-t", "--auth", "none", "--node", f"unix:{tmp_path}/none.sock", *state, *words]) == 2
    said = capsys.readouterr().err
    assert f"{words[0]} " in said and "give it to toolgate node, not beside --node" in said


@pytest.mark.parametrize("limit", ["calls=5", "calls:tools:shell=5"])
def test_a_limit_of_calls_is_refused_at_a_node(limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ["--state", str(tmp_path / "state")]
    for command in (["node"], ["node", "doctor"]):
        assert main.run([*command, *state, "--listen", "unix:/dev/null/node.sock", "--limit", limit]) == 2
        assert f"--limit {limit} is the server's: give it to the server with --node" in capsys.readouterr().err


def test_a_refused_address_names_the_nodes_option_at_a_node() -> None:
    web = build.build_web(load.load({}), ALLOW_PRIVATE)

    async def body() -> None:
        with pytest.raises(ToolError, match=r"can allow it with the node's --allow-private 127\.0\.0\.1"):
            await web.fetch("http://127.0.0.1/")

    asyncio.run(body())


def test_a_node_that_is_missing_is_named_with_what_starts_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ["--state", str(tmp_path / "state")]
    limits = ["--limit", "calls=100"]  # stays with the server
    assert main.run(["-t", "--auth", "none", "--node", f"unix:{tmp_path}/none.sock", *state, *limits]) == 2
    assert f"start one with toolgate node --listen unix:{tmp_path}/none.sock" in capsys.readouterr().err


def test_a_server_whose_commands_are_elsewhere_starts_no_process_and_makes_no_folders_for_them(server: Site) -> None:
    assert children(server.process.pid) == set()
    made = {entry.name for entry in server.state.iterdir()}
    assert not made & {"workspaces", "spool", "uses"}


def test_a_server_with_nodes_takes_over_no_call_of_one_without(tmp_path: Path) -> None:
    here = load.load({"http": "true", "state": str(tmp_path)})
    there = load.load({"http": "true", "state": str(tmp_path), "node": [f"unix:{tmp_path}/node.sock"]})
    assert build.hash_options(here, "") != build.hash_options(there, "at nodes")
